/* server LOOP: serves types.x on a TCP port that it prints. LOOP is how it waits. */
#include <fcntl.h>
#include "mode.h"
#include "quiet.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int leaving;
static int ticks;

#define ECHO(name, type) SERVE(name, type, type) { (void)req; *out = *in; }
ECHO(echo_int, int)
ECHO(echo_hyper, quad_t)
ECHO(echo_double, double)
ECHO(echo_bool, bool_t)
ECHO(echo_colour, colour)
ECHO(echo_run, run)
ECHO(echo_scalars, scalars)
ECHO(echo_list, list)
ECHO(echo_choice, choice)
ECHO(echo_everything, everything)
ECHO(echo_bulk, bulk)
ECHO(echo_numbers, numbers)
ECHO(echo_name, name)

SERVE(count, bulk, int) { (void)req; *out = in->bulk_len; }

SERVE(make, int, bulk)
{
    (void)req;
    static char *made;
    made = realloc(made, *in + 1);
    for (int i = 0; i < *in; i++) made[i] = i * 31;
    out->bulk_len = *in;
    out->bulk_val = made;
}

SERVE(sleep, int, int) { (void)req; usleep(*in * 1000); *out = *in; }

SERVE_VOID(who, int)
{
    *out = -1;
    if (req->rq_cred.oa_flavor == AUTH_SYS) {
        struct authunix_parms *parms = (struct authunix_parms *)req->rq_clntcred;
        *out = parms->aup_uid + 1000 * parms->aup_gid + strlen(parms->aup_machname);
        for (u_int i = 0; i < parms->aup_len; i++) *out += parms->aup_gids[i] * (i + 3);
    }
}

/* Half of an answer that is longer than any ring. */
static bool_t dies_in_its_answer(XDR *xdrs, void *at)
{
    int len = 12000000, word = 1;
    (void)at;
    for (int i = 0; i < len / 8; i++) xdr_int(xdrs, i ? &word : &len);
    kill(getpid(), SIGKILL);
    return TRUE;
}

/* The stubs know no errors: the reply is sent before the stub's own. */
SERVE(refuse, int, int)
{
    if (*in == 1) svcerr_systemerr(req->rq_xprt);
    if (*in == 2) svcerr_weakauth(req->rq_xprt);
    if (*in == 3) svcerr_auth(req->rq_xprt, AUTH_FAILED);
    if (*in == 4) svcerr_noproc(req->rq_xprt);
    if (*in == 5) _exit(7); /* dies in the middle of a call */
    if (*in == 6 && stay_quiet()) _exit(8);
    if (*in == 7) svc_sendreply(req->rq_xprt, (xdrproc_t)dies_in_its_answer, NULL);
    *out = *in;
}

SERVE_VOID(pid, int) { (void)req; *out = getpid(); }

#ifdef NEWSTYLE
#ifdef MODE_M
bool_t add_1_svc(int a, short b, name c, int *out, struct svc_req *req)
{ (void)req; *out = a + b + strlen(c); return TRUE; }
#else
int *add_1_svc(int a, short b, name c, struct svc_req *req)
{ static int out; (void)req; out = a + b + strlen(c); return &out; }
#endif
#endif

#ifdef IN_PLACE
static int held;

/* Bytes that count up from the first. */
static int is_right(const bulk *it)
{
    for (u_int i = 0; i < it->bulk_len; i++)
        if (it->bulk_val[i] != (char)(it->bulk_val[0] + i)) return 0;
    return it->bulk_len > 0;
}

bool_t hold_1_svc(bulk *in, void *out, struct svc_req *req)
{
    (void)out;
    int right = is_right(in), first = in->bulk_val[0];
    /* Time for the client to send more, and for others to be served inside this service. libtirpc alone cannot
     * serve the same connection inside its own service. */
    for (int i = 0; i < 3; i++) {
        fd_set set = svc_fdset;
        struct timeval wait = {0, 1000};
        FD_CLR(req->rq_xprt->xp_fd, &set);
        if (select(FD_SETSIZE, &set, NULL, NULL, &wait) > 0) svc_getreqset(&set);
    }
    held += right && is_right(in) && in->bulk_val[0] == (char)first;
    return FALSE; /* no answer */
}

SERVE_VOID(held, int) { (void)req; *out = held; }
#endif

SERVE_VOID(ticks, int) { (void)req; *out = ticks; }

static void *nothing(void)
{
    static char c;
    return &c;
}
static void *quit(void)
{
    leaving = 1;
    svc_exit();
    return nothing();
}

#if defined(MODE_M) && defined(NEWSTYLE)
bool_t nothing_1_svc(void *out, struct svc_req *req) { (void)out, (void)req; return TRUE; }
bool_t quit_1_svc(void *out, struct svc_req *req) { (void)out, (void)req; quit(); return TRUE; }
bool_t tick_1_svc(void *out, struct svc_req *req) { (void)out, (void)req; ticks++; return FALSE; }
#elif defined(MODE_M)
bool_t nothing_1_svc(void *in, void *out, struct svc_req *req) { (void)in, (void)out, (void)req; return TRUE; }
bool_t quit_1_svc(void *in, void *out, struct svc_req *req) { (void)in, (void)out, (void)req; quit(); return TRUE; }
bool_t tick_1_svc(void *in, void *out, struct svc_req *req) { (void)in, (void)out, (void)req; ticks++; return FALSE; }
#elif defined(NEWSTYLE)
void *nothing_1_svc(struct svc_req *req) { (void)req; return nothing(); }
void *quit_1_svc(struct svc_req *req) { (void)req; return quit(); }
void *tick_1_svc(struct svc_req *req) { (void)req; ticks++; return NULL; }
#else
void *nothing_1_svc(void *in, struct svc_req *req) { (void)in, (void)req; return nothing(); }
void *quit_1_svc(void *in, struct svc_req *req) { (void)in, (void)req; return quit(); }
void *tick_1_svc(void *in, struct svc_req *req) { (void)in, (void)req; ticks++; return NULL; }
#endif

