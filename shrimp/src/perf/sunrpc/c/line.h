/* The bare cache line (R), played between the very processes that make calls: two words of a file that both
 * map. What `shrimp` itself does with it is in perf/line.rs. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Where the words are: on lines that are not fetched together. */
enum { PING = 0, PONG = 64, LINE_BYTES = 4096 };
#define STOP UINT32_MAX

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static _Atomic uint32_t *line_open(const char *path)
{
    int fd = open(path, O_RDWR);
    void *words = mmap(NULL, LINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || words == MAP_FAILED) exit(6);
    return words;
}

/* Polls until a word is no longer `old`. The other side may have ended: ten seconds at most. */
static uint32_t line_change(_Atomic uint32_t *word, uint32_t old)
{
    for (double begin = now();;) {
        for (int looks = 0; looks < 1 << 16; looks++) {
            uint32_t value = atomic_load_explicit(word, memory_order_acquire);
            if (value != old) return value;
            __builtin_ia32_pause();
        }
        if (now() > begin + 1e10) exit(7);
    }
}
