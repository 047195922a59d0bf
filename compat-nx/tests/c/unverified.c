/*
 * unverified: what is believed of NX and not confirmed, a function for each fact. SUPPORT.md has them in a table; most are decided
 * in src/unconfirmed.rs. Nodes, and a host when argv[1] is "host".
 */
#include "check.h"

static long me, n;
static char buf[64], work[64];

static void host(void)
{
	CHECK(myhost() == n);
}

/* The last type, and those that are the system's. */
static void types(void)
{
	CHECK(_csend(1999999999, buf, 0, me, 0) == 0 && _crecv(1999999999, buf, 0) == 0);
	CHECK(_csend(2000000000, buf, 0, me, 0) == -1 && errno == EQTYPE);
	CHECK(_csend(1000000000, buf, 0, me, 0) == -1 && errno == EQTYPE);
	CHECK(_csend(FORCE_TYPE - 1, buf, 0, me, 0) == -1 && errno == EQTYPE);
	CHECK(_csend(999999999, buf, 0, me, 0) == 0 && _crecv(999999999, buf, 0) == 0);
}

/* -1 does not take them, nor does a mask; one that nobody waits for is kept. */
static void force(void)
{
	csend(FORCE_TYPE + 3, "forced", 7, me, 0);
	CHECK(iprobe(-1) == 0 && iprobe(3) == 0 && iprobe(0x80000008) == 0);
	CHECK(iprobe(FORCE_TYPE + 3) == 1);
	crecv(FORCE_TYPE + 3, buf, sizeof buf);
	CHECK(strcmp(buf, "forced") == 0);
}

/* Bits 0 to 29 are types, bit 30 all higher ones. */
static void mask(void)
{
	csend(29, buf, 0, me, 0);
	CHECK(iprobe(0xa0000000) == 1 && iprobe(0xc0000000) == 0);
	crecv(29, buf, 0);
	csend(30, buf, 0, me, 0);
	CHECK(iprobe(0xc0000000) == 1 && iprobe(0xa0000000) == 0);
	crecv(30, buf, 0);
	csend(123456789, buf, 0, me, 0);
	CHECK(iprobe(0xc0000000) == 1);
	crecv(0xc0000000, buf, 0);
	CHECK(infotype() == 123456789);
}

/* To node -1 for another type: the own node's process of it gets it too. */
static void broadcast(void)
{
	nx_int_t pids[16];
	long other = -1, from;

	gsync();
	if (me == 0) {
		long count = nx_nfork(NULL, -1, 5, pids);
		if (count == 0) {
			for (other = 0; other < numnodes(); other++)
				crecv(20, &from, sizeof from);
			for (from = 0; from < numnodes(); from++)
				csend(22, &from, 0, from, 0);
			exit(0);
		}
		CHECK(count == n);
	}
	gsync();
	csend(20, &me, sizeof me, -1, 5); /* n of them reach each of type 5 */
	for (other = 0; other < n; other++)
		crecv(22, buf, 0);
	csend(23, buf, 0, -1, 0); /* to the own type: all but itself */
	for (other = 1; other < n; other++)
		crecv(23, buf, 0);
	gsync();
	CHECK(iprobe(23) == 0);
	if (me == 0)
		CHECK(nx_waitall() == 0);
}

/* The same sender and type: in order. */
static void order(void)
{
	long i, got;

	for (i = 0; i < 500; i++)
		csend(30, &i, sizeof i, (me + 1) % n, 0);
	for (i = 0; i < 500; i++) {
		crecv(30, &got, sizeof got);
		CHECK(got == i);
	}
}

/* Ids that were merged are dead; the last one's message is told. */
static void merged(void)
{
	long one = irecv(31, buf, 8), two = irecv(32, work, 8), both = msgmerge(one, two);

	CHECK(_msgdone(one) == -1 && errno == EQMID && _msgwait(two) == -1 && errno == EQMID);
	csend(32, "two", 4, me, 0);
	CHECK(msgdone(both) == 0);
	csend(31, "one", 4, me, 0);
	msgwait(both);
	CHECK(strcmp(buf, "one") == 0 && strcmp(work, "two") == 0 && infotype() == 32);
}

