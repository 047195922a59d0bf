/* A client in C with settings of its own; bindings that share buffers; limits of one call; and what failed in words, where there is no
 * binding to ask. */
#include "check.h"
#include "shrimp_rpc.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define PROGRAM 0x20000001u
#define NOTHING 0
#define STAY 90
#define STAYING 92 /* answered while a STAY is not */
#define FREE 93    /* lets a STAY be answered */

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

static int says(const char *text, const char *word) {
    return strstr(text, word) != NULL;
}

static int is_named(shrimp_rpc_binding *binding, const char *word) {
    return says(shrimp_rpc_last_error(binding), word);
}

/* A connector with one option. */
static shrimp_rpc_connector *with(const char *name, int option, uint64_t value) {
    shrimp_rpc_connector *connector = shrimp_rpc_connector_new(name, PROGRAM, 1);
    if (connector && shrimp_rpc_connector_set(connector, option, value) == SHRIMP_RPC_OK)
        return connector;
    shrimp_rpc_connector_free(connector);
    return NULL;
}

/* What this thread was told: nothing failed in it. */
static void *text_of_thread(void *out) {
    (void)out;
    return shrimp_rpc_error_text()[0] ? "something" : NULL;
}

static int dispatch(void *user, uint32_t procedure, shrimp_rpc_call *call) {
    (void)user, (void)procedure, (void)call;
    return SHRIMP_RPC_PROC_UNAVAIL;
}

/* Nothing that fails here has a binding. */
static int failures(const char *name) {
    shrimp_rpc_binding *binding = NULL;
    shrimp_rpc_server *server = NULL;
    pthread_t thread;
    void *told;
    CHECK(shrimp_rpc_error_text()[0] == 0);
    CHECK(!shrimp_rpc_connector_new("\xff", PROGRAM, 1));
    shrimp_rpc_connector *connector = with(name, SHRIMP_RPC_OPT_LANES, 1);
    CHECK(connector);
    CHECK(shrimp_rpc_connector_set(connector, 99, 1) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_connector_set(connector, -1, 1) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_connector_set(connector, SHRIMP_RPC_OPT_LANES, UINT64_MAX) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_connector_token(connector, NULL) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_connector_open(connector, NULL) == SHRIMP_RPC_INVALID); /* and it is gone */

    /* The environment says ten minutes. */
    connector = with("nowhere", SHRIMP_RPC_OPT_CONNECT_MS, 20);
    CHECK(connector && shrimp_rpc_connector_open(connector, &binding) == SHRIMP_RPC_NO_SERVICE);
    CHECK(!binding && says(shrimp_rpc_error_text(), "\"nowhere\""));
    CHECK(shrimp_rpc_connect(name, PROGRAM, 9, &binding) == SHRIMP_RPC_PROG_MISMATCH);
    CHECK(!binding && says(shrimp_rpc_error_text(), "but version 1"));
    CHECK(shrimp_rpc_server_start("a@b", PROGRAM, 1, dispatch, NULL, &server) == SHRIMP_RPC_INVALID);
    CHECK(!server && says(shrimp_rpc_error_text(), "\"a@b\""));
    CHECK(pthread_create(&thread, NULL, text_of_thread, NULL) == 0);
    CHECK(pthread_join(thread, &told) == 0 && !told);

    unsigned char token[SHRIMP_RPC_TOKEN_LEN] = {0}; /* a secret that nobody asks for does no harm */
    connector = with(name, SHRIMP_RPC_OPT_CALL_MAX, 1000);
    CHECK(connector && shrimp_rpc_connector_token(connector, token) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_connector_open(connector, &binding) == SHRIMP_RPC_OK);
    void *at;
    CHECK(shrimp_rpc_begin(binding, NOTHING, 1008, &at) == SHRIMP_RPC_TOO_LONG);
    CHECK(is_named(binding, "1000"));
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    shrimp_rpc_close(binding);
    return 0;
}

/* Which limit a call has. */
static int limits(const char *name) {
    shrimp_rpc_binding *binding = NULL;
    void *at;
    shrimp_rpc_connector *connector = with(name, SHRIMP_RPC_OPT_TIMEOUT_MS, 50);
    CHECK(connector && shrimp_rpc_connector_open(connector, &binding) == SHRIMP_RPC_OK);
    CHECK(call(binding, STAY) == SHRIMP_RPC_TIMED_OUT && is_named(binding, "50ms"));
    CHECK(shrimp_rpc_next_timeout(binding, 70) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_next_timeout(binding, 40) == SHRIMP_RPC_OK);
    shrimp_rpc_end(binding); /* of no call */
    CHECK(call(binding, STAY) == SHRIMP_RPC_TIMED_OUT && is_named(binding, "40ms"));
    CHECK(call(binding, STAY) == SHRIMP_RPC_TIMED_OUT && is_named(binding, "50ms"));
    shrimp_rpc_set_timeout(binding, 0);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_begin(binding, NOTHING, 0, &at) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_next_timeout(binding, 40) == SHRIMP_RPC_BUSY);
    CHECK(shrimp_rpc_begin(binding, NOTHING, 0, &at) == SHRIMP_RPC_BUSY);
    shrimp_rpc_end(binding);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    shrimp_rpc_close(binding);
    return 0;
}

