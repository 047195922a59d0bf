/* server LINE: an ordinary libtirpc server. Prints its TCP and its UDP port. LINE: a file for turns with the bare
 * cache line, or "-". */
#include "bench.h"
#include "line.h"
#include <stdio.h>
#include <string.h>

extern void bench_1(struct svc_req *, SVCXPRT *);

bool_t nothing_1_svc(void *in, void *out, struct svc_req *req)
{
    (void)in, (void)out, (void)req;
    return TRUE;
}

bool_t exchange_1_svc(bulk *in, bulk *out, struct svc_req *req)
{
    (void)req;
    *out = *in;
    return TRUE;
}

static _Atomic uint32_t *line;

/* Answers until the client has had its turn, which waits for no reply. */
bool_t turn_1_svc(void *in, void *out, struct svc_req *req)
{
    (void)in, (void)out, (void)req;
    if (!line) return FALSE;
    uint32_t last = atomic_load_explicit(line + PING, memory_order_acquire);
    if (last != STOP) atomic_store_explicit(line + PONG, last, memory_order_release); /* it has begun */
    do {
        last = line_change(line + PING, last);
        atomic_store_explicit(line + PONG, last, memory_order_release);
    } while (last != STOP);
    return FALSE;
}

/* The result is the argument, which the stub frees. */
int bench_1_freeresult(SVCXPRT *xprt, xdrproc_t proc, caddr_t result)
{
    (void)xprt, (void)proc, (void)result;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    if (strcmp(argv[1], "-")) line = line_open(argv[1]);
    SVCXPRT *tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
    SVCXPRT *udp = svcudp_bufcreate(RPC_ANYSOCK, 65000, 65000);
    if (!tcp || !svc_register(tcp, BENCH, BENCH_V, bench_1, 0)) return 1;
    if (!udp || !svc_register(udp, BENCH, BENCH_V, bench_1, 0)) return 1;
    printf("%d %d\n", tcp->xp_port, udp->xp_port);
    fflush(stdout);
    svc_run();
    return 0;
}
