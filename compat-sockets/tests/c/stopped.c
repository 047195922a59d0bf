/* Two processes have one end of a connection since a fork, and one of them is stopped at random points of its calls: the
 * other goes on, and nothing is lost, doubled or out of its order. */
#include "semantics.h"

enum { ROUNDS = 60, LARGEST = 48 * KIB };
/* A round in which the other makes no call for so long is one in which it was held up. */
enum { HELD_MS = 2000, SOON_MS = 50, GOES_ON_CALLS = 20 };

/* What the processes tell each other. */
struct board {
    _Atomic unsigned long calls[2]; /* calls that have returned */
    _Atomic unsigned long bytes[2]; /* sent by this one, or received */
    _Atomic unsigned long sum[2];   /* of all bytes received */
    _Atomic int enough;
};
static struct board *board;

static unsigned long now_us(void) {
    struct timespec now;
    NEED(clock_gettime(CLOCK_MONOTONIC, &now));
    return (unsigned long)now.tv_sec * 1000000 + (unsigned long)now.tv_nsec / 1000;
}

/* Each byte says who sent it and which of his it is. */
static void sends(int me, int fd, unsigned size) {
    static unsigned char buffer[LARGEST];
    unsigned random = 7 + (unsigned)me;
    unsigned long at = 0;
    while (!board->enough) {
        random = random * 1103515245 + 12345;
        size_t len = size ? size : 1 + (random >> 8) % LARGEST;
        for (size_t i = 0; i < len; i++)
            buffer[i] = (unsigned char)((me << 7) | ((at + i) % 127));
        for (size_t done = 0; done < len;)
            done += (size_t)NEED(write(fd, buffer + done, len - done));
        at += len;
        board->bytes[me] = at;
        board->calls[me]++;
    }
}

static void receives(int me, int fd, unsigned size) {
    static unsigned char buffer[LARGEST];
    for (;;) {
        ssize_t len = NEED(read(fd, buffer, size ? size : LARGEST));
        if (len == 0)
            return;
        unsigned long sum = 0;
        for (ssize_t i = 0; i < len; i++)
            sum += buffer[i];
        board->sum[me] += sum;
        board->bytes[me] += (unsigned long)len;
        board->calls[me]++;
    }
}

/* One asks, and whoever comes next has the answer. */
static void asks(int me, int fd, unsigned size) {
    char buffer[64] = {0};
    (void)size;
    while (!board->enough) {
        for (size_t done = 0; done < sizeof buffer;)
            done += (size_t)NEED(write(fd, buffer + done, sizeof buffer - done));
        ssize_t len = NEED(read(fd, buffer, sizeof buffer));
        if (len == 0)
            return;
        board->calls[me]++;
    }
}

static pid_t start(void (*body)(int, int, unsigned), int me, int ends[2], unsigned size) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(close(ends[1]));
        body(me, ends[0], size);
        NEED(close(ends[0]));
        _exit(0);
    }
    return child;
}

struct peer {
    int fd;
    unsigned long bytes[2], sum;
    bool right;
};

static void *takes_all(void *argument) {
    static unsigned char buffer[256 * KIB];
    struct peer *peer = argument;
    peer->right = true;
    for (;;) {
        ssize_t len = NEED(read(peer->fd, buffer, sizeof buffer));
        if (len == 0)
            return NULL;
        for (ssize_t i = 0; i < len; i++) {
            int who = buffer[i] >> 7;
            peer->right &= (buffer[i] & 127) == peer->bytes[who]++ % 127;
        }
    }
}

static void *gives(void *argument) {
    static unsigned char buffer[LARGEST];
    struct peer *peer = argument;
    unsigned random = 99;
    while (!board->enough) {
        random = random * 1103515245 + 12345;
        size_t len = 1 + (random >> 8) % LARGEST;
        for (size_t i = 0; i < len; i++) {
            buffer[i] = (unsigned char)(peer->bytes[0] + i);
            peer->sum += buffer[i];
        }
        for (size_t done = 0; done < len;)
            done += (size_t)NEED(write(peer->fd, buffer + done, len - done));
        peer->bytes[0] += len;
    }
    NEED(shutdown(peer->fd, SHUT_WR));
    return NULL;
}

