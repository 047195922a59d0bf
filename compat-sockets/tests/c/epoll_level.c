/* Level-triggered epoll: what is reported, with which data, for how long. */
#include "semantics.h"

/* ---- EPOLLIN ---- */

static void partial_read_here(int fd) {
    char buffer[16];
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 1);
    CHECK_EQ(events_of(epoll, 0), 0, "nothing yet");
    tell('s');
    CHECK_EQ(events_of(epoll, -1), EPOLLIN, "ten bytes came");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "reported again while unread");
    CHECK_EQ(read(fd, buffer, 4), 4, "four read");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "still reported");
    CHECK_EQ(events_of(epoll, -1), EPOLLIN, "also to a wait without end");
    CHECK_EQ(recv(fd, buffer, 16, MSG_PEEK), 6, "six peeked at");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "still reported");
    CHECK_EQ(read(fd, buffer, 16), 6, "six read");
    CHECK_EQ(events_of(epoll, 0), 0, "no longer reported");
    CHECK_EQ(events_of(epoll, 5), 0, "nor a little later");
    tell('q');
}
static void partial_read_peer(int fd) {
    await('s');
    write_all(fd, "0123456789", 10);
    await('q');
}

/* An array is written where events are told, and nowhere else: some look into it before they look at how many there are. */
static void array_is_kept_here(int fd) {
    volatile uintptr_t wild = 8;
    const struct epoll_event mark = {.events = 0x5a5a5a5a, .data.u64 = 0x5a5a5a5a5a5a5a5a};
    int epoll = new_epoll(), written = 0, told = 0;
    add(epoll, fd, EPOLLIN, 1);
    for (int round = 0; round < 200; round++) {
        struct epoll_event events[4] = {mark, mark, mark, mark};
        char byte;
        tell('s');
        told += (int)NEED(epoll_wait(epoll, events, 4, -1));
        written += memcmp(events + 1, &mark, sizeof mark) != 0;
        read_all(fd, &byte, 1);
        events[0] = mark;
        told += (int)NEED(epoll_wait(epoll, events, 4, 0));
        written += memcmp(events, &mark, sizeof mark) != 0;
    }
    CHECK_EQ(told, 200, "an event for each byte");
    CHECK_EQ(written, 0, "no other place is written");
    tell('s');
    events_of(epoll, -1);
    CHECK_FAILS(epoll_wait(epoll, (struct epoll_event *)wild, 1, 0), EFAULT, "a bad address");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "the event is told still");
    tell('q');
}
static void array_is_kept_peer(int fd) {
    for (int round = 0; round < 201; round++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

/* A single reader that was told EPOLLIN never meets EAGAIN. */
static void never_false_here(int fd) {
    char buffer[300];
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 1);
    set_nonblocking(fd, true);
    for (int round = 0; round < 3000; round++) {
        uint32_t events = events_of(epoll, -1);
        if (events != EPOLLIN)
            give_up("round %d: events %#x", round, events);
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0)
            give_up("round %d: read after EPOLLIN: %zd", round, got);
        if (round % 3 == 0)
            REQUIRE(events_of(epoll, 0) == 0);
        write_all(fd, buffer, (size_t)got);
    }
    CHECK(true, "every EPOLLIN was true");
    tell('q');
}
static void never_false_peer(int fd) {
    uint64_t dice = 4;
    for (int round = 0; round < 3000; round++) {
        size_t length = 1 + random_u32(&dice) % 300;
        write_pattern(fd, length, 0, 1);
        read_pattern(fd, length, 0, 1);
    }
    await('q');
}

/* The same with a peer that writes whenever it likes. */
static void stream_here(int fd) {
    char buffer[5000];
    size_t done = 0;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 1);
    set_nonblocking(fd, true);
    while (done < 8 * MIB) {
        REQUIRE(events_of(epoll, -1) == EPOLLIN);
        ssize_t got = NEED(read(fd, buffer, sizeof buffer));
        REQUIRE(got > 0 && pattern_match(buffer, (size_t)got, done, 1) == (size_t)got);
        done += (size_t)got;
    }
    CHECK_EQ(done, 8 * MIB, "every byte, and every EPOLLIN true");
    tell('q');
}
static void stream_peer(int fd) {
    uint64_t dice = 5;
    for (size_t done = 0; done < 8 * MIB;) {
        size_t part = 1 + random_u32(&dice) % 9000;
        if (part > 8 * MIB - done)
            part = 8 * MIB - done;
        write_pattern(fd, part, done, 1);
        done += part;
    }
    await('q');
}

