/* A process leaves in order while a handler of it, or a thread, is at work, or before what it has sent was received. argv[1]: what. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static long me, value;
static volatile long entered, runs;

/* Answers, and has more to do: the program may have ended by then. */
static void serves(long type, long count, long node, long ptype)
{
	csend(11, NULL, 0, node, ptype);
	usleep(30000);
	csend(12, NULL, 0, node, ptype);
	hrecv(10, &value, sizeof value, (nx_handler_t)serves);
}

static void handler(void)
{
	if (me == 0)
		hrecv(10, &value, sizeof value, (nx_handler_t)serves);
	gsync();
	if (me == 1) {
		csend(10, NULL, 0, 0, 0);
		crecv(11, NULL, 0);
	}
	gsync();
	if (me == 1)
		crecv(12, NULL, 0);
}

static void exits(long type, long count, long node, long ptype)
{
	exit(0);
}

static void handler_exits(void)
{
	if (me == 0) {
		hrecv(10, &value, sizeof value, (nx_handler_t)exits);
		crecv(99, NULL, 0);
	}
	csend(10, NULL, 0, 0, 0);
}

static void *receives(void *unused)
{
	entered = 1;
	crecv(99, NULL, 0);
	return unused;
}

static void thread(void)
{
	pthread_t one;

	CHECK(pthread_create(&one, NULL, receives, NULL) == 0);
	while (!entered)
		usleep(1000);
	usleep(20000); /* until it waits, or soon */
	gsync();
}

/* More than a process may have on their way at once; and whoever is to receive them waits for its end. */
static void letters(int *argc, char **argv)
{
	enum { COUNT = 40, LENGTH = 100000 };
	static char buffer[COUNT][LENGTH];
	long i;

	nx_initve(NULL, 1, "", argc, argv);
	setptype(0);
	if (nx_nfork(NULL, -1, 0, NULL) == 0) {
		for (i = 0; i < COUNT; i++) {
			fill(buffer[i], LENGTH, 0, i);
			isend(i, buffer[i], LENGTH, myhost(), 0);
		}
		exit(0);
	}
	CHECK(nx_waitall() == 0);
	for (i = 0; i < COUNT; i++) {
		crecv(i, buffer[0], LENGTH);
		CHECK(filled(buffer[0], LENGTH, 0, i));
	}
}

/* Processes of a type that has ended. */
static void again(int *argc, char **argv)
{
	long i;

	nx_initve(NULL, 2, "", argc, argv);
	setptype(0);
	for (i = 0; i < 200; i++) {
		long forked = nx_nfork(NULL, -1, 5, NULL);

		if (forked == 0)
			exit(0);
		if (forked < 0)
			break; /* no number is left for another */
		CHECK(forked == 2);
		CHECK(nx_waitall() == 0);
	}
	CHECK(i > 20 && i < 200 && errno == EQNOPROC);
	/* The application goes on. */
	csend(1, &i, sizeof i, myhost(), 0);
	crecv(1, &value, sizeof value);
	CHECK(value == i);
}

static long turn, dawdles;

/* What comes before a new process has a number. */
static void dawdle(void)
{
	if (dawdles || (me % 2 == 1 && turn < 3))
		usleep(300000);
}

/* All nodes add processes that are soon gone, at the same time: some while those of a quicker node come and go. */
static void crowd(void)
{
	long forked;
	int status;

	CHECK(pthread_atfork(NULL, NULL, dawdle) == 0);
	gsync();
	for (turn = 0; turn < 12; turn++) {
		nx_int_t node = me;

		forked = nx_nfork(&node, 1, 10 + me, NULL);
		if (forked == 0) {
			usleep(turn % 3 * me * 1000);
			exit(0);
		}
		if (forked != 1)
			fprintf(stderr, "node %ld, turn %ld: %s\n", me, turn, strerror(errno));
		CHECK(forked == 1);
		CHECK(wait(&status) > 0 && status == 0);
	}
	gsync();
}

