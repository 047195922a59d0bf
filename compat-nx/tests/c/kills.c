/*
 * Some processes are ended on request, the others go on. argv[1] is "node": three nodes, each with a process of type 0, and one of
 * type 5 that node 0 adds; "host": a host of three nodes does it.
 */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>

static nx_int_t pids[16];

/* Waits until nobody answers to these any more: a second request finds nobody. */
static void gone(long (*kill)(long, long), long node, long ptype)
{
	while (kill(node, ptype) == 0)
		flick();
	CHECK(errno == EQNOPROC);
}

/* Both still reach each other. */
static void talk(long node, long ptype, long type)
{
	long mine = mynode(), theirs;

	csend(type, &mine, sizeof mine, node, ptype);
	crecv(type, &theirs, sizeof theirs);
	CHECK(theirs == node && infonode() == node);
}

static void wrong(void)
{
	long n = numnodes(), (*both[])(long, long) = { _killproc, _killcube }, i;

	for (i = 0; i < 2; i++) {
		CHECK(both[i](0, 77) == -1 && errno == EQNOPROC);
		CHECK(both[i](-1, 77) == -1 && errno == EQNOPROC);
		CHECK(both[i](0, -2) == -1 && errno == EQPID);
		CHECK(both[i](-2, 0) == -1 && errno == EQNODE);
		CHECK(both[i](n + 1, 0) == -1 && errno == EQNODE);
		if (_myhost() < 0)
			CHECK(both[i](n, 0) == -1 && errno == EQNODE);
	}
}

static int node(void)
{
	long me = mynode(), type;
	int status;

	wrong();
	gsync();
	if (me == 0) {
		if (nx_nfork(NULL, -1, 5, pids) == 0)
			for (;;) /* type 5: serves until it is ended */
				talk(0, 0, 50 + mynode());
		for (type = 50; type < 53; type++)
			talk(type - 50, 5, type);
		/* Two at once, by both calls; the third of the type lives. */
		CHECK(_killproc(1, 5) == 0 && _killcube(2, 5) == 0);
		gone(_killproc, 1, 5);
		gone(_killcube, 2, 5);
		talk(0, 5, 50);
		/* All of a type. */
		CHECK(_killproc(-1, 5) == 0);
		gone(_killproc, -1, 5);
		CHECK(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(nx_waitall() == 0);
	}
	gsync();
	if (me == 1) {
		csend(3, &me, sizeof me, 2, 0); /* all it has to say */
		_killcube(1, -1); /* all processes of the node */
		CHECK(!"it goes on");
	}
	if (me == 2) {
		crecv(3, &type, sizeof type);
		gone(_killcube, 1, -1);
	}
	talk(2 - me, 0, 4);
	csend(5, &me, sizeof me, 1, 0); /* reaches nobody */
	printf("kills: node %ld is done\n", me);
	return 0;
}

static int host(int argc, char **argv)
{
	long n = nx_initve(NULL, 3, "", &argc, argv), ptype, i;

	CHECK(n == 3);
	for (ptype = 0; ptype < 2; ptype++)
		if (nx_nfork(NULL, -1, ptype, pids) == 0) {
			crecv(1, &i, sizeof i);
			if (mynode() == 2 && ptype == 1) {
				/* A node ends another, and the host does not take it for a death. */
				CHECK(_killproc(0, 1) == 0);
				gone(_killproc, 0, 1);
				csend(2, &i, sizeof i, myhost(), 9);
			} else if (mynode() == 2)
				csend(2, &i, sizeof i, myhost(), 9);
			crecv(3, &i, sizeof i);
			return 0;
		}
	setptype(9);
	wrong();
	CHECK(_killproc(1, 0) == 0 && _killcube(1, 1) == 0);
	gone(_killproc, 1, -1);
	csend(1, &n, sizeof n, -1, 1);
	crecv(2, &i, sizeof i);
	csend(1, &n, sizeof n, -1, 0);
	crecv(2, &i, sizeof i);
	csend(3, &n, sizeof n, -1, 0);
	csend(3, &n, sizeof n, 2, 1);
	CHECK(nx_waitall() == 0);
	printf("kills: host is done\n");
	return 0;
}

/* A node ends the host, and with it all. */
static int orphans(int argc, char **argv)
{
	long n = nx_initve(NULL, 3, "", &argc, argv);

	CHECK(n == 3);
	if (nx_nfork(NULL, -1, 0, pids) == 0) {
		if (mynode() == 1) {
			crecv(1, NULL, 0);
			CHECK(_killproc(myhost(), 7) == -1 && errno == EQNOPROC);
			_killproc(myhost(), -1);
		}
		crecv(3, NULL, 0);
		return 0;
	}
	setptype(0);
	csend(1, NULL, 0, 1, 0);
	crecv(2, NULL, 0);
	return 1;
}

int main(int argc, char **argv)
{
	switch (argv[1][0]) {
	case 'n': return node();
	case 'h': return host(argc, argv);
	case 'o': return orphans(argc, argv);
	}
	/* Where others started us, only all can be ended. */
	CHECK(_killproc(1 - mynode(), 0) == -1 && errno == ENOSYS);
	CHECK(_killcube(1 - mynode(), -1) == -1 && errno == ENOSYS);
	gsync();
	if (mynode() == 0)
		_killcube(-1, 0);
	crecv(9, NULL, 0);
	return 0;
}