/* Registered before the first byte, while the connection grows up under it. */
static void registered_early_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 1);
    set_nonblocking(fd, true);
    for (int round = 0; round < 2000; round++) {
        REQUIRE(events_of(epoll, -1) == EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        REQUIRE(write(fd, &byte, 1) == 1);
    }
    CHECK(true, "every round was seen");
    tell('q');
}
static void registered_early_peer(int fd) {
    char byte = 0;
    for (int round = 0; round < 2000; round++) {
        write_all(fd, "x", 1);
        read_all(fd, &byte, 1);
    }
    await('q');
}

/* ---- the set ---- */

static void data_is_kept_here(int fd) {
    int epoll = new_epoll(), event = (int)NEED(eventfd(0, EFD_NONBLOCK)), ends[2];
    NEED(pipe(ends));
    add(epoll, ends[0], EPOLLIN, 0x1111222233334444);
    add(epoll, event, EPOLLIN, UINT64_MAX);
    add(epoll, fd, EPOLLIN, 0xdeadbeefcafef00d);
    struct epoll_event got[4];
    CHECK_EQ(epoll_wait(epoll, got, 4, 0), 0, "all quiet");
    tell('s');
    CHECK_EQ(epoll_wait(epoll, got, 4, -1), 1, "one of three");
    CHECK(got[0].data.u64 == 0xdeadbeefcafef00d && got[0].events == EPOLLIN, "the socket, with its data");
    write_all(ends[1], "p", 1);
    eventfd_write(event, 1);
    /* Not necessarily by one call, but soon. */
    bool pipe_seen = false, event_seen = false, socket_seen = false;
    for (int waits = 0; waits < 8; waits++) {
        long long count = NEED(epoll_wait(epoll, got, 4, -1));
        for (int i = 0; i < count; i++) {
            pipe_seen |= got[i].data.u64 == 0x1111222233334444;
            event_seen |= got[i].data.u64 == UINT64_MAX;
            socket_seen |= got[i].data.u64 == 0xdeadbeefcafef00d;
            REQUIRE(got[i].events == EPOLLIN);
        }
    }
    CHECK(pipe_seen && event_seen && socket_seen, "three of three, each with its own data");
    modify(epoll, fd, EPOLLIN, 7);
    char byte;
    read_all(ends[0], &byte, 1);
    eventfd_t value;
    eventfd_read(event, &value);
    CHECK_EQ(epoll_wait(epoll, got, 4, -1), 1, "the socket alone");
    CHECK(got[0].data.u64 == 7, "with its new data");
    read_all(fd, &byte, 1);
    CHECK_EQ(epoll_wait(epoll, got, 4, 0), 0, "all quiet again");
    tell('q');
}
static void data_is_kept_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

