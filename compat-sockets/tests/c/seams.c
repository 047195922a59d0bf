/* One stream of which a part came by the kernel's queue and a part by the ring, or the other way
 * round: no call shows where one ends and the other begins. */
#include "semantics.h"

enum { SEED = 7 };

/* What every kind of look and receive finds of `total` bytes that have come. */
static void all_kinds_see(int fd, size_t total) {
    static char buffer[256 * KIB];
    UNTIL(readable_bytes(fd) == (int)total);
    CHECK_EQ(recv(fd, buffer, sizeof buffer, MSG_PEEK), (long long)total, "a look sees all");
    CHECK_EQ(pattern_match(buffer, total, 0, SEED), (long long)total, "in order");
    CHECK_EQ(recv(fd, buffer, sizeof buffer, MSG_PEEK | MSG_TRUNC), (long long)total, "counted only");
    CHECK_EQ(recv(fd, buffer, total - 1, MSG_PEEK), (long long)total - 1, "all but the last");
    CHECK_EQ(recv(fd, buffer, total, MSG_PEEK | MSG_WAITALL), (long long)total, "MSG_WAITALL");
    memset(buffer, 0, sizeof buffer);
    struct iovec parts[100];
    size_t step = total / 99;
    for (size_t i = 0; i < 100; i++)
        parts[i] = (struct iovec){buffer + i * step, i < 99 ? step : total - 99 * step};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 100};
    CHECK_EQ(recvmsg(fd, &message, MSG_PEEK), (long long)total, "recvmsg looks into many parts");
    CHECK_EQ(pattern_match(buffer, total, 0, SEED), (long long)total, "in order");
    struct mmsghdr one = {.msg_hdr = message};
    CHECK_EQ(recvmmsg(fd, &one, 1, MSG_PEEK, NULL), 1, "recvmmsg looks");
    CHECK_EQ(one.msg_len, (long long)total, "at all of it");
    /* Nearly as many as there may be, most of them where the second way begins. */
    static struct iovec bytes[1000];
    for (size_t i = 0; i < COUNT(bytes); i++)
        bytes[i] = i ? (struct iovec){buffer + total - COUNT(bytes) + i, 1}
                     : (struct iovec){buffer, total - COUNT(bytes) + 1};
    memset(buffer, 0, sizeof buffer);
    message = (struct msghdr){.msg_iov = bytes, .msg_iovlen = COUNT(bytes)};
    CHECK_EQ(recvmsg(fd, &message, MSG_PEEK | MSG_WAITALL), (long long)total, "a thousand parts, MSG_WAITALL");
    CHECK_EQ(pattern_match(buffer, total, 0, SEED), (long long)total, "in order");
    CHECK_EQ(readable_bytes(fd), (long long)total, "and nothing is gone");

    /* Takes one byte, so that what is left begins anywhere. */
    CHECK_EQ(recv(fd, buffer, 1, 0), 1, "one taken");
    CHECK_EQ(recv(fd, buffer, sizeof buffer, MSG_PEEK), (long long)total - 1, "the rest seen");
    CHECK_EQ(pattern_match(buffer, total - 1, 1, SEED), (long long)total - 1, "in order");
    memset(buffer, 0, sizeof buffer);
    CHECK_EQ(readv(fd, parts, 100), (long long)total - 1, "readv takes the rest");
    CHECK_EQ(pattern_match(buffer, total - 1, 1, SEED), (long long)total - 1, "in order");
    CHECK_FAILS(recv(fd, buffer, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN, "nothing is left");
}

