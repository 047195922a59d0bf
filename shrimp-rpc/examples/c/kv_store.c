/* The key-value store's server in C, for the clients of kv.c and examples/kv.rs: it serves until it is
 * killed.
 *
 *     shrimpc c ../kv.x
 *     cc -I. -I../../include -o kv_store kv_store.c kv_server.c kv_codec.c -lshrimp_rpc
 */
#include "kv.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One value; a list of them is the store. Handlers run in SHRIMP_RPC_WORKERS threads of the library. */
struct item {
    struct item *next;
    char *key;
    unsigned char *value;
    uint32_t len;
};

struct store {
    pthread_mutex_t lock;
    struct item *first;
};

static struct item *find(struct store *store, const char *key)
{
    struct item *item = store->first;
    while (item != NULL && strcmp(item->key, key) != 0)
        item = item->next;
    return item;
}

static int put(void *user, shrimp_rpc_call *call, const char *key, const shrimp_bulk *value, shrimp_bool *replaced)
{
    struct store *store = user;
    unsigned char *copy = malloc((size_t)value->len + 1);
    (void)call;
    if (copy == NULL)
        return SHRIMP_RPC_SYSTEM_ERR;
    shrimp_bulk_read(value, 0, copy, value->len); /* once: the client can still write there */
    pthread_mutex_lock(&store->lock);
    struct item *item = find(store, key);
    *replaced = item != NULL;
    if (item == NULL && (item = calloc(1, sizeof *item)) != NULL) {
        item->key = strdup(key);
        item->next = store->first;
        store->first = item;
    }
    if (item == NULL || item->key == NULL) {
        fprintf(stderr, "kv_store: no memory\n");
        exit(1);
    }
    free(item->value);
    item->value = copy;
    item->len = value->len;
    pthread_mutex_unlock(&store->lock);
    return 0;
}

static int get(void *user, shrimp_rpc_call *call, const char *key, shrimp_out *value, status *found)
{
    struct store *store = user;
    int rc = 0;
    (void)call;
    pthread_mutex_lock(&store->lock);
    const struct item *item = find(store, key);
    *found = item != NULL ? OK : MISSING;
    if (item != NULL) { /* straight into the client's buffer */
        shrimp_bulk *out = shrimp_out_open(value, item->len);
        rc = out == NULL ? SHRIMP_RPC_SYSTEM_ERR : shrimp_bulk_write(out, 0, item->value, item->len);
    }
    pthread_mutex_unlock(&store->lock);
    return rc;
}

static int count(void *user, shrimp_rpc_call *call, uint32_t *values)
{
    struct store *store = user;
    (void)call;
    pthread_mutex_lock(&store->lock);
    *values = 0;
    for (const struct item *item = store->first; item != NULL; item = item->next)
        ++*values;
    pthread_mutex_unlock(&store->lock);
    return 0;
}

int main(void)
{
    struct store store = {PTHREAD_MUTEX_INITIALIZER, NULL};
    kv_v1_ops ops = {.put_1 = put, .get_1 = get, .count_1 = count, .user = &store};
    int rc = kv_v1_serve("kv", &ops);
    fprintf(stderr, "kv_store: %s\n", shrimp_rpc_strerror(rc)); /* it returns only when it cannot begin */
    return 1;
}
