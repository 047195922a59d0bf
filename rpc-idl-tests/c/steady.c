/* A server of steady.x: says when its handler is in the middle, and waits there for a line. */
#include "program.h"
#include "steady.h"
#include <unistd.h>

static int64_t sum(uint32_t numbers_len, const int64_t *numbers, uint32_t pairs_len, const struct pair *pairs)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < numbers_len; i++)
        sum += numbers[i];
    for (uint32_t i = 0; i < pairs_len; i++)
        sum += pairs[i].a + pairs[i].b;
    return sum;
}

static int double_(void *user, shrimp_rpc_call *call, uint32_t numbers_len, int64_t *numbers, uint32_t pairs_len,
                   struct pair *pairs, int64_t *result)
{
    (void)user, (void)call;
    *result = sum(numbers_len, numbers, pairs_len, pairs);
    puts("SAYS in the middle");
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(sum(numbers_len, numbers, pairs_len, pairs) == *result);
    for (uint32_t i = 0; i < numbers_len; i++)
        numbers[i] *= 2;
    for (uint32_t i = 0; i < pairs_len; i++)
        pairs[i].a *= 2, pairs[i].b *= 2;
    return 0;
}

int main(void)
{
    steady_v1_ops ops = {.double_1 = double_};
    shrimp_rpc_builder *builder = shrimp_rpc_builder_new("steady");
    shrimp_rpc_server *server;
    CHECK(steady_v1_add(builder, &ops) == 0 && shrimp_rpc_builder_start(builder, &server) == 0);
    puts("SAYS ready");
    fflush(stdout);
    for (;;)
        pause();
}
