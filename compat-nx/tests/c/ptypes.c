/*
 * Several process types per node. As a node (shrimp run): node 1 adds a process of type 5 to every
 * node. As a host (argv[1] is "host"): types 0 and 1 everywhere, and later 2 on the last node.
 */
#include "check.h"

/* What the processes of one type do together: they meet nobody else's global operations. */
static void together(long me, long n, long ptype)
{
	nx_int_t sum = me + 1, work;
	long i;

	CHECK(mynode() == me && numnodes() == n && myptype() == ptype);
	for (i = 0; i < 20; i++)
		gsync();
	gisum(&sum, 1, &work);
	CHECK(sum == n * (n + 1) / 2);
}

/* Each tells the process of the other type on every node; a broadcast to a type leaves out nobody of it. */
static void meet(long me, long n, long ptype, long other)
{
	long mine = 100 * ptype + me, theirs, k, seen = 0;

	for (k = 0; k < n; k++)
		csend(7, &mine, sizeof mine, k, other);
	for (k = 0; k < n; k++) {
		nx_int_t info[8];
		crecvx(7, &theirs, sizeof theirs, k, other, info);
		CHECK(theirs == 100 * other + k && info[2] == k && info[3] == other);
	}
	csend(8, &mine, sizeof mine, -1, other);
	for (k = 0; k < n; k++) {
		crecv(8, &theirs, sizeof theirs);
		CHECK(infoptype() == other && theirs == 100 * other + infonode());
		seen |= 1 << infonode();
	}
	CHECK(seen == (1 << n) - 1);
	/* To its own type: all but itself. */
	csend(9, &mine, sizeof mine, -1, ptype);
	for (k = 0; k < n - 1; k++) {
		crecv(9, &theirs, sizeof theirs);
		CHECK(infoptype() == ptype && infonode() != me);
	}
	CHECK(iprobe(-1) == 0);
}

static void as_node(void)
{
	long me = mynode(), n = numnodes(), i;
	nx_int_t pids[64];

	together(me, n, 0);
	if (me == n - 1) {
		long count = nx_nfork(NULL, -1, 5, pids);
		CHECK(count >= 0);
		if (count == 0) {
			together(mynode(), n, 5);
			meet(mynode(), n, 5, 0);
			return;
		}
		CHECK(count == n);
		for (i = 0; i < n; i++)
			CHECK(pids[i] > 0);
		CHECK(nx_nfork(NULL, -1, 5, pids) == -1 && errno == EQUSEPID);
	}
	gsync();
	CHECK(_setptype(5) == -1 && errno == EQUSEPID);
	meet(me, n, 0, 5);
	together(me, n, 0);
	if (me == n - 1)
		CHECK(nx_waitall() == 0);
}

static void as_host(int argc, char **argv)
{
	long n = nx_initve(NULL, 0, "", &argc, argv), ptype, k, got;
	nx_int_t last[1];

	for (ptype = 0; ptype < 2; ptype++)
		if (nx_nfork(NULL, -1, ptype, NULL) == 0) {
			together(mynode(), n, ptype);
			crecv(1, &got, sizeof got);
			meet(mynode(), n, ptype, 1 - ptype);
			csend(2, &ptype, sizeof ptype, myhost(), 9);
			return;
		}
	setptype(9);
	last[0] = n - 1;
	CHECK(nx_nfork(last, 1, 1, NULL) == -1 && errno == EQUSEPID);
	for (ptype = 0; ptype < 2; ptype++)
		csend(1, &n, sizeof n, -1, ptype);
	for (k = 0; k < 2 * n; k++)
		crecv(2, &got, sizeof got);
	/* All others may have left. */
	if (nx_nfork(last, 1, 2, NULL) == 0) {
		CHECK(mynode() == n - 1 && myptype() == 2);
		csend(3, &n, sizeof n, myhost(), 9);
		return;
	}
	crecv(3, &got, sizeof got);
	CHECK(infonode() == n - 1 && infoptype() == 2);
	CHECK(nx_waitall() == 0);
	printf("ptypes: all good\n");
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "host") == 0) {
		as_host(argc, argv);
		return 0;
	}
	as_node();
	if (myptype() == 0 && mynode() == 0)
		printf("ptypes: all good\n");
	return 0;
}
