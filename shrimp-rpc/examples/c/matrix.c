/* Matrices from C, worked on in place by a server of matrix.x, such as `matrix serve` of
 * examples/matrix.rs: matrix try ROWS COLUMNS.
 *
 *     shrimpc c ../matrix.x
 *     cc -I. -I../../include -o matrix matrix.c matrix_client.c matrix_codec.c -lshrimp_rpc
 */
#include "matrix.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the matrix 0, 1, 2, ... was halved and turned. */
static int is_right(const double *m, uint32_t rows, uint32_t columns)
{
    for (uint32_t column = 0; column < columns; column++)
        for (uint32_t row = 0; row < rows; row++)
            if (m[column * rows + row] != (row * columns + column) * 0.5)
                return 0;
    return 1;
}

static int try(shrimp_rpc_binding *binding, uint32_t rows, uint32_t columns)
{
    const uint32_t len = rows * columns;
    shrimp_bool fits = 0;
    double *m = malloc(len * sizeof *m);
    if (m == NULL)
        return SHRIMP_RPC_SYSTEM_ERR;
    for (uint32_t i = 0; i < len; i++)
        m[i] = i;
    int rc = scale_1(binding, 0.5, len, m);
    if (rc == 0)
        rc = transpose_1(binding, rows, len, m, &fits);
    if (rc == 0)
        puts(fits && is_right(m, rows, columns) ? "as expected" : "wrong");
    free(m);
    return rc;
}

int main(int argc, char **argv)
{
    shrimp_rpc_binding *binding = NULL;
    if (argc != 4 || strcmp(argv[1], "try") != 0) {
        fprintf(stderr, "usage: matrix try ROWS COLUMNS\n");
        return 2;
    }
    /* Buffers in which large matrices fit whole. */
    setenv("SHRIMP_RPC_BUFFER", "16777216", 0);
    int rc = shrimp_rpc_connect("matrix", MATRIX, MATRIX_V1, &binding);
    if (rc != 0) {
        fprintf(stderr, "matrix: %s\n", shrimp_rpc_strerror(rc));
        return 1;
    }
    rc = try(binding, (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    if (rc != 0)
        fprintf(stderr, "matrix: %s: %s\n", shrimp_rpc_strerror(rc), shrimp_rpc_last_error(binding));
    shrimp_rpc_close(binding);
    return rc != 0;
}
