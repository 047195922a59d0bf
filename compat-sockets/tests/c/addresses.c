/* Every way two sockets of one machine can be connected; and what is not TCP is left alone. */
#include "semantics.h"
#include <ifaddrs.h>
#include <net/if.h>

static struct sockaddr_in v4(const char *text, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    REQUIRE(inet_pton(AF_INET, text, &address.sin_addr) == 1);
    return address;
}
static struct sockaddr_in6 v6(const char *text, uint16_t port) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    REQUIRE(inet_pton(AF_INET6, text, &address.sin6_addr) == 1);
    return address;
}
static uint16_t port_of(int fd) {
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    NEED(getsockname(fd, (struct sockaddr *)&name, &length));
    return ntohs(name.sin6_port); /* at the same place in both families */
}

/* Connects, warms up (asserted to be upgraded), exchanges, ends. */
static void converse(int listener, const struct sockaddr *to, socklen_t length, const char *name) {
    char byte;
    int a = (int)NEED(socket(to->sa_family, SOCK_STREAM, 0));
    NEED(connect(a, to, length));
    int b = (int)NEED(accept(listener, NULL, NULL));
    warm_up(b, a);
    for (uint32_t i = 0; i < 20; i++)
        exchange(a, b, i);
    NEED(close(a));
    CHECK_EQ(read(b, &byte, 1), 0, name);
    NEED(close(b));
}

static void any_address(void) {
    struct sockaddr_in any = v4("0.0.0.0", 0);
    int listener = listen_at((struct sockaddr *)&any, sizeof any);
    uint16_t port = port_of(listener);
    struct sockaddr_in to = v4("127.0.0.1", port);
    converse(listener, (struct sockaddr *)&to, sizeof to, "listening everywhere");
    to = v4("127.5.6.7", port);
    converse(listener, (struct sockaddr *)&to, sizeof to, "another address of the loopback");
    to = v4("0.0.0.0", port);
    converse(listener, (struct sockaddr *)&to, sizeof to, "connecting to no address in particular");
}

static void bound_client(void) {
    struct sockaddr_in at = v4("127.0.0.9", 0), from = v4("127.77.0.1", 0);
    int listener = listen_at((struct sockaddr *)&at, sizeof at);
    at.sin_port = htons(port_of(listener));
    int a = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(bind(a, (struct sockaddr *)&from, sizeof from));
    NEED(connect(a, (struct sockaddr *)&at, sizeof at));
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int b = (int)NEED(accept(listener, (struct sockaddr *)&peer, &length));
    CHECK(peer.sin_addr.s_addr == from.sin_addr.s_addr, "accept tells where it comes from");
    CHECK_EQ(ntohs(peer.sin_port), port_of(a), "and from which port");
    warm_up(b, a);
    exchange(a, b, 1);
    CHECK(true, "bytes flow");
}

/* An address of this machine that is not the loopback's, if it has one. */
static bool other_address(struct sockaddr_in *at) {
    struct ifaddrs *all = NULL;
    bool found = false;
    NEED(getifaddrs(&all));
    for (struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP))
            continue;
        memcpy(at, one->ifa_addr, sizeof *at);
        found = ntohl(at->sin_addr.s_addr) >> 24 != 127;
    }
    freeifaddrs(all);
    if (!found)
        note("this machine has no address but the loopback's");
    return found;
}

/* The client sees two addresses that differ, and the other one is no loopback address. */
static void two_addresses(void) {
    struct sockaddr_in at, from = v4("127.0.0.1", 0);
    if (!other_address(&at))
        return;
    at.sin_port = 0;
    int listener = listen_at((struct sockaddr *)&at, sizeof at);
    at.sin_port = htons(port_of(listener));
    int a = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(bind(a, (struct sockaddr *)&from, sizeof from));
    NEED(connect(a, (struct sockaddr *)&at, sizeof at));
    int b = (int)NEED(accept(listener, NULL, NULL));
    warm_up(b, a);
    exchange(a, b, 1);
    CHECK(true, "bytes flow between two addresses of one machine");
}

/* Whether this machine has the loopback address of version 6; a container may lack it. */
static bool has_version_6(void) {
    struct sockaddr_in6 at = v6("::1", 0);
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    if (!has)
        note("no ::1 on this machine");
    return has;
}

static void version_6(void) {
    if (!has_version_6())
        return;
    struct sockaddr_in6 at = v6("::1", 0);
    int listener = listen_at((struct sockaddr *)&at, sizeof at);
    at.sin6_port = htons(port_of(listener));
    converse(listener, (struct sockaddr *)&at, sizeof at, "::1");
}

