/* A program that receives with -1 sees every sender in the end (5.21), also one whose single message comes while another
 * sender always has the next one here; and all that flood at the same time. By each way to take what comes. */
#include "check.h"

enum { DATA = 1, STOP, GO, LAST, SENT, TOKEN, BEFORE = 50, AHEAD = 8, ENOUGH = 200, ALL_ENOUGH = 20000000 };
static long me, n, value;

/* The next message of anybody; its sender. */
static long take(int way)
{
	switch (way) {
	case 0: crecv(-1, &value, sizeof value); break;
	case 1: msgwait(irecv(-1, &value, sizeof value)); break;
	case 2: cprobe(-1); crecv(infotype(), &value, sizeof value); break;
	default:
		while (!iprobe(-1))
			;
		crecv(infotype(), &value, sizeof value);
	}
	return infonode();
}

/* Node 0 is slower than those that flood. */
static void compute(void)
{
	double end = dclock() + 5e-6;

	while (dclock() < end)
		;
}

/* All flood, and each is seen twenty times. */
static void all_flood(int way)
{
	long seen[64] = { 0 }, missing = n - 1, taken, from;

	if (me == 0) {
		for (taken = 0; missing > 0; taken++) {
			CHECK(taken < ALL_ENOUGH);
			from = take(way);
			CHECK(infotype() == DATA && value == 0);
			missing -= ++seen[from] == 20;
			compute();
		}
		csend(STOP, NULL, 0, -1, 0);
		for (missing = n - 1; missing > 0; missing -= infotype() == LAST)
			take(way);
	} else {
		value = 0;
		do
			csend(DATA, &value, sizeof value, 0, 0);
		while (!iprobe(STOP));
		crecv(STOP, NULL, 0);
		csend(LAST, NULL, 0, 0, 0);
	}
}

/* One keeps some messages ahead of the receiver, never so many that it would have to ask for room. Each other node sends one
 * meanwhile; what the flooder sends when it has heard of all that they have is marked: not many of these come first. */
static void one_floods(long flooder, int way)
{
	long seen[64] = { 0 }, missing = n - 2, marked = 0, sent = 0, heard = 0, more, from;

	if (me == 0) {
		while (missing > 0) {
			from = take(way);
			CHECK(infotype() == DATA && ++seen[from] > 0);
			if (from != flooder) {
				missing--;
				continue;
			}
			marked += value;
			CHECK(marked <= ENOUGH);
			compute();
			more = missing > 0;
			csend(TOKEN, &more, sizeof more, flooder, 0);
		}
		more = 0;
		csend(TOKEN, &more, sizeof more, flooder, 0);
		for (from = 1; from < n; from++)
			CHECK(from == flooder || seen[from] == 1);
		do
			take(way);
		while (infotype() != LAST);
	} else if (me == flooder) {
		for (more = 1; more; sent++) {
			if (sent == BEFORE)
				for (from = 1; from < n; from++)
					if (from != flooder)
						csend(GO, NULL, 0, from, 0);
			while (heard < n - 2 && iprobe(SENT)) {
				crecv(SENT, NULL, 0);
				heard++;
			}
			value = heard == n - 2;
			csend(DATA, &value, sizeof value, 0, 0);
			if (sent >= AHEAD)
				crecv(TOKEN, &more, sizeof more);
		}
		csend(LAST, NULL, 0, 0, 0);
		for (; heard < n - 2; heard++)
			crecv(SENT, NULL, 0);
	} else {
		crecv(GO, NULL, 0);
		value = 0;
		csend(DATA, &value, sizeof value, 0, 0);
		csend(SENT, NULL, 0, flooder, 0);
	}
}

/* Nothing of a round is left; tokens that the flooder did not wait for any more are taken. */
static void done(long flooder)
{
	gsync();
	while (me == flooder && iprobe(TOKEN))
		crecv(TOKEN, &value, sizeof value);
	CHECK(iprobe(-1) == 0);
	gsync();
}

int main(void)
{
	int way;

	me = mynode();
	n = numnodes();
	for (way = 0; n > 1 && way < 4; way++) {
		all_flood(way);
		done(-1);
		if (n > 2) {
			one_floods(1, way);
			done(1);
			one_floods(n - 1, way);
			done(n - 1);
		}
	}
	if (me == 0)
		printf("fair: all good on %ld nodes\n", n);
	return 0;
}
