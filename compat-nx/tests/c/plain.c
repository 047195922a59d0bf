/* What a program may do that knows nothing of this library's threads, ids and processors. */
#include "check.h"
#include <signal.h>

static long me, n;

/* A signal that the program blocks runs no handler in a thread of the library's. */
static volatile sig_atomic_t came;
static void on_signal(int number)
{
	(void)number;
	came++;
}
static void signals(void)
{
	sigset_t some, before;
	int message = 1;
	double begin = dclock();

	signal(SIGUSR1, on_signal);
	sigemptyset(&some);
	sigaddset(&some, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &some, &before) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0);
	/* The library's threads are there, and run. */
	csend(1, &message, sizeof message, me, 0);
	crecv(1, &message, sizeof message);
	while (dclock() - begin < 0.1)
		;
	CHECK(came == 0);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && came == 1);
}

/* A handler has the stack that the program has; 3 MiB of 8. */
static int box;
static volatile int handled;
static void deep(long type, long count, long node, long ptype)
{
	volatile char large[3 << 20];
	size_t at;

	(void)type, (void)count, (void)node, (void)ptype;
	for (at = 0; at < sizeof large; at += 4096)
		large[at] = 1;
	handled = large[0];
}
static void stack(void)
{
	int message = 1;

	hrecv(2, &box, sizeof box, deep);
	csend(2, &message, sizeof message, me, 0);
	while (!handled)
		flick();
}

/* Whoever looks again and again leaves the processor to those that it waits for: no more is asked here than the end. */
static void looking(void)
{
	int message = 1, round;

	for (round = 0; round < 20; round++) {
		long id;
		if (me == 0)
			csend(3, &message, sizeof message, (me + 1) % n, 0);
		while (!iprobe(3))
			;
		crecv(3, &message, sizeof message);
		if (me != 0)
			csend(3, &message, sizeof message, (me + 1) % n, 0);
		gsync();
		id = irecv(4, &message, sizeof message);
		csend(4, &message, sizeof message, (me + 1) % n, 0);
		while (!msgdone(id))
			;
	}
}

/* Truth values, also of one node. */
static void truth(void)
{
	long values[3] = {6, 0, -1}, work[3];

	glor(values, 3, work);
	CHECK(values[0] == 1 && values[1] == 0 && values[2] == 1);
	values[0] = 6;
	gland(values, 3, work);
	CHECK(values[0] == 1 && values[1] == 0 && values[2] == 1);
}

/* More operations than there are ids: those that were merged or given away keep their places. */
static int boxes[70000];
static void many(void)
{
	long at, merged = -1;

	if (me != 0)
		return;
	for (at = 0; at < 70000; at++) {
		long id = _irecv(5, &boxes[at], sizeof boxes[at]);
		if (id < 0) {
			CHECK(errno == EQNOMID && at > 60000);
			break;
		}
		id = _msgmerge(merged, id);
		if (id < 0) {
			CHECK(errno == EQNOMID && at > 60000);
			break;
		}
		merged = id;
	}
	CHECK(at < 70000);
	msgcancel(merged);
}

/* What all nodes are sent for a type that is taken later waits on the sender's node, too. */
static void later(void)
{
	long from;
	int message = (int)me;

	csend(6, &message, sizeof message, -1, 3);
	gsync();
	setptype(3);
	for (from = 0; from < n; from++)
		crecv(6, &message, sizeof message);
	gsync();
}

int main(void)
{
	me = mynode();
	n = numnodes();
	signals();
	stack();
	looking();
	truth();
	many();
	gsync();
	later();
	if (me == 0)
		printf("plain: all good\n");
	return 0;
}
