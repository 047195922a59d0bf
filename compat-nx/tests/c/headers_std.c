/* The headers in the dialect of the command line. */
#include <nx.h>
#include <cube.h>
#include <mesh.h>

static void on_message(long type, long count, long node, long ptype) {}

int main(void)
{
	long value;

	if (mynode() < 0)
		hrecv(1, &value, sizeof value, (nx_handler_t)on_message);
	gsync();
	return 0;
}
