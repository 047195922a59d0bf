/* O_NONBLOCK however it is set, EAGAIN both ways, and connections made without blocking. */
#include "semantics.h"

/* ---- nothing to read ---- */

static void expect_empty_then_byte(int fd, const char *how) {
    char byte = 0;
    char name[96];
    snprintf(name, sizeof name, "%s: nothing to read is EAGAIN", how);
    CHECK_FAILS(read(fd, &byte, 1), EAGAIN, name);
    snprintf(name, sizeof name, "%s: and again", how);
    CHECK_FAILS(recv(fd, &byte, 1, 0), EAGAIN, name);
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, -1));
    snprintf(name, sizeof name, "%s: then a byte", how);
    CHECK_EQ(read(fd, &byte, 1), 1, name);
    snprintf(name, sizeof name, "%s: then EAGAIN", how);
    CHECK_FAILS(read(fd, &byte, 1), EAGAIN, name);
}

static void set_after_accept_here(int fd) {
    char byte;
    set_nonblocking(fd, true); /* as redis does */
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK, "F_GETFL tells");
    expect_empty_then_byte(fd, "fcntl");

    set_nonblocking(fd, false);
    tell('s');
    CHECK_EQ(read(fd, &byte, 1), 1, "blocking again: read waits");

    int on = 1;
    NEED(ioctl(fd, FIONBIO, &on));
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK, "FIONBIO is the same flag");
    expect_empty_then_byte(fd, "FIONBIO");
    on = 0;
    NEED(ioctl(fd, FIONBIO, &on));
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, 0, "FIONBIO clears it");

    /* The flag belongs to the open file description, not to the number. */
    int copy = (int)NEED(dup(fd));
    set_nonblocking(copy, true);
    expect_empty_then_byte(fd, "set on a dup");
    NEED(close(copy));
    set_nonblocking(fd, false);
    tell('s');
    CHECK_EQ(read(fd, &byte, 1), 1, "blocking at last");
    tell('q');
}
static void set_after_accept_peer(int fd) {
    for (int i = 0; i < 5; i++) {
        await('s');
        write_all(fd, "b", 1);
    }
    await('q');
}

static void set_before_traffic_here(int fd) {
    set_nonblocking(fd, true);
    expect_empty_then_byte(fd, "cold");
    warm_up_leader(fd);
    expect_empty_then_byte(fd, "warm");
    tell('q');
}
static void set_before_traffic_peer(int fd) {
    await('s');
    write_all(fd, "b", 1);
    warm_up_follower(fd);
    await('s');
    write_all(fd, "b", 1);
    await('q');
}

/* Never EAGAIN on a blocking socket, however slow the peer. */
static void blocking_read_waits_here(int fd) {
    char byte;
    bool good = true;
    for (int i = 0; i < 200; i++) {
        tell('n');
        good = good && read(fd, &byte, 1) == 1;
    }
    CHECK(good, "each read waited for its byte");
}
static void blocking_read_waits_peer(int fd) {
    for (int i = 0; i < 200; i++) {
        await('n');
        for (int spin = 0; spin < (i % 4) * 5; spin++)
            sched_yield();
        write_all(fd, "b", 1);
    }
}

/* ---- no room to write ---- */

