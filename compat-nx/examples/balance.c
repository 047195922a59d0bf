/*
 * balance: dynamic load balancing with a shared counter.
 *
 * The integral of 4 / (1 + x * x) from 0 to 1, which is pi, is cut into pieces of very different
 * cost. A counter on the last node hands out the numbers of pieces: its handler answers while the
 * last node computes pieces itself. (This is how NX programs had a shared counter: hrecv, and a
 * reply from within the handler.)
 *
 * Checked: every piece was computed exactly once, and the sum is pi.
 *
 *   gcc -o balance balance.c -lnx;   shrimp run -n 4 -- ./balance
 */
#include <math.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECES 2000
#define TYPE_ASK 1
#define TYPE_ANSWER 2

static long next_piece; /* on the server only, changed by the handler only */
static long question;

static void on_ask(long type, long count, long node, long ptype)
{
	long piece = next_piece++;

	csend(TYPE_ANSWER, &piece, sizeof piece, node, ptype);
	hrecv(TYPE_ASK, &question, sizeof question, on_ask);
}

static long take_piece(void)
{
	long piece, me = mynode();

	csend(TYPE_ASK, &me, sizeof me, numnodes() - 1, mypid());
	crecv(TYPE_ANSWER, &piece, sizeof piece);
	return piece;
}

/* The midpoint rule; late pieces are much finer than early ones. */
static double integrate(long piece)
{
	long steps = 50 + piece * 2, i;
	double low = (double)piece / PIECES, width = 1.0 / PIECES / steps, sum = 0;

	for (i = 0; i < steps; i++) {
		double x = low + (i + 0.5) * width;

		sum += 4 / (1 + x * x);
	}
	return sum * width;
}

int main(void)
{
	static long taken[PIECES], work[PIECES];
	double sum = 0, dwork, started = dclock();
	long piece, mine = 0, most, least, i, iwork;

	if (mynode() == numnodes() - 1)
		hrecv(TYPE_ASK, &question, sizeof question, on_ask);
	gsync();
	while ((piece = take_piece()) < PIECES) {
		taken[piece]++;
		mine++;
		sum += integrate(piece);
	}
	gdsum(&sum, 1, &dwork);
	gisum(taken, PIECES, work);
	most = least = mine;
	gihigh(&most, 1, &iwork);
	gilow(&least, 1, &iwork);
	if (mynode() == 0) {
		for (i = 0; i < PIECES; i++)
			if (taken[i] != 1) {
				printf("balance: WRONG: piece %ld was taken %ld times\n", i, taken[i]);
				killproc(-1, -1);
			}
		printf("balance: %ld nodes, %ld to %ld pieces each, %.3f s, error %.1e\n", numnodes(),
		    least, most, dclock() - started, fabs(sum - M_PI));
		if (fabs(sum - M_PI) > 1e-9) {
			printf("balance: WRONG\n");
			killproc(-1, -1);
		}
		printf("balance: right\n");
	}
	gsync();
	return 0;
}
