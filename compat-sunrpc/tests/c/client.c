/* client PORT CASE [ARG]: prints what it saw; the same lines are expected whoever carries the calls.
 * CASE is a function of this file without its `case_`. */
#include "mode.h"
#include "quiet.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in address;
static const char *argument;
#define T(s, us) ((struct timeval){(s), (us)})

/* CLIENT_UDP in the environment: PORT is a UDP port. */
static int udp;
/* CLIENT_FROM: the address to connect from, as a machine with several has them. A socket for the client, or none. */
static int own_socket(void)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    if (!getenv("CLIENT_FROM")) return RPC_ANYSOCK;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, getenv("CLIENT_FROM"), &from.sin_addr);
    if (bind(fd, (struct sockaddr *)&from, sizeof from) || connect(fd, (struct sockaddr *)&address, sizeof address)) {
        perror("CLIENT_FROM");
        exit(3);
    }
    return fd;
}

static CLIENT *connected(void)
{
    struct sockaddr_in at = address;
    int fd = own_socket();
    CLIENT *cl = udp ? clntudp_bufcreate(&at, TYPES, TYPES_V, T(5, 0), &fd, 60000, 60000)
                     : clnttcp_create(&at, TYPES, TYPES_V, &fd, 0, 0);
    if (!cl) {
        clnt_pcreateerror("client");
        exit(3);
    }
    return cl;
}

/* The other way to make one: an address and no socket. */
static CLIENT *connected_tli(void)
{
    struct netconfig *conf = getnetconfigent(udp ? "udp" : "tcp");
    struct sockaddr_in at = address;
    struct netbuf buf = {sizeof at, sizeof at, &at};
    CLIENT *cl = clnt_tli_create(own_socket(), conf, &buf, TYPES, TYPES_V, udp ? 60000 : 0, udp ? 60000 : 0);
    if (!cl) {
        clnt_pcreateerror("client");
        exit(3);
    }
    freenetconfigent(conf);
    return cl;
}

/* Status and error of the last call, as a program may see them. */
static void status(CLIENT *cl, const char *what, enum clnt_stat got)
{
    struct rpc_err error;
    clnt_geterr(cl, &error);
    printf("%s: %d %d", what, got, error.re_status);
    if (got == RPC_AUTHERROR) printf(" why %d", error.re_why);
    if (got == RPC_PROGVERSMISMATCH)
        printf(" low %u high %u", (unsigned)error.re_vers.low, (unsigned)error.re_vers.high);
    printf(" %s\n", clnt_sperrno(got));
}

/* The same value when and only when its encoding is the same. */
static unsigned long hash(xdrproc_t proc, void *at)
{
    u_int size = 64 << 20;
    static char *buffer;
    XDR xdrs;
    if (!buffer) buffer = malloc(size);
    xdrmem_create(&xdrs, buffer, size, XDR_ENCODE);
    if (!proc(&xdrs, at)) return 0;
    unsigned long sum = 14695981039346656037ul;
    for (u_int i = 0, n = xdr_getpos(&xdrs); i < n; i++) sum = (sum ^ (unsigned char)buffer[i]) * 1099511628211ul;
    return sum;
}

#define RELEASE(proc, at) xdr_free((xdrproc_t)(proc), (char *)(at))
#define xdr_bool_t xdr_bool

