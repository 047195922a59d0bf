/* RPCSEC_GSS by Kerberos: `gss server` prints its port; `gss client PORT LENGTH...` prints what it saw, which is the
 * same whoever carries the calls; LENGTH is of what is sent there and back. */
#include <arpa/inet.h>
#include <rpc/rpc.h>
#include <rpc/auth_gss.h>
#include <rpc/rpcsec_gss.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM_OF_OURS 0x20001235
enum { ECHO = 1, WHO = 2, QUIT = 3 };

struct bytes { u_int len; char *at; };

static bool_t xdr_these(XDR *xdrs, struct bytes *these)
{
    return xdr_bytes(xdrs, &these->at, &these->len, 16 << 20);
}

static int leave;

/* Who calls, and how what is said is protected. */
static bool_t who(struct svc_req *req, char **answer)
{
    static char text[200];
    rpc_gss_rawcred_t *raw;
    if (!rpc_gss_getcred(req, &raw, NULL, NULL)) return FALSE;
    snprintf(text, sizeof text, "%s by service %d", raw->client_principal->name, raw->service);
    *answer = text;
    return TRUE;
}

static void serve(struct svc_req *req, SVCXPRT *xprt)
{
    struct bytes these = {0, NULL};
    char *answer;
    if (req->rq_proc == NULLPROC) {
        svc_sendreply(xprt, (xdrproc_t)xdr_void, NULL);
        return;
    }
    if (req->rq_cred.oa_flavor != RPCSEC_GSS) {
        svcerr_weakauth(xprt);
        return;
    }
    switch (req->rq_proc) {
    case ECHO:
        if (!svc_getargs(xprt, (xdrproc_t)xdr_these, (char *)&these)) svcerr_decode(xprt);
        else svc_sendreply(xprt, (xdrproc_t)xdr_these, (char *)&these);
        svc_freeargs(xprt, (xdrproc_t)xdr_these, (char *)&these);
        break;
    case WHO:
        if (who(req, &answer)) svc_sendreply(xprt, (xdrproc_t)xdr_wrapstring, (char *)&answer);
        else svcerr_systemerr(xprt);
        break;
    case QUIT:
        svc_sendreply(xprt, (xdrproc_t)xdr_void, NULL);
        leave = 1;
        svc_exit();
        break;
    default:
        svcerr_noproc(xprt);
    }
}

static int server(void)
{
    if (!rpc_gss_set_svc_name("test@localhost", "kerberos_v5", 3600, PROGRAM_OF_OURS, 1)) return 1;
    SVCXPRT *tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
    if (!tcp || !svc_register(tcp, PROGRAM_OF_OURS, 1, serve, 0)) return 1;
    printf("%d\n", tcp->xp_port);
    fflush(stdout);
    svc_run();
    return !leave;
}

static void echo(CLIENT *cl, u_int len)
{
    struct bytes out = {len, malloc(len + 1)}, in = {0, NULL};
    for (u_int i = 0; i < len; i++) out.at[i] = i * 7 + (i >> 8);
    enum clnt_stat got = clnt_call(cl, ECHO, (xdrproc_t)xdr_these, (char *)&out, (xdrproc_t)xdr_these, (char *)&in,
                                   ((struct timeval){60, 0}));
    int same = got == RPC_SUCCESS && in.len == len && memcmp(in.at, out.at, len) == 0;
    printf("%u bytes: %s %s\n", len, clnt_sperrno(got), same ? "same" : "DIFFERENT");
    xdr_free((xdrproc_t)xdr_these, (char *)&in);
    free(out.at);
}

static int client(int port, char **lengths)
{
    struct timeval wait = {60, 0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = RPC_ANYSOCK;
    CLIENT *cl = clnttcp_create(&at, PROGRAM_OF_OURS, 1, &fd, 0, 0);
    if (!cl) {
        clnt_pcreateerror("client");
        return 1;
    }
    rpc_gss_OID kerberos;
    if (!rpc_gss_mech_to_oid("kerberos_v5", &kerberos)) return 1;
    char *name = NULL;
    printf("plainly: %s\n", clnt_sperrno(clnt_call(cl, WHO, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_wrapstring, (char *)&name, wait)));
    for (int service = RPCSEC_GSS_SVC_NONE; service <= RPCSEC_GSS_SVC_PRIVACY; service++) {
        struct rpc_gss_sec sec = {.mech = (gss_OID)kerberos, .svc = service, .req_flags = GSS_C_MUTUAL_FLAG};
        AUTH *auth = authgss_create_default(cl, "test@localhost", &sec);
        if (!auth) {
            clnt_pcreateerror("no context");
            return 1;
        }
        cl->cl_auth = auth;
        name = NULL;
        enum clnt_stat got = clnt_call(cl, WHO, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_wrapstring, (char *)&name, wait);
        printf("%s: %s\n", clnt_sperrno(got), name ? name : "nobody");
        for (char **length = lengths; *length; length++) echo(cl, atoi(*length));
        if (service < RPCSEC_GSS_SVC_PRIVACY) auth_destroy(auth);
    }
    printf("quit: %s\n", clnt_sperrno(clnt_call(cl, QUIT, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, wait)));
    return 0;
}

int main(int argc, char **argv)
{
    return argc > 2 ? client(atoi(argv[2]), argv + 3) : server();
}
