/* differ: for each input (type, length, bytes) what libtirpc and rpcgen's procedures make of it: 0, or 1,
 * the length of the value encoded again, and those bytes. Numbers are 32 bits, this machine's order. */
#include "types.h"
#include <rpc/rpc_msg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool_t head_of_call(XDR *xdrs, void *at) { return xdr_callmsg(xdrs, at); }
static bool_t head_of_reply(XDR *xdrs, void *at) { return xdr_replymsg(xdrs, at); }

static const xdrproc_t procs[] = {
    (xdrproc_t)xdr_run, (xdrproc_t)xdr_scalars, (xdrproc_t)xdr_choice, (xdrproc_t)xdr_everything,
    (xdrproc_t)xdr_name, (xdrproc_t)xdr_bulk, (xdrproc_t)xdr_numbers, (xdrproc_t)head_of_call,
    (xdrproc_t)head_of_reply,
};
#define REPLY 8

int main(void)
{
    static char in[1 << 16], out[1 << 17];
    static char auth[2][MAX_AUTH_BYTES];
    unsigned head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        if (head[0] >= sizeof procs / sizeof *procs || head[1] > sizeof in) return 2;
        if (fread(in, 1, head[1], stdin) != head[1]) return 3;
        union { struct rpc_msg message; everything all; char room[4096]; } value;
        memset(&value, 0, sizeof value);
        if (procs[head[0]] == (xdrproc_t)head_of_call) {
            value.message.rm_call.cb_cred.oa_base = auth[0];
            value.message.rm_call.cb_verf.oa_base = auth[1];
        }
        if (head[0] == REPLY) value.message.acpted_rply.ar_results.proc = (xdrproc_t)xdr_void;
        XDR xdrs;
        xdrmem_create(&xdrs, in, head[1], XDR_DECODE);
        unsigned answer[2] = {procs[head[0]](&xdrs, &value), 0};
        if (answer[0]) {
            XDR again;
            memset(out, 0, sizeof out); /* xdr_callmsg leaves the padding of credentials as it is */
            xdrmem_create(&again, out, sizeof out, XDR_ENCODE);
            if (!procs[head[0]](&again, &value)) return 4;
            answer[1] = xdr_getpos(&again);
        }
        if (head[0] < REPLY - 1) xdr_free(procs[head[0]], &value);
        fwrite(answer, sizeof answer, 1, stdout);
        fwrite(out, 1, answer[1], stdout);
        fflush(stdout);
    }
    return 0;
}