/* Sends a value there and back and prints its fingerprint, or how it failed. */
#define BACK(proc, type, value)                                                     \
    do {                                                                            \
        type in_ = value, out_;                                                     \
        memset(&out_, 0, sizeof out_);                                              \
        enum clnt_stat got_ = CALL(proc, &in_, &out_, cl);                          \
        unsigned long a_ = hash((xdrproc_t)xdr_##type, &in_);                       \
        unsigned long b_ = got_ ? 0 : hash((xdrproc_t)xdr_##type, &out_);           \
        printf(#proc ": %d %lx %s\n", got_, a_, a_ == b_ ? "same" : "DIFFERENT");    \
        if (got_ == RPC_SUCCESS) RELEASE(xdr_##type, &out_);                        \
    } while (0)

static run a_run(int i)
{
    run r = {i, ~0u - i, -3, 65535, 'x', 200, -1000000 + i, 4000000000ul, TRUE, BLUE, {1, 2, 3, 4, i}, {9, 8, 7, 6, 5, 4}};
    return r;
}
static scalars some_scalars(void)
{
    scalars s = {-1234567890123456789ll, 18000000000000000000ull, 1.5f, -2.25e300, TRUE, "sevensx",
                 {5, "ab\0cd"}, {16, "sixteen bytes ok"}, "a string", "twenty characters!!!"};
    return s;
}
static list a_list(int n)
{
    list first = NULL;
    while (n-- > 0) {
        list it = malloc(sizeof *it);
        it->id = n, it->label = "link", it->next = first, first = it;
    }
    return first;
}
static choice a_choice(int which)
{
    choice c = {.c = which};
    if (which == RED) c.choice_u.number = 77;
    else if (which == GREEN) c.choice_u.text = "green";
    else if (which != BLUE) { c.choice_u.bytes.bytes_len = 3; c.choice_u.bytes.bytes_val = "abc"; }
    return c;
}
static everything all_of_it(void)
{
    static struct item items[3] = {{1, "one", NULL}, {2, "two", NULL}, {3, "", NULL}}, other = {4, "other", NULL};
    static int tail[9] = {1, -2, 3, -4, 5, -6, 7, -8, 9};
    static float floats[4] = {1, 2, 3, 4};
    everything e = {a_run(5), some_scalars(), a_choice(RED), a_choice(GREEN), a_choice(BLUE),
                    {.set = TRUE, .flagged_u.value = 3.5}, {{1, 2, 3, 4}, {5, 6, 7, 8}}, {"a", "bb", "ccc"},
                    {3, items}, {9, tail}, a_list(4), &other, {1, 2, 3}, {4, floats}};
    return e;
}
static bulk a_bulk(u_int len)
{
    bulk b = {len, malloc(len + 1)};
    for (u_int i = 0; i < len; i++) b.bulk_val[i] = i * 7 + (i >> 8);
    return b;
}

static void types_on(CLIENT *cl)
{
    char nothing;
    printf("nothing: %d\n", CALL_VOID(nothing, &nothing, cl));
    BACK(echo_int, int, -5);
    BACK(echo_hyper, quad_t, -81985529216486896ll);
    BACK(echo_double, double, 6.02214076e23);
    BACK(echo_bool, bool_t, TRUE);
    BACK(echo_colour, colour, BLUE);
    BACK(echo_run, run, a_run(1));
    BACK(echo_scalars, scalars, some_scalars());
    BACK(echo_list, list, a_list(0));
    /* A node used by value is no list to rpc-idl, so that its depth has a limit there. */
    BACK(echo_list, list, a_list(!strcmp(argument, "shallow") ? 100 : 1000));
    BACK(echo_choice, choice, a_choice(RED));
    BACK(echo_choice, choice, a_choice(GREEN));
    BACK(echo_choice, choice, a_choice(BLUE));
    BACK(echo_everything, everything, all_of_it());
    BACK(echo_name, name, "a name");
    for (u_int len = 0; len < (udp ? 50000 : 200000); len = len * 2 + 1) BACK(echo_bulk, bulk, a_bulk(len));
    numbers n = {5000, calloc(5000, sizeof(int))};
    for (int i = 0; i < 5000; i++) n.numbers_val[i] = i * i;
    BACK(echo_numbers, numbers, n);
#ifdef NEWSTYLE
    int sum = 0;
#ifdef MODE_M
    printf("add: %d", add_1(40, -2, "four", &sum, cl));
#else
    int *at = add_1(40, -2, "four", cl);
    printf("add: %d", !at);
    sum = at ? *at : 0;
#endif
    printf(" %d\n", sum);
#endif
}

static void case_types(void)
{
    CLIENT *cl = connected();
    types_on(cl);
    clnt_destroy(cl);
    cl = connected_tli();
    types_on(cl);
    clnt_destroy(cl);
}

/* What a server may answer instead of results. */
static void case_errors(void)
{
    CLIENT *cl = connected();
    int in, out = 0;
    for (in = 0; in <= 4; in++) {
        enum clnt_stat got = clnt_call(cl, REFUSE, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(20, 0));
        status(cl, "refuse", got);
    }
    status(cl, "unknown procedure", clnt_call(cl, 999, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(20, 0)));
    status(cl, "arguments missing", clnt_call(cl, ECHO_RUN, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(20, 0)));
    status(cl, "results missing", clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_int, (char *)&out, T(20, 0)));
    name too_long = malloc(100);
    memset(too_long, 'n', 99), too_long[99] = 0;
    status(cl, "cannot encode", clnt_call(cl, ECHO_NAME, (xdrproc_t)xdr_name, (char *)&too_long, (xdrproc_t)xdr_name, (char *)&too_long, T(20, 0)));
    u_int n = 7;
    clnt_control(cl, CLSET_VERS, (char *)&n);
    status(cl, "other version", clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(20, 0)));
    n = TYPES + 1;
    clnt_control(cl, CLSET_PROG, (char *)&n);
    status(cl, "other program", clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(20, 0)));
    n = TYPES, clnt_control(cl, CLSET_PROG, (char *)&n);
    n = TYPES_V, clnt_control(cl, CLSET_VERS, (char *)&n);
    status(cl, "back", clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(20, 0)));
    clnt_destroy(cl);
}

