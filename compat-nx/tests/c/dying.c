/* One node ends in the way that argv[1] says, the others wait for ever. */
#include "check.h"
#include <signal.h>

static void struck(long type, long count, long node, long ptype)
{
	raise(SIGKILL);
}

int main(int argc, char **argv)
{
	char c;

	gsync();
	if (argv[1][0] == 'o') {
		/* Node 0 goes, the others go on; what is sent to it reaches nobody. */
		long me = mynode(), n = numnodes(), i;
		if (me == 0)
			csend(4, &c, 0, n - 1, 0); /* has sent all that the barrier needs */
		if (me == n - 1) {
			crecv(4, &c, 0);
			killproc(0, 0);
		}
		for (i = 1; me > 0 && i < n; i++)
			if (i != me)
				csend(2, &me, sizeof me, i, 0);
		for (i = 2; i < n || me == 0; i++) /* node 0 waits in vain */
			crecv(2, &me, sizeof me);
		for (i = 0; i < 100; i++)
			csend(3, &me, sizeof me, 0, 0);
		return 0;
	}
	if (mynode() == numnodes() - 1) {
		switch (argv[1][0]) {
		case 'k': killproc(-1, -1); break;
		case 'c': killcube(-1, -1); break;
		case 'd': killproc(-1, 0); break;
		case 'g': kill(0, 9); break;
		case '9': raise(SIGKILL); break;
		case 'h': /* in a handler, while the program computes */
			hrecv(2, &c, 1, (nx_handler_t)struck);
			csend(2, NULL, 0, mynode(), 0);
			for (;;)
				;
		case 's': raise(SIGSEGV); break;
		case 'e': exit(5);
		case 'w': puts("ready"); break;
		}
	}
	if (argv[1][0] == 'f')
		for (;;)
			;
	crecv(1, &c, 1);
	return 0;
}