static void membership_here(int fd) {
    int epoll = new_epoll();
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_FAILS(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event), ENOENT, "MOD of a stranger");
    CHECK_FAILS(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL), ENOENT, "DEL of a stranger");
    CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0, "ADD");
    CHECK_FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), EEXIST, "ADD twice");
    CHECK_FAILS(epoll_ctl(epoll, 99, fd, &event), EINVAL, "an unknown operation");
    CHECK_FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, epoll, &event), EINVAL, "a socket is not a set");
    CHECK_FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, 999, &event), EBADF, "no such descriptor");
    CHECK_FAILS(epoll_wait(epoll, &event, 0, 0), EINVAL, "room for nothing");
    tell('s');
    CHECK_EQ(events_of(epoll, -1), EPOLLIN, "a member is reported");
    CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL), 0, "DEL");
    CHECK_EQ(events_of(epoll, 0), 0, "is not reported any more");
    event.events = EPOLLIN;
    CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0, "ADD anew");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "is reported at once");
    modify(epoll, fd, 0, 0);
    CHECK_EQ(events_of(epoll, 0), 0, "interest in nothing");
    modify(epoll, fd, EPOLLIN, 0);
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "interest again");

    int second = new_epoll();
    add(second, fd, EPOLLIN | EPOLLOUT, 2);
    CHECK_EQ(events_of(second, 0), EPOLLIN | EPOLLOUT, "another set has its own interest");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "and the first one keeps its");

    int copy = (int)NEED(dup(fd));
    add(epoll, copy, EPOLLOUT, 3);
    struct epoll_event got[4];
    CHECK_EQ(epoll_wait(epoll, got, 4, 0), 2, "a dup is a member of its own");
    NEED(epoll_ctl(epoll, EPOLL_CTL_DEL, copy, NULL));
    NEED(close(copy));
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "and leaves alone");
    NEED(close(second));
    tell('q');
}
static void membership_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* Closing the last descriptor leaves the set; a dup keeps the registration alive (Linux). */
static void close_leaves_the_set(void) {
    int epoll = new_epoll(), ends[2];
    make_pair(ends);
    add(epoll, ends[0], EPOLLIN, 42);
    int copy = (int)NEED(dup(ends[0]));
    write_all(ends[1], "x", 1);
    NEED(close(ends[0]));
    struct epoll_event got[2];
    CHECK_EQ(epoll_wait(epoll, got, 2, -1), 1, "still there through the dup");
    CHECK(got[0].data.u64 == 42, "under the old data");
    char byte;
    for (int i = 0; i < 20; i++) {
        REQUIRE(read(copy, &byte, 1) == 1);
        REQUIRE(epoll_wait(epoll, got, 2, 0) == 0);
        write_all(ends[1], "x", 1);
        REQUIRE(epoll_wait(epoll, got, 2, -1) == 1 && got[0].data.u64 == 42);
    }
    CHECK(true, "told of what comes, and of nothing else");
    NEED(close(copy));
    CHECK_EQ(epoll_wait(epoll, got, 2, 0), 0, "gone with the last descriptor");
    NEED(close(ends[1]));
    int again[2];
    make_pair(again);
    add(epoll, again[0], EPOLLIN, 43);
    write_all(again[1], "y", 1);
    CHECK_EQ(epoll_wait(epoll, got, 2, -1), 1, "the next connection, of the same number");
    CHECK(got[0].data.u64 == 43, "is itself");
}

/* Closed right after it was offered to the daemon, which may have a copy of the descriptor for a
 * moment: nothing is told of a closed one. */
static void closed_while_offered(void) {
    int epoll = new_epoll();
    for (int i = 0; i < 300; i++) {
        int ends[2];
        char byte;
        struct epoll_event got[4];
        make_cold_pair(ends);
        add(epoll, ends[0], EPOLLIN, 7);
        for (int round = 0; round < 8 + i % 4; round++) {
            write_all(ends[1], "x", 1);
            read_all(ends[0], &byte, 1);
        }
        NEED(close(ends[1]));
        NEED(close(ends[0]));
        REQUIRE(epoll_wait(epoll, got, 4, 0) == 0);
    }
    CHECK(true, "nothing of what is closed");
}

static void more_ready_than_room(void) {
    enum { MANY = 5 };
    int epoll = new_epoll(), ends[MANY][2];
    unsigned seen = 0;
    for (uint64_t i = 0; i < MANY; i++) {
        make_pair(ends[i]);
        add(epoll, ends[i][0], EPOLLIN, i);
    }
    for (int i = 0; i < MANY; i++) {
        struct pollfd wait = {.fd = ends[i][0], .events = POLLIN};
        write_all(ends[i][1], "x", 1);
        NEED(poll(&wait, 1, -1));
    }
    for (int i = 0; i < 3 * MANY; i++) {
        struct epoll_event got;
        REQUIRE(epoll_wait(epoll, &got, 1, -1) == 1);
        seen |= 1u << got.data.u64;
    }
    CHECK_EQ(seen, (1 << MANY) - 1, "each gets its turn");
    struct epoll_event all[MANY + 1];
    CHECK_EQ(epoll_wait(epoll, all, MANY + 1, 0), MANY, "and all are still ready");
}

