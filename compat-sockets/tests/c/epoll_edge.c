/* Edge-triggered and one-shot epoll: one report per arrival, none lost, none invented. */
#include "semantics.h"
#include <semaphore.h>

static const uint64_t data = 0x0123456789abcdef;

static void change(int epoll, int operation, int fd, uint32_t events) {
    NEED(control(epoll, operation, fd, events, data));
}

static uint32_t edges_of(int epoll, int timeout_ms) { return events_with(epoll, timeout_ms, data); }

static void one_edge_per_arrival_here(int fd) {
    char buffer[64];
    int epoll = new_epoll();
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), 0, "nothing yet");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "an edge");
    CHECK_EQ(edges_of(epoll, 0), 0, "one");
    CHECK_EQ(edges_of(epoll, 5), 0, "only");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "a new arrival on top of unread data: an edge");
    CHECK_EQ(edges_of(epoll, 0), 0, "one");
    CHECK_EQ(read(fd, buffer, 3), 3, "a partial read");
    CHECK_EQ(edges_of(epoll, 0), 0, "makes no edge");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "an arrival after it does");
    CHECK_EQ(read(fd, buffer, 64), 12, "all of it is there");
    CHECK_EQ(edges_of(epoll, 0), 0, "and then nothing");
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), 0, "MOD with nothing to read: no edge");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "an edge");
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), EPOLLIN, "MOD with something to read: an edge");
    CHECK_EQ(edges_of(epoll, 0), 0, "one");
    change(epoll, EPOLL_CTL_DEL, fd, 0);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), EPOLLIN, "ADD with something to read: an edge");
    CHECK_EQ(edges_of(epoll, 0), 0, "one");
    tell('q');
}
static void one_edge_per_arrival_peer(int fd) {
    for (int i = 0; i < 4; i++) {
        await('s');
        write_all(fd, "01234", 5);
    }
    await('q');
}

/* Reading to EAGAIN, then waiting: each of many arrivals gives exactly one edge. */
static void exactly_one_here(int fd) {
    char buffer[64];
    int epoll = new_epoll(), extra = 0;
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    for (int round = 0; round < 1000; round++) {
        tell('s');
        REQUIRE(edges_of(epoll, -1) == EPOLLIN);
        extra += edges_of(epoll, 0) != 0;
        ssize_t got = NEED(read(fd, buffer, sizeof buffer));
        REQUIRE(got == 1 + round % 60);
        if (round % 2)
            REQUIRE(read(fd, buffer, 1) == -1 && errno == EAGAIN);
        extra += edges_of(epoll, 0) != 0;
    }
    CHECK_EQ(extra, 0, "no edge without an arrival");
    tell('q');
}
static void exactly_one_peer(int fd) {
    for (int round = 0; round < 1000; round++) {
        await('s');
        write_pattern(fd, (size_t)(1 + round % 60), 0, 0);
    }
    await('q');
}

/* A reader that spins in read before it waits meets no stale edge that never ends. */
static void edges_while_reading_here(int fd) {
    char buffer[4096];
    int epoll = new_epoll();
    size_t done = 0;
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLRDHUP);
    for (bool ended = false; !ended;) {
        REQUIRE(edges_of(epoll, -1) & EPOLLIN);
        for (;;) {
            ssize_t got = read(fd, buffer, sizeof buffer);
            if (got < 0) {
                REQUIRE(errno == EAGAIN);
                break;
            }
            if (got == 0) {
                ended = true;
                break;
            }
            REQUIRE(pattern_match(buffer, (size_t)got, done, 1) == (size_t)got);
            done += (size_t)got;
        }
    }
    CHECK_EQ(done, 8 * MIB, "no edge was lost");
    CHECK_EQ(edges_of(epoll, 0) & EPOLLHUP, 0, "our direction is open");
}
static void edges_while_reading_peer(int fd) {
    uint64_t dice = 6;
    for (size_t done = 0; done < 8 * MIB;) {
        size_t part = 1 + random_u32(&dice) % 6000;
        if (part > 8 * MIB - done)
            part = 8 * MIB - done;
        write_pattern(fd, part, done, 1);
        done += part;
        if (part % 5 == 0)
            sched_yield();
    }
    NEED(shutdown(fd, SHUT_WR));
}

