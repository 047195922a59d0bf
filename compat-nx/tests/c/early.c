/* A program that starts its nodes itself and calls too early; then a host that talks to nodes. */
#include "check.h"
#include <sys/wait.h>

int main(int argc, char **argv)
{
	nx_int_t pids[64];
	long n, count, i, value, sum;
	int status;

	if (_csend(1, &n, 8, 0, 0) != -1 || errno != EQNOACT || _mynode() != -1 || _gsync() != -1
	    || _numnodes() != -1 || nx_nfork(NULL, -1, 0, pids) != -1) {
		fprintf(stderr, "a call before the start did not fail\n");
		return 1;
	}
	n = strcmp(argv[0], "rect") == 0 ? nx_initve_rect(NULL, 0, 2, 2, "", &argc, argv)
	    : strcmp(argv[0], "attr") == 0
	    ? nx_initve_attr(NULL, &argc, argv, NX_ATTR_PRI, 5, NX_ATTR_SZ, 3, NX_ATTR_ACCT, "",
		NX_ATTR_RELAXED, 1, NX_ATTR_END)
	    : nx_initve(NULL, 0, "", &argc, argv);
	if (n <= 0) {
		nx_perror("nx_initve");
		return 1;
	}
	if (argc != 2 || strcmp(argv[1], "keep") != 0 || argv[2] != NULL) {
		fprintf(stderr, "argc %d\n", argc);
		return 1;
	}
	printf("host of %ld\n", n);
	count = nx_nfork(NULL, -1, 0, pids);
	if (count == 0) {
		/* A node: adds its number to what the host sends. */
		CHECK(mynode() >= 0 && mynode() < n && numnodes() == n && myptype() == 0);
		CHECK(_myhost() == n);
		gsync();
		crecv(1, &value, sizeof value);
		CHECK(infonode() == myhost() && infoptype() == 3);
		value += mynode();
		csend(2, &value, sizeof value, myhost(), 3);
		gsync();
		printf("node %ld done\n", mynode());
		return 0;
	}
	if (count != n || myhost() != n || mynode() != n) {
		fprintf(stderr, "count %ld of %ld\n", count, n);
		return 1;
	}
	/* The host needs a process type first. */
	value = 100;
	if (_csend(1, &value, sizeof value, 0, 0) != -1 || errno != EQNOSET)
		return 1;
	setptype(3);
	csend(1, &value, sizeof value, -1, 0);
	for (i = 0, sum = 0; i < n; i++) {
		crecv(2, &value, sizeof value);
		sum += value;
	}
	if (n % 2)
		nx_waitall();
	else
		while (wait(&status) > 0)
			if (status != 0)
				return 1;
	printf("sum %ld\n", sum);
	return sum == 100 * n + n * (n - 1) / 2 ? 0 : 1;
}
