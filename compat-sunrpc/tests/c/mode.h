/* The four shapes of stubs that rpcgen makes (options -M and -N), seen alike. */
#include "types.h"
#include <string.h>

#if defined(MODE_M) && defined(NEWSTYLE)
#define CALL(proc, in, out, cl) proc##_1(*(in), (out), (cl))
#define CALL_VOID(proc, out, cl) proc##_1((out), (cl))
#elif defined(MODE_M)
#define CALL(proc, in, out, cl) proc##_1((in), (out), (cl))
#define CALL_VOID(proc, out, cl) proc##_1(NULL, (out), (cl))
#else
static inline enum clnt_stat taken(CLIENT *cl, void *to, const void *from, size_t size)
{
    struct rpc_err error;
    if (from) {
        memcpy(to, from, size);
        return RPC_SUCCESS;
    }
    clnt_geterr(cl, &error);
    return error.re_status;
}
#ifdef NEWSTYLE
#define CALL(proc, in, out, cl) taken((cl), (out), proc##_1(*(in), (cl)), sizeof *(out))
#define CALL_VOID(proc, out, cl) taken((cl), (out), proc##_1((cl)), sizeof *(out))
#else
#define CALL(proc, in, out, cl) taken((cl), (out), proc##_1((in), (cl)), sizeof *(out))
#define CALL_VOID(proc, out, cl) taken((cl), (out), proc##_1(NULL, (cl)), sizeof *(out))
#endif
#endif

/* A procedure of the server: `in` and `out` are pointers in its body. */
#ifdef NEWSTYLE
#define IN_PARAM(type) type by_value,
#define IN_POINTER(type) &by_value
#define NO_PARAM
#else
#define IN_PARAM(type) type *in_,
#define IN_POINTER(type) in_
#define NO_PARAM void *in_,
#endif
#ifdef MODE_M
#define SERVE(proc, itype, otype)                                                   \
    static void proc##_body(itype *in, otype *out, struct svc_req *req);            \
    bool_t proc##_1_svc(IN_PARAM(itype) otype *out, struct svc_req *req)            \
    { proc##_body(IN_POINTER(itype), out, req); return TRUE; }                      \
    static void proc##_body(itype *in, otype *out, struct svc_req *req)
#define SERVE_VOID(proc, otype)                                                     \
    static void proc##_body(otype *out, struct svc_req *req);                       \
    bool_t proc##_1_svc(NO_PARAM otype *out, struct svc_req *req)                   \
    { proc##_body(out, req); return TRUE; }                                         \
    static void proc##_body(otype *out, struct svc_req *req)
#else
#define SERVE(proc, itype, otype)                                                   \
    static void proc##_body(itype *in, otype *out, struct svc_req *req);            \
    otype *proc##_1_svc(IN_PARAM(itype) struct svc_req *req)                        \
    { static otype out; memset(&out, 0, sizeof out);                                \
      proc##_body(IN_POINTER(itype), &out, req); return &out; }                     \
    static void proc##_body(itype *in, otype *out, struct svc_req *req)
#define SERVE_VOID(proc, otype)                                                     \
    static void proc##_body(otype *out, struct svc_req *req);                       \
    otype *proc##_1_svc(NO_PARAM struct svc_req *req)                               \
    { static otype out; memset(&out, 0, sizeof out);                                \
      proc##_body(&out, req); return &out; }                                        \
    static void proc##_body(otype *out, struct svc_req *req)
#endif
