/* Whether the compiler takes memory that was read for what it was: then it may read it again where it
 * should use the copy. Built with optimisation; says what it may. */
#include "shrimp_codec.h"
#include <stdio.h>

/* Known without a look. */
#define KNOWN(what) __builtin_constant_p(what)

__attribute__((noinline, flatten)) static int items(const volatile void *at)
{
    shrimp_reader one = shrimp_reader_at(at, 8), other = shrimp_reader_at(at, 8);
    uint64_t first = 0, second = 0;
    (void)shrimp_codec_get_bytes(&one, &first, 8);
    (void)shrimp_codec_get_bytes(&other, &second, 8);
    return KNOWN(first == second) ? -1 : first == second;
}

__attribute__((noinline, flatten)) static int elements(const shrimp_bulk *bulk)
{
    const shrimp_bulk block = {bulk->at, 1, 8};
    uint64_t first = 0, second = 0;
    (void)shrimp_bulk_read(&block, 0, &first, 1);
    (void)shrimp_bulk_read(&block, 0, &second, 1);
    return KNOWN(first == second) ? -1 : first == second;
}

int main(void)
{
    unsigned char memory[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    shrimp_bulk bulk = {memory, 1, 8};
    printf("items %d, elements %d\n", items(memory), elements(&bulk));
    return 0;
}
