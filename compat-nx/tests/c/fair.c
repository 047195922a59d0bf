/* A program that receives with -1 sees every sender in the end (5.21), also one whose single message comes while another
 * sender always has the next one here; and all that flood at the same time. By each way to take what comes. */
#include "check.h"

enum { DATA = 1, STOP, GO, LAST, BEFORE = 100, ENOUGH = 20000 };
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

/* The node floods until it is told to stop. */
static void flood(void)
{
	do
		csend(DATA, &me, sizeof me, 0, 0);
	while (!iprobe(STOP));
	crecv(STOP, NULL, 0);
	csend(LAST, NULL, 0, 0, 0);
}

/* From `flooder`, or from all (-1), until `wanted` of each other node has come. */
static void round_of(long flooder, int way)
{
	long seen[64] = { 0 }, missing, taken, from, ended = 0, wanted = flooder < 0 ? 20 : 1;

	if (me == 0) {
		missing = n - 1;
		for (taken = 0; missing > 0; taken++) {
			if (taken == BEFORE && flooder > 0)
				for (from = 1; from < n; from++)
					if (from != flooder)
						csend(GO, NULL, 0, from, 0);
			CHECK(taken < BEFORE + ENOUGH);
			from = take(way);
			CHECK(infotype() == DATA && value == from);
			if (++seen[from] == wanted)
				missing--;
			compute();
		}
		CHECK(flooder < 0 || n == 2 || seen[flooder] >= BEFORE);
		for (from = 1; from < n; from++)
			if (flooder < 0 || from == flooder)
				csend(STOP, NULL, 0, from, 0);
		while (ended < (flooder < 0 ? n - 1 : 1)) {
			take(way);
			ended += infotype() == LAST;
		}
	} else if (flooder < 0 || me == flooder) {
		flood();
	} else {
		crecv(GO, NULL, 0);
		csend(DATA, &me, sizeof me, 0, 0);
	}
	gsync();
	CHECK(me != 0 || iprobe(-1) == 0);
	gsync();
}

int main(void)
{
	int way;

	me = mynode();
	n = numnodes();
	for (way = 0; n > 1 && way < 4; way++) {
		round_of(1, way);
		if (n > 2)
			round_of(n - 1, way);
		round_of(-1, way);
	}
	if (me == 0)
		printf("fair: all good on %ld nodes\n", n);
	return 0;
}