static atomic_int ended;
static void *stay(void *binding) {
    int *status = NULL;
    static int outcome;
    outcome = call(binding, STAY);
    status = &outcome;
    ended = 1;
    return status;
}

/* The first call binds. */
static int later(const char *name) {
    shrimp_rpc_binding *binding = NULL;
    shrimp_rpc_connector *connector = with("nowhere", SHRIMP_RPC_OPT_CONNECT_MS, 20);
    CHECK(connector && shrimp_rpc_connector_open_later(connector, &binding) == SHRIMP_RPC_OK);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_NO_SERVICE && is_named(binding, "\"nowhere\""));
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_NO_SERVICE); /* and the next one tries again */
    shrimp_rpc_close(binding);
    connector = with(" ", SHRIMP_RPC_OPT_CONNECT_MS, 20);
    CHECK(connector && shrimp_rpc_connector_open_later(connector, &binding) == SHRIMP_RPC_INVALID); /* no name */
    connector = with(name, SHRIMP_RPC_OPT_TIMEOUT_MS, 0);
    CHECK(connector && shrimp_rpc_connector_open_later(connector, &binding) == SHRIMP_RPC_OK);
    CHECK(call(binding, NOTHING) == SHRIMP_RPC_OK);
    shrimp_rpc_close(binding);
    connector = with(name, SHRIMP_RPC_OPT_LANES, 1);
    CHECK(shrimp_rpc_connector_open_later(connector, NULL) == SHRIMP_RPC_INVALID); /* and it is gone */
    return 0;
}

/* Two threads, two calls at a time, one set of buffers. */
static int share(shrimp_rpc_connector *connector) {
    shrimp_rpc_binding *binding = NULL, *other = NULL;
    pthread_t thread;
    void *status;
    CHECK(connector && shrimp_rpc_connector_open(connector, &binding) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_share(binding, NULL) == SHRIMP_RPC_INVALID);
    CHECK(shrimp_rpc_share(binding, &other) == SHRIMP_RPC_OK);
    shrimp_rpc_canceller *canceller = shrimp_rpc_canceller_new(other);
    CHECK(canceller && pthread_create(&thread, NULL, stay, other) == 0);
    CHECK(call(binding, STAYING) == SHRIMP_RPC_OK);
    /* What one has is not the other's: limit, failure, canceller. */
    shrimp_rpc_canceller *own = shrimp_rpc_canceller_new(binding);
    shrimp_rpc_cancel(own);
    shrimp_rpc_canceller_free(own);
    shrimp_rpc_set_timeout(binding, 100000);
    CHECK(call(binding, STAYING) == SHRIMP_RPC_OK);
    CHECK(call(binding, 12345) == SHRIMP_RPC_PROC_UNAVAIL && is_named(binding, "12345"));
    CHECK(call(binding, FREE) == SHRIMP_RPC_OK);
    CHECK(pthread_join(thread, &status) == 0 && *(int *)status == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_last_error(other)[0] == 0);
    ended = 0;
    CHECK(pthread_create(&thread, NULL, stay, other) == 0);
    CHECK(call(binding, STAYING) == SHRIMP_RPC_OK);
    shrimp_rpc_close(binding);
    binding = NULL;
    while (!ended) {
        shrimp_rpc_cancel(canceller);
        sched_yield();
    }
    CHECK(pthread_join(thread, &status) == 0);
    CHECK(*(int *)status == SHRIMP_RPC_CANCELLED && is_named(other, "cancelled"));
    CHECK(call(other, NOTHING) == SHRIMP_RPC_OK); /* the first one is closed */
    shrimp_rpc_canceller_free(canceller);
    shrimp_rpc_close(other);
    return 0;
}

/* The server says that it was built with another version. */
static int mismatch(const char *name) {
    shrimp_rpc_binding *binding = NULL;
    shrimp_rpc_connector *connector = with(name, SHRIMP_RPC_OPT_BUFFER, 3 * 4096);
    CHECK(connector && shrimp_rpc_connector_open(connector, &binding) == SHRIMP_RPC_LAYOUT_MISMATCH);
    CHECK(!binding && says(shrimp_rpc_error_text(), "layout 99"));
    CHECK(says(shrimp_rpc_strerror(SHRIMP_RPC_LAYOUT_MISMATCH), "another version"));
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int failed = strcmp(argv[1], "failures") == 0 ? failures(argv[2])
                 : strcmp(argv[1], "limits") == 0 ? limits(argv[2])
                 : strcmp(argv[1], "later") == 0  ? later(argv[2])
                 : strcmp(argv[1], "share") == 0  ? share(with(argv[2], SHRIMP_RPC_OPT_LANES, 2))
                 : strcmp(argv[1], "lanes") == 0  ? share(shrimp_rpc_connector_new(argv[2], PROGRAM, 1))
                                                  : mismatch(argv[2]);
    if (!failed) puts("ok");
    return failed;
}
