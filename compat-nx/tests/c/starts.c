/*
 * Wrong arguments for every call that starts an application or asks about one: -1 with errno, which nx_perror puts into words;
 * nothing is left, and the application can still be started. argv[1] is a program to load; "node": this one began as a node.
 */
#include "check.h"
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define REFUSED(call, number)                                                                   \
	do {                                                                                    \
		errno = 0;                                                                      \
		if ((call) != -1 || errno != (number)) {                                        \
			fprintf(stderr, "%d: %s: errno %d\n", __LINE__, #call, errno);          \
			_exit(1);                                                               \
		}                                                                               \
		nx_perror(#call);                                                               \
	} while (0)

static char none[] = "";
static nx_int_t bad[3] = { 0, 99, 1 }, below[1] = { -1 }, twice[2] = { 1, 1 }, one[1] = { 1 }, pids[16];
static char *no_arguments[] = { NULL };

/* Calls for processes, when there is an application of three nodes. */
static void processes(char *program)
{
	char *path;

	REFUSED(nx_nfork(NULL, 3, 5, pids), EQPBUF);
	REFUSED(nx_nfork(NULL, 0, 5, pids), EQPARAM);
	REFUSED(nx_nfork(one, 0, 5, pids), EQPARAM);
	REFUSED(nx_nfork(one, -2, 5, pids), EQPARAM);
	REFUSED(nx_nfork(bad, 3, 5, pids), EQNODE);
	REFUSED(nx_nfork(below, 1, 5, pids), EQNODE);
	REFUSED(nx_nfork(twice, 2, 5, pids), EQUSEPID);
	REFUSED(nx_nfork(one, 1, -1, pids), EQPID);
	REFUSED(nx_nfork(one, 1, 1000000000, pids), EQPID);
	REFUSED(nx_load(NULL, 3, 5, pids, program), EQPBUF);
	REFUSED(nx_load(one, 0, 5, pids, program), EQPARAM);
	REFUSED(nx_load(bad, 3, 5, pids, program), EQNODE);
	REFUSED(nx_load(twice, 2, 5, pids, program), EQUSEPID);
	REFUSED(nx_load(one, 1, -1, pids, program), EQPID);
	REFUSED(nx_load(one, 1, 5, pids, NULL), EQPARAM);
	REFUSED(nx_load(one, 1, 5, pids, none), EQPARAM);
	REFUSED(nx_load(one, 1, 5, pids, "/no/such/program"), ENOENT);
	REFUSED(nx_load(one, 1, 5, pids, "no-such-program"), ENOENT);
	REFUSED(nx_load(one, 1, 5, pids, "/etc/passwd"), EACCES);
	REFUSED(nx_load(one, 1, 5, pids, "/"), EACCES);
	REFUSED(nx_load(one, 1, 5, pids, "/etc/passwd/x"), ENOTDIR);
	path = malloc(5000);
	memset(path, 'x', 4999);
	path[0] = '/';
	path[4999] = 0;
	REFUSED(nx_load(one, 1, 5, pids, path), ENAMETOOLONG);
	free(path);
	/* Executable, and no program. */
	path = tmpnam(NULL);
	fclose(fopen(path, "w"));
	chmod(path, 0700);
	REFUSED(nx_load(one, 1, 5, pids, path), ENOEXEC);
	unlink(path);
	REFUSED(nx_loadve(NULL, 3, 5, pids, program, no_arguments, NULL), EQPBUF);
	REFUSED(nx_loadve(one, -3, 5, pids, program, NULL, NULL), EQPARAM);
	REFUSED(nx_loadve(bad + 1, 1, 5, pids, program, NULL, NULL), EQNODE);
	REFUSED(nx_loadve(one, 1, -7, pids, program, NULL, NULL), EQPID);
	REFUSED(nx_loadve(one, 1, 5, pids, NULL, NULL, NULL), EQPARAM);
	REFUSED(nx_loadve(one, 1, 5, pids, "/no/such/program", NULL, NULL), ENOENT);
	CHECK(pids[0] == 0);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	REFUSED(nx_waitall(), ECHILD);
}

static void asking(void)
{
	nx_int_t number;
	nx_nodes_t nodes;
	unsigned long count;

	REFUSED(nx_app_nodes(0, NULL, &count), EQPBUF);
	REFUSED(nx_app_nodes(0, &nodes, NULL), EQPBUF);
	REFUSED(nx_app_nodes(-1, &nodes, &count), EQNOPROC);
	REFUSED(nx_app_nodes(0x7fffffff, &nodes, &count), EQNOPROC);
	CHECK(nx_app_nodes(getpid(), &nodes, &count) == 0 && count == 3);
	free(nodes);
	REFUSED(nx_app_rect(NULL, &number), EQPBUF);
	REFUSED(nx_app_rect(&number, NULL), EQPBUF);
	REFUSED(nx_pri(0, -1), EQPARAM);
	REFUSED(nx_pri(-1, 1), EQPARAM);
	CHECK(nx_pri(0, 5) == 0);
	errno = EQNODE;
	nx_perror(NULL);
	CHECK(errno == EQNODE);
}

static long initve(int *argc, char **argv)
{
	nx_int_t number;
	nx_nodes_t nodes;
	unsigned long count;
	int rect[2] = { 2, 2 }, empty[2] = { 0, 3 }, zero = 0, three = 3;
	char *switches[] = { "x", "-sz", "0", NULL };

	/* Too early. */
	REFUSED(nx_nfork(NULL, -1, 0, pids), EQNOACT);
	REFUSED(nx_load(NULL, -1, 0, pids, argv[1]), EQNOACT);
	REFUSED(nx_loadve(NULL, -1, 0, pids, argv[1], NULL, NULL), EQNOACT);
	REFUSED(nx_app_nodes(0, &nodes, &count), EQNOACT);
	REFUSED(nx_app_rect(&number, &number), EQNOACT);
	REFUSED(nx_waitall(), ECHILD);
	/* Sizes. */
	REFUSED(nx_initve(NULL, -3, "", argc, argv), EQPARAM);
	REFUSED(nx_initve(NULL, 4097, "", argc, argv), EQPARAM);
	REFUSED(nx_initve(NULL, 0x7fffffff, NULL, argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 0, 3, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 3, 0, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, -2, 2, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 2, -2, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 70, 70, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 65536, 65536, "", argc, argv), EQPARAM);
	/* Attributes. */
	REFUSED(nx_initve_attr(NULL, argc, argv, 99, 1, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, 0, 1, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, -7, 1, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_SZ, -3, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_SZ, 5000, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_RECT, NULL, NX_ATTR_END), EQPBUF);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_RECT, 8L, NX_ATTR_END), EQPBUF);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_RECT, empty, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_SZ, 3, NX_ATTR_RECT, rect, NX_ATTR_END), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_RECT, rect, NX_ATTR_SZ, 5, NX_ATTR_END), EQPARAM);
	/* No end: what follows is whatever there is, here one that is not known. */
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_SZ, 3, 1234L, 0L), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L,
	    11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L, 11L, 1L), EQPARAM);
	/* Switches. */
	REFUSED(nx_initve(NULL, 3, "", &three, switches), EQPARAM);
	/* No arguments, and none to take switches from. */
	CHECK(zero == 0 && nx_initve(NULL, 3, NULL, &zero, NULL) == 3);
	/* Once more: the same, or whatever there is, but nothing else. */
	CHECK(nx_initve(NULL, 3, "", argc, argv) == 3 && nx_initve(NULL, 0, "", NULL, argv) == 3);
	CHECK(nx_initve_attr(NULL, NULL, NULL, NX_ATTR_END) == 3);
	REFUSED(nx_initve(NULL, 4, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_rect(NULL, 0, 2, 2, "", argc, argv), EQPARAM);
	REFUSED(nx_initve_attr(NULL, argc, argv, NX_ATTR_SZ, 2, NX_ATTR_END), EQPARAM);
	CHECK(numnodes() == 3);
	return 3;
}

