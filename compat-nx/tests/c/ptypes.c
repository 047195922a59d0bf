/*
 * Several process types per node. As a node (shrimp run): node 1 adds a process of type 5 to every
 * node. As a host (argv[1] is "host"): types 0 and 1 everywhere, and later 2 on the last node.
 */
#include "types.h"

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
			CHECK(iprobe(-1) == 0);
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
	CHECK(iprobe(-1) == 0);
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
