/* A host process whose nodes are two rows of argv[1] each, and that loads this very program as its nodes: they know it. */
#include "check.h"

int main(int argc, char **argv)
{
	long columns = argc > 1 ? atol(argv[1]) : 0;
	long n = nx_initve_rect(NULL, 0, 2, columns, "", &argc, argv);
	nx_int_t rows, cols;

	CHECK(nx_app_rect(&rows, &cols) == 0 && rows == 2 && rows * cols == numnodes());
	if (mynode() < numnodes()) {
		printf("node %ld: %d x %d\n", mynode(), (int)rows, (int)cols);
		return 0;
	}
	CHECK(n == 2 * columns && cols == columns);
	CHECK(nx_load(NULL, -1, 0, NULL, argv[0]) == n);
	return nx_waitall();
}