/* Unread bytes in the kernel's queue, then more in the ring. */
static void kernel_then_ring(void) {
    int ends[2];
    make_cold_pair(ends);
    size_t total = warm_up_unread(ends[0], ends[1], SEED);
    /* How many depends on the daemon: no number is printed. */
    static char buffer[256 * KIB];
    UNTIL(readable_bytes(ends[0]) == (int)total);
    CHECK(recv(ends[0], buffer, sizeof buffer, MSG_PEEK) == (ssize_t)total, "a look sees all");
    CHECK(pattern_match(buffer, total, 0, SEED) == total, "in order");
    CHECK(recv(ends[0], buffer, total, MSG_PEEK | MSG_WAITALL) == (ssize_t)total, "MSG_WAITALL");
    struct iovec parts[101];
    for (size_t i = 0; i < 101; i++)
        parts[i] = (struct iovec){buffer + i, i < 100 ? 1 : sizeof buffer - 100};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 101};
    memset(buffer, 0, sizeof buffer);
    CHECK(recvmsg(ends[0], &message, MSG_PEEK) == (ssize_t)total, "recvmsg looks into many parts");
    CHECK(pattern_match(buffer, total, 0, SEED) == total, "in order");
    CHECK(readable_bytes(ends[0]) == (int)total, "and nothing is gone");
    memset(buffer, 0, sizeof buffer);
    CHECK(readv(ends[0], parts, 101) == (ssize_t)total, "readv takes all");
    CHECK(pattern_match(buffer, total, 0, SEED) == total, "in order");
    CHECK_FAILS(recv(ends[0], buffer, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN, "nothing is left");
    exchange(ends[0], ends[1], 3);
    exchange(ends[1], ends[0], 4);
}

static _Atomic pid_t sends_urgent;
static void *send_urgent(void *fd) {
    sends_urgent = (pid_t)syscall(SYS_gettid);
    bool sent = send(*(int *)fd, "X", 1, MSG_OOB) == 1;
    write_all(*(int *)fd, "def", 3);
    return sent ? fd : NULL;
}
/* Has done so, or waits for a look of the receiver's: it must, where daemons carry the connection. */
static pthread_t urgent_from(int *fd) {
    pthread_t sender;
    sends_urgent = 0;
    helper_start(&sender, send_urgent, fd);
    UNTIL(sends_urgent != 0);
    until_asleep(sends_urgent);
    return sender;
}
static void urgent_was_sent(pthread_t sender) {
    void *sent;
    REQUIRE(pthread_join(sender, &sent) == 0);
    CHECK(sent, "the urgent byte was sent");
}

/* The same, and then urgent data, before the receiver has looked: the kernel counts up to its place only. */
static void then_urgent(bool is_taken) {
    int ends[2];
    make_cold_pair(ends);
    size_t total = warm_up_unread(ends[0], ends[1], SEED);
    static char buffer[256 * KIB];
    char byte = 0;
    write_pattern(ends[1], 10, total, SEED);
    total += 10;
    pthread_t sender = urgent_from(&ends[1]);
    UNTIL(readable_bytes(ends[0]) >= (int)total);
    struct pollfd wait = {.fd = ends[0], .events = POLLPRI};
    CHECK_EQ(poll(&wait, 1, -1), 1, "urgent data came");
    urgent_was_sent(sender);
    if (is_taken)
        CHECK_EQ(recv(ends[0], &byte, 1, MSG_OOB), 1, "and is taken");
    memset(buffer, 0, sizeof buffer);
    CHECK(recv(ends[0], buffer, sizeof buffer, MSG_WAITALL) == (ssize_t)total, "all before it");
    CHECK(pattern_match(buffer, total, 0, SEED) == total, "in order");
    CHECK_EQ(sockatmark(ends[0]), 1, "the mark");
    read_all(ends[0], buffer, 3);
    CHECK(memcmp(buffer, "def", 3) == 0, "what came after it, without it");
    exchange(ends[0], ends[1], 3);
    exchange(ends[1], ends[0], 4);
}
static void urgent_behind_both(void) {
    then_urgent(false);
    then_urgent(true);
}

/* Where more was sent than TCP takes for who has not looked: that one waits, and is no error. */
static void urgent_waits(void) {
    int ends[2];
    make_cold_pair(ends);
    size_t total = warm_up_unread(ends[0], ends[1], SEED), more = 20000;
    static char buffer[256 * KIB];
    set_option(ends[1], SOL_SOCKET, SO_SNDBUF, 4608);
    write_pattern(ends[1], more, total, SEED);
    total += more;
    pthread_t sender = urgent_from(&ends[1]);
    CHECK(recv(ends[0], buffer, total, MSG_WAITALL) == (ssize_t)total, "all before it");
    CHECK(pattern_match(buffer, total, 0, SEED) == total, "in order");
    struct pollfd wait = {.fd = ends[0], .events = POLLPRI};
    CHECK_EQ(poll(&wait, 1, -1), 1, "urgent data came");
    urgent_was_sent(sender);
    read_all(ends[0], buffer, 3);
    CHECK(memcmp(buffer, "def", 3) == 0, "what came after it, without it");
    exchange(ends[0], ends[1], 3);
    exchange(ends[1], ends[0], 4);
}

