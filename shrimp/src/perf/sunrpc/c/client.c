/* client tcp|udp PORT MILLISECONDS LINE SIZE...: an ordinary libtirpc client that takes the time of round
 * trips. A line for each size: size, calls per sample, samples in nanoseconds. Size 0 is a null call. With LINE, a
 * file, and not "-": at last `turns`, then of each turn R and the time of a null call. */
#include "bench.h"
#include "line.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

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

#define MOST 2000
static double samples[MOST];
static int taken;

/* Takes samples for so many nanoseconds; returns how many operations each is of. */
static int play(void (*operation)(int), int size, double round)
{
    for (int warm = 0; warm < 50; warm++) operation(size);
    double start = now();
    for (int some = 0; some < 20; some++) operation(size);
    double one = (now() - start) / 20, end = now() + round;
    int batch = one < 3000 ? 3000 / one + 1 : 1;
    taken = 0;
    do {
        start = now();
        for (int b = 0; b < batch; b++) operation(size);
        samples[taken++] = (now() - start) / batch;
    } while (taken < MOST && (now() < end || taken < 5));
    return batch;
}

static _Atomic uint32_t *line;
static uint32_t asked, answered;

/* There and back on the bare line. */
static void ask(int last)
{
    uint32_t number = last ? STOP : ++asked;
    atomic_store_explicit(line + PING, number, memory_order_release);
    answered = line_change(line + PONG, answered);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(void)
{
    qsort(samples, taken, sizeof samples[0], by_size);
    return samples[taken / 2];
}

/* Two milliseconds of R, the same of null calls, and again. */
static void turns(double round)
{
    const double turn = 2e6;
    const struct timeval no_time = {0, 0};
    printf("turns");
    for (double played = 0; played == 0 || played < round; played += turn) {
        /* Without results and time the call is only sent. */
        if (clnt_call(cl, TURN, (xdrproc_t)xdr_void, NULL, NULL, NULL, no_time) != RPC_SUCCESS) exit(3);
        asked = 0, answered = atomic_load_explicit(line + PONG, memory_order_acquire);
        play(ask, 0, turn);
        ask(1);
        double r = median() / 2;
        play(call, 0, turn);
        printf(" %.1f %.1f", r, median());
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc < 5) return 2;
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
    for (int i = 5; i < argc; i++) {
        int size = atoi(argv[i]);
        in.bulk_len = size, in.bulk_val = realloc(in.bulk_val, size + 1);
        out.bulk_val = realloc(out.bulk_val, size + 1);
        memset(in.bulk_val, i, size + 1);
        int batch = play(call, size, round);
        if (size && memcmp(in.bulk_val, out.bulk_val, size)) return 4;
        printf("%d %d", size, batch);
        for (int s = 0; s < taken; s++) printf(" %.1f", samples[s]);
        printf("\n");
    }
    if (strcmp(argv[4], "-")) {
        line = line_open(argv[4]);
        turns(round);
    }
    clnt_destroy(cl);
    return 0;
}
