/* What a program can ask about a socket, and options that read back as they were set. */
#include "semantics.h"

static struct sockaddr_in local_name(int fd) {
    struct sockaddr_in name = {0};
    socklen_t length = sizeof name;
    NEED(getsockname(fd, (struct sockaddr *)&name, &length));
    return name;
}
static struct sockaddr_in peer_name(int fd) {
    struct sockaddr_in name = {0};
    socklen_t length = sizeof name;
    NEED(getpeername(fd, (struct sockaddr *)&name, &length));
    return name;
}
static bool same(struct sockaddr_in a, struct sockaddr_in b) {
    return a.sin_family == b.sin_family && a.sin_port == b.sin_port &&
           a.sin_addr.s_addr == b.sin_addr.s_addr;
}

static void names(void) {
    int ends[2];
    make_pair(ends);
    CHECK(same(local_name(ends[0]), peer_name(ends[1])), "one's name is the other's peer");
    CHECK(same(local_name(ends[1]), peer_name(ends[0])), "and the other way");
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_TYPE), SOCK_STREAM, "SO_TYPE");
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_DOMAIN), AF_INET, "SO_DOMAIN");
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP, "SO_PROTOCOL");
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_ACCEPTCONN), 0, "SO_ACCEPTCONN");
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_ERROR), 0, "SO_ERROR");
    CHECK_EQ(fcntl(ends[0], F_GETFL) & O_ACCMODE, O_RDWR, "opened for both");
    struct stat status;
    CHECK_EQ(fstat(ends[0], &status), 0, "fstat");
    CHECK(S_ISSOCK(status.st_mode), "says socket");
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    CHECK(readlink(path, target, sizeof target - 1) > 0 && strncmp(target, "socket:[", 8) == 0,
          "and so does /proc");
    int copy = (int)NEED(dup(ends[0]));
    uint64_t one = 0, two = 1;
    socklen_t length = sizeof one;
    NEED(getsockopt(ends[0], SOL_SOCKET, SO_COOKIE, &one, &length));
    NEED(getsockopt(copy, SOL_SOCKET, SO_COOKIE, &two, &length));
    CHECK(one == two, "a dup is the same socket");
    CHECK_FAILS(getsockopt(ends[0], SOL_SOCKET, 9999, &one, &length), ENOPROTOOPT, "no such option");
    CHECK_FAILS(ioctl(ends[0], 0x12345678, &one), ENOTTY, "no such ioctl");
}

static void counts_here(int fd) {
    char buffer[1000];
    int left = -1;
    CHECK_EQ(readable_bytes(fd), 0, "FIONREAD: nothing");
    tell('s');
    UNTIL(readable_bytes(fd) == 1000);
    CHECK_EQ(read(fd, buffer, 400), 400, "of a thousand, four hundred");
    CHECK_EQ(readable_bytes(fd), 600, "FIONREAD: the rest");
    CHECK_EQ(read(fd, buffer, 1000), 600, "read");
    CHECK_EQ(readable_bytes(fd), 0, "FIONREAD: nothing");
    write_pattern(fd, 5000, 0, 1);
    tell('r');
    await('r');
    UNTIL(ioctl(fd, SIOCOUTQ, &left) == 0 && left == 0);
    CHECK_EQ(left, 0, "SIOCOUTQ: nothing when all was read");
    tell('c');
    UNTIL(readable_bytes(fd) == 10);
    struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
    NEED(poll(&wait, 1, -1));
    CHECK_EQ(readable_bytes(fd), 10, "FIONREAD: data before the end");
    read_all(fd, buffer, 10);
    CHECK_EQ(readable_bytes(fd), 0, "FIONREAD: nothing at the end");
}
static void counts_peer(int fd) {
    await('s');
    write_pattern(fd, 1000, 0, 1);
    await('r');
    read_pattern(fd, 5000, 0, 1);
    tell('r');
    await('c');
    write_all(fd, "0123456789", 10);
    NEED(close(fd));
}

static struct tcp_info info_of(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    return info;
}

