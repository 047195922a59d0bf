/* A token goes once round all nodes; each adds its number. */
#include <nx.h>
#include <stdio.h>

int main(void)
{
	long me = mynode(), n = numnodes(), sum = 0;

	if (me == 0) {
		csend(7, &sum, sizeof sum, 1 % n, 0);
		crecv(7, &sum, sizeof sum);
		printf("ring of %ld: %ld\n", n, sum);
	} else {
		crecv(7, &sum, sizeof sum);
		sum += me;
		csend(7, &sum, sizeof sum, (me + 1) % n, 0);
	}
	gsync();
	return 0;
}
