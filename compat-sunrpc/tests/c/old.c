/* old TCP-PORT UDP-PORT: a client as linked before there was libtirpc, with the RPC that glibc keeps for those. */
#include "types.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

__asm__(".symver clnttcp_create, clnttcp_create@GLIBC_2.2.5");
__asm__(".symver clntudp_create, clntudp_create@GLIBC_2.2.5");
__asm__(".symver clntudp_bufcreate, clntudp_bufcreate@GLIBC_2.2.5");
__asm__(".symver svc_run, svc_run@GLIBC_2.2.5");
__asm__(".symver xdr_void, xdr_void@GLIBC_2.2.5");

static void call(const char *how, CLIENT *cl)
{
    struct timeval time = {60, 0};
    printf("%s %d\n", how, cl ? (int)clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, time) : -1);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval again = {20, 0};
    int fd = RPC_ANYSOCK;
    call("tcp", clnttcp_create(&at, TYPES, TYPES_V, &fd, 0, 0));
    at.sin_port = htons(atoi(argv[2]));
    fd = RPC_ANYSOCK;
    call("udp", clntudp_create(&at, TYPES, TYPES_V, again, &fd));
    fd = RPC_ANYSOCK;
    call("udp with lengths", clntudp_bufcreate(&at, TYPES, TYPES_V, again, &fd, 1000, 1000));
    svc_run(); /* there is nothing to serve */
    printf("served\n");
    return 0;
}
