/* poll, ppoll, select, pselect: with sockets alone and mixed with pipes and eventfds. */
#include "semantics.h"

static int poll_one(int fd, short events, int timeout_ms) {
    struct pollfd wait = {.fd = fd, .events = events};
    NEED(poll(&wait, 1, timeout_ms));
    return wait.revents;
}

static void poll_in_here(int fd) {
    char buffer[16];
    CHECK_EQ(poll_one(fd, POLLIN, 0), 0, "nothing yet");
    int64_t start = now_ms();
    CHECK_EQ(poll_one(fd, POLLIN, 60), 0, "poll returns 0 when time is over");
    CHECK(now_ms() - start >= 59, "and not before");
    tell('s');
    CHECK_EQ(poll_one(fd, POLLIN, -1), POLLIN, "readable");
    CHECK_EQ(poll_one(fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT, "and writable");
    CHECK_EQ(poll_one(fd, POLLIN | POLLRDNORM | POLLPRI, 0), POLLIN | POLLRDNORM, "in both spellings");
    CHECK_EQ(read(fd, buffer, 4), 4, "a partial read");
    CHECK_EQ(poll_one(fd, POLLIN, -1), POLLIN, "leaves it readable");
    CHECK_EQ(read(fd, buffer, 16), 6, "the rest");
    CHECK_EQ(poll_one(fd, POLLIN, 0), 0, "and then not");
    CHECK_EQ(poll_one(fd, POLLOUT, -1), POLLOUT, "writable still");
    struct timespec some = {.tv_nsec = 60000000};
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    start = now_ms();
    CHECK_EQ(ppoll(&wait, 1, &some, NULL), 0, "ppoll returns 0 when time is over");
    CHECK(now_ms() - start >= 59, "and not before");
    CHECK_EQ(some.tv_nsec, 60000000, "its timeout is left alone");
    tell('s');
    CHECK_EQ(ppoll(&wait, 1, NULL, NULL), 1, "ppoll without end");
    tell('q');
}
static void poll_in_peer(int fd) {
    for (int i = 0; i < 2; i++) {
        await('s');
        write_all(fd, "0123456789", 10);
    }
    await('q');
}

static void odd_sets_here(int fd) {
    struct pollfd wait[4] = {{.fd = -1, .events = POLLIN, .revents = 77},
                             {.fd = 900, .events = POLLIN},
                             {.fd = fd, .events = 0},
                             {.fd = fd, .events = POLLOUT}};
    CHECK_EQ(poll(wait, 4, -1), 2, "two of four");
    CHECK_EQ(wait[0].revents, 0, "a negative number is skipped");
    CHECK_EQ(wait[1].revents, POLLNVAL, "a closed one is told");
    CHECK_EQ(wait[2].revents, 0, "no interest, no events");
    CHECK_EQ(wait[3].revents, POLLOUT, "the same socket a second time");
    CHECK_EQ(poll(NULL, 0, 0), 0, "none at all");
    struct pollfd *volatile nowhere = (struct pollfd *)8;
    CHECK_FAILS(poll(nowhere, 1, 0), EFAULT, "a bad address");
    fd_set bad;
    int closed = (int)NEED(dup(fd));
    NEED(close(closed));
    FD_ZERO(&bad);
    FD_SET(closed, &bad);
    struct timeval zero = {0};
    CHECK_FAILS(select(closed + 1, &bad, NULL, NULL, &zero), EBADF, "select refuses a closed one");
    tell('q');
}
static void odd_sets_peer(int fd) {
    (void)fd;
    await('q');
}

static void select_here(int fd) {
    char byte;
    fd_set in, out;
    struct timeval time = {.tv_usec = 60000};
    FD_ZERO(&in);
    FD_SET(fd, &in);
    int64_t start = now_ms();
    CHECK_EQ(select(fd + 1, &in, NULL, NULL, &time), 0, "select returns 0 when time is over");
    CHECK(now_ms() - start >= 59, "and not before");
    CHECK(!FD_ISSET(fd, &in), "and clears the set");
    CHECK(time.tv_sec == 0 && time.tv_usec == 0, "and the time left, as Linux does");
    FD_SET(fd, &in);
    tell('s');
    CHECK_EQ(select(fd + 1, &in, NULL, NULL, NULL), 1, "select without end");
    CHECK(FD_ISSET(fd, &in), "readable");
    time = (struct timeval){.tv_sec = 1000};
    FD_ZERO(&out);
    FD_SET(fd, &out);
    CHECK_EQ(select(fd + 1, &in, &out, NULL, &time), 2, "readable and writable count twice");
    CHECK(time.tv_sec >= 500, "time left over is told");
    read_all(fd, &byte, 1);
    struct timespec zero = {0};
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_EQ(pselect(fd + 1, &in, NULL, NULL, &zero, NULL), 0, "pselect: nothing");
    FD_SET(fd, &in);
    tell('s');
    CHECK_EQ(pselect(fd + 1, &in, NULL, NULL, NULL, NULL), 1, "pselect without end");
    tell('q');
}
static void select_peer(int fd) {
    for (int i = 0; i < 2; i++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

/* POLLIN is never a lie to a single reader. */
static void never_false_here(int fd) {
    char buffer[200];
    set_nonblocking(fd, true);
    for (int round = 0; round < 2000; round++) {
        if (round % 2) {
            REQUIRE(poll_one(fd, POLLIN, -1) == POLLIN);
        } else {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(fd, &in);
            REQUIRE(select(fd + 1, &in, NULL, NULL, NULL) == 1);
        }
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0)
            give_up("round %d: read after readiness: %zd", round, got);
        if (round % 5 == 0)
            REQUIRE(poll_one(fd, POLLIN, 0) == 0);
        write_all(fd, buffer, (size_t)got);
    }
    CHECK(true, "every readiness was true");
    tell('q');
}
static void never_false_peer(int fd) {
    uint64_t dice = 4;
    for (int round = 0; round < 2000; round++) {
        size_t length = 1 + random_u32(&dice) % 200;
        write_pattern(fd, length, 0, 1);
        read_pattern(fd, length, 0, 1);
    }
    await('q');
}

static bool select_out(int fd, struct timeval *time) {
    fd_set out;
    FD_ZERO(&out);
    FD_SET(fd, &out);
    return NEED(select(fd + 1, NULL, &out, NULL, time)) == 1;
}

static void full_here(int fd) {
    size_t at = 0;
    for (int round = 0; round < 3; round++) {
        /* What the kernel has on its way may still move and make room: until all say that there is none. */
        do
            at += fill(fd, at, 1);
        while (poll_one(fd, POLLOUT, 20) || poll_one(fd, POLLOUT | POLLIN, 0) || select_out(fd, &(struct timeval){0}));
        tell('d');
        if (round % 2)
            REQUIRE(poll_one(fd, POLLOUT, -1) == POLLOUT);
        else
            REQUIRE(select_out(fd, NULL));
        char byte;
        pattern(&byte, 1, at, 1);
        REQUIRE(send(fd, &byte, 1, MSG_DONTWAIT) == 1);
        at++;
        await('e'); /* the peer has stopped reading */
    }
    CHECK(true, "not writable while full, writable when drained");
    NEED(shutdown(fd, SHUT_WR));
    set_nonblocking(fd, false);
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "nothing lost");
}
static void full_peer(int fd) {
    static char buffer[64 * KIB];
    uint64_t at = 0;
    for (int round = 0; round < 3; round++) {
        await('d');
        while (poll_one(fd, POLLIN, 10)) {
            ssize_t got = NEED(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
            if (got == 0)
                break;
            REQUIRE(pattern_match(buffer, (size_t)got, at, 1) == (size_t)got);
            at += (uint64_t)got;
        }
        tell('e');
    }
    long long rest = drain(fd, at, 1);
    REQUIRE(rest >= 0);
    at += (uint64_t)rest;
    write_all(fd, &at, sizeof at);
}

/* ---- with other kinds of descriptors ---- */

/* Sets of 16384 bits, which glibc lets a program have that allocates them itself. */
static void large_sets_here(int fd) {
    enum { BITS = 16384, WORDS = BITS / 64 };
    unsigned long in[WORDS] = {0}, out[WORDS] = {0};
    struct rlimit limit;
    NEED(prctl(PR_SET_NAME, "caf\xe9")); /* in no encoding that anybody could rely on */
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    int high = limit.rlim_cur > 3000 ? 3000 : (int)limit.rlim_cur - 1;
    NEED(dup2(fd, high));
    in[high / 64] = out[high / 64] = 1ul << high % 64;
    struct timeval zero = {0};
    CHECK_EQ(select(BITS, (fd_set *)in, (fd_set *)out, NULL, &zero), 1, "writable only");
    CHECK_EQ(in[high / 64], 0, "nothing to read");
    CHECK_EQ(out[high / 64] == 1ul << high % 64, 1, "its bit is left");
    in[high / 64] = 1ul << high % 64;
    tell('s');
    CHECK_EQ(select(high + 1, (fd_set *)in, NULL, NULL, NULL), 1, "readable");
    CHECK_EQ(in[high / 64] == 1ul << high % 64, 1, "its bit is left");
    in[WORDS - 1] = 1ul << 63;
    CHECK_EQ(select(BITS, (fd_set *)in, NULL, NULL, &zero), 1, "bits that can be no descriptor are nobody's");
    CHECK_EQ(in[WORDS - 1] == 1ul << 63, 1, "and are left alone");
    NEED(close(high));
    tell('q');
}
static void large_sets_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

static void mixed_here(int fd) {
    int event = (int)NEED(eventfd(0, EFD_NONBLOCK)), ends[2], rounds = 0;
    NEED(pipe2(ends, O_NONBLOCK));
    for (int set = 0; set < 8; set++) {
        char byte;
        eventfd_t value;
        struct pollfd wait[3] = {{.fd = ends[0], .events = POLLIN},
                                 {.fd = fd, .events = POLLIN},
                                 {.fd = event, .events = POLLIN}};
        if (set & 2) {
            tell('s');
            REQUIRE(poll_one(fd, POLLIN, -1) == POLLIN);
        }
        if (set & 1)
            write_all(ends[1], "p", 1);
        if (set & 4)
            eventfd_write(event, 1);
        int want = (set & 1) + (set >> 1 & 1) + (set >> 2 & 1);
        REQUIRE(poll(wait, 3, want ? -1 : 0) == want);
        for (int i = 0; i < 3; i++)
            REQUIRE(wait[i].revents == (set >> i & 1 ? POLLIN : 0));
        fd_set in;
        struct timeval zero = {0};
        FD_ZERO(&in);
        for (int i = 0; i < 3; i++)
            FD_SET(wait[i].fd, &in);
        REQUIRE(select(100, &in, NULL, NULL, &zero) == want);
        for (int i = 0; i < 3; i++)
            REQUIRE(!FD_ISSET(wait[i].fd, &in) == !(set >> i & 1));
        if (set & 1)
            read_all(ends[0], &byte, 1);
        if (set & 2)
            read_all(fd, &byte, 1);
        if (set & 4)
            eventfd_read(event, &value);
        rounds++;
    }
    CHECK_EQ(rounds, 8, "every combination of ready and not");
    tell('q');
}
static void mixed_peer(int fd) {
    for (int i = 0; i < 4; i++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

struct writer_job {
    int pipe, event, socket;
};
static void *write_to_each(void *argument) {
    struct writer_job *job = argument;
    for (int round = 0; round < 300; round++) {
        char kind;
        read_all(job->event, &kind, 1);
        write_all(kind == 'p' ? job->pipe : job->socket, &kind, 1);
    }
    return NULL;
}

/* A sleeper in poll is woken by whichever comes. */
static void woken_by_either(void) {
    int ends[2], data[2], orders[2];
    make_pair(ends);
    NEED(pipe(data));
    NEED(pipe(orders));
    struct writer_job job = {data[1], orders[0], ends[1]};
    pthread_t writer;
    helper_start(&writer, write_to_each, &job);
    for (int round = 0; round < 300; round++) {
        char kind = round % 3 ? 's' : 'p', byte;
        struct pollfd wait[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = data[0], .events = POLLIN}};
        write_all(orders[1], &kind, 1);
        REQUIRE(poll(wait, 2, -1) == 1);
        REQUIRE(wait[kind == 'p'].revents == POLLIN);
        read_all(wait[kind == 'p'].fd, &byte, 1);
        REQUIRE(byte == kind);
    }
    pthread_join(writer, NULL);
    CHECK(true, "each time by the right one");
}

static void *echo_all(void *argument) {
    int *fds = argument;
    for (;;) {
        struct pollfd wait[8];
        for (int i = 0; i < 8; i++)
            wait[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        REQUIRE(poll(wait, 8, -1) > 0);
        for (int i = 0; i < 8; i++) {
            char byte;
            if (!wait[i].revents)
                continue;
            ssize_t got = NEED(read(fds[i], &byte, 1));
            if (got == 0)
                return NULL;
            write_all(fds[i], &byte, 1);
        }
    }
}

/* Several upgraded connections in one poll, any of which may speak. */
static void eight_sockets(void) {
    int ends[8][2], servers[8];
    uint64_t dice = 1;
    pthread_t thread;
    for (int i = 0; i < 8; i++) {
        make_pair(ends[i]);
        servers[i] = ends[i][0];
    }
    helper_start(&thread, echo_all, servers);
    for (int round = 0; round < 1000; round++) {
        int which = (int)(random_u32(&dice) % 8);
        char byte = (char)round, back = 0;
        write_all(ends[which][1], &byte, 1);
        read_all(ends[which][1], &back, 1);
        REQUIRE(byte == back);
    }
    NEED(shutdown(ends[3][1], SHUT_WR));
    pthread_join(thread, NULL);
    CHECK(true, "each answered on its own");
}

/* ---- the end ---- */

static void end_of_file_here(int fd) {
    char buffer[16];
    tell('s');
    UNTIL(poll_one(fd, POLLRDHUP, -1) == POLLRDHUP);
    CHECK_EQ(poll_one(fd, POLLIN | POLLRDHUP | POLLOUT, 0), POLLIN | POLLRDHUP | POLLOUT, "half closed");
    CHECK_EQ(read(fd, buffer, 16), 5, "the data");
    CHECK_EQ(poll_one(fd, POLLIN, 0), POLLIN, "the end is readable");
    CHECK_EQ(read(fd, buffer, 16), 0, "it is the end");
    NEED(shutdown(fd, SHUT_WR));
    UNTIL(poll_one(fd, 0, 0) & POLLHUP);
    CHECK_EQ(poll_one(fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT | POLLHUP, "closed both ways");
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_EQ(select(fd + 1, &in, NULL, NULL, NULL), 1, "select finds it readable");
    tell('q');
}
static void end_of_file_peer(int fd) {
    await('s');
    write_all(fd, "01234", 5);
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}

static void reset_here(int fd) {
    const short everything = POLLIN | POLLOUT | POLLERR | POLLHUP;
    char buffer[16];
    tell('s');
    /* The kernel stores the error before it ends the connection: POLLERR may be seen alone. */
    UNTIL(poll_one(fd, 0, -1) & POLLERR);
    UNTIL(poll_one(fd, POLLIN | POLLOUT, -1) == everything);
    CHECK_EQ(poll_one(fd, POLLIN | POLLOUT, 0), everything, "everything");
    CHECK_FAILS(read(fd, buffer, 16), ECONNRESET, "reset");
    CHECK_EQ(poll_one(fd, 0, 0), POLLHUP, "the error was taken");
}
static void reset_peer(int fd) {
    struct linger now = {1, 0};
    await('s');
    NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    NEED(close(fd));
}

/* Something to read in the ring while we send by TCP: both are told of, whichever knows. */
static void one_way_each_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 10);
    CHECK_EQ(send(fd, "u", 1, MSG_OOB), 1, "urgent data sends our way back to TCP");
    struct pollfd wait = {.fd = fd, .events = POLLIN | POLLOUT};
    CHECK_EQ(poll(&wait, 1, -1), 1, "poll");
    CHECK_EQ(wait.revents, POLLIN | POLLOUT, "readable and writable");
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    CHECK_EQ(select(fd + 1, &in, &out, NULL, NULL), 2, "select");
    CHECK(FD_ISSET(fd, &in) && FD_ISSET(fd, &out), "readable and writable");
    read_pattern(fd, 10, 0, 1);
    tell('q');
}
static void one_way_each_peer(int fd) {
    await('s');
    write_pattern(fd, 10, 0, 1);
    await('q');
}

/* The end of a pipe that is asked for exceptions alone is nothing that select tells: it waits on. */
static void end_of_no_set_here(int fd) {
    int ended[2];
    NEED(pipe(ended));
    close(ended[1]);
    for (int round = 0; round < 20; round++) {
        fd_set in, except;
        char byte;
        FD_ZERO(&in);
        FD_ZERO(&except);
        FD_SET(fd, &in);
        FD_SET(ended[0], &except);
        tell('s');
        REQUIRE(select((fd > ended[0] ? fd : ended[0]) + 1, &in, NULL, &except, NULL) == 1);
        REQUIRE(FD_ISSET(fd, &in) && !FD_ISSET(ended[0], &except));
        read_all(fd, &byte, 1);
    }
    CHECK(true, "it is told of the byte each time");
    tell('q');
}
static void end_of_no_set_peer(int fd) {
    for (int round = 0; round < 20; round++) {
        await('s');
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        write_all(fd, "x", 1);
    }
    await('q');
}

static const struct test_case cases[] = {
    PAIR(poll_in),
    PAIR(odd_sets),
    PAIR(select),
    PAIR(never_false),
    PAIR(full),
    PAIR(large_sets),
    PAIR(mixed),
    LONER(woken_by_either),
    LONER(eight_sockets),
    PAIR(one_way_each),
    PAIR(end_of_file),
    PAIR(reset),
    PAIR(end_of_no_set),
};
MAIN(cases)
