/* SHRIMP RPC for C: what generated stubs call.
 *
 * Link with libshrimp_rpc.so or libshrimp_rpc.a. A binding is for one call at a time: begin, write
 * the request at *at, call_wait, read the reply, end. Different threads use bindings of their own.
 * Memory that the other side can write is `volatile` here: load each word once, check it, and use
 * the copy.
 */
#ifndef SHRIMP_RPC_H
#define SHRIMP_RPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How it went. 0 is success everywhere. */
enum shrimp_rpc_status {
    SHRIMP_RPC_OK = 0,
    SHRIMP_RPC_PROC_UNAVAIL = 1,    /* the program has no such procedure */
    SHRIMP_RPC_GARBAGE_ARGS = 2,    /* the arguments do not decode */
    SHRIMP_RPC_SYSTEM_ERR = 3,      /* memory, descriptors, threads, the daemon */
    SHRIMP_RPC_GARBAGE_RESULTS = 4, /* the results do not encode, or the reply does not decode */
    SHRIMP_RPC_FAULT = 5,           /* the handler has no answer: see shrimp_rpc_fault_number */
    SHRIMP_RPC_TIMED_OUT = 6,       /* no reply in time */
    SHRIMP_RPC_SERVER_GONE = 7,     /* it died during the call; the next call binds anew */
    SHRIMP_RPC_NO_SERVICE = 8,      /* nobody serves that name, or not for us */
    SHRIMP_RPC_PROG_UNAVAIL = 9,    /* the server has no such program */
    SHRIMP_RPC_PROG_MISMATCH = 10,  /* the server has other versions of the program */
    SHRIMP_RPC_TOO_LONG = 11,       /* longer than one side allows */
    SHRIMP_RPC_PROTOCOL = 12,       /* the other side did what no honest one does */
    SHRIMP_RPC_BUSY = 13,           /* a call of this binding is in progress, or none is */
    SHRIMP_RPC_INVALID = 14,        /* a null pointer, a name that is not UTF-8, a range outside */
    SHRIMP_RPC_ENDING = 15,         /* the server is ending */
    SHRIMP_RPC_CANCELLED = 16,      /* given up before it was sent */
    SHRIMP_RPC_NO_ROOM = 17         /* the server allows no more bindings, or calls in pieces */
};

typedef struct shrimp_rpc_binding shrimp_rpc_binding;
typedef struct shrimp_rpc_server shrimp_rpc_server;
typedef struct shrimp_rpc_call shrimp_rpc_call; /* server side, one call */

/* What a status means, in English. Never NULL. */
const char *shrimp_rpc_strerror(int status);

/* ---- client ---- */

/* Binds; blocks until the service is there and has answered. A service of another node is
 * "name@node", with the node's name in the cluster file of this node's vmmcd. */
int shrimp_rpc_connect(const char *name, uint32_t program, uint32_t version,
                       shrimp_rpc_binding **out);
void shrimp_rpc_close(shrimp_rpc_binding *);

/* How long a call may take, in milliseconds; 0: any time. */
void shrimp_rpc_set_timeout(shrimp_rpc_binding *, uint64_t milliseconds);

/* The last failure of this binding in words; valid until the next call. Never NULL. */
const char *shrimp_rpc_last_error(const shrimp_rpc_binding *);
/* The number of the last SHRIMP_RPC_FAULT. */
uint32_t shrimp_rpc_fault_number(const shrimp_rpc_binding *);

/* Room for a request of `len` bytes, a multiple of 8: plain part, then blocks, each padded to 8. */
int shrimp_rpc_begin(shrimp_rpc_binding *, uint32_t procedure, size_t len, void **at);
/* Sends it and waits. The reply ends where distances count from: at *reply + *len. */
int shrimp_rpc_call_wait(shrimp_rpc_binding *, const volatile void **reply, size_t *len);
/* Sends it and goes on; ends the call too. */
int shrimp_rpc_send(shrimp_rpc_binding *);
/* Copies an INOUT block back: where it began in the request, and its bytes. After call_wait. */
int shrimp_rpc_inout(shrimp_rpc_binding *, size_t offset, void *to, size_t bytes);
/* The block itself, where the server left it; NULL: outside the request, or no reply was read. Until
 * shrimp_rpc_end. */
const volatile void *shrimp_rpc_inout_at(shrimp_rpc_binding *, size_t offset, size_t bytes);
/* After the reply was read, or to give up. */
void shrimp_rpc_end(shrimp_rpc_binding *);

/* ---- server ---- */

/* Serves one call. Returns SHRIMP_RPC_OK after shrimp_rpc_reply_send (or for a one-way call), or
 * SHRIMP_RPC_PROC_UNAVAIL, SHRIMP_RPC_GARBAGE_ARGS, SHRIMP_RPC_SYSTEM_ERR. */
typedef int (*shrimp_rpc_dispatch)(void *user, uint32_t procedure, shrimp_rpc_call *);

/* Serves until the process ends; returns only when it cannot begin. */
int shrimp_rpc_serve(const char *name, uint32_t program, uint32_t version, shrimp_rpc_dispatch,
                     void *user);
/* Serves in threads of its own, until shrimp_rpc_server_stop. */
int shrimp_rpc_server_start(const char *name, uint32_t program, uint32_t version,
                            shrimp_rpc_dispatch, void *user, shrimp_rpc_server **out);
void shrimp_rpc_server_stop(shrimp_rpc_server *);

/* The whole request, and its length. */
void shrimp_rpc_args(shrimp_rpc_call *, const volatile void **at, size_t *len);
/* An INOUT block, to change in place; NULL: outside the request. */
void *shrimp_rpc_inplace(shrimp_rpc_call *, size_t offset, size_t bytes);
/* Room for an OUT block; NULL: longer than allowed. What is stored there reaches the client at
 * once, unless the block is short. */
void *shrimp_rpc_out(shrimp_rpc_call *, size_t bytes, uint32_t *distance);
/* Room for the plain part of the reply, `plain` bytes without padding. */
int shrimp_rpc_reply(shrimp_rpc_call *, size_t plain, void **at);
int shrimp_rpc_reply_send(shrimp_rpc_call *);
/* Answers that there is no answer; instead of a reply. `text` may be NULL. */
int shrimp_rpc_reply_fault(shrimp_rpc_call *, uint32_t number, const char *text);
/* Who calls, as the daemon vouches for it; whether it still waits. */
uint32_t shrimp_rpc_caller_uid(const shrimp_rpc_call *);
uint32_t shrimp_rpc_caller_pid(const shrimp_rpc_call *);
int shrimp_rpc_is_cancelled(const shrimp_rpc_call *);

#ifdef __cplusplus
}
#endif
#endif
