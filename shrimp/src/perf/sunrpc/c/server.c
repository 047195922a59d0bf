/* server: an ordinary libtirpc server. Prints its TCP and its UDP port. */
#include "bench.h"
#include <stdio.h>

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

/* The result is the argument, which the stub frees. */
int bench_1_freeresult(SVCXPRT *xprt, xdrproc_t proc, caddr_t result)
{
    (void)xprt, (void)proc, (void)result;
    return 1;
}

int main(void)
{
    SVCXPRT *tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
    SVCXPRT *udp = svcudp_bufcreate(RPC_ANYSOCK, 65000, 65000);
    if (!tcp || !svc_register(tcp, BENCH, BENCH_V, bench_1, 0)) return 1;
    if (!udp || !svc_register(udp, BENCH, BENCH_V, bench_1, 0)) return 1;
    printf("%d %d\n", tcp->xp_port, udp->xp_port);
    fflush(stdout);
    svc_run();
    return 0;
}