/* AUTH_NONE, AUTH_SYS, and an own flavor. */
static void case_auth(void)
{
    CLIENT *cl = connected();
    int out = 0;
    gid_t gids[20];
    for (int i = 0; i < 20; i++) gids[i] = 100 + i;
    printf("none %d", CALL_VOID(who, &out, cl)), printf(" %d\n", out);
    for (int groups = 0; groups <= 16; groups += 8) {
        auth_destroy(cl->cl_auth);
        cl->cl_auth = authunix_create("some.machine", 1234, 56, groups, gids);
        printf("sys %d", CALL_VOID(who, &out, cl)), printf(" %d\n", out);
    }
    cl->cl_auth->ah_cred.oa_flavor = 77;
    enum clnt_stat got = CALL_VOID(who, &out, cl);
    status(cl, "a flavor by name only", got);
    /* Debian's libtirpc has AUTH_DES by name only. */
    cl->cl_auth->ah_cred.oa_flavor = AUTH_DES;
    status(cl, "DES by name", CALL_VOID(who, &out, cl));
    printf("DES %d\n", authdes_seccreate("unix.1@example", 60, NULL, NULL) != NULL);
    auth_destroy(cl->cl_auth);
    cl->cl_auth = authunix_create_default();
    printf("again %d\n", CALL_VOID(who, &out, cl));
    clnt_destroy(cl);
}

/* Timeouts, what comes late, CLSET_TIMEOUT. What is to be late is by so much that the client may lose its processor
 * for seconds and see that still. */
#define LONG 4000
static void case_timeouts(void)
{
    CLIENT *cl = connected();
    int in = LONG, out = 0;
    status(cl, "late", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(0, 20000)));
    in = 1;
    /* The late answer (LONG) is dropped; this one is ours. */
    status(cl, "next", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(20, 0)));
    printf("%d\n", out);
    if (!udp) {
        status(cl, "no such time", clnt_call(cl, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(-1, 0)));
        printf("%d\n", out);
    }
    status(cl, "no time", clnt_call(cl, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(0, 0)));
    struct timeval twenty = T(20, 0), short_time = T(0, 20000), got = T(0, 0);
    printf("set %d", clnt_control(cl, CLSET_TIMEOUT, (char *)&twenty));
    int known = clnt_control(cl, CLGET_TIMEOUT, (char *)&got);
    printf(" get %d %ld\n", known, (long)got.tv_sec);
    if (!udp) {
        /* Whether a call waits its argument says, how long the set one. */
        in = 1;
        status(cl, "one way", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)NULL, NULL, T(0, 0)));
        status(cl, "no waiting", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(0, 0)));
        struct timeval none = T(0, 0);
        in = LONG;
        clnt_control(cl, CLSET_TIMEOUT, (char *)&none);
        status(cl, "none set", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)NULL, NULL, T(20, 0)));
        clnt_control(cl, CLSET_TIMEOUT, (char *)&twenty);
    }
    in = 20;
    status(cl, "overridden", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(0, 1)));
    clnt_control(cl, CLSET_TIMEOUT, (char *)&short_time);
    in = LONG;
    status(cl, "overridden", clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(20, 0)));
    clnt_control(cl, CLSET_TIMEOUT, (char *)&twenty);
    struct timeval bad = T(-1, 0);
    printf("bad %d\n", clnt_control(cl, CLSET_TIMEOUT, (char *)&bad));
    in = 5;
    status(cl, "last", clnt_call(cl, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(20, 0)));
    printf("%d\n", out);
    clnt_destroy(cl);
}

