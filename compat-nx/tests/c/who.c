/* Tables 1.1, 1.7 (what a node may ask), 1.8, 1.9 and 1.10. */
#include "check.h"
#include <fcntl.h>
#include <sys/uio.h>
#include <time.h>

static long me, n;

static void identity(void)
{
	nx_int_t rows, cols;
	unsigned long count;
	nx_nodes_t nodes;
	long i, d;

	CHECK(_mynode() == me && _numnodes() == n && me >= 0 && me < n);
	CHECK(myhost() == n && HOST == n && _myhost() == -1);
	CHECK(myptype() == 0 && _myptype() == 0 && mypid() == 0 && _mypid() == 0);
	for (d = 0; (1 << d) < n; d++)
		;
	CHECK(nodedim() == d && _nodedim() == d);
	CHECK(mypart(&rows, &cols) >= 0 && rows * cols == n);
	CHECK(_mypart(&rows, &cols) == 0 && rows * cols == n);
	CHECK(nx_app_rect(&rows, &cols) == 0 && rows * cols == n);
	/* Integers of this width, and no more is written: with int arrays, the 32-bit entries. */
	for (i = 0; i < 3; i++) {
		nx_int_t at[4] = { -7, -7, -7, -7 };

		CHECK((i == 0 ? mypart(&at[1], &at[2]) : i == 1 ? _mypart(&at[1], &at[2]) : nx_app_rect(&at[1], &at[2])) == 0);
		CHECK(at[0] == -7 && at[1] == 1 && at[2] == n && at[3] == -7);
	}
	CHECK(nx_app_nodes(0, &nodes, &count) == 0 && count == (unsigned long)n);
	for (i = 0; i < n; i++)
		CHECK(nodes[i] == i);
	free(nodes);
	for (i = 0; i < 100; i++)
		CHECK(ginv(gray(i)) == i && _ginv(_gray(i)) == i);
	CHECK(gray(2) == 3 && ginv(2) == 3);
	CHECK(_myphysnode() == me && _mydirect() == me);
	led(1);
	CHECK(_led(0) == 0);
	flick();
	CHECK(_flick() == 0);
	CHECK(nx_pri(0, 5) == 0 && nx_waitall() == -1 && errno == ECHILD);
	mcmsg_wire();
	/* Another process type: messages for it, and for no other, are taken. */
	i = 1;
	csend(1, &i, sizeof i, me, 7);
	CHECK(iprobe(1) == 0);
	setptype(7);
	CHECK(myptype() == 7);
	crecv(1, &i, sizeof i);
	CHECK(infonode() == me);
	CHECK(_setptype(8) == 0 && myptype() == 8);
	setpid(9);
	CHECK(mypid() == 9 && _setpid(0) == 0 && myptype() == 0);
}

/* dclock has steps below a microsecond: the smallest of many is (5.19). */
static void steps(void)
{
	double smallest = 1, d, e;
	int i;

	for (i = 0; i < 1000; i++) {
		d = dclock();
		while ((e = dclock()) == d)
			;
		if (e - d < smallest)
			smallest = e - d;
	}
	CHECK(smallest > 0 && smallest < 1e-6);
}

static double system_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Seconds, milliseconds and ticks of HWHZ are those of the system, which is asked before and after (5.19). */
static void units(void)
{
	struct { double before, after, d; unsigned long m; esize_t h; } at[2];
	double least, most;
	long ticks;
	int i;

	for (i = 0; i < 2; i++) {
		at[i].before = system_clock();
		at[i].d = dclock();
		at[i].m = mclock();
		hwclock(&at[i].h);
		at[i].after = system_clock();
		usleep(20000);
	}
	least = at[1].before - at[0].after;
	most = at[1].after - at[0].before;
	ticks = ediv(esub(at[1].h, at[0].h), 1);
	CHECK(least > 0.019);
	CHECK(at[1].d - at[0].d >= least - 1e-6 && at[1].d - at[0].d <= most + 1e-6);
	CHECK(at[1].m - at[0].m >= least * 1e3 - 1.001 && at[1].m - at[0].m <= most * 1e3 + 1.001);
	CHECK(ticks >= least * HWHZ - 2 && ticks <= most * HWHZ + 2);
}