static void *answers(void *argument) {
    struct peer *peer = argument;
    char buffer[64];
    ssize_t len;
    while ((len = NEED(read(peer->fd, buffer, sizeof buffer))) > 0)
        for (ssize_t done = 0; done < len;)
            done += (ssize_t)NEED(write(peer->fd, buffer + done, (size_t)(len - done)));
    return NULL;
}

/* Rounds of stopping the first; how often the second was held up. `waited`: how often it stood still for a moment. */
static int stop_and_go(const pid_t children[2], int rounds, unsigned long held_ms, int *waited) {
    const char *asked = getenv("STOPPED_HELD_MS");
    unsigned random = (unsigned)now_us();
    unsigned long most = (asked ? strtoul(asked, NULL, 10) : held_ms) * 1000;
    int held = 0;
    for (int round = 0; round < rounds; round++) {
        random = random * 1103515245 + 12345;
        unsigned long until = now_us() + 200 + (random >> 8) % 3000;
        while (now_us() < until)
            sched_yield();
        NEED(kill(children[0], SIGSTOP));
        NEED(waitpid(children[0], NULL, WUNTRACED));
        unsigned long before = board->calls[1], since = now_us(), wait = 0;
        while (board->calls[1] < before + GOES_ON_CALLS && wait < most) {
            usleep(100);
            wait = now_us() - since;
        }
        held += wait >= most;
        *waited += wait >= 15000;
        NEED(kill(children[0], SIGCONT));
    }
    return held;
}

static struct peer both(void (*body)(int, int, unsigned), void *(*other)(void *), unsigned size,
                        unsigned long held_ms) {
    const char *asked = getenv("STOPPED_ROUNDS");
    int ends[2], rounds = asked ? atoi(asked) : ROUNDS, waited = 0;
    pthread_t thread;
    pid_t children[2];
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(board != MAP_FAILED);
    make_pair(ends);
    for (int me = 0; me < 2; me++)
        children[me] = start(body, me, ends, size);
    NEED(close(ends[0]));
    struct peer peer = {.fd = ends[1]};
    helper_start(&thread, other, &peer);
    int held = stop_and_go(children, rounds, held_ms, &waited);
    note("held up in %d of %d rounds, for a moment in %d", held, rounds, waited);
    board->enough = 1;
    for (int me = 0; me < 2; me++)
        CHECK_EQ(wait_exit(children[me]), 0, "each came to its end");
    pthread_join(thread, NULL);
    if (held_ms == HELD_MS)
        /* What cannot be undone is a few instructions, and system calls for doorbells. Of a call of few bytes that is a good part,
         * in a library that was not optimised. */
        CHECK(held * (size ? 2 : 4) < rounds, "one that is stopped seldom holds up the other");
    return peer;
}

static void senders_of(unsigned size) {
    struct peer peer = both(sends, takes_all, size, HELD_MS);
    CHECK(peer.right, "what each has sent came in its order");
    CHECK(peer.bytes[0] == board->bytes[0] && peer.bytes[1] == board->bytes[1], "and all of it");
}

static void receivers_of(unsigned size) {
    struct peer peer = both(receives, gives, size, HELD_MS);
    CHECK(peer.bytes[0] == board->bytes[0] + board->bytes[1], "each byte came once");
    CHECK(peer.sum == board->sum[0] + board->sum[1], "and was right");
}

static void senders(void) { senders_of(0); }
static void receivers(void) { receivers_of(0); }
static void small_senders(void) { senders_of(64); }
static void small_receivers(void) { receivers_of(64); }
/* Where each message has its doorbells, one is mostly stopped in a system call for them: the other goes on after it. */
static void in_turns(void) { both(asks, answers, 0, SOON_MS); }

static const struct test_case cases[] = {
    LONER(senders), LONER(receivers), LONER(small_senders), LONER(small_receivers), LONER(in_turns),
};
MAIN(cases)
