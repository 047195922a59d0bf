/* The measurements of rank.rs, for an MPI: the same games, the same lines of output. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, nodes, len, elements;
/* Until all nodes have done it. */
static int together;
static char *bytes;
static double *x, *all;

static void turn(void)
{
	if (me == 0) {
		MPI_Send(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else if (me == 1) {
		MPI_Recv(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	}
}

/* The same with the receive posted first, and no call that blocks but the waits. */
static void nonblocking(void)
{
	MPI_Request sent, received;
	char room[64];

	if (me > 1)
		return;
	MPI_Irecv(room, len, MPI_BYTE, 1 - me, 1, MPI_COMM_WORLD, &received);
	if (me == 1)
		MPI_Wait(&received, MPI_STATUS_IGNORE);
	MPI_Isend(bytes, len, MPI_BYTE, 1 - me, 1, MPI_COMM_WORLD, &sent);
	MPI_Wait(&sent, MPI_STATUS_IGNORE);
	if (me == 0)
		MPI_Wait(&received, MPI_STATUS_IGNORE);
}

/* The same of each even node with the next. */
static void paired(void)
{
	int even = me % 2 == 0, other = even ? me + 1 : me - 1;

	if (even)
		MPI_Send(bytes, len, MPI_BYTE, other, 1, MPI_COMM_WORLD);
	MPI_Recv(bytes, len, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (!even)
		MPI_Send(bytes, len, MPI_BYTE, other, 1, MPI_COMM_WORLD);
}

static void sync(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
}

static void sum(void)
{
	MPI_Allreduce(x, all, elements, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Seconds of a turn. */
static double seconds(void (*turn)(void), double wanted)
{
	int n, rounds = wanted;
	double start;

	MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (n = 0; n < rounds; n++)
		turn();
	if (together)
		MPI_Barrier(MPI_COMM_WORLD);
	return (MPI_Wtime() - start) / rounds;
}

/* As timed() there. */
static void play(const char *game, int number, double budget, double ways, void (*turn)(void))
{
	static const double shares[] = { 0.1, 1.0 };
	double last = seconds(turn, 20);
	int i;

	for (i = 0; i < 2; i++)
		last = seconds(turn, budget * shares[i] / last + 10);
	if (me == 0)
		printf("%s %d %f\n", game, number, last / ways * 1e9);
}

int main(int argc, char **argv)
{
	double budget = atof(argv[1]);
	int i;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &nodes);
	if (strcmp(argv[2], "pingpong") == 0) {
		for (i = 3; i < argc; i++) {
			len = atoi(argv[i]);
			bytes = malloc(len + 1);
			memset(bytes, 1, len + 1);
			play("pingpong", len, budget, 2, turn);
			free(bytes);
		}
	} else if (strcmp(argv[2], "calls") == 0) {
		len = 8;
		bytes = calloc(1, len);
		play("isend", len, budget, 2, nonblocking);
	} else {
		static const int sums[] = { 1, 100, 10000 }, pairs[] = { 8, 65536 };
		char game[32];

		play("sync", nodes, budget, 1, sync);
		for (i = 0; i < 3; i++) {
			elements = sums[i];
			x = calloc(elements, sizeof *x);
			all = calloc(elements, sizeof *all);
			snprintf(game, sizeof game, "sum-%d", elements);
			play(game, nodes, budget, 1, sum);
			free(x);
			free(all);
		}
		together = 1;
		for (i = 0; i < 2 && nodes > 2 && nodes % 2 == 0; i++) {
			len = pairs[i];
			bytes = calloc(1, len);
			snprintf(game, sizeof game, "pair-%d", len);
			play(game, nodes, budget, 2, paired);
			free(bytes);
		}
	}
	MPI_Finalize();
	return 0;
}
