/* NX calls in the handler of a signal that comes while the program sends and receives. argv[1]: what the handler does. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>

static const char *what;
static volatile long looks, sent = -1;

static void on(int number)
{
	long x = 0;

	(void)number;
	if (strcmp(what, "looks") == 0) {
		CHECK(mynode() >= 0 && numnodes() == 2 && myptype() == 0 && nodedim() == 1);
		if (iprobe(999) != 0 || _iprobex(999, -1, -1, (nx_int_t *)msginfo) != 0)
			_exit(2);
		looks++;
	}
	if (mynode() != 1)
		return;
	if (strcmp(what, "kills") == 0)
		killproc(-1, -1);
	if (strcmp(what, "exits") == 0)
		exit(3);
	if (strcmp(what, "tries") == 0 && _csend(1, &x, sizeof x, mynode(), 0) == -1) {
		CHECK(errno == EDEADLK);
		sent = 0;
	}
	if (strcmp(what, "sends") == 0)
		csend(1, &x, sizeof x, mynode(), 0);
}

int main(int argc, char **argv)
{
	struct itimerval every = { { 0, 500 }, { 0, 500 } }, none = { { 0, 0 }, { 0, 0 } };
	long i, x, other = 1 - mynode();
	double d = 1, w;

	what = argv[argc - 1];
	signal(SIGALRM, on);
	gsync();
	setitimer(ITIMER_REAL, &every, NULL);
	if (strcmp(what, "looks") == 0) {
		for (i = 0; i < 5000 || looks < 100; i++) {
			csend(1, &i, sizeof i, mynode(), 0);
			crecv(1, &x, sizeof x);
			CHECK(x == i);
		}
		for (i = 0; i < 2000; i++) {
			csend(2, &i, sizeof i, other, 0);
			crecv(2, &x, sizeof x);
			CHECK(x == i);
			gdsum(&d, 1, &w);
		}
	} else if (strcmp(what, "tries") == 0) {
		while (mynode() == 1 && sent == -1)
			iprobe(3);
	} else {
		for (;;)
			iprobe(3);
	}
	setitimer(ITIMER_REAL, &none, NULL);
	flushmsg(1, -1, -1);
	gsync();
	if (mynode() == 0)
		printf("signals: all good\n");
	return 0;
}
