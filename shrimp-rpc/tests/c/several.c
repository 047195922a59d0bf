/* A server in C of two programs, one of them in two versions, that asks for a secret and puts its answers off; and
 * its client. The procedures are those of tests/program/mod.rs, answered by a thread of their own. */
#include "shrimp_rpc.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM 0x20000001u
#define OTHER 0x20000002u

static const unsigned char TOKEN[SHRIMP_RPC_TOKEN_LEN] = "of several secre";

/* A call that was put off. */
struct late {
    shrimp_rpc_call *call;
    uint32_t procedure, number;
    unsigned char *block;
};

static int send_plain(shrimp_rpc_call *call, const void *plain, size_t len) {
    void *at;
    int status = shrimp_rpc_reply(call, len, &at);
    if (status) return status;
    memcpy(at, plain, len);
    return shrimp_rpc_reply_send(call);
}

static void *answer(void *at) {
    struct late late = *(struct late *)at;
    free(at);
    int status = SHRIMP_RPC_SYSTEM_ERR;
    if (late.procedure == 2) { /* reverses the INOUT block, which was found before */
        for (uint32_t i = 0; i < late.number / 2; i++) {
            unsigned char byte = late.block[i];
            late.block[i] = late.block[late.number - 1 - i];
            late.block[late.number - 1 - i] = byte;
        }
        status = send_plain(late.call, "", 0);
    } else if (late.procedure == 5) { /* answers when the client has gone */
        puts("SAYS late");
        fflush(stdout);
        while (!shrimp_rpc_is_cancelled(late.call)) sched_yield();
        status = send_plain(late.call, "nobody reads this", 17);
        printf("SAYS %d\n", status);
        fflush(stdout);
    } else if (late.procedure == 3) { /* fills an OUT block */
        uint32_t plain[2] = {0, late.number};
        uint64_t *block = shrimp_rpc_out(late.call, (size_t)late.number * 8, &plain[0]);
        for (uint32_t i = 0; block && i < late.number; i++) block[i] = late.number;
        if (block) status = send_plain(late.call, plain, 8);
    }
    if (status) shrimp_rpc_reply_fault(late.call, 78, "late, as asked");
    return NULL;
}

static int dispatch(void *user, uint32_t procedure, shrimp_rpc_call *call) {
    const volatile void *args;
    size_t len;
    pthread_t thread;
    (void)user;
    if (procedure == 0) return send_plain(call, "", 0);
    if (procedure < 2 || procedure > 5) return SHRIMP_RPC_PROC_UNAVAIL;
    shrimp_rpc_args(call, &args, &len);
    struct late *late = calloc(1, sizeof *late);
    late->procedure = procedure;
    late->number = len >= 4 ? *(const volatile uint32_t *)args : 0; /* once */
    if (procedure == 2) {
        late->block = shrimp_rpc_inplace(call, 8, late->number);
        if (len < 8 || !late->block) {
            free(late);
            return SHRIMP_RPC_GARBAGE_ARGS;
        }
    }
    late->call = shrimp_rpc_defer(call);
    if (!late->call || shrimp_rpc_defer(call)) abort(); /* put off once */
    if (shrimp_rpc_reply(call, 0, (void **)&thread) != SHRIMP_RPC_INVALID) abort();
    if (pthread_create(&thread, NULL, answer, late)) abort();
    pthread_detach(thread);
    return SHRIMP_RPC_DEFERRED;
}

/* Answers its user pointer, whatever is asked. */
static int constant(void *user, uint32_t procedure, shrimp_rpc_call *call) {
    (void)procedure;
    return send_plain(call, user, sizeof(uint32_t));
}

static int serve(const char *name) {
    static uint32_t second = 22, other = 33;
    shrimp_rpc_server *server;
    shrimp_rpc_builder *builder = shrimp_rpc_builder_new(name);
    int status = shrimp_rpc_builder_program(builder, PROGRAM, 1, dispatch, NULL);
    if (!status) status = shrimp_rpc_builder_program(builder, PROGRAM, 2, constant, &second);
    if (!status) status = shrimp_rpc_builder_program(builder, OTHER, 1, constant, &other);
    if (!status) status = shrimp_rpc_builder_allow(builder, SHRIMP_RPC_SAME_USER, 0);
    if (!status) status = shrimp_rpc_builder_token(builder, TOKEN);
    if (!status) status = shrimp_rpc_builder_workers(builder, 2);
    if (!status) status = shrimp_rpc_builder_start(builder, &server);
    if (status) {
        fprintf(stderr, "%s\n", shrimp_rpc_strerror(status));
        return 1;
    }
    puts("SAYS ready");
    fflush(stdout);
    getchar();
    shrimp_rpc_server_stop(server);
    return 0;
}

#define CHECK(what)                                                       \
    do {                                                                  \
        if (!(what)) {                                                    \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);            \
            return 1;                                                     \
        }                                                                 \
    } while (0)

/* The constant of a program. */
static int number_of(const char *name, uint32_t program, uint32_t version, uint32_t *number) {
    shrimp_rpc_binding *binding;
    const volatile void *reply;
    void *at;
    size_t len;
    int status = shrimp_rpc_connect_with_token(name, program, version, TOKEN, &binding);
    if (status) return status;
    status = shrimp_rpc_begin(binding, 5, 0, &at);
    if (!status) status = shrimp_rpc_call_wait(binding, &reply, &len);
    if (!status) *number = *(const volatile uint32_t *)reply;
    shrimp_rpc_end(binding);
    shrimp_rpc_close(binding);
    return status;
}

static int call(const char *name) {
    unsigned char wrong[SHRIMP_RPC_TOKEN_LEN] = {0};
    shrimp_rpc_binding *binding;
    uint32_t number = 0;
    CHECK(shrimp_rpc_connect_with_token(name, PROGRAM, 1, wrong, &binding) == SHRIMP_RPC_NO_SERVICE);
    CHECK(shrimp_rpc_connect_with_token(name, PROGRAM, 1, NULL, &binding) == SHRIMP_RPC_INVALID);
    CHECK(number_of(name, PROGRAM, 2, &number) == SHRIMP_RPC_OK && number == 22);
    CHECK(number_of(name, OTHER, 1, &number) == SHRIMP_RPC_OK && number == 33);
    CHECK(number_of(name, OTHER, 2, &number) == SHRIMP_RPC_PROG_MISMATCH);
    CHECK(number_of(name, 99, 1, &number) == SHRIMP_RPC_PROG_UNAVAIL);
    puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    return strcmp(argv[1], "serve") == 0 ? serve(argv[2]) : call(argv[2]);
}
