/* I/O modes: what all nodes write to a file is where the mode has it, and what they read. The argument is a directory that all have;
   with a second one nodes are on several machines. What the calls have written is looked at through open(2) and read(2). */
#include "check.h"
#include <fcntl.h>
#include <sys/uio.h>
#include <sys/wait.h>

static long me, n, several;
static char dir[300], name[400];

static const char *file(const char *which)
{
	snprintf(name, sizeof name, "%s/%s", dir, which);
	return name;
}

/* All of a file, as others see it. */
static long contents(const char *path, unsigned char *room, long size)
{
	long len, all = 0;
	int fd = open(path, O_RDONLY);

	CHECK(fd >= 0);
	while ((len = read(fd, room + all, size - all)) > 0)
		all += len;
	close(fd);
	return all;
}

static unsigned char seen[1 << 20], buf[1 << 12];

#define LEN(round) (24 + 8 * (round))
static const esize_t head = { 10, 0 };

/* Node 0 has written a head by itself; then come records. */
static void record(void)
{
	struct iovec v[2] = { { buf, 5 }, { buf + 5, LEN(1) - 5 } };
	long round, node, at = 10;
	int fd = gopen(file("record"), O_RDWR | O_CREAT | O_TRUNC, M_UNIX, 0600);

	if (me == 0)
		CHECK(cwrite(fd, "0123456789", 10) == 10);
	setiomode(fd, M_RECORD);
	CHECK(iomode(fd) == M_RECORD);
	for (round = 0; round < 4; round++) {
		fill(buf, LEN(round), me, round);
		if (round == 1)
			CHECK(cwritev(fd, v, 2) == LEN(round));
		else if (round == 2)
			iowait(iwrite(fd, buf, LEN(round)));
		else
			CHECK(cwrite(fd, buf, LEN(round)) == LEN(round));
	}
	gsync();
	CHECK(contents(file("record"), seen, sizeof seen) == 10 + n * (LEN(0) + LEN(1) + LEN(2) + LEN(3)));
	CHECK(memcmp(seen, "0123456789", 10) == 0);
	for (round = 0; round < 4; round++)
		for (node = 0; node < n; node++, at += LEN(round))
			CHECK(filled(seen + at, LEN(round), node, round));
	CHECK(iseof(fd) == 1 && lsize(fd, 0, SIZE_CUR) == at);
	eseek(fd, head, SEEK_SET);
	for (round = 0; round < 4; round++) {
		CHECK(iseof(fd) == 0);
		memset(buf, 0, sizeof buf);
		CHECK(cread(fd, buf, LEN(round)) == LEN(round) && filled(buf, LEN(round), me, round));
	}
	CHECK(iseof(fd) == 1 && cread(fd, buf, 8) == 0);
	close(fd);
	gsync();
	/* The first node alone gets what is left, and the second one less than a record. */
	if (me == 0)
		CHECK(truncate(file("record"), 60 * n + 90) == 0);
	gsync();
	fd = gopen(file("record"), O_RDONLY, M_RECORD, 0);
	CHECK(cread(fd, buf, 60) == 60 && iseof(fd) == (n > 1 && me >= 2));
	CHECK(cread(fd, buf, 60) == (me == 0 ? 60 : me == 1 ? 30 : 0));
	close(fd);
	gsync();
}

static long length(long node, long round)
{
	return (node * 7 + round * 5) % 11 * 3;
}

static void synchronised(void)
{
	struct iovec v = { buf, 0 };
	long round, node, at = 0, count, len, total;
	int fd = gopen(file("sync"), O_RDWR | O_CREAT | O_TRUNC, M_SYNC, 0600);

	for (round = 0; round < 5; round++) {
		len = v.iov_len = length(me, round);
		fill(buf, len, me, round);
		CHECK((round == 2 ? cwritev(fd, &v, 1) : cwrite(fd, buf, len)) == len);
	}
	CHECK(_iodone(_iwrite(fd, "x", 1)) == 1);
	total = contents(file("sync"), seen, sizeof seen);
	for (round = 0; round < 5; round++)
		for (node = 0; node < n; node++) {
			CHECK(filled(seen + at, length(node, round), node, round));
			at += length(node, round);
		}
	CHECK(total == at + n && lseek(fd, 0, SEEK_CUR) == total && iseof(fd) == 1);
	/* In other lengths than it was written, past the end. */
	eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	for (at = 0; at < total;) {
		CHECK(iseof(fd) == 0);
		for (node = 0; node < me; node++)
			at += 2 * node + 1;
		len = 2 * me + 1;
		count = at >= total ? 0 : total - at < len ? total - at : len;
		CHECK(cread(fd, buf, len) == count && memcmp(buf, seen + at, count) == 0);
		for (node = me; node < n; node++)
			at += 2 * node + 1;
		CHECK(lseek(fd, 0, SEEK_CUR) == (at < total ? at : total));
	}
	CHECK(iseof(fd) == 1 && cread(fd, buf, 5) == 0);
	close(fd);
	gsync();
}

