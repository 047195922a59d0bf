/* Every call that needs the application, with good arguments, before there is one. Without an argument: each
 * _ form answers -1 with EQNOACT. With the number of a case: its plain form, which ends the program.
 * With "count": how many. */
#include "check.h"

static char buf[64], work[64];
static nx_int_t info[8], nodes[1], rows, cols;
static void handler() {}
#define H ((nx_handler_t)handler)
#define COMMA ,

#define CASES                                                                                  \
	CASE(mynode, ()) CASE(numnodes, ()) CASE(myhost, ()) CASE(myptype, ()) CASE(mypid, ())     \
	CASE(setptype, (1)) CASE(setpid, (1)) CASE(nodedim, ()) CASE(mypart, (&rows, &cols))       \
	CASE(killcube, (0, 0)) CASE(killproc, (0, 0)) CASE(flick, ())                              \
	SEND(csend, ) SEND(isend, ) SEND(hsend, COMMA H) SEND(hsendx, COMMA H COMMA 1)             \
	CASE(gsendx, (1, buf, 8, nodes, 1))                                                        \
	CASE(crecv, (1, buf, 8)) CASE(irecv, (1, buf, 8)) CASE(hrecv, (1, buf, 8, H))              \
	CASE(crecvx, (1, buf, 8, 0, 0, info)) CASE(irecvx, (1, buf, 8, 0, 0, info))                \
	CASE(hrecvx, (1, buf, 8, 0, 0, H, 1))                                                      \
	BOTH(csendrecv, ) BOTH(isendrecv, ) BOTH(hsendrecv, COMMA H)                               \
	CASE(cprobe, (1)) CASE(iprobe, (1))                                                        \
	CASE(cprobex, (1, 0, 0, info)) CASE(iprobex, (1, 0, 0, info))                              \
	CASE(msgwait, (1)) CASE(msgdone, (1)) CASE(msgcancel, (1)) CASE(msgignore, (1))            \
	CASE(msgmerge, (1, 2)) CASE(flushmsg, (1, 0, 0)) CASE(masktrap, (1))                       \
	CASE(infocount, ()) CASE(infonode, ()) CASE(infotype, ()) CASE(infoptype, ()) CASE(infopid, ()) \
	CASE(gsync, ())                                                                            \
	REDUCE(gdsum) REDUCE(gdprod) REDUCE(gdhigh) REDUCE(gdlow)                                  \
	REDUCE(gssum) REDUCE(gsprod) REDUCE(gshigh) REDUCE(gslow)                                  \
	REDUCE(gisum) REDUCE(giprod) REDUCE(gihigh) REDUCE(gilow)                                  \
	REDUCE(giand) REDUCE(gior) REDUCE(gixor) REDUCE(gland) REDUCE(glor) REDUCE(glxor)          \
	CASE(gopf, (buf, 8, work, (nx_combine_t)handler))                                          \
	CASE(gcol, (buf, 8, work, 8, info)) CASE(gcolx, (buf, nodes, work))

#define SEND(name, more) CASE(name, (1, buf, 8, 0, 0 more))
#define BOTH(name, more) CASE(name, (1, buf, 8, 0, 0, 1, work, 8 more))
#define REDUCE(name) CASE(name, ((void *)buf, 1, (void *)work))

int main(int argc, char **argv)
{
	int number = 0;

	if (argc > 1) {
		int wanted = strcmp(argv[1], "count") ? atoi(argv[1]) : -1;

#define CASE(name, args)                       \
	if (wanted == number++) {              \
		printf("%s\n", #name);         \
		fflush(stdout);                \
		name args;                     \
		return 0;                      \
	}
		CASES
#undef CASE
		printf("%d\n", number);
		return 0;
	}
#define CASE(name, args)                                                         \
	errno = 0;                                                               \
	if (_##name args != -1 || errno != EQNOACT) {                            \
		fprintf(stderr, "_%s%s: errno %d\n", #name, #args, errno);       \
		number = 1;                                                      \
	}
	CASES
#undef CASE
	if (number == 0)
		printf("unstarted: all good\n");
	return number;
}