/* Two connections of one thread with something to read, and room for two. */
static void two_readable(int epoll, uint32_t events, int ends[2][2]) {
    for (uint64_t i = 0; i < 2; i++) {
        make_pair(ends[i]);
        write_pattern(ends[i][1], 10, 0, 1);
        UNTIL(readable_bytes(ends[i][0]) == 10);
        add(epoll, ends[i][0], events, i);
    }
}

/* Something to read in the ring while we send by TCP: both are told of, whichever knows. */
static void one_way_each(void) {
    int epoll = new_epoll(), ends[2][2];
    two_readable(epoll, EPOLLIN | EPOLLOUT, ends);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(send(ends[i][0], "u", 1, MSG_OOB), 1, "urgent data sends our way back to TCP");
    for (int round = 0; round < 12; round++) {
        struct epoll_event got[2];
        REQUIRE(epoll_wait(epoll, got, 2, -1) == 2);
        REQUIRE(got[0].data.u64 + got[1].data.u64 == 1);
        REQUIRE(got[0].events == (EPOLLIN | EPOLLOUT) && got[1].events == (EPOLLIN | EPOLLOUT));
    }
    CHECK(true, "both readable and writable, each time");
    for (int round = 0; round < 12; round++) {
        struct epoll_event got;
        REQUIRE(epoll_wait(epoll, &got, 1, -1) == 1);
        REQUIRE(got.events == (EPOLLIN | EPOLLOUT));
    }
    CHECK(true, "also one at a time");
    for (int i = 0; i < 2; i++)
        read_pattern(ends[i][0], 10, 0, 1);
}

/* As many busy connections as there is room keep no pipe and no set out. */
static void nobody_starves(void) {
    int epoll = new_epoll(), inner[2], ends[2][2], pipes[2][2];
    bool seen[6] = {false};
    two_readable(epoll, EPOLLIN, ends);
    for (uint64_t i = 0; i < 2; i++) {
        inner[i] = new_epoll();
        add(inner[i], ends[i][0], EPOLLIN, 7);
        add(epoll, inner[i], EPOLLIN, 2 + i);
        NEED(pipe2(pipes[i], O_CLOEXEC));
        write_all(pipes[i][1], "p", 1);
        add(epoll, pipes[i][0], EPOLLIN, 4 + i);
    }
    for (int round = 0; round < 100; round++) {
        struct epoll_event got[2];
        REQUIRE(epoll_wait(epoll, got, 2, -1) == 2);
        REQUIRE(got[0].data.u64 != got[1].data.u64);
        for (int i = 0; i < 2; i++) {
            REQUIRE(got[i].data.u64 < COUNT(seen) && got[i].events == EPOLLIN);
            seen[got[i].data.u64] = true;
        }
    }
    CHECK(seen[0] && seen[1], "the connections");
    CHECK(seen[2] && seen[3], "the sets");
    CHECK(seen[4] && seen[5], "the pipes");
}

static int busy_ends[2][2];
enum { IDLE, SEND, SIGNAL, LEAVE };
static atomic_int busy_turn;
static pthread_t busy_waiter;
static atomic_int interruptions;

static void interrupt(int signal) {
    (void)signal;
    atomic_fetch_add(&interruptions, 1);
}

/* Sends, or signals, whenever its turn comes, which is when the thread that waits lets it have the processor. */
static void *busy_sender(void *unused) {
    for (;;) {
        int turn = atomic_load(&busy_turn);
        if (turn == LEAVE)
            return unused;
        if (turn == SIGNAL)
            pthread_kill(busy_waiter, SIGUSR1);
        if (turn == SEND) {
            for (int i = 0; i < 2; i++)
                write_all(busy_ends[i][1], "x", 1);
            /* Long enough to be a turn of somebody's. */
            for (volatile int work = 0; work < 30000; work++)
                ;
            atomic_store(&busy_turn, IDLE);
        }
        sched_yield();
    }
}

static void busy_read(void) {
    char byte;
    UNTIL(atomic_load(&busy_turn) == IDLE);
    for (int i = 0; i < 2; i++)
        REQUIRE(read(busy_ends[i][0], &byte, 1) == 1);
}