static void global(void)
{
	struct iovec v[2] = { { buf + 100, 20 }, { buf, 3 } };
	long round;
	int fd = gopen(file("global"), O_RDWR | O_CREAT | O_TRUNC, M_GLOBAL, 0600);

	for (round = 0; round < 3; round++) {
		fill(buf, 50 + round, 0, round);
		CHECK(cwrite(fd, buf, 50 + round) == 50 + round);
	}
	gsync();
	CHECK(contents(file("global"), seen, sizeof seen) == 50 + 51 + 52);
	CHECK(filled(seen, 50, 0, 0) && filled(seen + 50, 51, 0, 1) && filled(seen + 101, 52, 0, 2));
	CHECK(iseof(fd) == 1 && lseek(fd, 0, SEEK_CUR) == 153);
	eseek(fd, (esize_t){ 50, 0 }, SEEK_SET);
	memset(buf, 0, sizeof buf);
	CHECK(cread(fd, buf, 51) == 51 && filled(buf, 51, 0, 1) && buf[51] == 0);
	CHECK(creadv(fd, v, 2) == 23 && memcmp(buf + 100, seen + 101, 20) == 0 && memcmp(buf, seen + 121, 3) == 0);
	iowait(iread(fd, buf, 100));
	CHECK(memcmp(buf, seen + 124, 29) == 0 && iseof(fd) == 1 && cread(fd, buf, 1) == 0);
	close(fd);
	gsync();
	/* What is longer than goes by one cell. */
	fd = gopen(file("global"), O_RDWR, M_GLOBAL, 0);
	fill(seen, sizeof seen, 1, 2);
	CHECK(cwrite(fd, seen, sizeof seen) == sizeof seen);
	memset(seen, 0, sizeof seen);
	eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	CHECK(cread(fd, seen, sizeof seen) == sizeof seen && filled(seen, sizeof seen, 1, 2));
	close(fd);
	gsync();
}

static void logged(void)
{
	static long next[64];
	struct iovec v = { buf, 0 };
	long i, node, number, len, total, pad, own = 0, sum, work;
	char *line;
	int fd = gopen(file("log"), O_RDWR | O_CREAT | O_TRUNC, M_LOG, 0600);

	for (i = 0; i < 60; i++) {
		len = sprintf((char *)buf, "%ld %ld %0*d\n", me, i, (int)((me + i) % 40 + 1), 0);
		v.iov_len = len;
		CHECK((i % 3 ? cwrite(fd, buf, len) : cwritev(fd, &v, 1)) == len);
	}
	gsync();
	total = contents(file("log"), seen, sizeof seen - 1);
	seen[total] = 0;
	memset(next, 0, sizeof next);
	for (line = (char *)seen; *line; line += pad + 1) {
		CHECK(sscanf(line, "%ld %ld ", &node, &number) == 2 && node < n && number == next[node]++);
		pad = strcspn(line, "\n");
		len = sprintf((char *)buf, "%ld %ld %0*d", node, number, (int)((node + number) % 40 + 1), 0);
		CHECK(line[pad] && len == pad && memcmp(line, buf, len) == 0);
	}
	for (node = 0; node < n; node++)
		CHECK(next[node] == 60);
	if (several) {
		CHECK(_cread(fd, buf, 10) == -1 && errno == ENOSYS);
		close(fd);
		gsync();
		return;
	}
	/* Each byte is read once, by whoever comes first. */
	CHECK(iseof(fd) == 1);
	gsync();
	if (me == n - 1)
		eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	gsync();
	sum = 0;
	while ((len = cread(fd, buf, 1 + me % 3)) > 0)
		for (own += len; len > 0; len--)
			sum += buf[len - 1];
	gisum(&own, 1, &work);
	gisum(&sum, 1, &work);
	for (i = 0; i < total; i++)
		sum -= seen[i];
	CHECK(own == total && sum == 0);
	gsync();
	/* Other modes take over where it stands; each node has its own pointer again. */
	setiomode(fd, M_RECORD);
	fill(buf, 16, me, 3);
	CHECK(cwrite(fd, buf, 16) == 16);
	gsync();
	CHECK(contents(file("log"), seen, sizeof seen) == total + 16 * n);
	for (node = 0; node < n; node++)
		CHECK(filled(seen + total + 16 * node, 16, node, 3));
	setiomode(fd, M_LOG);
	setiomode(fd, M_UNIX);
	eseek(fd, (esize_t){ total + 16 * me, 0 }, SEEK_SET);
	gsync();
	memset(buf, 0, 16);
	CHECK(cread(fd, buf, 16) == 16 && filled(buf, 16, me, 3));
	close(fd);
	gsync();
}