static void clocks(void)
{
	double d = dclock(), e;
	unsigned long m = mclock();
	esize_t h, k;
	long i;

	hwclock(&h);
	CHECK(_hwclock(&k) == 0);
	CHECK(ecmp(h, k) <= 0);
	for (i = 0; i < 1000; i++) {
		e = dclock();
		CHECK(e >= d);
		d = e;
	}
	while (mclock() < m + 2)
		;
	CHECK(_mclock() >= m + 2 && _dclock() >= e);
	/* All three tell the same time; what is read first is no later. */
	m = mclock();
	CHECK(dclock() * 1000 + 1 >= m);
	hwclock(&h);
	CHECK(ediv(h, HWHZ / 1000) <= (long)mclock() + 1);
}

static void arithmetic(void)
{
	esize_t a, b;
	char text[32];

	CHECK(stoe("5000000000", &a) == 0);
	etos(a, text);
	CHECK(strcmp(text, "5000000000") == 0 && a.shigh == 1);
	b = eadd(a, a);
	etos(b, text);
	CHECK(strcmp(text, "10000000000") == 0);
	CHECK(ecmp(esub(b, a), a) == 0 && ecmp(a, b) == -1 && ecmp(b, a) == 1);
	etos(eadd1(a, 7), text);
	CHECK(strcmp(text, "5000000007") == 0);
	etos(esub1(a, 7), text);
	CHECK(strcmp(text, "4999999993") == 0);
	etos(emul(a, -3), text);
	CHECK(strcmp(text, "-15000000000") == 0);
	CHECK(ediv(a, 100) == 50000000 && emod(a, 7) == 5000000000L % 7);
	CHECK(stoe("twelve", &a) == -1 && errno == EQPARAM);
}