/* Two connections whose sender shares one processor with who waits for them. */
static void busy_start(int epoll, cpu_set_t *all, pthread_t *sender) {
    cpu_set_t one;
    two_readable(epoll, EPOLLIN, busy_ends);
    NEED(sched_getaffinity(0, sizeof *all, all));
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, all))
            CPU_SET(cpu, &one);
    NEED(sched_setaffinity(0, sizeof one, &one));
    for (int i = 0; i < 2; i++)
        read_pattern(busy_ends[i][0], 10, 0, 1);
    busy_waiter = pthread_self();
    atomic_store(&busy_turn, IDLE);
    helper_start(sender, busy_sender, NULL);
}
static void busy_end(const cpu_set_t *all, pthread_t sender) {
    atomic_store(&busy_turn, LEAVE);
    pthread_join(sender, NULL);
    NEED(sched_setaffinity(0, sizeof *all, all));
}

/* Nor do those that always have something as soon as the processor is left to their peers. */
static void nobody_starves_by_yields(void) {
    int epoll = new_epoll(), pipes[2];
    bool seen = false;
    cpu_set_t all;
    pthread_t sender;
    busy_start(epoll, &all, &sender);
    NEED(pipe2(pipes, O_CLOEXEC));
    write_all(pipes[1], "p", 1);
    for (int round = 0; round < 300 && !seen; round++) {
        struct epoll_event got[4];
        if (round == 100)
            add(epoll, pipes[0], EPOLLIN, 2);
        atomic_store(&busy_turn, SEND);
        int count = NEED(epoll_wait(epoll, got, 4, -1));
        REQUIRE(count >= 1);
        for (int i = 0; i < count; i++)
            seen |= got[i].data.u64 == 2;
        busy_read();
    }
    CHECK(seen, "the pipe");
    busy_end(&all, sender);
}

/* A signal that comes while the processor is left to others ends the wait as one that comes in its sleep does. */
static void interrupted_by_who_was_let_run(void) {
    int epoll = new_epoll(), rounds = 300;
    cpu_set_t all;
    pthread_t sender;
    struct sigaction action = {.sa_handler = interrupt}, before;
    NEED(sigaction(SIGUSR1, &action, &before));
    busy_start(epoll, &all, &sender);
    /* A signal that comes before the wait begins does not end it, as without us, and one may come after its end. Both are
     * rare, but on a busy machine they may be many once. */
    int interrupted, tries = 0;
    do {
        atomic_store(&interruptions, 0);
        for (int round = 0; round < rounds; round++) {
            struct epoll_event got[2];
            struct pollfd wait[2] = {{.fd = busy_ends[0][0], .events = POLLIN},
                                     {.fd = busy_ends[1][0], .events = POLLIN}};
            atomic_store(&busy_turn, SEND);
            int count;
            /* The sender may have been about to signal once more. */
            do
                count = epoll_wait(epoll, got, 2, -1);
            while (count == -1 && errno == EINTR);
            REQUIRE(count >= 1);
            busy_read();
            atomic_store(&busy_turn, SIGNAL);
            count = round % 2 ? epoll_wait(epoll, got, 2, -1) : poll(wait, 2, -1);
            int error = errno;
            atomic_store(&busy_turn, IDLE);
            REQUIRE(count == -1 && error == EINTR);
        }
        interrupted = atomic_load(&interruptions);
    } while (interrupted > rounds + 12 && ++tries < 10);
    CHECK(interrupted <= rounds + 12, "each signal ended a wait");
    busy_end(&all, sender);
    NEED(sigaction(SIGUSR1, &before, NULL));
}

static void nested_here(int fd) {
    char byte;
    int inner = new_epoll(), outer = new_epoll();
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 2);
    struct pollfd wait = {.fd = inner, .events = POLLIN};
    for (int round = 0; round < 100; round++) {
        REQUIRE(events_of(outer, 0) == 0);
        REQUIRE(poll(&wait, 1, 0) == 0);
        tell('s');
        REQUIRE(events_of(outer, -1) == EPOLLIN);
        REQUIRE(poll(&wait, 1, -1) == 1);
        REQUIRE(events_of(inner, 0) == EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        REQUIRE(events_of(inner, 0) == 0);
    }
    CHECK(true, "seen through two sets");
    tell('q');
}
static void nested_peer(int fd) {
    for (int round = 0; round < 100; round++) {
        await('s');
        write_all(fd, "x", 1);
    }
    await('q');
}

/* ---- waiting ---- */

