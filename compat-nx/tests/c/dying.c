/* One node ends in the way that argv[1] says, the others wait for ever. */
#include "check.h"
#include <signal.h>

int main(int argc, char **argv)
{
	char c;

	gsync();
	if (mynode() == numnodes() - 1) {
		switch (argv[1][0]) {
		case 'k': killproc(-1, -1); break;
		case 'c': killcube(-1, -1); break;
		case 'd': killproc(-1, 0); break;
		case 'g': kill(0, 9); break;
		case '9': raise(SIGKILL); break;
		case 's': raise(SIGSEGV); break;
		case 'e': exit(5);
		case 'o': killproc(0, 0); break;
		case 'w': puts("ready"); break;
		}
	}
	if (argv[1][0] == 'f')
		for (;;)
			;
	crecv(1, &c, 1);
	return 0;
}