/* Calls without answers, then one with. */
static void case_batch(void)
{
    CLIENT *cl = connected();
    int out = 0;
    enum clnt_stat worst = RPC_SUCCESS;
    for (int i = 0; i < 20000; i++) {
        enum clnt_stat got = clnt_call(cl, TICK, (xdrproc_t)xdr_void, NULL, (xdrproc_t)NULL, NULL, T(0, 0));
        if (got) worst = got;
    }
    status(cl, "batched", worst);
    status(cl, "flushed", clnt_call(cl, TICKS, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_int, (char *)&out, T(20, 0)));
    printf("%d\n", out);
    clnt_destroy(cl);
}

/* When told to, as many calls that have no answer as the argument says, and is gone. */
static void case_batch_and_leave(void)
{
    CLIENT *cl = connected();
    char line[8];
    BACK(echo_int, int, 1);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(5);
    for (int i = 0; i < atoi(argument); i++)
        if (clnt_call(cl, TICK, (xdrproc_t)xdr_void, NULL, (xdrproc_t)NULL, NULL, T(0, 0))) exit(5);
    printf("called\n");
    fflush(stdout);
    _exit(0);
}

#ifdef IN_PLACE
/* Calls without answers whose arguments the service uses for a while, many rings of them; ARG `leave`: gone at once,
 * `ask`: how many were right. */
static void case_hold(void)
{
    CLIENT *cl = connected();
    int out = 0;
    enum clnt_stat worst = RPC_SUCCESS;
    bulk in = {100000, malloc(100000)};
    for (int call = 0; call < 30 && strcmp(argument, "ask"); call++) {
        for (u_int i = 0; i < in.bulk_len; i++) in.bulk_val[i] = call + i;
        enum clnt_stat got = clnt_call(cl, HOLD, (xdrproc_t)xdr_bulk, (char *)&in, (xdrproc_t)NULL, NULL, T(0, 0));
        if (got) worst = got;
        if (call == 9 && !strcmp(argument, "leave")) _exit(0);
    }
    status(cl, "held", worst);
    status(cl, "flushed", clnt_call(cl, HELD, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_int, (char *)&out, T(60, 0)));
    printf("%d\n", out);
    clnt_destroy(cl);
}
#endif

/* How many of them the server has served. */
static void case_ticks(void)
{
    CLIENT *cl = connected();
    int out = 0;
    if (clnt_call(cl, TICKS, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_int, (char *)&out, T(20, 0))) exit(5);
    printf("%d\n", out);
    clnt_destroy(cl);
}

/* Every request of clnt_control that a stream client answers, and some that it does not. */
static void case_control(void)
{
    CLIENT *cl = connected();
    char big[256];
    char nothing;
    u_int xid = 0, before = 0, value;
    int fd = -1;
    CALL_VOID(nothing, &nothing, cl);
    printf("xid %d", clnt_control(cl, CLGET_XID, (char *)&before));
    CALL_VOID(nothing, &nothing, cl);
    clnt_control(cl, CLGET_XID, (char *)&xid);
    /* libtirpc counts down in wire order over TCP, and up in the machine's over UDP. */
    printf(" step %d\n", (int)(udp ? before - xid : ntohl(before) - ntohl(xid)));
    xid = 5000;
    printf("set xid %d", clnt_control(cl, CLSET_XID, (char *)&xid));
    CALL_VOID(nothing, &nothing, cl);
    clnt_control(cl, CLGET_XID, (char *)&xid);
    printf(" %u\n", xid);
    printf("fd %d", clnt_control(cl, CLGET_FD, (char *)&fd));
    printf(" %d\n", fd > 2);
    struct netbuf *buf = (struct netbuf *)big;
    printf("svc addr %d", clnt_control(cl, CLGET_SVC_ADDR, big));
    printf(" port %d\n", buf->len >= 8 && ((struct sockaddr_in *)buf->buf)->sin_port == address.sin_port);
    printf("server addr %d\n", clnt_control(cl, CLGET_SERVER_ADDR, big));
    printf("prog %d", clnt_control(cl, CLGET_PROG, (char *)&value)), printf(" %x", value);
    printf(" vers %d", clnt_control(cl, CLGET_VERS, (char *)&value)), printf(" %u\n", value);
    printf("timeout %d\n", clnt_control(cl, CLGET_TIMEOUT, big));
    printf("retry %d\n", clnt_control(cl, CLGET_RETRY_TIMEOUT, big));
    printf("null %d %d\n", clnt_control(cl, CLGET_XID, NULL), clnt_control(cl, CLSET_VERS, NULL));
    printf("unknown %d\n", clnt_control(cl, 4711, big));
    printf("keep open %d\n", clnt_control(cl, CLSET_FD_NCLOSE, NULL));
    printf("%d\n", CALL_VOID(nothing, &nothing, cl));
    clnt_destroy(cl);
    printf("open %d\n", write(fd, "", 0) == 0);
    close(fd);
    cl = connected();
    clnt_control(cl, CLGET_FD, (char *)&fd);
    printf("close %d\n", clnt_control(cl, CLSET_FD_CLOSE, NULL));
    clnt_destroy(cl);
    printf("open %d\n", fcntl(fd, F_GETFD) == 0);
}

