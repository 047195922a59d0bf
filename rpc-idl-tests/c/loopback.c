/* shrimp_rpc.h within one process: a call runs the dispatcher before shrimp_rpc_call_wait returns. */
#include "shrimp_rpc.h"
#include <stdlib.h>
#include <string.h>

#define ROOM ((size_t)16 << 20)

struct shrimp_rpc_call {
    unsigned char *request, *reply; /* the reply ends where its room ends */
    size_t len, outs, plain;
    int sent;
};

struct shrimp_rpc_binding {
    shrimp_rpc_dispatch dispatch;
    void *user;
    uint32_t procedure;
    struct shrimp_rpc_call call;
};

#define MANY 8

/* All that is served, under whatever name. */
static struct served {
    uint32_t program, version;
    shrimp_rpc_dispatch dispatch;
    void *user;
} served[MANY];

int shrimp_rpc_serve(const char *name, uint32_t program, uint32_t version, shrimp_rpc_dispatch dispatch, void *user)
{
    (void)name;
    for (int i = 0; i < MANY; i++) {
        if (served[i].dispatch == NULL) {
            served[i] = (struct served){program, version, dispatch, user};
            return 0;
        }
    }
    return SHRIMP_RPC_SYSTEM_ERR;
}

shrimp_rpc_builder *shrimp_rpc_builder_new(const char *name)
{
    static char none;
    (void)name;
    return (shrimp_rpc_builder *)(void *)&none;
}

int shrimp_rpc_builder_start(shrimp_rpc_builder *builder, shrimp_rpc_server **out)
{
    (void)builder;
    *out = NULL;
    return 0;
}

int shrimp_rpc_builder_program(shrimp_rpc_builder *builder, uint32_t program, uint32_t version, shrimp_rpc_dispatch dispatch, void *user)
{
    (void)builder;
    return shrimp_rpc_serve(NULL, program, version, dispatch, user);
}

int shrimp_rpc_connect(const char *name, uint32_t program, uint32_t version, shrimp_rpc_binding **out)
{
    (void)name;
    for (int i = 0; i < MANY && served[i].dispatch != NULL; i++) {
        if (served[i].program == program && served[i].version == version) {
            *out = calloc(1, sizeof **out);
            (*out)->dispatch = served[i].dispatch;
            (*out)->user = served[i].user;
            return 0;
        }
    }
    return SHRIMP_RPC_SYSTEM_ERR;
}

void shrimp_rpc_close(shrimp_rpc_binding *b) { free(b); }

int shrimp_rpc_begin(shrimp_rpc_binding *b, uint32_t procedure, size_t len, void **at)
{
    if (b->call.request != NULL)
        return SHRIMP_RPC_BUSY;
    b->procedure = procedure;
    memset(&b->call, 0, sizeof b->call);
    b->call.request = malloc(len + 1);
    b->call.reply = malloc(ROOM);
    b->call.len = len;
    *at = b->call.request;
    return 0;
}

int shrimp_rpc_call_wait(shrimp_rpc_binding *b, const volatile void **reply, size_t *len)
{
    int status = b->dispatch(b->user, b->procedure, &b->call);
    if (status != 0 || !b->call.sent) { /* the end of it */
        free(b->call.request);
        free(b->call.reply);
        b->call.request = b->call.reply = NULL;
    }
    if (status == SHRIMP_RPC_PROC_UNAVAIL || status == SHRIMP_RPC_GARBAGE_ARGS)
        return status;
    if (status != 0 || !b->call.sent)
        return SHRIMP_RPC_FAULT;
    *len = b->call.outs + b->call.plain;
    *reply = b->call.reply + ROOM - *len;
    return 0;
}

int shrimp_rpc_send(shrimp_rpc_binding *b)
{
    int status = b->dispatch(b->user, b->procedure, &b->call);
    shrimp_rpc_end(b);
    return status;
}

int shrimp_rpc_failed(shrimp_rpc_binding *b, int status)
{
    (void)b;
    return status;
}

int shrimp_rpc_inout(shrimp_rpc_binding *b, size_t offset, void *to, size_t bytes)
{
    if (offset > b->call.len || bytes > b->call.len - offset)
        return SHRIMP_RPC_SYSTEM_ERR;
    if (bytes > 0)
        memcpy(to, b->call.request + offset, bytes);
    return 0;
}

const volatile void *shrimp_rpc_inout_at(shrimp_rpc_binding *b, size_t offset, size_t bytes)
{
    return shrimp_rpc_inplace(&b->call, offset, bytes);
}

void shrimp_rpc_end(shrimp_rpc_binding *b)
{
    free(b->call.request);
    free(b->call.reply);
    b->call.request = b->call.reply = NULL;
}

void shrimp_rpc_args(shrimp_rpc_call *call, const volatile void **at, size_t *len)
{
    *at = call->request;
    *len = call->len;
}

void *shrimp_rpc_inplace(shrimp_rpc_call *call, size_t offset, size_t bytes)
{
    if (offset > call->len || bytes > call->len - offset)
        return NULL;
    return call->request + offset;
}

void *shrimp_rpc_out(shrimp_rpc_call *call, size_t bytes, uint32_t *distance)
{
    bytes = (bytes + 7) & ~(size_t)7;
    if (bytes > ROOM - call->outs)
        return NULL;
    call->outs += bytes;
    *distance = (uint32_t)call->outs;
    /* Whatever an earlier message left. */
    return memset(call->reply + ROOM - call->outs, 0xa5, bytes);
}

int shrimp_rpc_reply(shrimp_rpc_call *call, size_t plain, void **at)
{
    call->plain = (plain + 7) & ~(size_t)7;
    if (call->plain > ROOM - call->outs)
        return SHRIMP_RPC_SYSTEM_ERR;
    *at = call->reply + ROOM - call->outs - call->plain;
    return 0;
}

int shrimp_rpc_reply_send(shrimp_rpc_call *call)
{
    call->sent = 1;
    return 0;
}