/* Unread bytes in the ring, then more in the kernel's queue. The small buffer keeps what is in the
 * ring from being sent once more by TCP. */
static void ring_then_kernel_here(int fd) {
    tell('s');
    all_kinds_see(fd, 25000);
    tell('q');
}
static void ring_then_kernel_peer(int fd) {
    await('s');
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 4608);
    write_pattern(fd, 20000, 0, SEED);
    set_option(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    write_pattern(fd, 5000, 20000, SEED);
    await('q');
}

/* A look that asks for all waits until it can see all, or the end. */
static void patient_look_here(int fd) {
    char buffer[100];
    tell('s');
    CHECK_EQ(recv(fd, buffer, 30, MSG_PEEK | MSG_WAITALL), 30, "all that was asked for");
    CHECK_EQ(pattern_match(buffer, 30, 0, SEED), 30, "in order");
    CHECK_EQ(readable_bytes(fd), 30, "none taken");
    struct timeval limit = {0, 20000};
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    CHECK_EQ(recv(fd, buffer, 31, MSG_PEEK | MSG_WAITALL), 30, "what came in time");
    limit.tv_usec = 0;
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    count_signal(SIGALRM, SA_RESTART);
    struct itimerval soon = {.it_value = {0, 20000}, .it_interval = {0, 20000}};
    NEED(setitimer(ITIMER_REAL, &soon, NULL));
    CHECK_EQ(recv(fd, buffer, 31, MSG_PEEK | MSG_WAITALL), 30, "what came before the signal");
    soon = (struct itimerval){{0, 0}, {0, 0}};
    NEED(setitimer(ITIMER_REAL, &soon, NULL));
    tell('e');
    CHECK_EQ(recv(fd, buffer, 100, MSG_PEEK | MSG_WAITALL), 40, "what came before the end");
    CHECK_EQ(recv(fd, buffer, 100, MSG_WAITALL), 40, "which is there to be taken");
    CHECK_EQ(pattern_match(buffer, 40, 0, SEED), 40, "in order");
    CHECK_EQ(recv(fd, buffer, 100, MSG_PEEK | MSG_WAITALL), 0, "then the end");
}
static void patient_look_peer(int fd) {
    await('s');
    pid_t here = in_threads() ? getpid() : getppid();
    for (size_t at = 0; at < 30; at += 10) {
        until_asleep(here);
        write_pattern(fd, 10, at, SEED);
    }
    await('e');
    until_asleep(here);
    write_pattern(fd, 10, 30, SEED);
    until_asleep(here);
    NEED(shutdown(fd, SHUT_WR));
}

/* The low-water mark counts what has come by either way. */
static void low_water_here(int fd) {
    char buffer[200];
    tell('s');
    UNTIL(readable_bytes(fd) == 50);
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 100);
    tell('m');
    CHECK_EQ(recv(fd, buffer, sizeof buffer, 0), 150, "waits for as many as were asked for");
    CHECK_EQ(pattern_match(buffer, 150, 0, SEED), 150, "in order");
}
static void low_water_peer(int fd) {
    await('s');
    write_pattern(fd, 50, 0, SEED);
    await('m');
    until_asleep(in_threads() ? getpid() : getppid());
    /* Fewer would not wake the sleeper: the kernel does not count what it has copied already. */
    write_pattern(fd, 100, 50, SEED);
}

static const struct test_case cases[] = {
    LONER(kernel_then_ring), LONER(urgent_behind_both), LONER(urgent_waits), PAIR(ring_then_kernel), PAIR(patient_look), PAIR(low_water),
};
MAIN(cases)
