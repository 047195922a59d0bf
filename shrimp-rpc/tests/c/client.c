/* A client in C, in the shape of generated stubs: adds numbers, reverses bytes in place, fetches OUT
 * data, meets a fault and an unknown procedure. Prints "ok" when all was as it should be. */
#include "check.h"
#include "shrimp_rpc.h"
#include <stdlib.h>
#include <string.h>

#define PROGRAM 0x20000001u

static size_t padded(size_t len) { return (len + 7) & ~(size_t)7; }

int main(int argc, char **argv) {
    shrimp_rpc_binding *binding = NULL;
    if (argc < 2) return 2;
    CHECK(shrimp_rpc_connect(argv[1], PROGRAM, 9, &binding) == SHRIMP_RPC_PROG_MISMATCH);
    CHECK(shrimp_rpc_connect(argv[1], PROGRAM, 1, &binding) == SHRIMP_RPC_OK);

    void *at;
    const volatile void *reply;
    size_t len;
    for (int i = 0; i < 1000; i++) { /* null calls */
        CHECK(shrimp_rpc_begin(binding, 0, 0, &at) == SHRIMP_RPC_OK);
        CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_OK && len == 0);
        shrimp_rpc_end(binding);
    }

    static const size_t sizes[] = {1, 8, 40, 1000, 60000, 70000, 1000000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) { /* INOUT in place and in pieces */
        size_t size = sizes[s];
        unsigned char *bytes = malloc(size);
        for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 7);
        CHECK(shrimp_rpc_begin(binding, 2, 8 + padded(size), &at) == SHRIMP_RPC_OK);
        uint32_t plain[2] = {(uint32_t)size, 0};
        memcpy(at, plain, 8);
        memcpy((char *)at + 8, bytes, size);
        CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_OK);
        CHECK(shrimp_rpc_inout(binding, 8, bytes, size) == SHRIMP_RPC_OK);
        shrimp_rpc_end(binding);
        for (size_t i = 0; i < size; i++)
            CHECK(bytes[i] == (unsigned char)((size - 1 - i) * 7));
        free(bytes);
    }

    static const uint32_t counts[] = {1, 5, 1000, 20000};
    for (size_t s = 0; s < sizeof counts / sizeof *counts; s++) { /* OUT */
        CHECK(shrimp_rpc_begin(binding, 3, 8, &at) == SHRIMP_RPC_OK);
        memcpy(at, (uint32_t[2]){counts[s], 0}, 8);
        CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_OK && len >= 8);
        uint32_t distance = ((const volatile uint32_t *)reply)[0];
        uint32_t count = ((const volatile uint32_t *)reply)[1];
        CHECK(count == counts[s] && distance >= 8 * count && distance <= len - 8);
        const volatile unsigned char *block =
            (const volatile unsigned char *)reply + len - distance;
        CHECK(((const volatile uint64_t *)(const volatile void *)block)[count - 1] == count);
        shrimp_rpc_end(binding);
    }

    CHECK(shrimp_rpc_begin(binding, 4, 0, &at) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_begin(binding, 4, 0, &at) == SHRIMP_RPC_BUSY);
    CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_FAULT);
    CHECK(shrimp_rpc_fault_number(binding) == 77);
    CHECK(strstr(shrimp_rpc_last_error(binding), "as asked"));
    CHECK(shrimp_rpc_begin(binding, 1234567, 0, &at) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_PROC_UNAVAIL);
    CHECK(shrimp_rpc_begin(binding, 1, 0, &at) == SHRIMP_RPC_OK);
    CHECK(shrimp_rpc_call_wait(binding, &reply, &len) == SHRIMP_RPC_GARBAGE_ARGS);
    shrimp_rpc_close(binding);
    puts("ok");
    return 0;
}
