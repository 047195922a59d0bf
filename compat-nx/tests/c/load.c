/* nx_load and nx_loadve: a program (argv[1]) for node 0, and for all others, of as many nodes as argv[2] says. */
#include "check.h"

int main(int argc, char **argv)
{
	nx_int_t pids[16], nodes[16] = { 0 };
	char *args[] = { "worker", "of", "load", NULL }, *env[] = { getenv("VMMC_SOCKET") - 12, getenv("LD_LIBRARY_PATH") - 16, NULL };
	long size = atol(argv[2]), n = nx_initve(NULL, size, "", &argc, argv), i;

	if (n != size)
		return 2;
	if (nx_load(nodes, 1, 0, pids, "/no/such/program") != -1 || errno != ENOENT)
		return 3;
	nodes[0] = 99;
	if (nx_load(nodes, 1, 0, pids, argv[1]) != -1 || errno != EQNODE)
		return 4;
	for (i = 0; i < n; i++)
		nodes[i] = i;
	if (nx_load(nodes, 1, 0, pids, argv[1]) != 1 || pids[0] <= 0)
		return 5;
	if (n > 1 && nx_loadve(nodes + 1, n - 1, 0, pids, argv[1], args, env) != n - 1)
		return 6;
	return nx_waitall() == 0 ? 0 : 7;
}