/* One listener for both versions: its connections from IPv4 have mapped addresses. */
static void both_versions(void) {
    if (!has_version_6())
        return;
    struct sockaddr_in6 at = v6("::", 0);
    int listener = (int)NEED(socket(AF_INET6, SOCK_STREAM, 0));
    set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    NEED(bind(listener, (struct sockaddr *)&at, sizeof at));
    NEED(listen(listener, 16));
    uint16_t port = port_of(listener);
    struct sockaddr_in to4 = v4("127.0.0.1", port);
    converse(listener, (struct sockaddr *)&to4, sizeof to4, "from IPv4");
    struct sockaddr_in6 to6 = v6("::1", port);
    converse(listener, (struct sockaddr *)&to6, sizeof to6, "from IPv6");
    struct sockaddr_in6 mapped = v6("::ffff:127.0.0.1", port);
    converse(listener, (struct sockaddr *)&mapped, sizeof mapped, "by a mapped address");
}

/* A socket connected to itself: what it writes, it reads. */
static void connected_to_itself(void) {
    struct sockaddr_in at = v4("127.0.0.1", 0);
    int fd = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(bind(fd, (struct sockaddr *)&at, sizeof at));
    at.sin_port = htons(port_of(fd));
    NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    for (uint32_t i = 0; i < 300; i++) {
        write_pattern(fd, 500, 0, i);
        read_pattern(fd, 500, 0, i);
    }
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "its own words, then its own end");
}

/* Many connections between the same two processes, each its own. */
static void same_ports_again(void) {
    uint16_t port = 0;
    int listener = listen_loopback(&port);
    uint16_t first = 0;
    for (uint32_t round = 0; round < 50; round++) {
        struct sockaddr_in at = v4("127.0.0.1", first);
        int a = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
        set_option(a, SOL_SOCKET, SO_REUSEADDR, 1);
        NEED(bind(a, (struct sockaddr *)&at, sizeof at));
        first = port_of(a); /* the same four numbers each time */
        at.sin_port = htons(port);
        NEED(connect(a, (struct sockaddr *)&at, sizeof at));
        int b = (int)NEED(accept(listener, NULL, NULL));
        for (uint32_t i = 0; i < 30; i++)
            exchange(a, b, round + i);
        struct linger now = {1, 0};
        NEED(setsockopt(a, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        NEED(close(a)); /* a reset leaves no TIME_WAIT: the numbers are free at once */
        char byte;
        CHECK_FAILS(read(b, &byte, 1), ECONNRESET, "reset");
        NEED(close(b));
    }
}

static void other_kinds(void) {
    int ends[2];
    char text[16];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    for (uint32_t i = 0; i < 50; i++)
        exchange(ends[0], ends[1], i);
    NEED(shutdown(ends[0], SHUT_WR));
    CHECK_EQ(read(ends[1], text, 16), 0, "a pair of Unix sockets");
    NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    for (int i = 0; i < 50; i++) {
        REQUIRE(send(ends[0], "packet", 6, 0) == 6 && send(ends[0], "two", 3, 0) == 3);
        REQUIRE(recv(ends[1], text, 16, 0) == 6 && recv(ends[1], text, 16, 0) == 3);
    }
    CHECK(true, "packets keep their bounds");
    struct sockaddr_in at = v4("127.0.0.1", 0);
    int a = (int)NEED(socket(AF_INET, SOCK_DGRAM, 0)), b = (int)NEED(socket(AF_INET, SOCK_DGRAM, 0));
    NEED(bind(a, (struct sockaddr *)&at, sizeof at));
    at.sin_port = htons(port_of(a));
    NEED(connect(b, (struct sockaddr *)&at, sizeof at));
    for (int i = 0; i < 50; i++) {
        REQUIRE(send(b, "datagram", 8, 0) == 8);
        REQUIRE(recv(a, text, 4, MSG_TRUNC) == 8); /* its real length, on UDP */
    }
    CHECK(true, "so do datagrams");
    CHECK_EQ(send(b, "", 0, 0), 0, "of no bytes too");
    CHECK_EQ(recv(a, text, 16, 0), 0, "which is not an end");
    NEED(pipe(ends));
    for (int i = 0; i < 50; i++) {
        write_pattern(ends[1], 1000, 0, 1);
        read_pattern(ends[0], 1000, 0, 1);
    }
    CHECK(true, "and pipes");
}

static const struct test_case cases[] = {
    LONER(any_address),         LONER(bound_client),     LONER(two_addresses), LONER(version_6),  LONER(both_versions),
    LONER(connected_to_itself), LONER(same_ports_again), LONER(other_kinds),
};
MAIN(cases)
