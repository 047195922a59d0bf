/* Reads (index, length, bytes) in a loop; decodes and encodes; writes (length, bytes), or ~0. */
#include "random.h"
#include <stdio.h>

int again(uint32_t index, shrimp_reader *r, shrimp_writer *count, void **out);

int main(void)
{
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        unsigned char *bytes = malloc(head[1] + 1);
        if (fread(bytes, 1, head[1], stdin) != head[1])
            return 2;
        shrimp_reader r = shrimp_reader_at(bytes, head[1]);
        shrimp_writer w = shrimp_counter();
        void *out = NULL;
        int status = again(head[0], &r, &w, &out);
        uint32_t len = status == 0 && r.left == 0 ? (uint32_t)w.len : ~(uint32_t)0;
        fwrite(&len, sizeof len, 1, stdout);
        if (len != ~(uint32_t)0)
            fwrite(out, 1, len, stdout);
        free(out);
        free(bytes);
    }
    return 0;
}