static void fill_then_drain_here(int fd) {
    uint64_t at = 0;
    for (int round = 0; round < 3; round++) {
        size_t sent = fill(fd, at, 3);
        REQUIRE(sent > 0);
        tell('f');
        at += sent;
        await('h'); /* half of what was sent is read */
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLOUT, "writable again when drained");
        write_pattern(fd, 100, at, 3); /* the stream goes on where it was */
        at += 100;
        tell('m');
        await('d');
    }
    NEED(shutdown(fd, SHUT_WR));
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "what the calls said is what the peer got");
}
static void fill_then_drain_peer(int fd) {
    uint64_t at = 0;
    static char buffer[64 * KIB];
    for (int round = 0; round < 3; round++) {
        await('f');
        /* Reads what is there now; the writer then adds some more. */
        bool more_told = false;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        for (;;) {
            int ready = (int)NEED(poll(&wait, 1, more_told ? 50 : 20));
            if (ready == 0 && more_told)
                break;
            if (ready == 0) {
                tell('h');
                await('m');
                more_told = true;
                continue;
            }
            ssize_t got = NEED(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
            REQUIRE(got > 0);
            REQUIRE(pattern_match(buffer, (size_t)got, at, 3) == (size_t)got);
            at += (uint64_t)got;
        }
        tell('d');
    }
    long long rest = drain(fd, at, 3);
    CHECK(rest >= 0, "then end of file");
    at += (uint64_t)rest;
    write_all(fd, &at, sizeof at);
}

static void fill_both_ways_here(int fd) {
    size_t sent = fill(fd, 0, 1);
    tell('f');
    await('f');
    tell('x');
    read_pattern(fd, 64 * KIB, 0, 2);
    tell('r');
    await('r');
    write_pattern(fd, 64 * KIB, sent, 1);
    NEED(shutdown(fd, SHUT_WR));
    long long rest = drain(fd, 64 * KIB, 2);
    CHECK(rest > 0, "what was sent while both were full arrives");
}
static void fill_both_ways_peer(int fd) {
    size_t sent = fill(fd, 0, 2);
    await('f');
    tell('f');
    await('x');
    read_pattern(fd, 64 * KIB, 0, 1);
    await('r');
    tell('r');
    long long rest = drain(fd, 64 * KIB, 1);
    CHECK(rest > 0, "what was sent while both were full arrives");
    write_pattern(fd, 64 * KIB, sent, 2);
    NEED(shutdown(fd, SHUT_WR));
}

static void large_write_is_partial_here(int fd) {
    enum { LARGE = 32 * 1024 * 1024 };
    char *buffer = malloc(LARGE);
    pattern(buffer, LARGE, 0, 8);
    set_nonblocking(fd, true);
    ssize_t sent = write(fd, buffer, LARGE);
    CHECK(sent > 0 && sent < LARGE, "takes a part");
    NEED(shutdown(fd, SHUT_WR));
    tell('g');
    set_nonblocking(fd, false);
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK((ssize_t)told == sent, "and says how much");
    free(buffer);
}
static void large_write_is_partial_peer(int fd) {
    await('g');
    long long got = drain(fd, 0, 8);
    uint64_t told = (uint64_t)got;
    CHECK(got > 0, "the part arrives");
    write_all(fd, &told, sizeof told);
}

/* MSG_DONTWAIT makes one call nonblocking on a blocking socket. */
static void dontwait_here(int fd) {
    char byte;
    CHECK_FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN, "nothing to receive");
    size_t sent = fill(fd, 0, 6);
    CHECK(sent > 0, "a blocking socket fills with MSG_DONTWAIT");
    CHECK_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, 0, "and stays a blocking one");
    tell('f');
    read_all(fd, &byte, 1);
    CHECK_FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN, "nothing to receive again");
    NEED(shutdown(fd, SHUT_WR));
}
static void dontwait_peer(int fd) {
    await('f');
    write_all(fd, "b", 1);
    CHECK(drain(fd, 0, 6) > 0, "all that was sent");
}

/* A program that is bad at it: small nonblocking writes, yielding at EAGAIN, while the peer reads
 * little by little. */
static void busy_retries_here(int fd) {
    char buffer[1000];
    size_t at = 0;
    set_nonblocking(fd, true);
    while (at < 8 * MIB) {
        pattern(buffer, sizeof buffer, at, 12);
        ssize_t done = send(fd, buffer, sizeof buffer, 0);
        if (done < 0) {
            REQUIRE(errno == EAGAIN);
            sched_yield();
            continue;
        }
        at += (size_t)done;
    }
    NEED(shutdown(fd, SHUT_WR));
    uint64_t told = 0;
    set_nonblocking(fd, false);
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "nothing lost, nothing twice");
}
static void busy_retries_peer(int fd) {
    char buffer[3000];
    uint64_t at = 0;
    set_nonblocking(fd, true);
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got == 0)
            break;
        if (got < 0) {
            REQUIRE(errno == EAGAIN);
            sched_yield();
            continue;
        }
        REQUIRE(pattern_match(buffer, (size_t)got, at, 12) == (size_t)got);
        at += (uint64_t)got;
    }
    set_nonblocking(fd, false);
    write_all(fd, &at, sizeof at);
}

