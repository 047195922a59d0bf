/* Both ends send more than a ring holds before either reads: what the kernel's buffers take, a program may rely on. */
#include "semantics.h"

/* Less than what loopback's buffers take by default (the plain run shows it), and twice a ring. */
enum { MUCH = MIB };

static void read_and_go_on(int fd, uint32_t out, uint32_t in) {
    read_pattern(fd, MUCH, 0, in);
    CHECK(true, "all bytes right");
    /* The connection is as good as before. */
    write_pattern(fd, 3 * MIB / 2, MUCH, out);
    tell('s');
    read_pattern(fd, 3 * MIB / 2, MUCH, in);
    await('s');
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "then end of file");
}

static void by_blocking(int fd, uint32_t out, uint32_t in) {
    write_pattern(fd, MUCH, 0, out);
    read_and_go_on(fd, out, in);
}
static void blocking_here(int fd) { by_blocking(fd, 1, 2); }
static void blocking_peer(int fd) { by_blocking(fd, 2, 1); }

/* With a time limit that is far away. */
static void by_blocking_for_long(int fd, uint32_t out, uint32_t in) {
    struct timeval limit = {.tv_sec = 3600};
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    by_blocking(fd, out, in);
}
static void limited_here(int fd) { by_blocking_for_long(fd, 1, 2); }
static void limited_peer(int fd) { by_blocking_for_long(fd, 2, 1); }

/* Sends as much as goes, and has `wait` tell when there is room. */
static void by_waiting(int fd, uint32_t out, uint32_t in, void (*wait)(int fd)) {
    char *all = malloc(MUCH);
    pattern(all, MUCH, 0, out);
    set_nonblocking(fd, true);
    for (size_t done = 0; done < MUCH;) {
        ssize_t sent = write(fd, all + done, MUCH - done);
        if (sent < 0 && errno == EAGAIN)
            wait(fd);
        else
            done += (size_t)NEED(sent);
    }
    set_nonblocking(fd, false);
    free(all);
    read_and_go_on(fd, out, in);
}

static void wait_in_poll(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    NEED(poll(&entry, 1, -1));
}
static void polling_here(int fd) { by_waiting(fd, 1, 2, wait_in_poll); }
static void polling_peer(int fd) { by_waiting(fd, 2, 1, wait_in_poll); }

static void wait_in_select(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    NEED(select(fd + 1, NULL, &set, NULL, NULL));
}
static void selecting_here(int fd) { by_waiting(fd, 1, 2, wait_in_select); }
static void selecting_peer(int fd) { by_waiting(fd, 2, 1, wait_in_select); }

static __thread int set;
static void wait_in_set_of_levels(int fd) {
    if (set == 0) {
        set = new_epoll();
        add(set, fd, EPOLLOUT, 1);
    }
    events_of(set, -1);
}
static void levels_here(int fd) { by_waiting(fd, 1, 2, wait_in_set_of_levels); }
static void levels_peer(int fd) { by_waiting(fd, 2, 1, wait_in_set_of_levels); }

static void wait_in_set_of_edges(int fd) {
    if (set == 0) {
        set = new_epoll();
        add(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    }
    events_of(set, -1);
}
static void edges_here(int fd) { by_waiting(fd, 1, 2, wait_in_set_of_edges); }
static void edges_peer(int fd) { by_waiting(fd, 2, 1, wait_in_set_of_edges); }

/* Nobody waits: it is polled once, and then tried again now and then. */
static void wait_a_while(int fd) {
    static __thread bool polled;
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    if (!polled)
        NEED(poll(&entry, 1, 0));
    polled = true;
    struct timespec time = {.tv_nsec = 5000000};
    nanosleep(&time, NULL);
}
static void retrying_here(int fd) { by_waiting(fd, 1, 2, wait_a_while); }
static void retrying_peer(int fd) { by_waiting(fd, 2, 1, wait_a_while); }

/* A time limit shorter than the while after which a ring is given up; the other end reads when all is sent. */
static void short_limit_here(int fd) {
    struct timeval limit = {.tv_usec = 400000};
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    write_pattern(fd, MUCH, 0, 1);
    tell('r');
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "all was taken");
}
static void short_limit_peer(int fd) {
    await('r');
    read_pattern(fd, MUCH, 0, 1);
    CHECK(true, "all bytes right");
    NEED(shutdown(fd, SHUT_WR));
}

/* The set is waited for from outside. */
static void wait_around_a_set(int fd) {
    if (set == 0) {
        set = new_epoll();
        add(set, fd, EPOLLOUT, 1);
    }
    struct pollfd entry = {.fd = set, .events = POLLIN};
    NEED(poll(&entry, 1, -1));
}
static void nested_here(int fd) { by_waiting(fd, 1, 2, wait_around_a_set); }
static void nested_peer(int fd) { by_waiting(fd, 2, 1, wait_around_a_set); }

/* Both ends in one thread: nobody reads while it sends. */
static void to_oneself(void) {
    int ends[2];
    make_pair(ends);
    for (uint32_t turn = 0; turn < 2; turn++) {
        write_pattern(ends[turn], MUCH, 0, turn);
        read_pattern(ends[1 - turn], MUCH, 0, turn);
    }
    CHECK(true, "all bytes right");
    exchange(ends[0], ends[1], 77);
}

/* A file, and parts of many. */
static void from_a_file(void) {
    int ends[2];
    make_pair(ends);
    int file = (int)NEED(memfd_create("much", MFD_CLOEXEC));
    write_pattern(file, MUCH, 0, 5);
    off_t at = 0;
    while (at < MUCH)
        NEED(sendfile(ends[0], file, &at, MUCH - (size_t)at));
    read_pattern(ends[1], MUCH, 0, 5);
    CHECK(true, "all bytes right");
    exchange(ends[0], ends[1], 78);
}

