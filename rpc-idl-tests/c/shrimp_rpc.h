/*
 * The part of shrimp_rpc.h that generated C calls, over nothing: loopback.c calls the dispatcher
 * in the same process, so that the stubs can be tried without a runtime, under sanitizers. Numbers
 * are those of the real one, over which tests/c_over_shrimp_rpc.rs tries the same program.
 */
#ifndef SHRIMP_RPC_H
#define SHRIMP_RPC_H
#include <stddef.h>
#include <stdint.h>

typedef struct shrimp_rpc_binding shrimp_rpc_binding;
typedef struct shrimp_rpc_call shrimp_rpc_call;
typedef struct shrimp_rpc_builder shrimp_rpc_builder;
typedef struct shrimp_rpc_server shrimp_rpc_server;

enum shrimp_rpc_status {
    SHRIMP_RPC_OK = 0,
    SHRIMP_RPC_PROC_UNAVAIL = 1,
    SHRIMP_RPC_GARBAGE_ARGS = 2,
    SHRIMP_RPC_SYSTEM_ERR = 3,
    SHRIMP_RPC_GARBAGE_RESULTS = 4,
    SHRIMP_RPC_FAULT = 5,
    SHRIMP_RPC_BUSY = 13
};

int shrimp_rpc_connect(const char *name, uint32_t program, uint32_t version, shrimp_rpc_binding **out);
void shrimp_rpc_close(shrimp_rpc_binding *);
int shrimp_rpc_begin(shrimp_rpc_binding *, uint32_t procedure, size_t len, void **at);
int shrimp_rpc_call_wait(shrimp_rpc_binding *, const volatile void **reply, size_t *len);
int shrimp_rpc_send(shrimp_rpc_binding *);
int shrimp_rpc_inout(shrimp_rpc_binding *, size_t offset, void *to, size_t bytes);
const volatile void *shrimp_rpc_inout_at(shrimp_rpc_binding *, size_t offset, size_t bytes);
void shrimp_rpc_end(shrimp_rpc_binding *);
int shrimp_rpc_failed(shrimp_rpc_binding *, int status);

typedef int (*shrimp_rpc_dispatch)(void *user, uint32_t procedure, shrimp_rpc_call *);
int shrimp_rpc_serve(const char *name, uint32_t program, uint32_t version, shrimp_rpc_dispatch, void *user);
shrimp_rpc_builder *shrimp_rpc_builder_new(const char *name);
int shrimp_rpc_builder_start(shrimp_rpc_builder *, shrimp_rpc_server **out);
int shrimp_rpc_builder_program(shrimp_rpc_builder *, uint32_t program, uint32_t version, shrimp_rpc_dispatch, void *user);
void shrimp_rpc_args(shrimp_rpc_call *, const volatile void **at, size_t *len);
void *shrimp_rpc_inplace(shrimp_rpc_call *, size_t offset, size_t bytes);
void *shrimp_rpc_out(shrimp_rpc_call *, size_t bytes, uint32_t *distance);
int shrimp_rpc_reply(shrimp_rpc_call *, size_t plain, void **at);
int shrimp_rpc_reply_send(shrimp_rpc_call *);
#endif
