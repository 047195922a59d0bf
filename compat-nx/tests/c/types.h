/* What processes of several types on each node do with each other. */
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
	long mine = 100 * ptype + me, theirs, k, seen = 0, base = 10 * (ptype + other);

	for (k = 0; k < n; k++)
		csend(base, &mine, sizeof mine, k, other);
	for (k = 0; k < n; k++) {
		nx_int_t info[8];
		crecvx(base, &theirs, sizeof theirs, k, other, info);
		CHECK(theirs == 100 * other + k && info[2] == k && info[3] == other);
	}
	csend(base + 1, &mine, sizeof mine, -1, other);
	for (k = 0; k < n; k++) {
		crecv(base + 1, &theirs, sizeof theirs);
		CHECK(infoptype() == other && theirs == 100 * other + infonode());
		seen |= 1 << infonode();
	}
	CHECK(seen == (1 << n) - 1);
	/* To its own type: all but itself. */
	csend(base + 2, &mine, sizeof mine, -1, ptype);
	for (k = 0; k < n - 1; k++) {
		crecv(base + 2, &theirs, sizeof theirs);
		CHECK(infoptype() == ptype && infonode() != me);
	}
	CHECK(iprobe(base) == 0 && iprobe(base + 1) == 0 && iprobe(base + 2) == 0);
}
