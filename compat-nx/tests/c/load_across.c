/*
 * A host process that loads this very program as nodes on two hosts: nodes of the first half with type 0, of the second with
 * type 3. argv[1] says what is done then.
 */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>

/* What the host may tell. */
enum { COUNT = 100, KILL_THE_HOST, CRASH };

extern char **environ;

static int node(int argc, char **argv)
{
	long me = mynode(), n = numnodes(), value, sum;
	const char *socket = getenv("VMMC_SOCKET");
	nx_int_t total = me, work;

	CHECK(myptype() == (me < n / 2 ? 0 : 3) && _myhost() == n);
	CHECK(argc == (me < n / 2 ? 3 : 1));
	if (argc == 3)
		CHECK(strcmp(argv[1], "two") == 0 && strcmp(argv[2], "words here") == 0);
	CHECK(strcmp(getenv("NX_OF_THE_HOST"), "7") == 0);
	gisum(&total, 1, &work);
	CHECK(total == n * (n - 1) / 2);
	CHECK(nx_nfork(NULL, -1, 77, NULL) == -1 && errno == ENOSYS);
	crecv(1, &value, sizeof value);
	CHECK(infonode() == myhost() && infoptype() == 9);
	if (me == n - 1 && value == KILL_THE_HOST) {
		_killproc(myhost(), -1);
		crecv(99, NULL, 0);
	}
	if (me == n - 1 && value == CRASH)
		raise(SIGSEGV);
	sum = value + me;
	csend(2, &sum, sizeof sum, myhost(), 9);
	printf("node %ld on %c\n", me, socket[strlen(socket) - 1]);
	crecv(3, NULL, 0);
	return 20 + me;
}

int main(int argc, char **argv)
{
	long n = nx_initve(NULL, 0, "", &argc, argv), half = n / 2, i, value, told, sum = 0;
	nx_int_t nodes[16], pids[16], again[16], last[1];
	char *arguments[] = { argv[0], "two", "words here", NULL }, *how = argv[1];
	int status;
	pid_t pid;

	CHECK(n > 1);
	if (mynode() < n)
		return node(argc, argv);
	setenv("NX_OF_THE_HOST", "7", 1);
	last[0] = n - 1;
	/* What cannot be on another host, and what is not there. */
	CHECK(nx_nfork(NULL, -1, 0, pids) == -1 && errno == ENOSYS);
	nx_perror("nx_nfork");
	CHECK(nx_load(last, 1, 0, pids, "/no/such/program") == -1 && errno == ENOENT);
	nx_perror("nx_load");
	CHECK(nx_load(last, 1, 0, pids, "no-such-program") == -1 && errno == ENOENT);
	CHECK(nx_load(last, 1, 0, pids, "/etc/passwd") == -1 && errno == EACCES);
	CHECK(nx_load(last, 1, 0, pids, "/") == -1 && errno == EACCES);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	for (i = 0; i < n; i++)
		nodes[i] = i;
	CHECK(nx_loadve(nodes, half, 0, pids, argv[0], arguments, environ) == half);
	CHECK(nx_load(nodes + half, n - half, 3, pids + half, argv[0]) == n - half);
	CHECK(nx_load(last, 1, 3, again, argv[0]) == -1 && errno == EQUSEPID);
	setptype(9);
	told = strcmp(how, "orphans") == 0 ? KILL_THE_HOST : strcmp(how, "crash") == 0 ? CRASH : COUNT;
	csend(1, &told, sizeof told, -1, 0);
	csend(1, &told, sizeof told, -1, 3);
	for (i = 0; i < n; i++) {
		crecv(2, &value, sizeof value);
		sum += value;
	}
	CHECK(sum == told * n + n * (n - 1) / 2);
	if (told == KILL_THE_HOST)
		crecv(99, NULL, 0); /* all have answered before the end came, by another host */
	if (strcmp(how, "die") == 0)
		raise(SIGKILL);
	if (strcmp(how, "leave") == 0)
		return 0;
	if (strcmp(how, "stay") == 0) {
		printf("waiting\n");
		fflush(stdout);
		crecv(99, NULL, 0);
	}
	if (strcmp(how, "signal") == 0) {
		kill(pids[n - 1], SIGTERM);
		crecv(99, NULL, 0);
	}
	if (strcmp(how, "killproc") == 0) {
		CHECK(_killproc(n - 1, -1) == 0);
		CHECK(waitpid(pids[n - 1], &status, 0) == pids[n - 1]);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		while (_killproc(n - 1, -1) == 0)
			flick();
		CHECK(errno == EQNOPROC);
		n--;
	}
	for (i = 0; i < n; i++)
		csend(3, NULL, 0, i, i < half ? 0 : 3);
	if (strcmp(how, "waitall") == 0)
		CHECK(nx_waitall() == 0);
	else
		for (i = 0; i < n; i++) {
			pid = wait(&status);
			for (value = 0; pids[value] != pid; value++)
				CHECK(value < n);
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 20 + value);
		}
	CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
	printf("host: all good\n");
	return 0;
}
