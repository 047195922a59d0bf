/*
 * Six nodes on two hosts, three on each: some are ended on request from either host, the others go on. With argv[1] "all",
 * one node ends all.
 */
#include "check.h"

/* Waits until nobody answers to these any more. */
static void gone(long node, long ptype)
{
	while (_killproc(node, ptype) == 0)
		flick();
	CHECK(errno == EQNOPROC);
}

/* Both still reach each other. */
static void talk(long node, long type)
{
	long mine = mynode(), theirs;

	csend(type, &mine, sizeof mine, node, 0);
	crecv(type, &theirs, sizeof theirs);
	CHECK(theirs == node && infonode() == node);
}

/* Nobody hears this, short or long, and nobody waits for it. */
static void to_nobody(long node, long ptype)
{
	static char bytes[300000];
	int i;

	for (i = 0; i < 100; i++)
		csend(8, bytes, 8, node, ptype);
	csend(8, bytes, sizeof bytes, node, ptype);
}

int main(int argc, char **argv)
{
	static const long ptypes[] = { 0, 5, 7, 0, 5, 7 };
	long me = mynode(), i;

	CHECK(numnodes() == 6);
	setptype(ptypes[me]);
	gsync();
	if (argc > 1) {
		if (me == 4)
			killcube(-1, -1);
		crecv(99, NULL, 0);
		return 0;
	}
	CHECK(_killproc(4, 77) == -1 && errno == EQNOPROC);
	CHECK(_killcube(-1, 77) == -1 && errno == EQNOPROC);
	CHECK(_killcube(6, 0) == -1 && errno == EQNODE);
	if (me == 1 || me == 2 || me == 4 || me == 5) {
		crecv(99, NULL, 0); /* until it is ended */
		CHECK(!"it goes on");
	}
	if (me == 0) {
		/* One on the other host. */
		CHECK(_killproc(4, 5) == 0);
		gone(4, -1);
		to_nobody(4, 5);
		talk(3, 1);
		/* Of a type, one on each host. */
		CHECK(_killcube(-1, 7) == 0);
		gone(-1, 7);
		to_nobody(5, 7);
		to_nobody(2, 7);
		talk(3, 2);
		talk(3, 3);
		/* One that ends itself. */
		gone(3, -1);
		to_nobody(3, 0);
		csend(4, NULL, 0, -1, 0);
	} else {
		talk(0, 1);
		talk(0, 2);
		/* All processes of a node of the other host; many requests for one that is ended already. */
		for (i = 0; i < 1000; i++)
			_killproc(1, -1);
		gone(1, -1);
		to_nobody(1, 5);
		talk(0, 3);
		killproc(3, -1);
		CHECK(!"it goes on");
	}
	printf("kills: node %ld is done\n", me);
	return 0;
}