static void files(void)
{
	char name[] = "/tmp/nx-who-XXXXXX", in[64];
	struct iovec v = { in, 5 };
	esize_t at, off = { 3, 0 };
	int fd;

	close(mkstemp(name));
	/* A file of each node's own: other modes are in modes.c. */
	fd = gopen(name, O_RDWR, M_ASYNC, 0600);
	CHECK(fd >= 0 && iomode(fd) == M_ASYNC);
	setiomode(fd, M_UNIX);
	CHECK(_setiomode(fd, M_ASYNC) == 0 && _iomode(fd) == M_ASYNC);
	CHECK(_setiomode(fd, 17) == -1 && errno == EQPARAM);
	CHECK(_setiomode(-1, M_LOG) == -1 && errno == EBADF);
	CHECK(_gopen("/no/such/file", O_RDONLY, M_UNIX, 0) == -1 && errno == ENOENT);
	CHECK(cwrite(fd, "hello", 5) == 5 && _cwrite(fd, " world", 6) == 6);
	CHECK(iseof(fd) == 1);
	at = eseek(fd, off, SEEK_SET);
	CHECK(at.slow == 3 && _iseof(fd) == 0);
	CHECK(cread(fd, in, 2) == 2 && memcmp(in, "lo", 2) == 0);
	CHECK(_cread(fd, in, 60) == 6 && memcmp(in, " world", 6) == 0);
	CHECK(readoff(fd, off, in, 4) == 4 && memcmp(in, "lo w", 4) == 0);
	CHECK(_readoff(fd, off, in, 4) == 4);
	CHECK(writeoff(fd, off, "XY", 2) == 2 && _writeoff(fd, off, "lo", 2) == 2);
	CHECK(readvoff(fd, off, &v, 1) == 5 && _readvoff(fd, off, &v, 1) == 5);
	memcpy(in, "lo wo", 5);
	CHECK(writevoff(fd, off, &v, 1) == 5 && _writevoff(fd, off, &v, 1) == 5);
	eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	CHECK(creadv(fd, &v, 1) == 5 && memcmp(in, "hello", 5) == 0 && _creadv(fd, &v, 1) == 5);
	_eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	memcpy(in, "hello", 5);
	CHECK(cwritev(fd, &v, 1) == 5);
	memcpy(in, " worl", 5);
	CHECK(_cwritev(fd, &v, 1) == 5);
	_eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	iowait(iread(fd, in, 5));
	CHECK(memcmp(in, "hello", 5) == 0);
	CHECK(iodone(_iread(fd, in, 5)) == 1 && memcmp(in, " worl", 5) == 0);
	CHECK(_iowait(iwrite(fd, "d", 1)) == 0 && _iodone(_iwrite(fd, "!", 1)) == 1);
	CHECK(_iowait(12345) == -1 && errno == EQMID);
	_eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	CHECK(iodone(ireadv(fd, &v, 1)) == 1 && iodone(_ireadv(fd, &v, 1)) == 1);
	_eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	CHECK(iodone(iwritev(fd, &v, 1)) == 1 && iodone(_iwritev(fd, &v, 1)) == 1);
	CHECK(iodone(ireadoff(fd, off, in, 1)) == 1 && iodone(_ireadoff(fd, off, in, 1)) == 1);
	CHECK(iodone(iwriteoff(fd, off, in, 1)) == 1 && iodone(_iwriteoff(fd, off, in, 1)) == 1);
	CHECK(iodone(ireadvoff(fd, off, &v, 1)) == 1 && iodone(_ireadvoff(fd, off, &v, 1)) == 1);
	CHECK(iodone(iwritevoff(fd, off, &v, 1)) == 1 && iodone(_iwritevoff(fd, off, &v, 1)) == 1);
	CHECK(lsize(fd, 100, SIZE_SET) == 100 && _lsize(fd, 50, SIZE_SET) == 100);
	CHECK(esize(fd, (esize_t){ 20, 0 }, SIZE_END).slow == 120);
	CHECK(_esize(fd, (esize_t){ 0, 0 }, SIZE_END).slow == 120);
	CHECK(_lsize(fd, 0, 9) == -1 && errno == EQPARAM);
	CHECK(_estat(name, in) == -1 && errno == ENOSYS);
	CHECK(_festat(fd, in) == -1 && _lestat(name, in) == -1 && _statpfs(name, in, in, 1) == -1);
	CHECK(_fstatpfs(fd, in, in, 1) == -1 && _getpfsinfo(in) == -1);
	CHECK(_restrictvol(fd, 0, in) == -1 && errno == ENOSYS);
	close(fd);
	unlink(name);
}

/* The table of descriptors has room for the library's own from the start: with threads the kernel takes milliseconds to make it longer. */
static void places(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long n = 0;

	while (fgets(line, sizeof line, status))
		sscanf(line, "FDSize: %ld", &n);
	fclose(status);
	CHECK(n > 512);
}

static void partitions(void)
{
	long (*all[])() = { nx_mkpart, nx_mkpart_rect, nx_mkpart_map, nx_mkpart_attr, nx_rmpart,
		nx_chpart_epl, nx_chpart_mod, nx_chpart_name, nx_chpart_owner, nx_chpart_rq,
		nx_chpart_sched, nx_pspart };
	unsigned i;

	for (i = 0; i < sizeof all / sizeof *all; i++) {
		errno = 0;
		CHECK(all[i]("here", 1, 2) == -1 && errno == ENOSYS);
	}
	errno = EQMSGLONG;
	nx_perror("nx_perror's own test");
	CHECK(errno == EQMSGLONG);
}

int main(int argc, char **argv)
{
	me = mynode();
	n = numnodes();
	/* Switches are gone, the program's own arguments are there. */
	CHECK(argc == 3 && strcmp(argv[1], "one") == 0 && strcmp(argv[2], "-two") == 0 && !argv[3]);
	places();
	identity();
	clocks();
	steps();
	units();
	arithmetic();
	files();
	partitions();
	gsync();
	if (me == 0)
		printf("who: all good on %ld nodes\n", n);
	return 0;
}