static void tcp_info_here(int fd) {
    struct tcp_info info = info_of(fd);
    CHECK_EQ(info.tcpi_state, TCP_ESTABLISHED, "established");
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
    NEED(poll(&wait, 1, -1));
    UNTIL(info_of(fd).tcpi_state == TCP_CLOSE_WAIT);
    CHECK_EQ(drain(fd, 0, 1), 100 * KIB, "data of a closed peer");
    CHECK_EQ(info_of(fd).tcpi_state, TCP_CLOSE_WAIT, "the peer closed");
    NEED(shutdown(fd, SHUT_WR));
    UNTIL(info_of(fd).tcpi_state == TCP_CLOSE);
    CHECK(true, "both closed");
}
static void tcp_info_peer(int fd) {
    await('s');
    write_pattern(fd, 100 * KIB, 0, 1);
    NEED(close(fd));
}

static void options(void) {
    int ends[2];
    make_pair(ends);
    int fd = ends[0];
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 0, "TCP_NODELAY is off");
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 1, "on when set");
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 0);
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_NODELAY), 0, "off when cleared");
    CHECK_EQ(get_option(ends[1], IPPROTO_TCP, TCP_NODELAY), 0, "and the other end is another");
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_CORK), 0, "TCP_CORK is off");
    set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_CORK), 1, "on when set");
    write_all(fd, "x", 1);
    set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
    char byte;
    read_all(ends[1], &byte, 1);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_KEEPALIVE), 0, "SO_KEEPALIVE is off");
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_KEEPALIVE), 1, "on when set");
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 100000);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_SNDBUF), 200000, "SO_SNDBUF reads back doubled");
    set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_RCVBUF), 200000, "SO_RCVBUF too");
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_RCVLOWAT), 1, "SO_RCVLOWAT is one");
    set_option(fd, SOL_SOCKET, SO_BUSY_POLL, 0);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_BUSY_POLL), 0, "SO_BUSY_POLL");
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 5000, "TCP_USER_TIMEOUT");
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096);
    CHECK_EQ(get_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 4096, "TCP_NOTSENT_LOWAT");
    set_option(fd, SOL_SOCKET, SO_PRIORITY, 3);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_PRIORITY), 3, "SO_PRIORITY");
    struct linger linger = {1, 7};
    NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    linger = (struct linger){0, 0};
    socklen_t length = sizeof linger;
    NEED(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
    CHECK(linger.l_onoff == 1 && linger.l_linger == 7, "SO_LINGER");
    volatile uintptr_t wild = 8;
    CHECK_FAILS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, (void *)wild, 4), EFAULT, "a bad address");
    CHECK_FAILS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &byte, 1), EINVAL, "too short a value");
    /* With everything set, bytes still flow. */
    write_all(fd, "abc", 3);
    char text[3];
    read_all(ends[1], text, 3);
    CHECK(memcmp(text, "abc", 3) == 0, "bytes flow on");
}

static void nodelay_before_traffic(void) {
    int ends[2];
    make_cold_pair(ends);
    set_option(ends[0], IPPROTO_TCP, TCP_NODELAY, 1);
    warm_up(ends[0], ends[1]);
    CHECK_EQ(get_option(ends[0], IPPROTO_TCP, TCP_NODELAY), 1, "set before, still set");
    CHECK_EQ(get_option(ends[1], IPPROTO_TCP, TCP_NODELAY), 0, "not set, still not");
}