/* A child uses the client while its parent waits, and the parent goes on. */
static void case_fork(void)
{
    CLIENT *cl = connected();
    for (int round = 0; round < 5; round++) {
        BACK(echo_int, int, round);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 3; i++) BACK(echo_bulk, bulk, a_bulk(30000 + round));
            fflush(stdout);
            if (round & 1) clnt_destroy(cl);
            _exit(0);
        }
        int how;
        waitpid(child, &how, 0);
        printf("child %d\n", how);
        BACK(echo_bulk, bulk, a_bulk(20000));
    }
    clnt_destroy(cl);
}

static void case_daemon(void)
{
    CLIENT *cl = connected();
    BACK(echo_int, int, 1);
    fflush(stdout);
    if (daemon(1, 1)) exit(4);
    for (int i = 0; i < 5; i++) BACK(echo_bulk, bulk, a_bulk(10000));
    clnt_destroy(cl);
}

static CLIENT *shared;
static void *caller(void *at)
{
    long bad = 0;
    for (int i = 0; i < 300; i++) {
        int in = i + 1000 * (int)(long)at, out = 0;
        if (clnt_call(shared, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(30, 0)) || out != in)
            bad++;
    }
    return (void *)bad;
}
static void case_threads(void)
{
    pthread_t threads[4];
    shared = connected();
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, caller, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        printf("wrong %ld\n", (long)bad);
    }
    clnt_destroy(shared);
}

/* Signals arrive during calls. */
static volatile sig_atomic_t alarms;
static void on_alarm(int number) { (void)number; alarms++; }
static void case_signals(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    CLIENT *cl = connected();
    int in = 100, out, worst = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 5; i++) {
        int got = clnt_call(cl, SLEEP, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(30, 0));
        if (got) worst = got;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%d %d\n", worst, alarms > 0);
    clnt_destroy(cl);
}

/* Many connections at once; then calls on all of them. */
static void case_many(void)
{
    int n = atoi(argument);
    struct rlimit limit = {8192, 8192};
    setrlimit(RLIMIT_NOFILE, &limit);
    CLIENT **all = calloc(n, sizeof *all);
    int right = 0;
    for (int i = 0; i < n; i++) all[i] = connected();
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < n; i++) {
            int in = i, out = -1;
            if (!clnt_call(all[i], ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(30, 0)) && out == i)
                right++;
        }
    printf("right %d\n", right);
    for (int i = 0; i < n; i++) clnt_destroy(all[i]);
}

/* Records longer than any ring, both ways and one way. */
static void case_large(void)
{
    CLIENT *cl = connected();
    struct timeval long_time = T(60, 0);
    clnt_control(cl, CLSET_TIMEOUT, (char *)&long_time);
    for (u_int len = 200000; len < 20000000; len = len * 3 + 1) {
        bulk b = a_bulk(len);
        int counted = 0;
        printf("count %d", CALL(count, &b, &counted, cl)), printf(" %d\n", counted);
        BACK(echo_bulk, bulk, b);
        int wanted = len;
        bulk made = {0, NULL};
        printf("make %d", CALL(make, &wanted, &made, cl));
        printf(" %u %lx\n", made.bulk_len, hash((xdrproc_t)xdr_bulk, &made));
        RELEASE(xdr_bulk, &made);
    }
    clnt_destroy(cl);
}

/* Asks for much and takes long to fetch it: answers pile up at the server, in order. */
static void case_slow_reader(void)
{
    CLIENT *cl = connected(), *other = connected();
    int len = 700000, out = 0, in;
    for (int i = 0; i < 4; i++)
        status(cl, "asked", clnt_call(cl, MAKE, (xdrproc_t)xdr_int, (char *)&len, (xdrproc_t)xdr_bulk, (char *)&out, T(0, 0)));
    /* Somebody else is served meanwhile, when records are not waited for in the middle. */
    if (!strcmp(argument, "beside")) {
        in = 3;
        status(other, "beside", clnt_call(other, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(30, 0)));
    }
    usleep(20000);
    bulk made = {0, NULL};
    status(cl, "fetched", clnt_call(cl, MAKE, (xdrproc_t)xdr_int, (char *)&len, (xdrproc_t)xdr_bulk, (char *)&made, T(30, 0)));
    printf("%u %lx\n", made.bulk_len, hash((xdrproc_t)xdr_bulk, &made));
    clnt_destroy(cl);
    clnt_destroy(other);
}