static void writable_edge_here(int fd) {
    static char buffer[64 * KIB];
    size_t at = 0;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET);
    CHECK_EQ(edges_of(epoll, -1), EPOLLOUT, "an edge at the start");
    CHECK_EQ(edges_of(epoll, 0), 0, "one");
    CHECK_EQ(write(fd, "x", 1), 1, "a write");
    CHECK_EQ(edges_of(epoll, 0), 0, "makes no edge");
    tell('r');
    await('r');
    CHECK_EQ(edges_of(epoll, 0), 0, "nor does a read of the peer, while there was room");
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), EPOLLOUT, "MOD does");
    /* Bytes only ever move on edges from here on. */
    for (int round = 0; at < 24 * MIB; round++) {
        at += fill(fd, at, 1);
        if (round == 0)
            tell('f');
        REQUIRE(edges_of(epoll, -1) == EPOLLOUT);
    }
    NEED(shutdown(fd, SHUT_WR));
    set_nonblocking(fd, false);
    read_all(fd, buffer, sizeof at);
    CHECK(memcmp(buffer, &at, sizeof at) == 0, "each time an edge when there was room again");
}
static void writable_edge_peer(int fd) {
    static char buffer[64 * KIB];
    char byte;
    uint64_t at = 0;
    await('r');
    read_all(fd, &byte, 1);
    tell('r');
    await('f');
    for (;;) {
        ssize_t got = NEED(read(fd, buffer, sizeof buffer));
        if (got == 0)
            break;
        REQUIRE(pattern_match(buffer, (size_t)got, at, 1) == (size_t)got);
        at += (uint64_t)got;
    }
    write_all(fd, &at, sizeof at);
}

/* As nginx and libuv do it: one registration for everything, reads and writes to EAGAIN. Each side
 * sends 12 MiB and receives as much. */
static void edge_driven(int fd, uint32_t out_seed, uint32_t in_seed) {
    static __thread char buffer[20000];
    enum { TOTAL = 12 * 1024 * 1024 };
    size_t in = 0, out = 0;
    bool ended = false, can_read = true, can_write = true;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    while (!ended || out < TOTAL) {
        while (can_write && out < TOTAL) {
            size_t part = TOTAL - out < sizeof buffer ? TOTAL - out : sizeof buffer;
            pattern(buffer, part, out, out_seed);
            ssize_t sent = send(fd, buffer, part, MSG_NOSIGNAL);
            if (sent < 0) {
                REQUIRE(errno == EAGAIN);
                can_write = false;
                break;
            }
            out += (size_t)sent;
            if (out == TOTAL)
                NEED(shutdown(fd, SHUT_WR));
            if (out % 7 == 0)
                break;
        }
        while (can_read && !ended) {
            ssize_t got = recv(fd, buffer, sizeof buffer, 0);
            if (got < 0) {
                REQUIRE(errno == EAGAIN);
                can_read = false;
                break;
            }
            REQUIRE(pattern_match(buffer, (size_t)got, in, in_seed) == (size_t)got);
            in += (size_t)got;
            ended = got == 0;
            if (in % 5 == 0)
                break;
        }
        if ((can_read && !ended) || (can_write && out < TOTAL))
            continue;
        if (ended && out == TOTAL)
            break;
        uint32_t events = edges_of(epoll, -1);
        can_read = can_read || (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR));
        can_write = can_write || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR));
    }
    CHECK_EQ(in, TOTAL, "all in, all out, by edges alone");
}
static void both_directions_here(int fd) { edge_driven(fd, 1, 2); }
static void both_directions_peer(int fd) { edge_driven(fd, 2, 1); }

/* The same from the first byte of a connection. */
static void registered_early_here(int fd) { edge_driven(fd, 3, 4); }
static void registered_early_peer(int fd) { edge_driven(fd, 4, 3); }