/* ---- connections made without blocking ---- */

static void nonblocking_connect(void) {
    uint16_t port = 0;
    int listener = listen_loopback(&port);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int a = (int)NEED(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    CHECK_FAILS(connect(a, (struct sockaddr *)&address, sizeof address), EINPROGRESS, "in progress");
    struct pollfd wait = {.fd = a, .events = POLLIN | POLLOUT};
    CHECK_EQ(poll(&wait, 1, -1), 1, "poll sees the end of it");
    CHECK_EQ(wait.revents, POLLOUT, "writable");
    CHECK_EQ(get_option(a, SOL_SOCKET, SO_ERROR), 0, "no error");
    int b = (int)NEED(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    warm_up(b, a);
    CHECK_EQ(fcntl(a, F_GETFD), FD_CLOEXEC, "SOCK_CLOEXEC of socket");
    CHECK_EQ(fcntl(b, F_GETFD), FD_CLOEXEC, "SOCK_CLOEXEC of accept4");
    CHECK_EQ(fcntl(b, F_GETFL) & O_NONBLOCK, O_NONBLOCK, "SOCK_NONBLOCK of accept4");
    char byte;
    CHECK_FAILS(read(b, &byte, 1), EAGAIN, "which counts");
    connect(a, (struct sockaddr *)&address, sizeof address);
    CHECK_FAILS(connect(a, (struct sockaddr *)&address, sizeof address), EISCONN, "connected already");

    int c = connect_loopback(port);
    int d = (int)NEED(accept4(listener, NULL, NULL, 0));
    CHECK_EQ(fcntl(d, F_GETFD), 0, "accept4 without flags");
    CHECK_EQ(fcntl(d, F_GETFL) & O_NONBLOCK, 0, "is a blocking one");
    CHECK_FAILS(accept4(listener, NULL, NULL, 0x40000000), EINVAL, "unknown flags");
    set_nonblocking(listener, true);
    CHECK_FAILS(accept(listener, NULL, NULL), EAGAIN, "nobody waits to be accepted");
    NEED(close(c));
}

static void refused_connect(void) {
    uint16_t port = 0;
    NEED(close(listen_loopback(&port)));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int a = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    CHECK_FAILS(connect(a, (struct sockaddr *)&address, sizeof address), ECONNREFUSED, "blocking");
    int b = (int)NEED(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    int result = connect(b, (struct sockaddr *)&address, sizeof address);
    CHECK(result == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED), "nonblocking");
    struct pollfd wait = {.fd = b, .events = POLLOUT};
    CHECK_EQ(poll(&wait, 1, -1), 1, "poll sees the end of it");
    REQUIRE(wait.revents & POLLERR);
    /* The kernel stores the error before it ends the attempt. */
    UNTIL(poll(&wait, 1, -1) == 1 && (wait.revents & POLLHUP));
    CHECK_EQ(wait.revents & (POLLERR | POLLHUP), POLLERR | POLLHUP, "as an error");
    CHECK_EQ(get_option(b, SOL_SOCKET, SO_ERROR), ECONNREFUSED, "which SO_ERROR tells");
    CHECK_EQ(get_option(b, SOL_SOCKET, SO_ERROR), 0, "once");
    char byte = 0;
    signal(SIGPIPE, SIG_IGN);
    CHECK_FAILS(write(b, &byte, 1), EPIPE, "nowhere to write to");
    CHECK_EQ(close(a) + close(b), 0, "close");
    int c = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    CHECK_FAILS(read(c, &byte, 1), ENOTCONN, "reading from a socket never connected");
    CHECK_FAILS(shutdown(c, SHUT_WR), ENOTCONN, "shutting it down");
}

/* ---- room that is told of is there ---- */

enum teller { BY_POLL, BY_SELECT, BY_EPOLL };
enum { LONG = 4 * MIB };

/* Who waits for room and then sends is never refused. */
static void room_is_there(int fd, enum teller teller) {
    char bytes[16 * KIB];
    int set = new_epoll();
    unsigned refused = 0;
    add(set, fd, EPOLLOUT, 1);
    set_nonblocking(fd, true);
    for (size_t done = 0; done < LONG;) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        struct epoll_event event;
        fd_set writes;
        FD_ZERO(&writes);
        FD_SET(fd, &writes);
        REQUIRE((teller == BY_POLL     ? poll(&wait, 1, -1)
                 : teller == BY_SELECT ? select(fd + 1, NULL, &writes, NULL, NULL)
                                       : epoll_wait(set, &event, 1, -1)) == 1);
        size_t length = LONG - done < sizeof bytes ? LONG - done : sizeof bytes;
        pattern(bytes, length, done, 1);
        ssize_t sent = send(fd, bytes, length, 0);
        if (sent < 0) {
            REQUIRE(errno == EAGAIN);
            refused++;
        } else {
            done += (size_t)sent;
        }
    }
    CHECK_EQ(refused, 0, "told of room, and then refused");
    await('q');
}
static void room_peer(int fd) {
    for (size_t done = 0; done < LONG; done += 64 * KIB) {
        read_pattern(fd, 64 * KIB, done, 1);
        usleep(200); /* slower than the sender */
    }
    tell('q');
}
static void room_by_poll_here(int fd) { room_is_there(fd, BY_POLL); }
static void room_by_poll_peer(int fd) { room_peer(fd); }
static void room_by_select_here(int fd) { room_is_there(fd, BY_SELECT); }
static void room_by_select_peer(int fd) { room_peer(fd); }
static void room_by_epoll_here(int fd) { room_is_there(fd, BY_EPOLL); }
static void room_by_epoll_peer(int fd) { room_peer(fd); }

/* Nor does it sleep, if its socket may: it would not take the answers that its peer waits to send (socat). */
static void room_for_a_sleeper_here(int fd) {
    char bytes[8 * KIB], answer[64 * KIB];
    size_t sent = 0, got = 0;
    while (got < LONG) {
        struct pollfd wait = {.fd = fd, .events = (short)(POLLIN | (sent < LONG ? POLLOUT : 0))};
        REQUIRE(poll(&wait, 1, -1) == 1);
        if (wait.revents & POLLOUT) {
            pattern(bytes, sizeof bytes, sent, 1);
            write_all(fd, bytes, sizeof bytes);
            sent += sizeof bytes;
        }
        if (wait.revents & POLLIN) {
            ssize_t part = (ssize_t)NEED(read(fd, answer, sent < LONG ? KIB : sizeof answer));
            REQUIRE(part > 0 && pattern_match(answer, (size_t)part, got, 1) == (size_t)part);
            got += (size_t)part;
        }
    }
    CHECK_EQ(got, LONG, "all of it came back");
}
static void room_for_a_sleeper_peer(int fd) {
    char bytes[64 * KIB];
    for (size_t done = 0; done < LONG;) {
        ssize_t part = (ssize_t)NEED(read(fd, bytes, sizeof bytes));
        REQUIRE(part > 0);
        write_all(fd, bytes, (size_t)part);
        done += (size_t)part;
    }
}

static const struct test_case cases[] = {
    PAIR(set_after_accept),
    COLD_PAIR(set_before_traffic),
    PAIR(blocking_read_waits),
    PAIR(fill_then_drain),
    PAIR(fill_both_ways),
    PAIR(large_write_is_partial),
    PAIR(dontwait),
    PAIR(busy_retries),
    LONER(nonblocking_connect),
    LONER(refused_connect),
    PAIR(room_by_poll),
    PAIR(room_by_select),
    PAIR(room_by_epoll),
    PAIR(room_for_a_sleeper),
};
MAIN(cases)