/* The server dies in the middle of a call; then everything fails, at once. */
static void case_server_dies(void)
{
    CLIENT *cl = connected();
    int in = 5, out;
    BACK(echo_int, int, 1);
    enum clnt_stat got = clnt_call(cl, REFUSE, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(60, 0));
    printf("died: %s\n", got == RPC_CANTRECV ? "RPC_CANTRECV" : clnt_sperrno(got));
    got = clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(60, 0));
    printf("afterwards: %s\n", got == RPC_CANTRECV || got == RPC_CANTSEND ? "cannot" : clnt_sperrno(got));
    clnt_destroy(cl);
}

/* Waits to be told (a line on standard input) between two calls: the test does something to the
 * server meanwhile. Then a new client. */
static void case_restart(void)
{
    CLIENT *cl = connected();
    char line[8];
    BACK(echo_int, int, 1);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(5);
    enum clnt_stat got = clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(60, 0));
    printf("old: %s\n", got == RPC_CANTRECV || got == RPC_CANTSEND ? "cannot" : clnt_sperrno(got));
    clnt_destroy(cl);
    cl = connected();
    BACK(echo_int, int, 2);
    clnt_destroy(cl);
}

/* Dies within a record: the argument is how many words it has encoded then. */
static bool_t half_an_encoding(XDR *xdrs, void *at)
{
    int word = 1;
    (void)at;
    for (int i = 0; i < atoi(argument); i++) xdr_int(xdrs, &word);
    kill(getpid(), SIGKILL);
    return TRUE;
}
static void case_killed_in_a_record(void)
{
    CLIENT *cl = connected();
    int out;
    BACK(echo_int, int, 1);
    fflush(stdout);
    clnt_call(cl, ECHO_BULK, (xdrproc_t)half_an_encoding, NULL, (xdrproc_t)xdr_int, (char *)&out, T(20, 0));
}

/* The same within an answer. */
static void case_killed_in_an_answer(void)
{
    CLIENT *cl = connected();
    int len = 12000000;
    BACK(echo_int, int, 1);
    fflush(stdout);
    clnt_call(cl, MAKE, (xdrproc_t)xdr_int, (char *)&len, (xdrproc_t)half_an_encoding, NULL, T(60, 0));
}

/* Says so within a record, and goes on when told to. */
static bool_t told_to_go_on(XDR *xdrs, int *len)
{
    char line[8];
    int word = 7;
    if (!xdr_int(xdrs, len)) return FALSE;
    for (int i = 0; i < *len / 4; i++) {
        if (i == *len / 8) {
            printf("inside\n");
            fflush(stdout);
            if (!fgets(line, sizeof line, stdin)) exit(5);
        }
        if (!xdr_int(xdrs, &word)) return FALSE;
    }
    return TRUE;
}
static void case_stalled_in_a_record(void)
{
    CLIENT *cl = connected();
    int len = 12000000, counted = 0;
    BACK(echo_int, int, 1);
    enum clnt_stat got = clnt_call(cl, COUNT, (xdrproc_t)told_to_go_on, (char *)&len, (xdrproc_t)xdr_int, (char *)&counted, T(60, 0));
    printf("counted %d %s\n", counted, !got ? "right" : got == RPC_CANTSEND || got == RPC_CANTRECV || got == RPC_CANTENCODEARGS ? "cannot" : clnt_sperrno(got));
}

/* Many runs of scalars, which rpcgen takes in one piece where it can. As bytes to the server. With the
 * argument `places` each is behind a word that is written after it where that can still be done: never
 * with libtirpc alone, whose xdr_setpos over TCP goes to another place than xdr_getpos said. */