/* Three who sit in a ring, each sends to its neighbour and reads from the other: no two wait for each other. */
enum { SEATS = 3 };
struct seat {
    int to, from;
    uint32_t number;
};
static void *sends_first(void *argument) {
    struct seat *seat = argument;
    write_pattern(seat->to, MUCH, 0, seat->number);
    read_pattern(seat->from, MUCH, 0, (seat->number + SEATS - 1) % SEATS);
    return NULL;
}
static void in_a_ring(void) {
    struct seat seats[SEATS];
    pthread_t threads[SEATS];
    for (uint32_t i = 0; i < SEATS; i++) {
        int ends[2];
        make_pair(ends);
        seats[i].to = ends[0];
        seats[i].number = i;
        seats[(i + 1) % SEATS].from = ends[1];
    }
    for (int i = 0; i < SEATS; i++)
        helper_start(&threads[i], sends_first, &seats[i]);
    for (int i = 0; i < SEATS; i++)
        pthread_join(threads[i], NULL);
    CHECK(true, "all bytes right");
}

/* More full rings than a set looks at in every wait, each of whose owners waits there for room. */
enum { MANY = 70 };
static void many(uint32_t events) {
    static int ends[MANY][2];
    static size_t sent[MANY];
    static char all[MUCH];
    int epoll = new_epoll(), left = MANY;
    for (int i = 0; i < MANY; i++) {
        make_pair(ends[i]);
        /* Whichever way each end sends now, the other has seen it. */
        exchange(ends[i][0], ends[i][1], 80);
        set_nonblocking(ends[i][0], true);
        add(epoll, ends[i][0], events, (uint64_t)i);
    }
    pattern(all, MUCH, 0, 9);
    /* Nobody reads before all was sent. */
    while (left > 0) {
        struct epoll_event told[MANY];
        int count = (int)NEED(epoll_wait(epoll, told, MANY, -1));
        for (int e = 0; e < count; e++) {
            uint64_t i = told[e].data.u64;
            REQUIRE(i < MANY && told[e].events == EPOLLOUT);
            ssize_t went = 0;
            while (sent[i] < MUCH && (went = write(ends[i][0], all + sent[i], MUCH - sent[i])) >= 0)
                sent[i] += (size_t)went;
            REQUIRE(went >= 0 || errno == EAGAIN);
            if (sent[i] == MUCH) {
                take_out(epoll, ends[i][0]);
                left--;
            }
        }
    }
    CHECK(true, "each sent all");
    for (int i = 0; i < MANY; i++) {
        read_pattern(ends[i][1], MUCH, 0, 9);
        exchange(ends[i][1], ends[i][0], 79);
    }
    CHECK(true, "all bytes right");
}
static void many_levels(void) { many(EPOLLOUT); }
static void many_edges(void) { many(EPOLLIN | EPOLLOUT | EPOLLET); }

/* The same, and somebody reads from one after the other: each owner hears of its room. */
static void many_in_turn(uint32_t events) {
    static int ends[MANY][2];
    static uint64_t sent[MANY];
    static char byte[64 * KIB];
    int epoll = new_epoll();
    for (int i = 0; i < MANY; i++) {
        make_pair(ends[i]);
        exchange(ends[i][0], ends[i][1], 80);
        set_nonblocking(ends[i][0], true);
        set_option(ends[i][0], SOL_SOCKET, SO_SNDBUF, 16 * KIB);
        add(epoll, ends[i][0], events, (uint64_t)i);
        sent[i] = fill(ends[i][0], 0, 3);
    }
    for (int turn = 0; turn < MANY; turn++) {
        /* Those that have waited longest are not the ones that were looked at last. */
        int i = (turn * 37) % MANY;
        uint64_t at = 0;
        bool told = false;
        while (!told) {
            /* Its reader takes what is there, also what goes another way meanwhile. */
            while (readable_bytes(ends[i][1]) > 0) {
                ssize_t got = NEED(read(ends[i][1], byte, sizeof byte));
                REQUIRE(pattern_match(byte, (size_t)got, at, 3) == (size_t)got);
                at += (uint64_t)got;
            }
            struct epoll_event event[MANY];
            int count = (int)NEED(epoll_wait(epoll, event, MANY, 1000));
            for (int e = 0; e < count; e++) {
                uint64_t who = event[e].data.u64;
                told |= who == (uint64_t)i && event[e].events & EPOLLOUT;
                sent[who] += fill(ends[who][0], sent[who], 3);
            }
        }
        while (at < sent[i]) {
            ssize_t got = NEED(read(ends[i][1], byte, sizeof byte));
            REQUIRE(pattern_match(byte, (size_t)got, at, 3) == (size_t)got);
            at += (uint64_t)got;
        }
        take_out(epoll, ends[i][0]);
    }
    CHECK(true, "each heard of its room");
}
static void many_levels_in_turn(void) { many_in_turn(EPOLLOUT); }
static void many_edges_in_turn(void) { many_in_turn(EPOLLIN | EPOLLOUT | EPOLLET); }

static const struct test_case cases[] = {
    PAIR(blocking), PAIR(limited),     PAIR(polling),       PAIR(selecting),
    PAIR(levels),   PAIR(edges),       LONER(to_oneself),   LONER(from_a_file),
    LONER(in_a_ring), PAIR(nested), PAIR(retrying), PAIR(short_limit),
    LONER(many_levels), LONER(many_edges), LONER(many_levels_in_turn), LONER(many_edges_in_turn),
};
MAIN(cases)
