/* client tcp|udp PORT MILLISECONDS SIZE...: an ordinary libtirpc client that takes the time of round
 * trips. A line for each size: size, calls per sample, samples in nanoseconds. Size 0 is a null call. */
#include "bench.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static CLIENT *cl;
static bulk in, out;
static char nothing;

static void call(int size)
{
    enum clnt_stat got;
    out.bulk_len = 0;
    got = size ? exchange_1(&in, &out, cl) : nothing_1(NULL, &nothing, cl);
    if (got != RPC_SUCCESS || (size && (int)out.bulk_len != size)) {
        clnt_perror(cl, "client");
        exit(3);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    int fd = RPC_ANYSOCK, udp = !strcmp(argv[1], "udp");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval retry = {5, 0};
    cl = udp ? clntudp_bufcreate(&at, BENCH, BENCH_V, retry, &fd, 65000, 65000)
             : clnttcp_create(&at, BENCH, BENCH_V, &fd, 0, 0);
    if (!cl) {
        clnt_pcreateerror("client");
        return 3;
    }
    double round = atof(argv[3]) * 1e6;
    static double samples[2000];
    for (int i = 4; i < argc; i++) {
        int size = atoi(argv[i]);
        in.bulk_len = size, in.bulk_val = realloc(in.bulk_val, size + 1);
        out.bulk_val = realloc(out.bulk_val, size + 1);
        memset(in.bulk_val, i, size + 1);
        for (int warm = 0; warm < 50; warm++) call(size);
        double start = now();
        for (int some = 0; some < 20; some++) call(size);
        double one = (now() - start) / 20, end = now() + round;
        int batch = one < 3000 ? 3000 / one + 1 : 1, n = 0;
        do {
            start = now();
            for (int b = 0; b < batch; b++) call(size);
            samples[n++] = (now() - start) / batch;
        } while (n < 2000 && (now() < end || n < 5));
        if (size && memcmp(in.bulk_val, out.bulk_val, size)) return 4;
        printf("%d %d", size, batch);
        for (int s = 0; s < n; s++) printf(" %.1f", samples[s]);
        printf("\n");
    }
    clnt_destroy(cl);
    return 0;
}