#define RUN_LEN 84
static bool_t many_runs(XDR *xdrs, int *count)
{
    int places = !strcmp(argument, "places"), bytes = *count * (RUN_LEN + 4);
    if (!xdr_int(xdrs, &bytes) || bytes != *count * (RUN_LEN + 4)) return FALSE;
    for (int i = 0; i < *count; i++) {
        run r = a_run(i), wanted = a_run(i);
        int later = -1;
        u_int before = places ? xdr_getpos(xdrs) : 0;
        if (!xdr_int(xdrs, &later) || !xdr_run(xdrs, &r)) return FALSE;
        u_int after = places ? xdr_getpos(xdrs) : RUN_LEN + 4;
        if (after - before != RUN_LEN + 4) return FALSE;
        if (xdrs->x_op == XDR_DECODE && ((later != i && later != -1) || hash((xdrproc_t)xdr_run, &r) != hash((xdrproc_t)xdr_run, &wanted))) return FALSE;
        if (xdrs->x_op == XDR_DECODE && places && *count < 1000 && later != i) return FALSE;
        if (xdrs->x_op == XDR_ENCODE && places && xdr_setpos(xdrs, before)) {
            later = i;
            if (!xdr_int(xdrs, &later) || !xdr_setpos(xdrs, after)) return FALSE;
        }
    }
    return TRUE;
}
static void case_large_runs(void)
{
    CLIENT *cl = connected();
    for (int count = 3; count < 200000; count *= 9)
        status(cl, "runs", clnt_call(cl, ECHO_BULK, (xdrproc_t)many_runs, (char *)&count, (xdrproc_t)many_runs, (char *)&count, T(60, 0)));
    clnt_destroy(cl);
}

/* Hosts and paths that fit into no address. */
static void case_long_names(void)
{
    static char name[5000];
    memset(name, 'n', sizeof name - 1);
    const char *nets[] = {"unix", "tcp"};
    for (int i = 0; i < 2; i++) printf("%s\n", clnt_create(name, TYPES, TYPES_V, nets[i]) ? "made" : "refused");
}

/* Calls without end, but for the server's. */
static void case_until_it_ends(void)
{
    CLIENT *cl = connected();
    int in = 1, out;
    BACK(echo_int, int, 1);
    fflush(stdout);
    while (!clnt_call(cl, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(60, 0))) { }
    printf("ended\n");
    clnt_destroy(cl);
}

/* The server dies within its answer. */
static void case_server_dies_in_its_answer(void)
{
    CLIENT *cl = connected();
    int in = 7;
    bulk out = {0, NULL};
    BACK(echo_int, int, 1);
    enum clnt_stat got = clnt_call(cl, REFUSE, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_bulk, (char *)&out, T(60, 0));
    /* Stock decodes what has come, finds no more, and says that it makes no sense. */
    printf("died: %s\n", got == RPC_CANTRECV || got == RPC_CANTDECODERES ? "cannot" : clnt_sperrno(got));
    got = clnt_call(cl, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, T(60, 0));
    printf("afterwards: %s\n", got == RPC_CANTRECV || got == RPC_CANTSEND ? "cannot" : clnt_sperrno(got));
}

/* A call, then idle until told to go on. */
static void case_idle(void)
{
    CLIENT *cl = connected();
    char line[8];
    BACK(echo_int, int, 1);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(5);
    BACK(echo_int, int, 2);
    clnt_destroy(cl);
}

/* Calls by a client over UDP, until told to go on; then again, and again. */
static void case_datagrams(void)
{
    CLIENT *cl = connected();
    char line[8];
    for (int i = 0; i < 3; i++) BACK(echo_int, int, i);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < 3; i++) BACK(echo_int, int, 10 + i);
        fflush(stdout);
    }
    clnt_destroy(cl);
}

/* Calls after which neither side may make a system call any more: who does is killed. */
static void case_quiet(void)
{
    CLIENT *cl = connected();
    char nothing;
    int in = 6, out = 0, right = 0;
    for (int i = 0; i < 50; i++) CALL_VOID(nothing, &nothing, cl);
    /* The first of them rang. A call by another connection, left open: to see that, the server must
     * look at all its descriptors, so it has taken that doorbell when it serves the next call. */
    uint32_t words[11] = {0x80000028, 1, 0, 2, TYPES, TYPES_V}, answer[7];
    int plain = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 11; i++) words[i] = htonl(words[i]);
    if (connect(plain, (struct sockaddr *)&address, sizeof address) || write(plain, words, sizeof words) != sizeof words) exit(7);
    if (recv(plain, answer, sizeof answer, MSG_WAITALL) != sizeof answer) exit(8);
    if (clnt_call(cl, REFUSE, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(60, 0)) || stay_quiet()) exit(5);
    for (int i = 0; i < 300; i++) {
        in = i;
        if (!clnt_call(cl, ECHO_INT, (xdrproc_t)xdr_int, (char *)&in, (xdrproc_t)xdr_int, (char *)&out, T(60, 0)) && in == out)
            right++;
    }
    char said[40];
    int n = sprintf(said, "right %d\n", right);
    if (write(1, said, n) != n) _exit(6);
    _exit(0);
}

