/* SHRIMP RPC for C: what generated stubs call.
 *
 * Link with libshrimp_rpc.so or libshrimp_rpc.a. A binding is for one call at a time: begin, write
 * the request at *at, call_wait, read the reply, end. Different threads use bindings of their own,
 * which may share buffers (shrimp_rpc_share).
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
    SHRIMP_RPC_TIMED_OUT = 6,       /* no reply in time; the error's text says whether it was sent */
    SHRIMP_RPC_SERVER_GONE = 7,     /* it died during the call; the next call binds anew */
    SHRIMP_RPC_NO_SERVICE = 8,      /* nobody serves that name, or not for us */
    SHRIMP_RPC_PROG_UNAVAIL = 9,    /* the server has no such program */
    SHRIMP_RPC_PROG_MISMATCH = 10,  /* the server has other versions of the program */
    SHRIMP_RPC_TOO_LONG = 11,       /* longer than one side allows */
    SHRIMP_RPC_PROTOCOL = 12,       /* the other side did what no honest one does */
    SHRIMP_RPC_BUSY = 13,           /* a call of this binding is in progress, or none is */
    SHRIMP_RPC_INVALID = 14,        /* a null pointer, a name that no service or node can have, a range outside */
    SHRIMP_RPC_ENDING = 15,         /* the server is ending, or ended before it was bound */
    SHRIMP_RPC_CANCELLED = 16,      /* given up by shrimp_rpc_cancel; the error's text says whether the server may have carried it out */
    SHRIMP_RPC_NO_ROOM = 17,        /* the server allows no more bindings, calls in pieces, or buffers for another node */
    SHRIMP_RPC_DEFERRED = 18,       /* what a dispatch function returns after shrimp_rpc_defer */
    SHRIMP_RPC_LAYOUT_MISMATCH = 19 /* the server was built with another version of this library */
};

typedef struct shrimp_rpc_binding shrimp_rpc_binding;
typedef struct shrimp_rpc_server shrimp_rpc_server;
typedef struct shrimp_rpc_builder shrimp_rpc_builder;
typedef struct shrimp_rpc_call shrimp_rpc_call; /* server side, one call */

/* What a status means, in English. Never NULL. */
const char *shrimp_rpc_strerror(int status);

/* Why there is no binding, or no server: in words, with names, numbers and what to do, the last failure in this thread of
 * shrimp_rpc_connect, shrimp_rpc_connect_with_token, shrimp_rpc_connector_open, shrimp_rpc_connector_open_later, shrimp_rpc_serve,
 * shrimp_rpc_server_start or shrimp_rpc_builder_start. A null pointer is not told, nor a success. "" where none has failed; never NULL. It is the library's: valid in
 * this thread until the next failure of one of these. UTF-8. */
const char *shrimp_rpc_error_text(void);

/* ---- client ---- */

/* Binds; blocks until the service is there and has answered. A service of another node is
 * "name@node", with the node's name in the cluster file of this node's vmmcd. */
int shrimp_rpc_connect(const char *name, uint32_t program, uint32_t version,
                       shrimp_rpc_binding **out);
/* The same with the secret that the service asks for. */
#define SHRIMP_RPC_TOKEN_LEN 16
int shrimp_rpc_connect_with_token(const char *name, uint32_t program, uint32_t version,
                                  const unsigned char token[SHRIMP_RPC_TOKEN_LEN],
                                  shrimp_rpc_binding **out);
void shrimp_rpc_close(shrimp_rpc_binding *);

/* A client with settings of its own in place of the environment's (README): made, told what it is to be, and opened, by one thread at a
 * time. `open` blocks as shrimp_rpc_connect does, and ends the connector whatever it returns; `free` gives one up. NULL from `new`:
 * no name, or not UTF-8. */
typedef struct shrimp_rpc_connector shrimp_rpc_connector;
shrimp_rpc_connector *shrimp_rpc_connector_new(const char *name, uint32_t program, uint32_t version);
/* The secret that the service asks for; copied. */
int shrimp_rpc_connector_token(shrimp_rpc_connector *,
                               const unsigned char token[SHRIMP_RPC_TOKEN_LEN]);
