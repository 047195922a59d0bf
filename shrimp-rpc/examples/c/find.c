/* The finder's client in C: find KEY. The outcomes of the interface are told apart from a call that failed.
 *
 *     shrimpc c ../find.x
 *     cc -I. -I../../include -o find find.c find_client.c find_codec.c -lshrimp_rpc
 */
#include "find.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    shrimp_rpc_binding *binding = NULL;
    struct answer got;
    if (argc != 2 || shrimp_rpc_connect("find", FIND, FIND_V1, &binding) != 0) {
        fprintf(stderr, "find: %s\n", argc != 2 ? "usage: find KEY" : shrimp_rpc_error_text());
        return 1;
    }
    int failed = get_1(binding, argv[1], &got);
    if (failed) /* SHRIMP_RPC_...: the call itself */
        fprintf(stderr, "find: %s: %s\n", shrimp_rpc_strerror(failed), shrimp_rpc_last_error(binding));
    else if (got.of == FOUND)
        puts(got.answer_u.value);
    else if (got.of == MISSING)
        puts("there is none");
    else
        printf("%d: %s\n", got.of, got.answer_u.why);
    if (!failed)
        shrimp_free_answer(&got);
    shrimp_rpc_close(binding);
    return failed != 0;
}