static void timeouts_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 1);
    struct epoll_event got;
    int64_t start = now_ms();
    CHECK_EQ(epoll_wait(epoll, &got, 1, 60), 0, "epoll_wait returns 0 when time is over");
    CHECK(now_ms() - start >= 59, "and not before");
    sigset_t none;
    sigemptyset(&none);
    start = now_ms();
    CHECK_EQ(epoll_pwait(epoll, &got, 1, 60, &none), 0, "epoll_pwait");
    CHECK(now_ms() - start >= 59, "also not before");
    struct timespec some = {.tv_nsec = 60000000};
    start = now_ms();
    CHECK_EQ(epoll_pwait2(epoll, &got, 1, &some, NULL), 0, "epoll_pwait2");
    CHECK(now_ms() - start >= 59, "also not before");
    tell('s');
    CHECK_EQ(epoll_pwait(epoll, &got, 1, -1, &none), 1, "epoll_pwait without end");
    CHECK_EQ(epoll_pwait2(epoll, &got, 1, NULL, NULL), 1, "epoll_pwait2 without end");
    read_all(fd, &byte, 1);
    CHECK_EQ(epoll_wait(epoll, &got, 1, 0), 0, "and nothing is left");
    tell('q');
}
static void timeouts_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

static void *wait_for_event(void *argument) {
    int epoll = *(int *)argument;
    return (void *)(uintptr_t)events_of(epoll, -1);
}

/* Sockets join, and are modified, while another thread waits in the set. */
static void changed_under_a_waiter_here(int fd) {
    char byte;
    void *events;
    pthread_t waiter;
    int epoll = new_epoll();
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, -1));
    helper_start(&waiter, wait_for_event, &epoll);
    add(epoll, fd, EPOLLIN, 1);
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "ADD of a ready socket wakes the waiter");
    modify(epoll, fd, 0, 1);
    helper_start(&waiter, wait_for_event, &epoll);
    modify(epoll, fd, EPOLLOUT, 1);
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLOUT, "MOD does");
    read_all(fd, &byte, 1);
    modify(epoll, fd, EPOLLIN, 1);
    helper_start(&waiter, wait_for_event, &epoll);
    tell('t');
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "a byte does");
    tell('q');
}
static void changed_under_a_waiter_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('t');
    write_all(fd, "y", 1);
    await('q');
}

/* ---- EPOLLOUT ---- */

static void writable_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLOUT, 1);
    CHECK_EQ(events_of(epoll, -1), EPOLLOUT, "room: writable");
    CHECK_EQ(events_of(epoll, 0), EPOLLOUT, "and again");
    modify(epoll, fd, EPOLLIN | EPOLLOUT, 1);
    CHECK_EQ(events_of(epoll, 0), EPOLLOUT, "nothing to read");
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, -1));
    CHECK_EQ(events_of(epoll, 0), EPOLLIN | EPOLLOUT, "both");
    read_all(fd, &byte, 1);
    CHECK_EQ(events_of(epoll, 0), EPOLLOUT, "one");
    tell('q');
}
static void writable_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* Fills until the set is silent: the peer does not read. What the kernel holds on its way may still
 * move later and make room, so EPOLLOUT is not an error afterwards; never falling silent is. */
static size_t fill_until_silent(int epoll, int fd, size_t at) {
    do
        at += fill(fd, at, 1);
    while (events_of(epoll, 20) & EPOLLOUT);
    return at;
}