enum shrimp_rpc_option {
    SHRIMP_RPC_OPT_BUFFER = 0,     /* bytes of each buffer, made whole pages, 4 KiB to 64 MiB; what is longer goes in pieces */
    SHRIMP_RPC_OPT_CALL_MAX = 1,   /* bytes of the longest call, and of the longest reply */
    SHRIMP_RPC_OPT_CONNECT_MS = 2, /* milliseconds for the service to appear and to answer */
    SHRIMP_RPC_OPT_LANES = 3,      /* calls at a time of bindings that share buffers, 1 to 65536; if the environment does not say (SHRIMP_RPC_LANES), 1 */
    SHRIMP_RPC_OPT_TIMEOUT_MS = 4  /* shrimp_rpc_set_timeout */
};
/* SHRIMP_RPC_INVALID: no such option, or too many lanes. */
int shrimp_rpc_connector_set(shrimp_rpc_connector *, int option, uint64_t value);
int shrimp_rpc_connector_open(shrimp_rpc_connector *, shrimp_rpc_binding **out);
/* The same, but the first call binds, and fails as `open` would have. Does not wait for the service. */
int shrimp_rpc_connector_open_later(shrimp_rpc_connector *, shrimp_rpc_binding **out);
void shrimp_rpc_connector_free(shrimp_rpc_connector *);

/* Another binding, for another thread, that uses the same buffers: as many calls at a time as there are lanes, further ones wait. Time limit
 * (at first that of the first one), failures and canceller are its own. Does not block. Called by the thread that uses the first one;
 * each is closed by itself, in any order. */
int shrimp_rpc_share(shrimp_rpc_binding *, shrimp_rpc_binding **out);

/* How long each call may take that begins from here on, in milliseconds; 0: any time, as at first. It begins with shrimp_rpc_begin, or with the stub;
 * the wait for a lane that others use (shrimp_rpc_share), binding anew, the writing of the request, the call and all pieces of it and of its reply share it.
 * When it is over, the call ends by SHRIMP_RPC_TIMED_OUT, and the server is told if it was sent. Its lane is used again after the late reply; where
 * that has not come within a second, a call for which there is no other lane has one bound in its stead. */
void shrimp_rpc_set_timeout(shrimp_rpc_binding *, uint64_t milliseconds);

/* The same for the next call of this binding alone, in place of its limit. SHRIMP_RPC_BUSY: one is in progress. */
int shrimp_rpc_next_timeout(shrimp_rpc_binding *, uint64_t milliseconds);

/* What gives up the call of a binding that waits for its reply, is between two pieces, waits for a lane that others use, or has first to
 * bind: from any thread, while another is in shrimp_rpc_begin, shrimp_rpc_call_wait or a stub. That call ends by SHRIMP_RPC_CANCELLED;
 * one that is being written is not concerned. It may outlive the binding. NULL: no binding. */
typedef struct shrimp_rpc_canceller shrimp_rpc_canceller;
shrimp_rpc_canceller *shrimp_rpc_canceller_new(shrimp_rpc_binding *);
void shrimp_rpc_cancel(const shrimp_rpc_canceller *);
void shrimp_rpc_canceller_free(shrimp_rpc_canceller *);

/* The last failure of this binding in words; valid until the next call. Never NULL. */
const char *shrimp_rpc_last_error(const shrimp_rpc_binding *);
/* For stubs, whose codec found what is wrong: makes the meaning of a status the last failure of this binding, and returns it. */
int shrimp_rpc_failed(shrimp_rpc_binding *, int status);
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

/* Serves one call. Returns SHRIMP_RPC_OK after shrimp_rpc_reply_send (or for a one-way call),
 * SHRIMP_RPC_DEFERRED after shrimp_rpc_defer, or SHRIMP_RPC_PROC_UNAVAIL, SHRIMP_RPC_GARBAGE_ARGS, SHRIMP_RPC_GARBAGE_RESULTS,
 * SHRIMP_RPC_SYSTEM_ERR. */
typedef int (*shrimp_rpc_dispatch)(void *user, uint32_t procedure, shrimp_rpc_call *);

/* Serves until the process ends; returns only when it cannot begin. */
int shrimp_rpc_serve(const char *name, uint32_t program, uint32_t version, shrimp_rpc_dispatch,
                     void *user);
/* Serves in threads of its own, until shrimp_rpc_server_stop. */
int shrimp_rpc_server_start(const char *name, uint32_t program, uint32_t version,
                            shrimp_rpc_dispatch, void *user, shrimp_rpc_server **out);
void shrimp_rpc_server_stop(shrimp_rpc_server *);

/* A server that is more than one program for the own user: made, told what it is, and started. `start` ends the
 * builder whatever it returns; `free` gives one up. NULL from `new`: no name, or not UTF-8. */
shrimp_rpc_builder *shrimp_rpc_builder_new(const char *name);
int shrimp_rpc_builder_program(shrimp_rpc_builder *, uint32_t program, uint32_t version,
                               shrimp_rpc_dispatch, void *user);
