/* What goes wrong, as C sees it: a client of a server that is late, dies, has no room or takes no longer calls; and a server
 * that says who calls it and whom it lets in. */
#include "check.h"
#include "shrimp_rpc.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM 0x20000001u
#define NOTHING 0
#define REVERSE 2
#define STAY 90
#define WHO 91

static void say(const char *what) {
    printf("SAYS %s\n", what);
    fflush(stdout);
}

/* A call without arguments, to its end. */
static int call(shrimp_rpc_binding *binding, uint32_t procedure) {
    const volatile void *reply;
    void *at;
    size_t len;
    int status = shrimp_rpc_begin(binding, procedure, 0, &at);
    if (!status) status = shrimp_rpc_call_wait(binding, &reply, &len);
    shrimp_rpc_end(binding);
    return status;
}

static int is_named(shrimp_rpc_binding *binding, const char *word) {
    return strstr(shrimp_rpc_last_error(binding), word) != NULL;
}

/* The server answers too late, then dies during a call; its successor is found. */
static int late(shrimp_rpc_binding *binding) {
    shrimp_rpc_set_timeout(binding, 50);
    CHECK(call(binding, STAY) == SHRIMP_RPC_TIMED_OUT);
    CHECK(is_named(binding, "50ms"));
    shrimp_rpc_set_timeout(binding, 0);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    say("waits");
    CHECK(call(binding, STAY) == SHRIMP_RPC_SERVER_GONE);
    CHECK(is_named(binding, "died"));
    say("gone");
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    return 0;
}

/* Cancels until it is told that the call has ended. */
static atomic_int ended;
static void *cancel(void *canceller) {
    while (!ended) {
        shrimp_rpc_cancel(canceller);
        sched_yield();
    }
    return NULL;
}

/* Another thread gives the call up; the next one is answered. */
static int cancelled(shrimp_rpc_binding *binding) {
    pthread_t thread;
    shrimp_rpc_canceller *canceller = shrimp_rpc_canceller_new(binding);
    CHECK(canceller && !shrimp_rpc_canceller_new(NULL));
    shrimp_rpc_cancel(canceller); /* none is under way */
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    CHECK(pthread_create(&thread, NULL, cancel, canceller) == 0);
    int status = call(binding, STAY);
    ended = 1;
    CHECK(status == SHRIMP_RPC_CANCELLED && is_named(binding, "cancelled"));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    shrimp_rpc_canceller_free(canceller);
    shrimp_rpc_canceller_free(NULL);
    shrimp_rpc_cancel(NULL);
    return 0;
}

/* The server has one place and takes calls of 64 KiB. */
static int much(const char *name, shrimp_rpc_binding *binding) {
    shrimp_rpc_binding *second = NULL;
    const volatile void *reply;
    void *at;
    size_t len, most = 64 << 10;
    CHECK(shrimp_rpc_connect(name, PROGRAM, 1, &second) == SHRIMP_RPC_NO_ROOM && !second);
    int status = shrimp_rpc_begin(binding, REVERSE, most + 8, &at);
    if (!status) {
        memset(at, 0, most + 8);
        status = shrimp_rpc_call_wait(binding, &reply, &len);
        shrimp_rpc_end(binding);
    }
    CHECK(status == SHRIMP_RPC_TOO_LONG && is_named(binding, "65536"));
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_begin(binding, NOTHING, 4, &at) == SHRIMP_RPC_INVALID); /* no multiple of 8 */
    CHECK(shrimp_rpc_begin(binding, NOTHING, 8, NULL) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_BUSY); /* none was begun */
    CHECK(call(NULL, NOTHING) == SHRIMP_RPC_INVALID);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    return 0;
}

/* Who calls: process and user, how long it waits, and its node. */
static int dispatch(void *user, uint32_t procedure, shrimp_rpc_call *call) {
    void *at;
    (void)user;
    if (procedure == NOTHING) {
        int status = shrimp_rpc_reply(call, 0, &at);
        return status ? status : shrimp_rpc_reply_send(call);
    }
    if (procedure != WHO) return SHRIMP_RPC_PROC_UNAVAIL;
    const char *node = shrimp_rpc_caller_node(call);
    size_t len = node ? strlen(node) : 0;
    int status = shrimp_rpc_reply(call, 20 + len, &at);
    if (status) return status;
    uint32_t who[2] = {shrimp_rpc_caller_pid(call), shrimp_rpc_caller_uid(call)};
    uint64_t left = shrimp_rpc_time_left(call);
    uint32_t named = node == shrimp_rpc_caller_node(call) ? (uint32_t)len : 99;
    memcpy(at, who, 8);
    memcpy((char *)at + 8, &left, 8);
    memcpy((char *)at + 16, &named, 4);
    memcpy((char *)at + 20, node ? node : "", len);
    return shrimp_rpc_reply_send(call);
}

/* Serves those whom WHO and ID let in, until a line is read. */
static int serve(const char *name, int who, uint32_t id) {
    shrimp_rpc_binding *binding = NULL;
    shrimp_rpc_server *server;
    shrimp_rpc_builder *builder = shrimp_rpc_builder_new(name);
    CHECK(builder && !shrimp_rpc_builder_new(NULL) && !shrimp_rpc_builder_new("\xff"));
    shrimp_rpc_builder_free(builder); /* given up */
    shrimp_rpc_builder_free(NULL);
    builder = shrimp_rpc_builder_new(name);
    CHECK(shrimp_rpc_builder_allow(builder, 99, 0) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_builder_program(builder, PROGRAM, 1, NULL, NULL) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_builder_allow(builder, who, id) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_builder_limit(builder, 99, 1) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_builder_limit(builder, SHRIMP_RPC_CALL_MAX, 64 << 10) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_builder_limit(builder, SHRIMP_RPC_BINDINGS_MAX, 1) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_builder_program(builder, PROGRAM, 1, dispatch, NULL) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_builder_start(builder, &server) == SHRIMP_RPC_OK);
    say("ready");
    getchar();
    shrimp_rpc_server_stop(server);
    return 0;
}

int main(int argc, char **argv) {
    shrimp_rpc_binding *binding = NULL;
    if (argc < 3) return 2;
    if (strcmp(argv[1], "serve") == 0)
        return serve(argv[2], atoi(argv[3]), (uint32_t)strtoul(argv[4], NULL, 10));
    CHECK(shrimp_rpc_connect(argv[2], PROGRAM, 1, &binding) == SHRIMP_RPC_OK);
    int failed = strcmp(argv[1], "late") == 0        ? late(binding)
                 : strcmp(argv[1], "cancelled") == 0 ? cancelled(binding)
                                                     : much(argv[2], binding);
    shrimp_rpc_close(binding);
    if (!failed) puts("ok");
    return failed;
}
