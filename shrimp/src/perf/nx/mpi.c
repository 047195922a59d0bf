/* The measurements of rank.rs, for an MPI: the same games, the same lines of output. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, nodes;

static void turn(char *bytes, int len)
{
	if (me == 0) {
		MPI_Send(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(bytes, len, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else if (me == 1) {
		MPI_Recv(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(bytes, len, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	double budget = atof(argv[1]), start, ns;
	int i, n, rounds;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &nodes);
	if (strcmp(argv[2], "pingpong") == 0) {
		for (i = 3; i < argc; i++) {
			int len = atoi(argv[i]);
			char *bytes = malloc(len + 1);
			memset(bytes, 1, len + 1);
			start = MPI_Wtime();
			for (n = 0; n < 20; n++)
				turn(bytes, len);
			rounds = budget / ((MPI_Wtime() - start) / 20) + 10;
			MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
			MPI_Barrier(MPI_COMM_WORLD);
			start = MPI_Wtime();
			for (n = 0; n < rounds; n++)
				turn(bytes, len);
			ns = (MPI_Wtime() - start) / rounds / 2 * 1e9;
			if (me == 0)
				printf("pingpong %d %f\n", len, ns);
			free(bytes);
		}
	} else {
		double x = me, sum;
		int sums;
		for (sums = 0; sums < 2; sums++) {
			for (rounds = 20, i = 0; i < 2; i++) {
				MPI_Barrier(MPI_COMM_WORLD);
				start = MPI_Wtime();
				for (n = 0; n < rounds; n++) {
					if (sums)
						MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
					else
						MPI_Barrier(MPI_COMM_WORLD);
				}
				ns = (MPI_Wtime() - start) / rounds * 1e9;
				rounds = budget * 1e9 / ns + 10;
				MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
			}
			if (me == 0)
				printf("%s %d %f\n", sums ? "sum" : "sync", nodes, ns);
		}
	}
	MPI_Finalize();
	return 0;
}