/* A mode is a file's and ends with it. */
static void own_pointers(void)
{
	int fd = gopen(file("own"), O_RDWR | O_CREAT | O_TRUNC, M_ASYNC, 0600), other;

	eseek(fd, (esize_t){ 4 * me, 0 }, SEEK_SET);
	CHECK(iomode(fd) == M_ASYNC && cwrite(fd, &me, 4) == 4);
	setiomode(fd, M_UNIX);
	CHECK(lseek(fd, 0, SEEK_CUR) == 4 * me + 4);
	gsync();
	CHECK(contents(file("own"), seen, sizeof seen) == 4 * n);
	setiomode(fd, M_SYNC);
	CHECK(lseek(fd, 0, SEEK_CUR) == 4);
	other = dup(fd);
	CHECK(iomode(other) == M_SYNC);
	close(other);
	close(fd);
	if (me == n - 1) {
		other = open(file("own"), O_RDONLY);
		CHECK(other == fd && iomode(other) == M_UNIX);
		CHECK(cread(other, buf, sizeof buf) == 4 * n);
		close(other);
		if (fork() == 0) {
			fd = gopen(file("alone"), O_RDWR | O_CREAT, M_SYNC, 0600);
			_exit(cwrite(fd, "alone", 5) == 5 ? 0 : 1);
		}
		CHECK(wait(&other) > 0 && other == 0);
	}
	gsync();
}

/* Files that must not be there, and that are appended to. */
static void flags(void)
{
	static const int modes[] = { M_LOG, M_SYNC, M_RECORD };
	long i, at, node;
	int fd;

	fd = gopen(file("new"), O_WRONLY | O_CREAT | O_EXCL, M_RECORD, 0600);
	CHECK(fd >= 0 && cwrite(fd, "first\n", 6) == 6);
	close(fd);
	CHECK(_gopen(file("new"), O_WRONLY | O_CREAT | O_EXCL, M_RECORD, 0600) == -1 && errno == EEXIST);
	gsync();
	for (i = 0; i < 3; i++) {
		fd = gopen(file("new"), O_WRONLY | O_APPEND, modes[i], 0);
		fill(buf, 9, 0, i);
		CHECK(cwrite(fd, buf, 9) == 9);
		close(fd);
		gsync();
	}
	CHECK(contents(file("new"), seen, sizeof seen) == n * (6 + 3 * 9));
	for (i = 0, at = 6 * n; i < 3; i++)
		for (node = 0; node < n; node++, at += 9)
			CHECK(filled(seen + at, 9, 0, i));
	gsync();
}

/* Pipes: node 0's. */
static void streams(void)
{
	long node, at = 0;
	int ends[2];

	CHECK(pipe(ends) == 0);
	setiomode(ends[1], M_SYNC);
	setiomode(ends[0], M_GLOBAL);
	fill(buf, me + 1, me, 1);
	CHECK(cwrite(ends[1], buf, me + 1) == me + 1);
	CHECK(cread(ends[0], seen, sizeof seen) == n * (n + 1) / 2);
	for (node = 0; node < n; at += ++node)
		CHECK(filled(seen + at, node + 1, node, 1));
	setiomode(ends[1], M_GLOBAL);
	setiomode(ends[0], M_SYNC);
	fill(buf, 3 * n, 9, 9);
	CHECK(cwrite(ends[1], buf, 3 * n) == 3 * n);
	CHECK(cread(ends[0], seen, 3) == 3 && memcmp(seen, buf + 3 * me, 3) == 0);
	setiomode(ends[1], M_LOG);
	setiomode(ends[0], M_RECORD);
	CHECK(cwrite(ends[1], &me, sizeof me) == sizeof me);
	CHECK(cread(ends[0], &node, sizeof node) == sizeof node && node == me);
	close(ends[0]);
	close(ends[1]);
}

