/* nx_load and nx_loadve: one program for node 0, another (argv[1]) for all others. */
#include "check.h"

int main(int argc, char **argv)
{
	nx_int_t pids[16], nodes[16] = { 0 };
	char *args[] = { "worker", "of", "load", NULL }, *env[] = { getenv("VMMC_SOCKET") - 12, getenv("LD_LIBRARY_PATH") - 16, NULL };
	long n = nx_initve(NULL, 3, "", &argc, argv), i;

	if (n != 3)
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
	if (nx_loadve(nodes + 1, 2, 0, pids, argv[1], args, env) != 2)
		return 6;
	return nx_waitall() == 0 ? 0 : 7;
}