static void not_writable_when_full_here(int fd) {
    size_t at = 0;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    set_nonblocking(fd, true);
    for (int round = 0; round < 5; round++) {
        at = fill_until_silent(epoll, fd, at);
        char byte;
        tell('i'); /* the other direction is open meanwhile */
        UNTIL(events_of(epoll, -1) & EPOLLIN);
        REQUIRE(read(fd, &byte, 1) == 1);
        REQUIRE((events_of(epoll, 0) & EPOLLIN) == 0);
        tell('d');
        REQUIRE(events_of(epoll, -1) == EPOLLOUT);
        pattern(&byte, 1, at, 1);
        REQUIRE(send(fd, &byte, 1, MSG_DONTWAIT) == 1);
        at++;
        tell('e');
        await('e');
        REQUIRE(events_of(epoll, -1) == EPOLLOUT);
    }
    CHECK(true, "silent while full, writable when drained");
    NEED(shutdown(fd, SHUT_WR));
}
static void not_writable_when_full_peer(int fd) {
    static char buffer[64 * KIB];
    uint64_t at = 0;
    set_nonblocking(fd, true);
    for (int round = 0; round < 5; round++) {
        await('i');
        write_all(fd, "x", 1);
        await('d');
        bool ended = false;
        for (;;) {
            ssize_t got = read(fd, buffer, sizeof buffer);
            if (got > 0) {
                REQUIRE(pattern_match(buffer, (size_t)got, at, 1) == (size_t)got);
                at += (uint64_t)got;
                continue;
            }
            REQUIRE(got == -1 && errno == EAGAIN);
            if (ended)
                break;
            await('e');
            ended = true;
        }
        tell('e');
    }
    set_nonblocking(fd, false);
    CHECK(drain(fd, at, 1) >= 0, "the stream is right to its end");
}

/* A server that waits for both, with a peer that reads late and answers. */
static void both_directions_here(int fd) {
    static char buffer[32 * KIB];
    size_t in = 0, out = 0;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    add(epoll, fd, EPOLLIN | EPOLLOUT, 1);
    while (in < 6 * MIB || out < 6 * MIB) {
        uint32_t events = events_of(epoll, -1);
        REQUIRE((events & ~(uint32_t)(EPOLLIN | EPOLLOUT)) == 0 && events != 0);
        if (events & EPOLLIN) {
            ssize_t got = NEED(read(fd, buffer, sizeof buffer));
            REQUIRE(got > 0 && pattern_match(buffer, (size_t)got, in, 2) == (size_t)got);
            in += (size_t)got;
        }
        if (events & EPOLLOUT) {
            size_t part = 6 * MIB - out < sizeof buffer ? 6 * MIB - out : sizeof buffer;
            pattern(buffer, part, out, 1);
            ssize_t sent = write(fd, buffer, part);
            REQUIRE(sent > 0 || (sent < 0 && errno == EAGAIN));
            out += sent > 0 ? (size_t)sent : 0;
            if (out == 6 * MIB)
                modify(epoll, fd, EPOLLIN, 1);
        }
    }
    CHECK_EQ(in, 6 * MIB, "all in, all out");
    tell('q');
}
static void both_directions_peer(int fd) {
    for (size_t at = 0; at < 6 * MIB; at += 512 * KIB) {
        write_pattern(fd, 512 * KIB, at, 2);
        read_pattern(fd, 512 * KIB, at, 1);
    }
    await('q');
}

/* ---- the end ---- */

static void end_of_file_here(int fd) {
    char buffer[16];
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN | EPOLLRDHUP, 1);
    tell('s');
    CHECK_EQ(events_of(epoll, -1) & EPOLLIN, EPOLLIN, "data, or data and the end");
    UNTIL(events_of(epoll, 0) == (EPOLLIN | EPOLLRDHUP));
    CHECK_EQ(read(fd, buffer, 3), 3, "the data first");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN | EPOLLRDHUP, "still reported");
    CHECK_EQ(read(fd, buffer, 16), 7, "the rest of it");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN | EPOLLRDHUP, "the end is readable");
    CHECK_EQ(read(fd, buffer, 16), 0, "it is the end");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN | EPOLLRDHUP, "and stays so");
    modify(epoll, fd, EPOLLIN, 1);
    CHECK_EQ(events_of(epoll, 0), EPOLLIN, "EPOLLRDHUP only if asked for");
    modify(epoll, fd, EPOLLOUT, 1);
    CHECK_EQ(events_of(epoll, 0), EPOLLOUT, "our own direction is open");
    NEED(shutdown(fd, SHUT_WR));
    UNTIL(events_of(epoll, 0) & EPOLLHUP);
    CHECK_EQ(events_of(epoll, 0), EPOLLHUP | EPOLLOUT, "both directions shut: EPOLLHUP unasked");
    tell('q');
}
static void end_of_file_peer(int fd) {
    await('s');
    write_all(fd, "0123456789", 10);
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}

