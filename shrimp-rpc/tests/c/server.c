/* A server in C, in the shape of generated stubs: the procedures of tests/program/mod.rs. */
#include "shrimp_rpc.h"
#include <stdio.h>
#include <string.h>

#define PROGRAM 0x20000001u

static int send_plain(shrimp_rpc_call *call, const void *plain, size_t len) {
    void *at;
    int status = shrimp_rpc_reply(call, len, &at);
    if (status) return status;
    memcpy(at, plain, len);
    return shrimp_rpc_reply_send(call);
}

static int dispatch(void *user, uint32_t procedure, shrimp_rpc_call *call) {
    const volatile void *args;
    size_t len;
    (void)user;
    shrimp_rpc_args(call, &args, &len);
    uint32_t number = len >= 4 ? *(const volatile uint32_t *)args : 0; /* once */
    switch (procedure) {
    case 0:
        return send_plain(call, "", 0);
    case 2: { /* reverses an INOUT block */
        unsigned char *block = shrimp_rpc_inplace(call, 8, number);
        if (len < 8 || !block) return SHRIMP_RPC_GARBAGE_ARGS;
        for (uint32_t i = 0; i < number / 2; i++) {
            unsigned char byte = block[i];
            block[i] = block[number - 1 - i];
            block[number - 1 - i] = byte;
        }
        return send_plain(call, "", 0);
    }
    case 3: { /* fills an OUT block with the number */
        uint32_t plain[2] = {0, number};
        uint64_t *block = shrimp_rpc_out(call, (size_t)number * 8, &plain[0]);
        if (!block) return SHRIMP_RPC_SYSTEM_ERR;
        for (uint32_t i = 0; i < number; i++) block[i] = number;
        return send_plain(call, plain, 8);
    }
    case 4:
        return shrimp_rpc_reply_fault(call, 77, "as asked");
    default:
        return SHRIMP_RPC_PROC_UNAVAIL;
    }
}

int main(int argc, char **argv) {
    shrimp_rpc_server *server;
    if (argc < 2) return 2;
    int status = shrimp_rpc_server_start(argv[1], PROGRAM, 1, dispatch, NULL, &server);
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
