/* Every call of table 1.4: one-shot, re-posting, sending, blocking, allocating, printing, masked. */
#include "check.h"

static long me, n, right, left;
static volatile long runs, last_type, last_count, last_node, last_ptype, last_param;
static volatile long nested, inside;
static long value;
static char buffer[100000];

static void note(long type, long count, long node, long ptype)
{
	last_type = type;
	last_count = count;
	last_node = node;
	last_ptype = ptype;
	__sync_synchronize();
	runs++;
}

/* The same with the parameters that most programs declare. */
static void note_int(int type, int count, int node, int ptype)
{
	note(type, count, node, ptype);
}

static void xnote(long type, long count, long node, long ptype, long param)
{
	last_param = param;
	note(type, count, node, ptype);
}

static void wait_for(long wanted)
{
	while (runs < wanted)
		flick();
	CHECK(runs == wanted);
}

static void each_call(void)
{
	long before = runs;

	/* Posted first. */
	hrecv(10, &value, sizeof value, (nx_handler_t)note);
	gsync();
	csend(10, &me, sizeof me, right, 0);
	wait_for(before + 1);
	CHECK(value == left && last_type == 10 && last_count == sizeof value);
	CHECK(last_node == left && last_ptype == 0);
	/* Early messages (2.6): come before the receive is posted. */
	csend(11, &me, sizeof me, right, 0);
	gsync();
	CHECK(_hrecv(11, &value, sizeof value, (nx_handler_t)note_int) == 0);
	wait_for(before + 2);
	CHECK(last_type == 11 && last_node == left);
	/* One-shot: a second message waits for a second receive. */
	csend(10, &me, sizeof me, right, 0);
	gsync();
	CHECK(iprobe(10) == 1 && runs == before + 2);
	crecv(10, &value, sizeof value);
	hsend(12, &me, sizeof me, right, 0, (nx_handler_t)note);
	wait_for(before + 3);
	crecv(12, &value, sizeof value);
	CHECK(value == left);
	CHECK(_hsend(12, &me, sizeof me, right, 0, (nx_handler_t)note) == 0);
	wait_for(before + 4);
	crecv(12, &value, sizeof value);
	hsendx(13, &me, sizeof me, right, 0, (nx_xhandler_t)xnote, 77);
	wait_for(before + 5);
	CHECK(last_param == 77);
	CHECK(_hsendx(13, &me, sizeof me, right, 0, (nx_xhandler_t)xnote, -5) == 0);
	wait_for(before + 6);
	CHECK(last_param == -5);
	crecv(13, &value, sizeof value);
	crecv(13, &value, sizeof value);
	hrecvx(14, &value, sizeof value, left, 0, (nx_xhandler_t)xnote, 123);
	csend(14, &me, sizeof me, right, 0);
	wait_for(before + 7);
	CHECK(last_param == 123 && last_type == 14 && value == left);
	CHECK(_hrecvx(14, &value, sizeof value, -1, -1, (nx_xhandler_t)xnote, 124) == 0);
	csend(14, &me, sizeof me, right, 0);
	wait_for(before + 8);
	CHECK(last_param == 124);
	hsendrecv(15, &me, sizeof me, right, 0, 15, &value, sizeof value, (nx_handler_t)note);
	wait_for(before + 9);
	CHECK(value == left && last_type == 15);
	CHECK(_hsendrecv(16, &me, sizeof me, right, 0, 16, &value, sizeof value, (nx_handler_t)note)
	    == 0);
	wait_for(before + 10);
	CHECK(last_type == 16 && last_node == left);
	/* Cancelled (12): the message stays for others. */
	hrecv(17, &value, sizeof value, (nx_handler_t)note);
	hrecv(17, 0, 0, 0);
	gsync();
	csend(17, &me, sizeof me, right, 0);
	crecv(17, &value, sizeof value);
	CHECK(runs == before + 10);
}

/* A server that re-posts itself, allocates, prints, blocks in a receive, and answers (10). */
static void serve(long type, long count, long node, long ptype)
{
	long info[8], size, mask;
	char *room;

	if (inside++)
		nested++;
	mask = masktrap(1);
	room = malloc(count + 1);
	memcpy(room, buffer, count);
	size = value;
	(void)mask;
	crecvx(21, room, count + 1, node, ptype, info);
	CHECK(info[1] == count && info[2] == node);
	masktrap(mask);
	csend(22, &size, sizeof size, node, ptype);
	printf("served %ld\n", size);
	free(room);
	hrecv(20, &value, sizeof value, (nx_handler_t)serve);
	inside--;
	runs++;
}

static void server(void)
{
	long before = runs, i, answer, all = 0;

	hrecv(20, &value, sizeof value, (nx_handler_t)serve);
	gsync();
	for (i = 0; i < 50; i++) {
		long number = me * 1000 + i;

		csend(20, &number, sizeof number, n - 1, 0);
		csend(21, &number, sizeof number, n - 1, 0);
		crecv(22, &answer, sizeof answer);
		CHECK(answer == number);
		/* Where handlers print, who prints too masks them. */
		masktrap(1);
		printf("asked %ld\n", number);
		masktrap(0);
	}
	gsync();
	if (me == n - 1) {
		/* Who has its answer may be here before the handler that gave it has ended. */
		wait_for(before + 50 * n);
		CHECK(nested == 0);
	}
	hrecv(20, 0, 0, 0);
	(void)all;
}

/* Masked messages run later, none lost, none nested; the state is a value that is restored. */
static void count_and_repost(long type, long count, long node, long ptype)
{
	if (inside++)
		nested++;
	hrecv(30, &value, sizeof value, (nx_handler_t)count_and_repost);
	inside--;
	runs++;
}

static void masked(void)
{
	long before, i, old, inner;

	old = masktrap(1);
	CHECK(old == 0);
	before = runs;
	hrecv(30, &value, sizeof value, (nx_handler_t)count_and_repost);
	for (i = 0; i < 100; i++)
		csend(30, &i, sizeof i, right, 0);
	gsync();
	inner = _masktrap(1);
	CHECK(inner == 1);
	CHECK(masktrap(inner) == 1);
	CHECK(runs == before);
	CHECK(masktrap(old) == 1);
	wait_for(before + 100);
	CHECK(nested == 0 && masktrap(0) == 0);
	hrecv(30, 0, 0, 0);
	gsync();
}

/* A handler runs while main computes without any NX call (11). */
static volatile long computed;

static void stop_computing(long type, long count, long node, long ptype)
{
	computed = 1;
}

static void computing(void)
{
	volatile double x = 1;

	hrecv(40, &value, sizeof value, (nx_handler_t)stop_computing);
	gsync();
	csend(40, &me, sizeof me, right, 0);
	while (!computed)
		x = x * 1.0000001;
	gsync();
}

int main(void)
{
	me = mynode();
	n = numnodes();
	right = (me + 1) % n;
	left = (me + n - 1) % n;
	each_call();
	gsync();
	server();
	gsync();
	masked();
	computing();
	if (me == 0)
		printf("handlers: all good on %ld nodes\n", n);
	return 0;
}
