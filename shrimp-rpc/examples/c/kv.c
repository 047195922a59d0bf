/* The key-value store's client in C: kv put KEY VALUE, kv get KEY, kv count. A value of "-" is read from standard
 * input. Any server of kv.x will
 * do: `kv serve` of examples/kv.rs is one.
 *
 *     shrimpc c ../kv.x
 *     cc -I. -I../../include -o kv kv.c kv_client.c kv_codec.c -lshrimp_rpc
 */
#include "kv.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put(shrimp_rpc_binding *binding, const char *key, const char *value)
{
    shrimp_bool replaced;
    uint32_t len = (uint32_t)strlen(value);
    char *read = NULL;
    if (strcmp(value, "-") == 0) {
        /* One byte more than fits is an error of the call. */
        read = malloc(VALUE_MAX + 1);
        if (read == NULL)
            return SHRIMP_RPC_SYSTEM_ERR;
        len = (uint32_t)fread(read, 1, VALUE_MAX + 1, stdin);
        value = read;
    }
    int rc = put_1(binding, key, len, (const unsigned char *)value, &replaced);
    free(read);
    if (rc == 0)
        puts(replaced ? "replaced" : "stored");
    return rc;
}

static int get(shrimp_rpc_binding *binding, const char *key)
{
    uint32_t len = VALUE_MAX; /* room, and then how much came */
    unsigned char *value = malloc(len);
    status found = MISSING;
    if (value == NULL)
        return SHRIMP_RPC_SYSTEM_ERR;
    int rc = get_1(binding, key, &len, value, &found);
    if (rc == 0 && found == OK)
        fwrite(value, 1, len, stdout), putchar('\n');
    free(value);
    if (rc == 0 && found != OK) {
        fprintf(stderr, "no value for \"%s\"\n", key);
        exit(1);
    }
    return rc;
}

static int count(shrimp_rpc_binding *binding)
{
    uint32_t values = 0;
    int rc = count_1(binding, &values);
    if (rc == 0)
        printf("%u\n", values);
    return rc;
}

int main(int argc, char **argv)
{
    shrimp_rpc_binding *binding = NULL;
    int rc = shrimp_rpc_connect("kv", KV, KV_V1, &binding);
    if (rc != 0) {
        fprintf(stderr, "kv: %s\n", shrimp_rpc_strerror(rc));
        return 1;
    }
    if (argc == 4 && strcmp(argv[1], "put") == 0)
        rc = put(binding, argv[2], argv[3]);
    else if (argc == 3 && strcmp(argv[1], "get") == 0)
        rc = get(binding, argv[2]);
    else if (argc == 2 && strcmp(argv[1], "count") == 0)
        rc = count(binding);
    else
        fprintf(stderr, "usage: kv put KEY VALUE | kv get KEY | kv count\n"), rc = SHRIMP_RPC_INVALID;
    if (rc != 0)
        fprintf(stderr, "kv: %s: %s\n", shrimp_rpc_strerror(rc), shrimp_rpc_last_error(binding));
    shrimp_rpc_close(binding);
    return rc != 0;
}