/* Request and answer between two edge-driven sides: one lost edge hangs. */
static void edge_ping_pong(int fd, bool first) {
    char byte = 'x';
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    for (int round = 0; round < 3000; round++) {
        if (first)
            REQUIRE(write(fd, &byte, 1) == 1);
        ssize_t got;
        while ((got = read(fd, &byte, 1)) < 0) {
            REQUIRE(errno == EAGAIN);
            edges_of(epoll, -1);
        }
        REQUIRE(got == 1);
        if (!first)
            REQUIRE(write(fd, &byte, 1) == 1);
    }
    CHECK(true, "every round");
    if (first)
        tell('q');
    else
        await('q');
}
static void ping_pong_here(int fd) { edge_ping_pong(fd, false); }
static void ping_pong_peer(int fd) { edge_ping_pong(fd, true); }

static void oneshot_here(int fd) {
    char buffer[64];
    int epoll = new_epoll();
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "one report");
    CHECK_EQ(edges_of(epoll, 0), 0, "not two, though unread");
    tell('s');
    CHECK_EQ(edges_of(epoll, 20), 0, "nor for a new arrival");
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "MOD re-arms");
    read_all(fd, buffer, 10);
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    CHECK_EQ(edges_of(epoll, 5), 0, "armed with nothing there: silent");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "until something comes");
    read_all(fd, buffer, 5);
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET);
    CHECK_EQ(edges_of(epoll, 0), 0, "with edges too");
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "one report");
    tell('s');
    CHECK_EQ(edges_of(epoll, 20), 0, "not two");
    change(epoll, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT);
    CHECK_EQ(edges_of(epoll, -1), EPOLLOUT, "for writing");
    CHECK_EQ(edges_of(epoll, 0), 0, "once");
    tell('q');
}
static void oneshot_peer(int fd) {
    for (int i = 0; i < 5; i++) {
        await('s');
        write_all(fd, "01234", 5);
    }
    await('q');
}