/* A process of another type begins when the first of its node, which was started before, has come and gone. */
static void belated(int *argc, char **argv)
{
	nx_int_t nodes[] = { 0, 1 };

	nx_initve(NULL, 2, "", argc, argv);
	setptype(0);
	CHECK(pthread_atfork(NULL, NULL, dawdle) == 0);
	if (nx_nfork(nodes, 1, 0, NULL) == 0)
		exit(0);
	dawdles = 1;
	if (nx_nfork(nodes, 1, 5, NULL) == 0) {
		csend(1, &value, sizeof value, myhost(), 0);
		exit(0);
	}
	dawdles = 0;
	if (nx_nfork(nodes + 1, 1, 0, NULL) == 0)
		exit(0);
	crecv(1, &value, sizeof value);
	CHECK(nx_waitall() == 0);
}

/* Each process starts the next and leaves: soon only the last two know of any. */
static void relay(void)
{
	nx_int_t node = me;

	for (turn = 0; turn < 12; turn++) {
		long forked = nx_nfork(&node, 1, 10 + turn, NULL);

		CHECK(forked >= 0);
		if (forked == 1)
			exit(0);
	}
	printf("node %ld: the last\n", me);
}

static void slow(long type, long count, long node, long ptype)
{
	entered++;
	usleep(20000);
	runs++;
	hrecv(20, &value, sizeof value, (nx_handler_t)slow);
}

static void notes(long type, long count, long node, long ptype)
{
	runs++;
}

/* Receives of handlers that are taken back at every point. */
static void cancel(void)
{
	static char bytes[1 << 20];
	long at;

	/* As the handler runs: what it posts is taken back, too. */
	if (me == 0)
		hrecv(20, &value, sizeof value, (nx_handler_t)slow);
	gsync();
	if (me == 1)
		csend(20, NULL, 0, 0, 0);
	while (me == 0 && !entered)
		flick();
	if (me == 0)
		CHECK(_hrecv(20, NULL, 0, NULL) == 0 && runs == 1);
	gsync();
	if (me == 1)
		csend(20, NULL, 0, 0, 0);
	gsync();
	if (me == 0) {
		cprobe(20);
		usleep(30000);
		CHECK(runs == 1);
		crecv(20, NULL, 0);
	}
	/* Before it runs. */
	if (me == 0) {
		masktrap(1);
		hrecv(21, &value, sizeof value, (nx_handler_t)notes);
	}
	gsync();
	if (me == 1)
		csend(21, NULL, 0, 0, 0);
	gsync();
	if (me == 0) {
		hrecv(21, NULL, 0, NULL);
		masktrap(0);
		usleep(30000);
		CHECK(runs == 1);
	}
	/* As its message comes. */
	if (me == 0)
		hrecv(22, bytes, sizeof bytes, (nx_handler_t)notes);
	gsync();
	if (me == 1)
		csend(22, bytes, sizeof bytes, 0, 0);
	if (me == 0) {
		hrecv(22, NULL, 0, NULL);
		memset(bytes, 0xaa, sizeof bytes);
		/* Not here yet when it was taken back? Then it waits, for this one. */
		if (iprobe(22))
			crecv(22, bytes, sizeof bytes);
		else
			for (at = 0; at < (long)sizeof bytes; at++)
				CHECK(bytes[at] == (char)0xaa);
	}
	gsync();
}

/* A node that gives its type by a switch is found by it. */
static void typed(void)
{
	CHECK(myptype() == 5);
	gsync();
	if (me == 0) {
		while (_killproc(1, 5) == 0)
			flick();
		CHECK(errno == EQNOPROC);
		killproc(0, 5); /* itself */
		for (;;)
			flick();
	}
	crecv(99, NULL, 0);
}

int main(int argc, char **argv)
{
	const char *what = argv[1];

	if (strcmp(what, "letters") == 0)
		return letters(&argc, argv), 0;
	if (strcmp(what, "again") == 0)
		return again(&argc, argv), 0;
	if (strcmp(what, "belated") == 0)
		return belated(&argc, argv), 0;
	me = mynode();
	if (strcmp(what, "handler") == 0)
		handler();
	else if (strcmp(what, "exits") == 0)
		handler_exits();
	else if (strcmp(what, "thread") == 0)
		thread();
	else if (strcmp(what, "crowd") == 0)
		crowd();
	else if (strcmp(what, "relay") == 0)
		relay();
	else if (strcmp(what, "cancel") == 0)
		cancel();
	else if (strcmp(what, "typed") == 0)
		typed();
	else if (strcmp(what, "packets") == 0)
		puts(getenv("NX_SLOT_BYTES") ? getenv("NX_SLOT_BYTES") : "none");
	return 0;
}