/* The id frees itself. */
static void ignored(void)
{
	long i;

	for (i = 0; i < 3000; i++) { /* more than there are ids */
		long id = irecv(33, buf, 8);
		msgignore(id);
		CHECK(_msgdone(id) == -1 && errno == EQMID);
		csend(33, &i, 8, me, 0);
	}
}

/* The buffer is the program's, and the message goes to another receive. */
static void cancelled(void)
{
	long id = irecv(34, buf, 8);

	msgcancel(id);
	memset(buf, 7, 8);
	csend(34, work, 8, me, 0);
	CHECK(buf[0] == 7 && buf[7] == 7 && iprobe(34) == 1);
	crecv(34, work, 8);
}

/* What is here is thrown away, and nothing else. */
static void flushed(void)
{
	csend(35, buf, 8, me, 0);
	csend(36, buf, 8, me, 0);
	flushmsg(35, -1, -1);
	CHECK(iprobe(35) == 0 && iprobe(36) == 1);
	crecv(36, buf, 8);
}

static volatile int called;

static void xhandler(long type, long count, long node, long ptype, long hparam)
{
	CHECK(type == 37 && count == 8 && node == me && ptype == 0 && hparam == -12345);
	called = 1;
}

static void handler_parameter(void)
{
	called = 0;
	hrecvx(37, work, sizeof work, -1, -1, (nx_xhandler_t)xhandler, -12345);
	csend(37, buf, 8, me, 0);
	while (!called)
		;
}

/* ncnt of gcol counts bytes. */
static void collected(void)
{
	nx_int_t count = -1;
	char all[16 * 3];

	gcol("abc", 3, all, sizeof all, &count);
	CHECK(count == 3 * n && memcmp(all, "abc", 3) == 0);
}

/* A message longer than its buffer is an error, and infocount tells its length. */
static void truncated(void)
{
	csend(38, buf, 40, me, 0);
	CHECK(_crecv(38, work, 8) == -1 && errno == EQMSGLONG && infocount() == 40);
}

/* About a thousand ids. */
static void ids(void)
{
	static long all[1024];
	long i;

	for (i = 0; i < 1024; i++)
		CHECK((all[i] = irecv(39, buf, 1)) > 0 && all[i] < 1 << 30);
	CHECK(_irecv(39, buf, 1) == -1 && errno == EQNOMID);
	for (i = 0; i < 1024; i++)
		msgcancel(all[i]);
}

/* The same again is no error; another process's is. */
static void own_type(void)
{
	setptype(6);
	setptype(6);
	CHECK(_setptype(0) == 0 && myptype() == 0);
}

static void nodes_list(void)
{
	nx_nodes_t nodes;
	unsigned long count;

	CHECK(nx_app_nodes(0, &nodes, &count) == 0 && count == (unsigned long)n);
	free(nodes);
}

static void rectangle(void)
{
	int rows_and_columns[2];

	rows_and_columns[0] = 1;
	rows_and_columns[1] = n;
	CHECK(nx_initve_attr(NULL, NULL, NULL, NX_ATTR_RECT, rows_and_columns, NX_ATTR_END) == n);
}

static void waiting_for_nobody(void)
{
	if (me > 0 || n == 1)
		CHECK(nx_waitall() == -1 && errno == ECHILD);
}

static void words(void)
{
	errno = EQNODE;
	nx_perror("unverified"); /* the test looks at it */
}

int main(void)
{
	me = mynode();
	n = numnodes();
	waiting_for_nobody();
	host();
	types();
	force();
	mask();
	broadcast();
	order();
	merged();
	ignored();
	cancelled();
	flushed();
	handler_parameter();
	collected();
	truncated();
	ids();
	own_type();
	nodes_list();
	rectangle();
	words();
	gsync();
	if (me == 0)
		printf("unverified: all good\n");
	return 0;
}
