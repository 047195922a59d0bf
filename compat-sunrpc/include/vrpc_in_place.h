/* vrpc_in_place.h: arguments of a Sun RPC server used where they arrived, without the receive copy.
 *
 * The one change that the stubs need, and a flag of the compiler makes it. The server's file of XDR
 * procedures, and it alone, is compiled with this header before it:
 *
 *     rpcgen -c service.x -o service_xdr.c
 *     cc -include vrpc_in_place.h -c service_xdr.c
 *
 * From then on an `opaque x<>` of a call that came through a ring of libvrpc.so is not copied into memory of
 * malloc's: `x_val` points into the ring. Everything else is as before: calls by TCP and UDP, clients, and
 * all without the library; the program needs none to link or to run.
 *
 * What the service must know, and why this is not the default:
 *
 *   - The bytes are valid until svc_freeargs, which rpcgen's dispatcher calls when the reply has been sent,
 *     or until the dispatcher returns, or destroys the connection. A service that keeps them, or forks while
 *     it has them, copies them first (a child that was forked before svc_getargs is given copies). They
 *     are not to be given to free() or realloc().
 *   - Their room is the client's again only then. A client that sends calls without waiting (batching)
 *     waits when the ring is full, and its next call is not taken by a service that serves others
 *     meanwhile (svc_getreqset within a service); no other client waits.
 *   - The client may change them while the service looks: what has been checked is to be copied first.
 *     The length cannot change.
 *   - They begin at a multiple of four bytes, as all of XDR, and not at one of sixteen as malloc's.
 *
 * A string is always copied, because nothing in the ring guarantees its terminating zero; so is what is longer
 * than the ring. Source: "Early Experience with Message-Passing on the SHRIMP Multicomputer" (ISCA'96), section 4.2,
 * "Further optimizations".
 */
#ifndef VRPC_IN_PLACE_H
#define VRPC_IN_PLACE_H

#include <rpc/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* libvrpc.so's, where it is loaded. As xdr_bytes, which it calls for whatever stays a copy. */
extern bool_t vrpc_bytes_in_place(XDR *xdrs, char **at, u_int *len, u_int most) __attribute__((weak));

static inline bool_t vrpc_bytes(XDR *xdrs, char **at, u_int *len, u_int most)
{
    return vrpc_bytes_in_place ? vrpc_bytes_in_place(xdrs, at, len, most) : xdr_bytes(xdrs, at, len, most);
}

#ifdef __cplusplus
}
#endif

#define xdr_bytes vrpc_bytes

#endif
