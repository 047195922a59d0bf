/*
 * Several process types per node, on several hosts. The nodes have type 0 (with a host process, argv[1] is "host", also
 * type 1); the first of them and the last add types 5 and 6 to every node at the same time.
 */
#include "types.h"
#include <sys/wait.h>

static void wait_for_all_of(const nx_int_t *pids, long n)
{
	long i, left = n;
	int status;
	pid_t pid;

	while (left-- > 0) {
		pid = wait(&status);
		for (i = 0; i < n && pids[i] != pid; i++)
			;
		CHECK(i < n && WIFEXITED(status) && WEXITSTATUS(status) == 20 + i);
	}
}

static int as_node(const char *program, int with_host)
{
	long me = mynode(), n = numnodes(), ptype = myptype(), got, kinds[] = { 0, 5, 6 }, i;
	nx_int_t pids[64];

	together(me, n, ptype);
	if (with_host && ptype < 2)
		crecv(1, &got, sizeof got); /* the other type is there */
	if (ptype == 1) {
		meet(me, n, 1, 0);
		return 20 + me;
	}
	if (ptype == 0) {
		if (with_host)
			meet(me, n, 0, 1);
		if (me == 0 || me == n - 1) {
			CHECK(nx_load(NULL, -1, me == 0 ? 5 : 6, pids, program) == n);
			/* The last is on another host, or this one is. */
			CHECK(nx_load(NULL, -1, me == 0 ? 5 : 6, pids, program) == -1 && errno == EQUSEPID);
		}
		gsync();
	} else {
		/* Who was started first knows of the other type when that begins. */
		crecvx(2, &got, sizeof got, 0, 0, msginfo);
	}
	if (ptype == 0 && me == 0) {
		csend(2, &n, sizeof n, -1, 5);
		csend(2, &n, sizeof n, -1, 6);
	}
	for (i = 0; i < 3; i++)
		if (kinds[i] != ptype)
			meet(me, n, ptype, kinds[i]);
	together(me, n, ptype);
	if (ptype == 0 && (me == 0 || me == n - 1))
		wait_for_all_of(pids, n);
	return ptype == 0 && !with_host ? 0 : 20 + me;
}

static void as_host(int argc, char **argv)
{
	long n = nx_initve(NULL, 0, "", &argc, argv), ptype;
	nx_int_t pids[2][64];
	long i, at;
	int status;
	pid_t pid;

	setenv("NX_OF_THE_HOST", "1", 1);
	for (ptype = 0; ptype < 2; ptype++)
		CHECK(nx_load(NULL, -1, ptype, pids[ptype], argv[0]) == n);
	setptype(9);
	for (ptype = 0; ptype < 2; ptype++)
		csend(1, &n, sizeof n, -1, ptype);
	for (i = 0; i < 2 * n; i++) {
		pid = wait(&status);
		for (at = 0; at < 2 * n && pids[at / n][at % n] != pid; at++)
			;
		if (at == 2 * n || status != 20 + at % n << 8)
			fprintf(stderr, "process %d, number %ld of %ld: status %x\n", pid, at, n, status);
		CHECK(at < 2 * n && WIFEXITED(status) && WEXITSTATUS(status) == 20 + at % n);
	}
	CHECK(wait(NULL) == -1 && errno == ECHILD);
	printf("types: all good\n");
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "host") == 0) {
		as_host(argc, argv);
		return 0;
	}
	int code = as_node(argv[0], getenv("NX_OF_THE_HOST") != NULL);
	if (code == 0 && mynode() == 0)
		printf("types: all good\n");
	return code;
}