/* Who may bind; several times for several. Without any: processes of the same user. */
enum shrimp_rpc_who {
    SHRIMP_RPC_ANYONE = 0,
    SHRIMP_RPC_SAME_USER = 1,
    SHRIMP_RPC_USER = 2,   /* id: effective user */
    SHRIMP_RPC_GROUP = 3,  /* id: effective or supplementary group */
    SHRIMP_RPC_PROCESS = 4 /* id: process, for as long as it lives */
};
int shrimp_rpc_builder_allow(shrimp_rpc_builder *, int who, uint32_t id);
/* Asks clients for this secret, besides. */
int shrimp_rpc_builder_token(shrimp_rpc_builder *,
                             const unsigned char token[SHRIMP_RPC_TOKEN_LEN]);
/* Threads that call dispatch functions, at the same time. */
int shrimp_rpc_builder_workers(shrimp_rpc_builder *, unsigned workers);
/* What clients may take, in place of the environment's (README). Bytes but for bindings. */
enum shrimp_rpc_limit {
    SHRIMP_RPC_BUFFER_MAX = 0,    /* longest buffer for one client's calls */
    SHRIMP_RPC_CALL_MAX = 1,      /* longest call, and longest reply */
    SHRIMP_RPC_BINDINGS_MAX = 2,  /* bindings at a time */
    SHRIMP_RPC_BINDINGS_EACH = 3, /* of one client process */
    SHRIMP_RPC_PIECES_MAX = 4     /* memory for calls and replies in pieces */
};
int shrimp_rpc_builder_limit(shrimp_rpc_builder *, int which, size_t most);
int shrimp_rpc_builder_start(shrimp_rpc_builder *, shrimp_rpc_server **out);
void shrimp_rpc_builder_free(shrimp_rpc_builder *);

/* The whole request, and its length. */
void shrimp_rpc_args(shrimp_rpc_call *, const volatile void **at, size_t *len);
/* An INOUT block, to change in place; NULL: outside the request. */
void *shrimp_rpc_inplace(shrimp_rpc_call *, size_t offset, size_t bytes);
/* Room for an OUT block; NULL: longer than allowed. What is stored there reaches the client at
 * once, unless the block is short. */
void *shrimp_rpc_out(shrimp_rpc_call *, size_t bytes, uint32_t *distance);
/* Room for the plain part of the reply, `plain` bytes without padding. SHRIMP_RPC_FAULT, here and below:
 * shrimp_rpc_reply_fault was called, and the client gets that when the dispatch function has returned, whatever it returns. */
int shrimp_rpc_reply(shrimp_rpc_call *, size_t plain, void **at);
/* Sends it. After an error nothing was sent. */
int shrimp_rpc_reply_send(shrimp_rpc_call *);
/* Answers that there is no answer; instead of a reply, also after one that failed. `text` may be NULL.
 * SHRIMP_RPC_BUSY: the reply was sent. */
int shrimp_rpc_reply_fault(shrimp_rpc_call *, uint32_t number, const char *text);
/* Puts the reply off: from here on the call is what this returns, and the dispatch function returns
 * SHRIMP_RPC_DEFERRED. Any thread may use it, one at a time, with all functions of this part.
 * Request and INOUT blocks stay where they are; OUT blocks are to be asked for after this. It is gone
 * once shrimp_rpc_reply_send or shrimp_rpc_reply_fault has returned 0, whether the client was still
 * there or not; after an error of any function it is still the program's, and shrimp_rpc_reply_fault
 * ends it. A one-way call can be put off too, and is answered as any other. NULL: it was answered, or has a fault. */
shrimp_rpc_call *shrimp_rpc_defer(shrimp_rpc_call *);
/* Who calls, as the daemon vouches for it; whether it still waits. */
uint32_t shrimp_rpc_caller_uid(const shrimp_rpc_call *);
uint32_t shrimp_rpc_caller_pid(const shrimp_rpc_call *);
int shrimp_rpc_is_cancelled(const shrimp_rpc_call *);
/* The caller's node, by its name in the cluster file of this node's vmmcd, if it is another one: process ids are that node's then. NULL: it
 * is this one, or the call was put off and is another now. Valid until the dispatch function has returned, and of a call that was put off until it is answered. */
const char *shrimp_rpc_caller_node(const shrimp_rpc_call *);
/* How long the caller will still wait, by its own word, in nanoseconds. */
#define SHRIMP_RPC_ANY_TIME UINT64_MAX
uint64_t shrimp_rpc_time_left(const shrimp_rpc_call *);

#ifdef __cplusplus
}
#endif
#endif
