/* A program that has its own functions under NX names, with other signatures: the library's other
 * calls do not end up in them. */
#include <stdio.h>
#include <stdlib.h>

extern long mynode(void), numnodes(void);
extern void gdsum(double *, long, double *);
extern long _csend(long, void *, long, long, long), _crecv(long, void *, long);

void gsync(int wrong, char *arguments) { abort(); }
void csend(double wrong) { abort(); }
void crecv(void) { abort(); }
char *infocount(void) { abort(); }
int masktrap, handler, flick;
double led, gray;

int main(void)
{
	double x = 1, work;
	long value = mynode(), n = numnodes();

	gdsum(&x, 1, &work);
	if (_csend(1, &value, sizeof value, (value + 1) % n, 0) != 0)
		return 1;
	if (_crecv(1, &value, sizeof value) != 0 || x != n)
		return 1;
	if (mynode() == 0)
		printf("interposed: all good on %ld nodes\n", n);
	return 0;
}