/* A reader that asked for at least so many bytes is not told of fewer. */
static void low_water_here(int fd) {
    char buffer[200];
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 100);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_RCVLOWAT), 100, "SO_RCVLOWAT");
    tell('s');
    UNTIL(readable_bytes(fd) == 50);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&wait, 1, 20), 0, "fifty are too few");
    CHECK_EQ(recv(fd, buffer, 200, MSG_DONTWAIT), 50, "though they can be had");
    tell('s');
    CHECK_EQ(poll(&wait, 1, -1), 1, "hundred and twenty are enough");
    CHECK_EQ(recv(fd, buffer, 200, 0), 120, "all at once");
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    tell('s');
    CHECK_EQ(recv(fd, buffer, 200, 0), 1, "one is enough again");
    tell('q');
}
static void low_water_peer(int fd) {
    await('s');
    write_pattern(fd, 50, 0, 1);
    await('s');
    write_pattern(fd, 120, 0, 1);
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* Counts of bytes: what the program sent and received, and nothing else. */
/* The C library's struct ends before these (linux/tcp.h). */
struct counts {
    uint64_t acked, received, sent;
};
static struct counts counts_of(int fd) {
    uint64_t info[27] = {0};
    socklen_t length = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length));
    /* What the kernel sent twice, after a time in which nobody was heard, was not sent twice by the program. */
    return (struct counts){info[15], info[16], info[25] - info[26]};
}
static void byte_counts(void) {
    int ends[2], queued = -1;
    make_pair(ends);
    struct counts before[2] = {counts_of(ends[0]), counts_of(ends[1])};
    for (uint32_t i = 0; i < 20; i++) {
        write_pattern(ends[0], 3000, 0, i);
        read_pattern(ends[1], 3000, 0, i);
        /* Asleep and rung for, too. */
        struct pollfd wait = {.fd = ends[1], .events = POLLIN};
        REQUIRE(poll(&wait, 1, 0) == 0);
        write_pattern(ends[1], 500, 0, i);
        read_pattern(ends[0], 500, 0, i);
    }
    UNTIL(counts_of(ends[0]).acked - before[0].acked == 60000);
    struct counts after[2] = {counts_of(ends[0]), counts_of(ends[1])};
    CHECK_EQ(after[0].sent - before[0].sent, 60000, "bytes sent");
    CHECK_EQ(after[1].received - before[1].received, 60000, "received");
    CHECK_EQ(after[1].sent - before[1].sent, 10000, "sent the other way");
    CHECK_EQ(after[0].received - before[0].received, 10000, "and received");
    CHECK(after[0].acked >= after[0].sent, "all that was sent is acknowledged");
    /* Urgent data sends the direction back to TCP: the counts go on. */
    CHECK_EQ(send(ends[0], "!", 1, MSG_OOB), 1, "urgent");
    write_pattern(ends[0], 100, 0, 5);
    char byte;
    UNTIL(recv(ends[1], &byte, 1, MSG_OOB) == 1);
    read_pattern(ends[1], 100, 0, 5);
    UNTIL(counts_of(ends[0]).sent - before[0].sent == 60101);
    CHECK_EQ(counts_of(ends[1]).received - before[1].received, 60101,
             "received in all");
    NEED(ioctl(ends[0], SIOCOUTQNSD, &queued));
    CHECK_EQ(queued, 0, "SIOCOUTQNSD");
    UNTIL(ioctl(ends[0], SIOCOUTQ, &queued) == 0 && queued == 0);
    CHECK_EQ(get_option(ends[0], SOL_SOCKET, SO_ERROR), 0, "SO_ERROR");
}

/* A reset is told once, by SO_ERROR or by a call. */
static void error_told_once_here(int fd) {
    await('c');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    UNTIL(poll(&wait, 1, -1) == 1 && wait.revents & POLLERR);
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET, "SO_ERROR tells it");
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0, "once");
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "then it is the end");
}
static void error_told_once_peer(int fd) {
    struct linger now = {1, 0};
    NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    NEED(close(fd));
    tell('c');
}

/* An option to get that receives: with less than a page it says how much there is to read. */
static void zero_copy_here(int fd) {
    struct tcp_zerocopy_receive wanted = {.length = (uint32_t)sysconf(_SC_PAGESIZE)};
    socklen_t length = sizeof wanted;
    tell('s');
    UNTIL(readable_bytes(fd) == 10);
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &wanted, &length), 0, "getsockopt");
    CHECK_EQ(wanted.length, 0, "nothing mapped");
    CHECK_EQ(wanted.recv_skip_hint, 10, "ten to be read");
    read_pattern(fd, 10, 0, 1);
    tell('s');
    read_pattern(fd, 1000, 10, 1);
    CHECK(true, "bytes flow on");
    write_all(fd, "q", 1);
}
static void zero_copy_peer(int fd) {
    char byte;
    await('s');
    write_pattern(fd, 10, 0, 1);
    await('s');
    write_pattern(fd, 1000, 10, 1);
    read_all(fd, &byte, 1);
}

static const struct test_case cases[] = {
    LONER(byte_counts), PAIR(error_told_once),
    LONER(names),   PAIR(counts),  PAIR(tcp_info),
    LONER(options), LONER(nodelay_before_traffic), PAIR(low_water),
    PAIR(zero_copy),
};
MAIN(cases)
