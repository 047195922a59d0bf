/* A server of everything.x that puts the answers of GET off and gives them from a thread of its own; the stubs are added
 * to a server that is made by hand. DIVIDE has a fault at once. Serves until its input ends. */
#include "everything.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *give(void *call)
{
    shrimp_out value = {call, 1048576U, 0, {NULL, 0, 1U}};
    status result = OK;
    if (shrimp_bulk_write(shrimp_out_open(&value, 5), 0, "later", 5) != 0 || get_1_answer(call, &result, &value) != 0)
        abort();
    return NULL;
}

static int get(void *user, shrimp_rpc_call *call, const char *key, shrimp_out *value, status *result)
{
    pthread_t thread;
    (void)user, (void)value;
    if (strcmp(key, "wrong") == 0) {
        *result = (status)77; /* none of its values */
        return 0;
    }
    shrimp_rpc_call *later = shrimp_rpc_defer(call);
    if (later == NULL)
        abort();
    if (strcmp(key, "never") == 0)
        (void)shrimp_rpc_reply_fault(later, 9, "never");
    else if (pthread_create(&thread, NULL, give, later) != 0 || pthread_detach(thread) != 0)
        abort();
    return SHRIMP_RPC_DEFERRED;
}

/* Its answer does not encode: the call is still there then, and is ended by a fault. */
static int list(void *user, shrimp_rpc_call *call, const struct entry *entries, struct answer *result)
{
    char name[] = "a name of more than the sixty-four characters that the interface allows";
    struct entry entry = {.name = name};
    struct answer wrong = {.s = OK, .answer_u.list = &entry};
    (void)user, (void)entries, (void)result;
    shrimp_rpc_call *later = shrimp_rpc_defer(call);
    if (later == NULL || list_1_answer(later, &wrong) == 0 || shrimp_rpc_reply_fault(later, 10, "too long") != 0)
        abort();
    return SHRIMP_RPC_DEFERRED;
}

/* What it has stored does not reach the client, and a fault cannot be put off. */
static int divide(void *user, shrimp_rpc_call *call, int32_t a, int32_t b, int32_t *rest, int32_t *result)
{
    (void)user;
    *result = *rest = a;
    int faulted = shrimp_rpc_reply_fault(call, (uint32_t)b, "no quotient");
    if (shrimp_rpc_defer(call) != NULL)
        abort();
    return faulted;
}

int main(int argc, char **argv)
{
    kv_v1_ops ops = {.get_1 = get, .list_1 = list, .divide_1 = divide};
    shrimp_rpc_server *server;
    shrimp_rpc_builder *builder = argc == 2 ? shrimp_rpc_builder_new(argv[1]) : NULL;
    if (kv_v1_add(builder, &ops) != 0 || shrimp_rpc_builder_start(builder, &server) != 0)
        return 1;
    while (getchar() != EOF)
        ;
    shrimp_rpc_server_stop(server);
    return 0;
}