/* Room for one event, and a set that has never waited before: the end must not be hidden by room. */
static uint32_t events_in_a_fresh_set(int fd) {
    int epoll = new_epoll();
    struct epoll_event event = {0};
    add(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    NEED(epoll_wait(epoll, &event, 1, -1));
    NEED(close(epoll));
    return event.events;
}
static void end_in_a_fresh_set_here(int fd) {
    CHECK_EQ(events_in_a_fresh_set(fd), EPOLLOUT, "room only");
    tell('s');
    UNTIL(events_in_a_fresh_set(fd) == (EPOLLIN | EPOLLOUT | EPOLLRDHUP));
    NEED(shutdown(fd, SHUT_WR));
    const uint32_t everything = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP;
    UNTIL(events_in_a_fresh_set(fd) == everything);
    CHECK_EQ(events_in_a_fresh_set(fd), everything, "room and both ends");
    tell('q');
}
static void end_in_a_fresh_set_peer(int fd) {
    await('s');
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}

static void reset_here(int fd) {
    const uint32_t everything = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP;
    char buffer[16];
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    tell('s');
    /* The kernel stores the error before it ends the connection: EPOLLERR may be seen alone. */
    UNTIL(events_of(epoll, -1) == everything);
    CHECK_EQ(events_of(epoll, 0), everything, "everything");
    CHECK_FAILS(read(fd, buffer, 16), ECONNRESET, "reset");
    CHECK_EQ(events_of(epoll, 0), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP, "the error was taken");
    CHECK_EQ(read(fd, buffer, 16), 0, "then end of file");
}
static void reset_peer(int fd) {
    struct linger now = {1, 0};
    await('s');
    NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    NEED(close(fd));
}

/* More members than any list of lively ones has room for, all busy, told of a few at a time. */
enum { CROWD = 150, CROWD_ROUNDS = 120 };
static void crowd_round(int epoll, const int *ends, int room, bool answer) {
    bool got[CROWD] = {false};
    int left = CROWD;
    while (left > 0) {
        struct epoll_event events[16];
        long long count = NEED(epoll_wait(epoll, events, room, -1));
        for (long long i = 0; i < count; i++) {
            uint64_t who = events[i].data.u64;
            char byte;
            REQUIRE(who < CROWD && !got[who]);
            REQUIRE(read(ends[who], &byte, 1) == 1 && byte == (char)who);
            got[who] = true;
            left--;
            if (answer)
                write_all(ends[who], &byte, 1);
        }
    }
}
static void crowd(void) {
    static int near[CROWD], far[CROWD];
    int near_set = (int)NEED(epoll_create1(0)), far_set = (int)NEED(epoll_create1(0));
    for (uint64_t i = 0; i < CROWD; i++) {
        int ends[2];
        make_cold_pair(ends);
        near[i] = ends[0];
        far[i] = ends[1];
        add(near_set, near[i], EPOLLIN, i);
        add(far_set, far[i], EPOLLIN, i);
    }
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        for (int i = 0; i < CROWD; i++) {
            char byte = (char)i;
            write_all(near[i], &byte, 1);
        }
        crowd_round(far_set, far, 1 + round % 16, true);
        crowd_round(near_set, near, 1 + round % 16, false);
    }
    warm_up(near[0], far[0]);
    CHECK(true, "everybody was heard in every round");
    for (int i = 0; i < CROWD; i++) {
        NEED(close(near[i]));
        NEED(close(far[i]));
    }
}

static const struct test_case cases[] = {
    PAIR(partial_read),
    PAIR(array_is_kept),
    PAIR(never_false),
    PAIR(stream),
    COLD_PAIR(registered_early),
    PAIR(data_is_kept),
    PAIR(membership),
    LONER(close_leaves_the_set),
    LONER(closed_while_offered),
    LONER(more_ready_than_room),
    LONER(one_way_each),
    LONER(nobody_starves),
    LONER(nobody_starves_by_yields),
    LONER(interrupted_by_who_was_let_run),
    PAIR(nested),
    PAIR(timeouts),
    PAIR(changed_under_a_waiter),
    PAIR(writable),
    PAIR(not_writable_when_full),
    PAIR(both_directions),
    PAIR(end_of_file),
    PAIR(end_in_a_fresh_set),
    PAIR(reset),
    LONER(crowd),
};
MAIN(cases)