/* Calls to a server that takes nothing. */
static void case_nobody_takes(void)
{
    CLIENT *cl = connected();
    int out = 0, late = 0;
    bulk much = a_bulk(4000000);
    for (int i = 0; i < 10; i++)
        late += clnt_call(cl, COUNT, (xdrproc_t)xdr_bulk, (char *)&much, (xdrproc_t)xdr_int, (char *)&out, T(0, 20000)) == RPC_TIMEDOUT;
    printf("late %d\n", late);
    clnt_destroy(cl);
}

/* Two calls, whatever the server does, with arguments of CLIENT_BYTES and the time of CLIENT_SECONDS; says if more
 * than 200 MB were used. */
static void case_lied_to(void)
{
    CLIENT *cl = connected();
    const char *bytes = getenv("CLIENT_BYTES"), *seconds = getenv("CLIENT_SECONDS");
    bulk much = a_bulk(bytes ? atoi(bytes) : 100);
    struct timeval time = T(seconds ? atoi(seconds) : 60, 0);
    struct rusage used;
    for (int i = 0; i < 2; i++) {
        bulk out = {0, NULL};
        printf("%s\n", clnt_sperrno(clnt_call(cl, ECHO_BULK, (xdrproc_t)xdr_bulk, (char *)&much, (xdrproc_t)xdr_bulk, (char *)&out, time)));
        RELEASE(xdr_bulk, &out);
    }
    getrusage(RUSAGE_SELF, &used);
    if (used.ru_maxrss > 200000) printf("%ld KiB\n", used.ru_maxrss);
    clnt_destroy(cl);
}

static void case_server_alive(void)
{
    CLIENT *cl = connected();
    char nothing;
    printf("%s\n", CALL_VOID(nothing, &nothing, cl) ? "dead" : "alive");
    clnt_destroy(cl);
}

static void case_quit(void)
{
    CLIENT *cl = connected();
    char nothing;
    printf("quit %d\n", CALL_VOID(quit, &nothing, cl));
    clnt_destroy(cl);
}

/* With rpcbind: found by host, program and version. */
static void case_by_name(void)
{
    const char *nets[] = {"tcp", "udp", "netpath", "visible", "circuit_v"};
    for (int i = 0; i < 5; i++) {
        CLIENT *cl = clnt_create("127.0.0.1", TYPES, TYPES_V, nets[i]);
        if (!cl) {
            clnt_pcreateerror(nets[i]);
            exit(3);
        }
        BACK(echo_int, int, i);
        BACK(echo_everything, everything, all_of_it());
        clnt_destroy(cl);
    }
    printf("callrpc %d\n", callrpc("127.0.0.1", TYPES, TYPES_V, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL));
}

#define CASE(name) {#name, case_##name}
static const struct { const char *name; void (*run)(void); } cases[] = {
    CASE(types), CASE(errors), CASE(auth), CASE(timeouts), CASE(batch), CASE(control), CASE(fork), CASE(daemon),
    CASE(threads), CASE(signals), CASE(many), CASE(large), CASE(slow_reader), CASE(server_dies), CASE(restart),
    CASE(killed_in_a_record), CASE(idle), CASE(datagrams), CASE(quiet), CASE(server_alive), CASE(quit), CASE(by_name),
    CASE(killed_in_an_answer), CASE(stalled_in_a_record), CASE(large_runs), CASE(server_dies_in_its_answer),
#ifdef IN_PLACE
    CASE(hold),
#endif
    CASE(long_names), CASE(nobody_takes), CASE(batch_and_leave), CASE(ticks), CASE(lied_to), CASE(until_it_ends),
};

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (getenv("CLIENT_HOST")) inet_pton(AF_INET, getenv("CLIENT_HOST"), &address.sin_addr);
    argument = argc > 3 ? argv[3] : "";
    udp = getenv("CLIENT_UDP") != NULL;
    signal(SIGPIPE, SIG_DFL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[2])) {
            cases[i].run();
            return 0;
        }
    return 2;
}