int main(int argc, char **argv)
{
	long n, count;

	if (argc > 2) {
		/* Started as a node. */
		CHECK(nx_initve(NULL, 0, "", &argc, argv) == 3 && nx_initve(NULL, 3, "", &argc, argv) == 3);
		REFUSED(nx_initve(NULL, 2, "", &argc, argv), EQPARAM);
		REFUSED(nx_initve(NULL, -2, "", &argc, argv), EQPARAM);
		REFUSED(nx_initve_rect(NULL, 0, 2, 2, "", &argc, argv), EQPARAM);
		gsync(); /* all are there */
		REFUSED(nx_nfork(one, 1, 0, pids), EQUSEPID);
		REFUSED(nx_load(NULL, -1, 0, pids, argv[1]), EQUSEPID);
		processes(argv[1]);
		asking();
		gsync();
		printf("starts: node %ld: all good\n", mynode());
		return 0;
	}
	n = initve(&argc, argv);
	processes(argv[1]);
	asking();
	count = nx_nfork(NULL, -1, 0, pids);
	if (count == 0) {
		REFUSED(nx_waitall(), ECHILD);
		crecv(1, NULL, 0); /* the host is through */
		return 0;
	}
	CHECK(count == n);
	REFUSED(nx_nfork(NULL, -1, 0, pids), EQUSEPID);
	REFUSED(nx_load(one, 1, 0, pids, argv[1]), EQUSEPID);
	REFUSED(nx_loadve(one, 1, 0, pids, argv[1], NULL, NULL), EQUSEPID);
	setptype(1);
	csend(1, NULL, 0, -1, 0);
	CHECK(nx_waitall() == 0 && nx_waitall() == 0);
	printf("starts: all good\n");
	return 0;
}
