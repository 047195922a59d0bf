/* Who waits for room and for nothing else, as a loop does that has too much to send to read on. */
#include "semantics.h"

enum way { BY_POLL, BY_LEVEL, BY_EDGE };

static enum way way;
static int set = -1;

static void begin(int fd, enum way how) {
    way = how;
    /* Seen to wait where it can be seen: others go back to TCP at their first EAGAIN. */
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    NEED(poll(&entry, 1, 0));
    if (way != BY_POLL) {
        set = new_epoll();
        add(set, fd, EPOLLOUT | (way == BY_EDGE ? EPOLLET : 0), 1);
    }
}

static void wait_for_room(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    if (way == BY_POLL)
        NEED(poll(&entry, 1, -1));
    else
        events_with(set, -1, 1);
}

/* What lies unread at the other side meanwhile: some bytes that it was woken for, and an end. */
static void leave_unread(int fd, bool end) {
    for (int i = 0; i < 5; i++) {
        write_all(fd, "unread", 6);
        usleep(1000);
    }
    if (end)
        NEED(shutdown(fd, SHUT_WR));
}

/* ---- a peer that reads, slowly ---- */

static int64_t cpu_us(void) {
    struct rusage usage;
    NEED(getrusage(RUSAGE_THREAD, &usage));
    struct timeval user = usage.ru_utime, system = usage.ru_stime;
    return (user.tv_sec + system.tv_sec) * 1000000LL + user.tv_usec + system.tv_usec;
}

static int64_t now_us(void) {
    struct timespec now;
    NEED(clock_gettime(CLOCK_MONOTONIC, &now));
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void slow(int fd, enum way how) {
    begin(fd, how);
    tell('b');
    await('u');
    uint64_t at = 0;
    int64_t waited = 0, worked = 0;
    /* Until it has waited for long enough to tell, whatever a busy machine keeps it from meanwhile. */
    while (waited < 250000) {
        at += fill(fd, at, 1);
        int64_t cpu = cpu_us(), now = now_us();
        wait_for_room(fd);
        worked += cpu_us() - cpu;
        waited += now_us() - now;
    }
    CHECK(worked <= waited / 2, "it sleeps while there is no room");
    NEED(shutdown(fd, SHUT_WR));
    tell('e');
    await('d');
}
static void slow_peer(int fd, bool end) {
    static __thread char buffer[32 * KIB];
    await('b');
    leave_unread(fd, end);
    tell('u');
    uint64_t at = 0;
    for (;;) {
        ssize_t got = NEED(read(fd, buffer, sizeof buffer));
        if (got == 0)
            break;
        REQUIRE(pattern_match(buffer, (size_t)got, at, 1) == (size_t)got);
        at += (uint64_t)got;
        usleep(2000);
    }
    CHECK(true, "nothing is lost");
    await('e');
    tell('d');
}

/* ---- a peer that ends, having read nothing ---- */

static void gone(int fd, enum way how) {
    static char buffer[64 * KIB];
    begin(fd, how);
    peer_will_be_killed();
    tell('b');
    await('u');
    bool told = false;
    for (;;) {
        if (send(fd, buffer, sizeof buffer, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            continue;
        if (errno != EAGAIN)
            break;
        if (!told)
            NEED(kill(peer_pid(), SIGKILL));
        told = true;
        wait_for_room(fd);
    }
    CHECK(errno == ECONNRESET || errno == EPIPE, "a send says that the peer is gone");
    CHECK(told, "it found no room before");
}
static void gone_peer(int fd, bool end) {
    await('b');
    leave_unread(fd, end);
    tell('u');
    pause();
}

#define CASES(name, how)                                                                           \
    static void slow_##name##_here(int fd) { slow(fd, how); }                                      \
    static void slow_##name##_peer(int fd) { slow_peer(fd, false); }                               \
    static void slow_shut_##name##_here(int fd) { slow(fd, how); }                                 \
    static void slow_shut_##name##_peer(int fd) { slow_peer(fd, true); }                           \
    static void gone_##name##_here(int fd) { gone(fd, how); }                                      \
    static void gone_##name##_peer(int fd) { gone_peer(fd, false); }                               \
    static void gone_shut_##name##_here(int fd) { gone(fd, how); }                                 \
    static void gone_shut_##name##_peer(int fd) { gone_peer(fd, true); }

CASES(poll, BY_POLL)
CASES(level, BY_LEVEL)
CASES(edge, BY_EDGE)

static const struct test_case cases[] = {
    PAIR(slow_poll),
    PAIR(slow_level),
    PAIR(slow_edge),
    PAIR(slow_shut_poll),
    PAIR(slow_shut_level),
    PAIR(slow_shut_edge),
    PAIR_OF_PROCESSES(gone_poll),
    PAIR_OF_PROCESSES(gone_level),
    PAIR_OF_PROCESSES(gone_edge),
    PAIR_OF_PROCESSES(gone_shut_poll),
    PAIR_OF_PROCESSES(gone_shut_level),
    PAIR_OF_PROCESSES(gone_shut_edge),
};
MAIN(cases)