#ifdef MODE_M
/* Results point into the arguments, which the stub frees. */
int types_1_freeresult(SVCXPRT *x, xdrproc_t proc, caddr_t result)
{ (void)x, (void)proc, (void)result; return 1; }
#endif

extern void types_1(struct svc_req *, SVCXPRT *);

static void loop_select(void)
{
    while (!leaving) {
        fd_set set = svc_fdset;
        if (select(FD_SETSIZE, &set, NULL, NULL, NULL) > 0) svc_getreqset(&set);
    }
}

/* As rpc.mountd: a select loop of its own, one descriptor at a time. */
static void loop_common(void)
{
    while (!leaving) {
        fd_set set = svc_fdset;
        if (select(FD_SETSIZE, &set, NULL, NULL, NULL) <= 0) continue;
        for (int fd = 0; fd < FD_SETSIZE && !leaving; fd++)
            if (FD_ISSET(fd, &set)) svc_getreq_common(fd);
    }
}

static void loop_poll(void)
{
    while (!leaving) {
        int n = svc_max_pollfd;
        struct pollfd *copy = malloc(n * sizeof *copy);
        memcpy(copy, svc_pollfd, n * sizeof *copy);
        int ready = poll(copy, n, -1);
        if (ready > 0) svc_getreq_poll(copy, ready);
        free(copy);
    }
}

/* An epoll set kept in step with svc_pollfd, which has those that svc_fdset has no place for. */
static void loop_epoll(void)
{
    int set = epoll_create1(0);
    while (!leaving) {
        for (int i = 0; i < svc_max_pollfd; i++) {
            int fd = svc_pollfd[i].fd;
            struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
            if (fd >= 0) epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
        }
        struct epoll_event events[16];
        int n = epoll_wait(set, events, 16, -1);
        for (int i = 0; i < n && !leaving; i++) svc_getreq_common(events[i].data.fd);
    }
}

/* As ypserv does for long answers: a child answers, and the parent goes on at once. */
static void forking(struct svc_req *req, SVCXPRT *xprt)
{
    int forks = req->rq_proc == MAKE || req->rq_proc == ECHO_INT || req->rq_proc == NOTHING;
#ifdef IN_PLACE
    forks |= req->rq_proc == ECHO_BULK;
#endif
    if (forks && fork() != 0) return;
    types_1(req, xprt);
    if (forks) _exit(0);
}

#ifndef RPCGEN_MAIN /* rpcgen -I makes one of its own */
/* A socket with the port that a variable of the environment says, or RPC_ANYSOCK. */
static int bound(const char *variable, int type)
{
    if (!getenv(variable)) return RPC_ANYSOCK;
    int fd = socket(AF_INET, type, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv(variable)))};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || (type == SOCK_STREAM && listen(fd, 128))) {
        perror("bind");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* peers of tests/wire.rs leave before their answer */
    const char *loop = argc > 1 ? argv[1] : "run";
    struct rlimit limit = {8192, 8192};
    if (getenv("SERVER_FILES")) setrlimit(RLIMIT_NOFILE, &limit);
    /* With rpcbind, if it is to know. */
    void (*serve)(struct svc_req *, SVCXPRT *) = getenv("SERVER_FORKS") ? forking : types_1;
    if (serve == forking) signal(SIGCHLD, SIG_IGN);
    int known = getenv("SERVER_REGISTER") != NULL;
    if (known) pmap_unset(TYPES, TYPES_V);
    SVCXPRT *tcp = svctcp_create(bound("SERVER_PORT", SOCK_STREAM), 0, 0);
    if (!tcp || !svc_register(tcp, TYPES, TYPES_V, serve, known ? IPPROTO_TCP : 0)) return 1;
    SVCXPRT *udp = svcudp_bufcreate(bound("SERVER_UDP_PORT", SOCK_DGRAM), 60000, 60000);
    if (!udp || !svc_register(udp, TYPES, TYPES_V, serve, known ? IPPROTO_UDP : 0)) return 1;
    printf("%d %d\n", tcp->xp_port, udp->xp_port);
    fflush(stdout);
    if (!strcmp(loop, "workers")) { /* as rpc.mountd -t 3 */
        /* All wake for a connection and one gets it: the others must not wait for the next. */
        fcntl(tcp->xp_fd, F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 3; i++)
            if (fork() == 0) { loop_common(); return 0; }
        while (wait(NULL) > 0 || errno == EINTR) { }
        return 0;
    }
    if (!strcmp(loop, "run")) svc_run();
    if (!strcmp(loop, "select")) loop_select();
    if (!strcmp(loop, "common")) loop_common();
    if (!strcmp(loop, "poll")) loop_poll();
    if (!strcmp(loop, "epoll")) loop_epoll();
    return 0;
}
#endif