/* All answer the error of one, and go on from where they were. */
static void errors(void)
{
	long last = n - 1, is_last = me == last;
	int fd, read_only;

	CHECK(_gopen(is_last ? "/no/such/file" : file("new"), O_RDONLY, M_UNIX, 0) == -1 && errno == ENOENT);
	CHECK(_gopen(file("new"), O_RDONLY, is_last ? 9 : M_LOG, 0) == -1 && errno == EQPARAM);
	fd = gopen(file("errors"), O_RDWR | O_CREAT | O_TRUNC, M_UNIX, 0600);
	read_only = open(file("errors"), O_RDONLY);
	CHECK(_setiomode(is_last ? -1 : fd, M_SYNC) == -1 && errno == EBADF);
	if (n > 1) {
		CHECK(_gopen(file("new"), O_RDONLY, is_last ? M_LOG : M_SYNC, 0) == -1 && errno == EQPARAM);
		CHECK(_gopen(file(is_last ? "own" : "new"), O_RDONLY, M_UNIX, 0) >= 0);
		if (!several)
			CHECK(_gopen(file(is_last ? "own" : "new"), O_RDONLY, M_RECORD, 0) == -1 && errno == EQPARAM);
		CHECK(_setiomode(fd, is_last ? M_GLOBAL : M_SYNC) == -1 && errno == EQPARAM);
		CHECK(_setiomode(is_last ? read_only : fd, M_SYNC) == -1 && errno == EQPARAM);
	}
	CHECK(iomode(fd) == M_UNIX);
	setiomode(fd, M_SYNC);
	CHECK(_cwrite(fd, buf, is_last ? -1 : 4) == -1 && errno == EQLEN);
	CHECK(_cwrite(fd, is_last ? NULL : buf, 4) == -1 && errno == EFAULT);
	CHECK(_cwritev(fd, is_last ? NULL : buf, is_last ? 1 : 0) == -1 && errno == EFAULT);
	if (n > 1) {
		CHECK((is_last ? _cread(fd, buf, 4) : _cwrite(fd, buf, 4)) == -1 && errno == EQPARAM);
		if (is_last)
			eseek(fd, head, SEEK_SET);
		CHECK(_cwrite(fd, buf, 4) == -1 && errno == EQPARAM);
		eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	}
	CHECK(_cwrite(fd, &me, 4) == 4 && contents(file("errors"), seen, sizeof seen) == 4 * n);
	setiomode(fd, M_GLOBAL);
	eseek(fd, (esize_t){ 0, 0 }, SEEK_SET);
	CHECK(_cread(fd, is_last ? NULL : buf, 4) == -1 && errno == EFAULT);
	CHECK(_cread(fd, buf, is_last ? -4 : 4) == -1 && errno == EQLEN);
	if (n > 1)
		CHECK(_cread(fd, buf, is_last ? 4 : 8) == -1 && errno == EQPARAM);
	CHECK(_cwrite(fd, "end", 3) == 3 && iseof(fd) == 0);
	gsync();
	setiomode(read_only, M_SYNC);
	CHECK(_cwrite(read_only, buf, 1) == -1 && errno == EBADF && _cread(read_only, buf, 4) == 4);
	setiomode(read_only, M_RECORD);
	CHECK(_cwrite(read_only, buf, 1) == -1 && errno == EBADF);
	eseek(read_only, (esize_t){ 0, 0 }, SEEK_SET);
	setiomode(read_only, M_GLOBAL);
	CHECK(_cwrite(read_only, buf, 1) == -1 && errno == EBADF && _cread(read_only, buf, 1) == 1);
	close(fd);
	close(read_only);
	gsync();
}

int main(int argc, char **argv)
{
	me = mynode();
	n = numnodes();
	several = argc > 2;
	strcpy(dir, argv[1]);
	record();
	synchronised();
	global();
	logged();
	own_pointers();
	flags();
	streams();
	errors();
	/* Lines of all nodes, in their order. */
	setiomode(1, M_SYNC);
	cwrite(1, buf, sprintf((char *)buf, "from node %ld\n", me));
	setiomode(1, M_GLOBAL);
	cwrite(1, "modes: all good\n", 16);
	return 0;
}
