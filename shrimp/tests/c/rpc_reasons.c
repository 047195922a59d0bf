/* serve: an ordinary libtirpc server of one null procedure; prints its port.
 * call PORT: an ordinary client; prints the addresses of its connection, and makes a call for each line that it reads,
 * and one before. */
#include <arpa/inet.h>
#include <rpc/rpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { PROGRAM = 0x20000f07, VERSION = 1 };

static void dispatch(struct svc_req *request, SVCXPRT *transport)
{
    (void)request;
    svc_sendreply(transport, (xdrproc_t)xdr_void, NULL);
}

static int serve(void)
{
    SVCXPRT *tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
    if (!tcp || !svc_register(tcp, PROGRAM, VERSION, dispatch, 0)) return 1;
    printf("%d\n", tcp->xp_port);
    fflush(stdout);
    svc_run();
    return 0;
}

static void print(int fd, int (*name)(int, struct sockaddr *, socklen_t *), char end)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    name(fd, (struct sockaddr *)&at, &len);
    printf("%s:%d%c", inet_ntoa(at.sin_addr), ntohs(at.sin_port), end);
}

int main(int argc, char **argv)
{
    if (argc < 3) return serve();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = RPC_ANYSOCK;
    CLIENT *client = clnttcp_create(&at, PROGRAM, VERSION, &fd, 0, 0);
    if (!client) return 2;
    clnt_control(client, CLGET_FD, (char *)&fd);
    print(fd, getsockname, ' ');
    print(fd, getpeername, '\n');
    fflush(stdout);
    char line[16];
    do {
        struct timeval time = {600, 0};
        int got = clnt_call(client, 0, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, time);
        printf("%d\n", got);
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin));
    return 0;
}