/* A spinning reader takes the bytes before anybody waits: the one shot must not be lost on it. */
static void oneshot_rounds_here(int fd) {
    char byte;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
    for (int round = 0; round < 1000; round++) {
        tell('s');
        REQUIRE(edges_of(epoll, -1) == EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        if (round % 3 == 0) { /* takes a second byte without asking */
            tell('s');
            UNTIL(read(fd, &byte, 1) == 1);
        }
        change(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    }
    CHECK(true, "armed and fired each time");
    tell('q');
}
static void oneshot_rounds_peer(int fd) {
    for (int round = 0; round < 1000; round++) {
        await('s');
        write_all(fd, "x", 1);
        if (round % 3 == 0) {
            await('s');
            write_all(fd, "y", 1);
        }
    }
    await('q');
}

static void exclusive_here(int fd) {
    char byte;
    int one = new_epoll(), two = new_epoll();
    change(one, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE);
    change(two, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_FAILS(epoll_ctl(one, EPOLL_CTL_MOD, fd, &event), EINVAL, "an exclusive one cannot be modified");
    struct pollfd sets[2] = {{.fd = one, .events = POLLIN}, {.fd = two, .events = POLLIN}};
    for (int round = 0; round < 50; round++) {
        tell('s');
        REQUIRE(poll(sets, 2, -1) >= 1);
        edges_of(two, 0);
        REQUIRE(edges_of(one, 0) == EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        REQUIRE(edges_of(one, 0) == 0);
        REQUIRE(edges_of(two, 0) == 0);
    }
    CHECK(true, "at least one set is woken each time");
    tell('q');
}
static void exclusive_peer(int fd) {
    for (int i = 0; i < 50; i++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

/* Level in one set and edge in another, on the same socket. */
static void two_sets_here(int fd) {
    char byte;
    int level = new_epoll(), edge = new_epoll();
    change(level, EPOLL_CTL_ADD, fd, EPOLLIN);
    change(edge, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    for (int round = 0; round < 50; round++) {
        tell('s');
        REQUIRE(edges_of(edge, -1) == EPOLLIN);
        REQUIRE(edges_of(level, -1) == EPOLLIN);
        REQUIRE(edges_of(edge, 0) == 0);
        REQUIRE(edges_of(level, 0) == EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        REQUIRE(edges_of(level, 0) == 0);
    }
    CHECK(true, "each by its own rule");
    tell('q');
}
static void two_sets_peer(int fd) {
    for (int i = 0; i < 50; i++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

/* The kernel's TCP wakes twice for an end, once for the state and once for what can be read. Mostly both are one edge,
 * but who is quick, or has the other processor taken from the kernel in between, sees two. */
static void settle(int epoll) {
    int more = 0;
    while (more < 2 && edges_of(epoll, 20) != 0)
        more++;
    CHECK(more < 2, "once, or twice");
}

static void end_of_file_here(int fd) {
    char buffer[16];
    int epoll = new_epoll();
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "data");
    tell('e');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN | EPOLLRDHUP, "the end, with the data unread");
    settle(epoll);
    CHECK_EQ(read(fd, buffer, 16), 5, "the data");
    CHECK_EQ(read(fd, buffer, 16), 0, "the end");
    CHECK_EQ(edges_of(epoll, 0), 0, "no more edges");
    tell('q');
}
static void end_of_file_peer(int fd) {
    await('s');
    write_all(fd, "01234", 5);
    await('e');
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}

/* The same for who did not ask for EPOLLRDHUP: the end is an edge of its own on top of unread data. Else who takes these
 * by a short read waits for ever. */
static void end_on_unread_here(int fd) {
    char buffer[16];
    int epoll = new_epoll();
    change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    tell('s');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "data");
    CHECK_EQ(edges_of(epoll, 5), 0, "once");
    tell('e');
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "the end, with the data unread");
    settle(epoll);
    CHECK_EQ(read(fd, buffer, 16), 5, "the data");
    CHECK_EQ(edges_of(epoll, 0), 0, "no more edges");
    CHECK_EQ(read(fd, buffer, 16), 0, "the end");
    tell('q');
}
static void end_on_unread_peer(int fd) { end_of_file_peer(fd); }

static void *shuts(void *fd) {
    NEED(shutdown(*(int *)fd, SHUT_WR));
    return NULL;
}
/* Of one FIN the kernel makes two edges, and whoever asks between the two is told twice. Over the ring he asks often. */
static void one_end(void) {
    bool by_kernel = getenv("SEMANTICS_GATE") == NULL;
    int twice = 0;
    for (int round = 0; round < 40; round++) {
        int ends[2], epoll = new_epoll(), again = 0;
        make_pair(ends);
        if (round % 2)
            write_all(ends[1], "01234", 5);
        change(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLRDHUP | EPOLLET);
        edges_of(epoll, 0);
        pthread_t thread;
        helper_start(&thread, shuts, &ends[1]);
        UNTIL(edges_of(epoll, 0) == (EPOLLIN | EPOLLRDHUP));
        for (int look = 0; look < 100; look++)
            again += edges_of(epoll, 0) != 0;
        twice += again != 0;
        pthread_join(thread, NULL);
        NEED(close(epoll));
        NEED(close(ends[0]));
        NEED(close(ends[1]));
    }
    CHECK(twice == 0 || by_kernel, "told once");
}

/* Registered before it is connected, as nginx does; and read without a look at whether there is more. */
static void registered_before_connect(void) {
    uint16_t port;
    char buffer[128] = {0};
    int listener = listen_loopback(&port), epoll = new_epoll(), lost = 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int here = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    change(epoll, EPOLL_CTL_ADD, here, EPOLLIN | EPOLLRDHUP | EPOLLET);
    REQUIRE(connect(here, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS);
    int there = accept(listener, NULL, NULL);
    REQUIRE(there >= 0);
    set_nonblocking(here, false);
    warm_up(there, here);
    edges_of(epoll, 0);
    for (int round = 0; round < 200 && !lost; round++) {
        write_all(there, buffer, 64);
        lost += (edges_of(epoll, 2000) & EPOLLIN) == 0;
        read_all(here, buffer, 64);
    }
    CHECK_EQ(lost, 0, "edges lost");
}

/* Told once, and not asked again before the connection is upgraded: the first of its process, so that the C library waits. */
static void told_before_upgraded(void) {
    int ends[2], epoll = new_epoll();
    char byte;
    make_cold_pair(ends);
    change(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLONESHOT);
    write_all(ends[1], "x", 1);
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "told");
    read_all(ends[0], &byte, 1);
    warm_up(ends[0], ends[1]);
    write_all(ends[1], "y", 1);
    UNTIL(readable_bytes(ends[0]) == 1);
    CHECK_EQ(edges_of(epoll, 0), 0, "once");
    change(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT);
    CHECK_EQ(edges_of(epoll, -1), EPOLLIN, "asked again");
    CHECK_EQ(edges_of(epoll, 0), 0, "once more");
}

/* Two threads wait in one set; arrivals one at a time: each is served by one of them. */
static _Atomic int served;
static void *edge_worker(void *argument) {
    int *fds = argument;
    for (;;) {
        struct epoll_event event;
        REQUIRE(epoll_wait(fds[0], &event, 1, -1) == 1);
        if (event.data.fd == fds[2])
            return NULL;
        char byte;
        ssize_t got = read(fds[1], &byte, 1);
        if (got == 1) {
            served++;
            write_all(fds[1], &byte, 1);
        }
        struct epoll_event again = {.events = EPOLLIN | EPOLLET | EPOLLONESHOT, .data.fd = fds[1]};
        NEED(epoll_ctl(fds[0], EPOLL_CTL_MOD, fds[1], &again));
    }
}
static void workers_here(int fd) {
    pthread_t threads[2];
    int stop = (int)NEED(eventfd(0, 0)), fds[3] = {new_epoll(), fd, stop};
    struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLONESHOT, .data.fd = fd};
    served = 0;
    set_nonblocking(fd, true);
    NEED(epoll_ctl(fds[0], EPOLL_CTL_ADD, fd, &event));
    event = (struct epoll_event){.events = EPOLLIN, .data.fd = stop};
    NEED(epoll_ctl(fds[0], EPOLL_CTL_ADD, stop, &event));
    for (int i = 0; i < 2; i++)
        helper_start(&threads[i], edge_worker, fds);
    await('d');
    eventfd_write(stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(served, 1000, "each request served once");
}
static void workers_peer(int fd) {
    char byte;
    for (int i = 0; i < 1000; i++) {
        write_all(fd, "x", 1);
        read_all(fd, &byte, 1);
    }
    tell('d');
}

/* More than any list is long. */
enum { PAIRS = 80 };

/* Whose first end holds little; neither waits. The buffer of the other end stays: what was sent into a window of
 * before it shrank is dropped, and the kernel sends it again after seconds that double with each connection. */
static void narrow_pair(int ends[2]) {
    make_pair(ends);
    set_option(ends[0], SOL_SOCKET, SO_SNDBUF, 20000);
    set_nonblocking(ends[0], true);
    set_nonblocking(ends[1], true);
}

/* Reads what the first ends have sent, one connection after the other, until each is told of room; closes them. */
static void each_is_told_of_room(int epoll, int ends[PAIRS][2]) {
    static char buffer[64 * KIB];
    bool told[PAIRS] = {false}; /* an edge may come while another is waited for */
    struct epoll_event events[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        while (!told[i]) {
            while (recv(ends[i][1], buffer, sizeof buffer, 0) > 0)
                ;
            int count = (int)NEED(epoll_wait(epoll, events, PAIRS, 20));
            for (int at = 0; at < count; at++)
                told[events[at].data.u64] |= (events[at].events & EPOLLOUT) != 0;
        }
        NEED(close(ends[i][0]) + close(ends[i][1]));
    }
    CHECK(true, "each was told of room");
}

/* Connections without room: each is told of room when it has some. */
static void many_full(void) {
    static int ends[PAIRS][2];
    struct epoll_event events[PAIRS];
    int epoll = (int)NEED(epoll_create1(0));
    for (int i = 0; i < PAIRS; i++) {
        narrow_pair(ends[i]);
        uint32_t edge = i % 2 ? EPOLLET : 0;
        struct epoll_event event = {.events = EPOLLOUT | edge, .data.u64 = (uint64_t)i};
        NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[i][0], &event));
        fill(ends[i][0], 0, (uint32_t)i);
    }
    /* What was writable before is told, then nobody is. */
    while (NEED(epoll_wait(epoll, events, PAIRS, 20)) > 0)
        for (int i = 0; i < PAIRS; i++)
            fill(ends[i][0], 0, 0);
    each_is_told_of_room(epoll, ends);
}

/* One thread waits, another one sends until it is refused: room is for the first to hear of, though it had
 * found some when it fell asleep. */
struct waiting {
    int epoll;
    sem_t told;
    _Atomic pid_t tid;
    _Atomic bool over;
};
static void *waits_for_room(void *argument) {
    struct waiting *it = argument;
    it->tid = (pid_t)syscall(SYS_gettid);
    while (!it->over) {
        struct epoll_event event;
        REQUIRE(epoll_wait(it->epoll, &event, 1, -1) == 1);
        sem_post(&it->told);
    }
    return NULL;
}
/* `asks`: room is asked for after each refusal only, by another change. */
static void send_for_another(int fd, uint32_t flags, bool asks) {
    uint32_t events = EPOLLIN | EPOLLET | flags;
    pthread_t thread;
    struct waiting it = {.epoll = new_epoll()};
    size_t at = 0;
    sem_init(&it.told, 0, 0);
    set_nonblocking(fd, true);
    change(it.epoll, EPOLL_CTL_ADD, fd, asks ? events : events | EPOLLOUT);
    CHECK_EQ(edges_of(it.epoll, asks ? 0 : -1), asks ? 0 : EPOLLOUT, "an edge at the start");
    helper_start(&thread, waits_for_room, &it);
    UNTIL(it.tid != 0);
    /* At first it sleeps, later it may just be looking at the ring, or about to sleep. */
    for (int round = 0; at < 256 * MIB; round++) {
        if (round < 20)
            until_asleep(it.tid);
        at += fill(fd, at, 1);
        if (round == 0)
            tell('f');
        if (asks)
            change(it.epoll, EPOLL_CTL_MOD, fd, events | EPOLLOUT);
        while (sem_wait(&it.told) != 0)
            REQUIRE(errno == EINTR);
    }
    it.over = true;
    NEED(shutdown(fd, SHUT_WR));
    tell('e');
    if (asks)
        change(it.epoll, EPOLL_CTL_MOD, fd, events | EPOLLOUT);
    pthread_join(thread, NULL);
    set_nonblocking(fd, false);
    uint64_t all;
    read_all(fd, &all, sizeof all);
    CHECK_EQ(all, at, "each time an edge when there was room again");
}
static void drain_for_another(int fd) {
    await('f');
    uint64_t at = (uint64_t)drain(fd, 0, 1);
    await('e');
    write_all(fd, &at, sizeof at);
}
static void writable_edge_to_another_here(int fd) { send_for_another(fd, 0, false); }
static void writable_edge_to_another_peer(int fd) { drain_for_another(fd); }
/* A registration that cannot be modified. */
static void exclusive_edge_to_another_here(int fd) { send_for_another(fd, EPOLLEXCLUSIVE, false); }
static void exclusive_edge_to_another_peer(int fd) { drain_for_another(fd); }
/* As Boost.Asio does with several threads; and who has each event told once. */
static void asked_edge_to_another_here(int fd) { send_for_another(fd, 0, true); }
static void asked_edge_to_another_peer(int fd) { drain_for_another(fd); }
static void asked_once_for_another_here(int fd) { send_for_another(fd, EPOLLONESHOT, true); }
static void asked_once_for_another_peer(int fd) { drain_for_another(fd); }

/* The same by sendfile, and for more connections than are looked at in every wait. */
static void many_full_of_a_file(void) {
    enum { PART = 256 * KIB };
    static int ends[PAIRS][2];
    static char bytes[PART];
    struct epoll_event events[PAIRS];
    int epoll = new_epoll(), file = (int)NEED(memfd_create("file", MFD_CLOEXEC));
    write_all(file, bytes, PART);
    for (int i = 0; i < PAIRS; i++) {
        narrow_pair(ends[i]);
        add(epoll, ends[i][0], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, (uint64_t)i);
    }
    while (NEED(epoll_wait(epoll, events, PAIRS, 0)) > 0)
        ;
    /* What has had room since is told, then nobody is. */
    do
        for (int i = 0; i < PAIRS; i++) {
            off_t offset = 0;
            while (sendfile(ends[i][0], file, &offset, PART) > 0)
                offset = 0;
            REQUIRE(errno == EAGAIN);
        }
    while (NEED(epoll_wait(epoll, events, PAIRS, 20)) > 0);
    each_is_told_of_room(epoll, ends);
}

/* A thread sleeps in a set, and another one makes a connection known to it, waits there itself, and goes: what
 * comes then is for the first to hear of. */
static _Atomic pid_t sleeper_tid;
static _Atomic int sleepers_told;
static void *sleeps_in_set(void *epoll) {
    sleeper_tid = (pid_t)syscall(SYS_gettid);
    void *events = wait_in_set(epoll);
    sleepers_told++;
    return events;
}
static void start_sleeper(pthread_t *thread, int *epoll) {
    sleeper_tid = 0;
    helper_start(thread, sleeps_in_set, epoll);
    UNTIL(sleeper_tid != 0);
    until_asleep(sleeper_tid);
}
static void other_sleeper_here(int fd) {
    char buffer[64];
    void *events;
    pthread_t thread;
    set_nonblocking(fd, true);
    for (int round = 0; round < 6; round++) {
        uint32_t flags = (uint32_t[]){0, EPOLLET, EPOLLONESHOT}[round % 3];
        int epoll = new_epoll();
        if (flags == EPOLLONESHOT) { /* it has fired when the thread falls asleep */
            change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | flags);
            tell('s');
            REQUIRE(edges_of(epoll, -1) == EPOLLIN);
            REQUIRE(read(fd, buffer, sizeof buffer) == 5);
            REQUIRE(read(fd, buffer, sizeof buffer) == -1 && errno == EAGAIN);
        }
        start_sleeper(&thread, &epoll);
        int operation = flags == EPOLLONESHOT ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        change(epoll, operation, fd, EPOLLIN | flags);
        CHECK_EQ(edges_of(epoll, 5), 0, "nothing yet");
        tell('s');
        pthread_join(thread, &events);
        CHECK_EQ((uintptr_t)events, EPOLLIN, "who slept before hears of it");
        REQUIRE(read(fd, buffer, sizeof buffer) == 5);
        NEED(close(epoll));
    }
    tell('q');
}
static void other_sleeper_peer(int fd) {
    for (char what; (what = await_any()) != 'q';)
        write_all(fd, "01234", 5);
}

/* Two threads wait; one hears of an arrival and is busy with it when the next one comes. */
static void both_sleepers_here(int fd) {
    char buffer[64];
    pthread_t threads[2];
    set_nonblocking(fd, true);
    for (int round = 0; round < 4; round++) {
        int epoll = new_epoll();
        change(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
        for (int i = 0; i < 2; i++)
            start_sleeper(&threads[i], &epoll);
        sleepers_told = 0;
        for (int i = 0; i < 2; i++) {
            tell('s');
            UNTIL(sleepers_told == i + 1);
            /* A short count: all that has come. */
            REQUIRE(read(fd, buffer, sizeof buffer) == 5);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(true, "both were told");
        NEED(close(epoll));
    }
    tell('q');
}
static void both_sleepers_peer(int fd) {
    other_sleeper_peer(fd);
}

static const struct test_case cases[] = {
    PAIR(one_edge_per_arrival),
    PAIR(exactly_one),
    PAIR(edges_while_reading),
    PAIR(writable_edge),
    PAIR(both_directions),
    COLD_PAIR(registered_early),
    PAIR(ping_pong),
    PAIR(oneshot),
    PAIR(oneshot_rounds),
    PAIR(exclusive),
    PAIR(two_sets),
    PAIR(end_of_file),
    PAIR(end_on_unread),
    LONER(one_end),
    LONER(registered_before_connect),
    LONER(told_before_upgraded),
    PAIR(workers),
    LONER(many_full),
    PAIR(writable_edge_to_another),
    PAIR(exclusive_edge_to_another),
    PAIR(asked_edge_to_another),
    PAIR(asked_once_for_another),
    LONER(many_full_of_a_file),
    PAIR(other_sleeper),
    PAIR(both_sleepers),
};
MAIN(cases)
