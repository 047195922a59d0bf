/* Random traffic, all to all: argv[1] messages from each node, of random length, type and
 * destination, by random calls; order and contents of every message are checked. */
#include "check.h"

#define TYPES 5
#define LARGEST 300000
#define PENDING 16

struct head {
	long from, type, number, len;
};

static unsigned long seed;

static unsigned long rnd(unsigned long below)
{
	seed = seed * 6364136223846793005UL + 1442695040888963407UL;
	return (seed >> 33) % below;
}

static long me, n, expected[64][TYPES], received;
static char *in, *out[PENDING];
static long mids[PENDING];

static void take(long type)
{
	struct head *head = (struct head *)in;
	long from, len;

	switch (rnd(4)) {
	case 0: msgwait(irecv(type, in, LARGEST)); break;
	case 1: crecvx(type, in, LARGEST, -1, -1, msginfo); break;
	default: crecv(type, in, LARGEST);
	}
	len = infocount();
	from = infonode();
	CHECK(head->from == from && head->len == len && head->type == infotype());
	CHECK(head->number == expected[from][head->type]++);
	CHECK(filled(in + sizeof *head, len - sizeof *head, from + head->number, head->type));
	received++;
}

static long length(void)
{
	switch (rnd(8)) {
	case 0: return rnd(LARGEST - sizeof(struct head));
	case 1: return rnd(20000);
	default: return rnd(600);
	}
}

int main(int argc, char **argv)
{
	long messages = atol(argv[1]), i, slot, to, type, total, work;
	static long numbers[64][TYPES];
	long sent_to[64] = { 0 }, works[64];

	me = mynode();
	n = numnodes();
	seed = me * 77 + 1;
	in = malloc(LARGEST);
	for (i = 0; i < PENDING; i++) {
		out[i] = malloc(LARGEST);
		mids[i] = -1;
	}
	for (i = 0; i < messages; i++) {
		struct head *head;

		slot = rnd(PENDING);
		while (mids[slot] != -1 && !msgdone(mids[slot]))
			while (iprobe(-1))
				take(-1);
		mids[slot] = -1;
		to = rnd(n);
		type = rnd(TYPES);
		head = (struct head *)out[slot];
		head->from = me;
		head->type = type;
		head->number = numbers[to][type]++;
		head->len = sizeof *head + length();
		fill(head + 1, head->len - sizeof *head, me + head->number, type);
		sent_to[to]++;
		if (rnd(2))
			mids[slot] = isend(type, head, head->len, to, 0);
		else
			csend(type, head, head->len, to, 0);
		/* Now and then one of a certain type, out of the order of arrival. */
		while (iprobe(rnd(3) ? -1 : (long)rnd(TYPES)))
			take(infotype());
	}
	gisum(sent_to, n, works);
	total = sent_to[me];
	while (received < total)
		take(-1);
	for (slot = 0; slot < PENDING; slot++)
		if (mids[slot] != -1)
			msgwait(mids[slot]);
	gsync();
	CHECK(iprobe(-1) == 0);
	gisum(&received, 1, &work);
	if (me == 0) {
		CHECK(received == messages * n);
		printf("traffic: %ld messages, all good\n", received);
	}
	return 0;
}
