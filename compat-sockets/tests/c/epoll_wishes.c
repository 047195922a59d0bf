/* Level-triggered epoll by loops that change all the time what they want of a connection: room, data,
 * nothing, out of the set and in again. What is reported is always what is wanted now. */
#include "semantics.h"

/* Makes both kinds of change a few times, so that whatever begins after some of them has begun. */
static void change_often(int epoll, int fd, uint64_t data) {
    for (int round = 0; round < 4; round++) {
        modify(epoll, fd, EPOLLOUT, data);
        REQUIRE(events_with(epoll, 0, data) == EPOLLOUT);
        take_out(epoll, fd);
        REQUIRE(events_with(epoll, 0, data) == 0);
        add(epoll, fd, EPOLLIN, data);
    }
}

/* Room, write, data, read: the loop of every client. */
static void requests_here(int fd) {
    char out[200], in[200];
    uint64_t dice = 9;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    add(epoll, fd, EPOLLIN, 5);
    for (int round = 0; round < 3000; round++) {
        size_t length = 1 + random_u32(&dice) % sizeof out;
        pattern(out, length, (uint64_t)round, 3);
        if (round % 3 == 0) {
            modify(epoll, fd, EPOLLIN | EPOLLOUT, 5);
        } else {
            take_out(epoll, fd);
            add(epoll, fd, EPOLLOUT, 5);
        }
        REQUIRE(events_with(epoll, round % 2 ? 0 : -1, 5) == EPOLLOUT);
        struct iovec parts[] = {{&length, sizeof length}, {out, length}};
        REQUIRE(writev(fd, parts, 2) == (ssize_t)(sizeof length + length));
        if (round % 5 == 0) {
            modify(epoll, fd, EPOLLIN, 5);
        } else {
            take_out(epoll, fd);
            add(epoll, fd, EPOLLIN, 5);
        }
        for (size_t done = 0; done < length;) {
            REQUIRE(events_with(epoll, -1, 5) == EPOLLIN);
            ssize_t got = read(fd, in, sizeof in);
            REQUIRE(got > 0 && memcmp(in, out + done, (size_t)got) == 0);
            done += (size_t)got;
        }
    }
    CHECK(true, "every event was the one wanted");
    tell('q');
}
static void requests_peer(int fd) {
    for (int round = 0; round < 3000; round++) {
        char buffer[200];
        size_t length;
        read_all(fd, &length, sizeof length);
        read_all(fd, buffer, length);
        write_all(fd, buffer, length);
    }
    await('q');
}

static void out_of_the_set_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    take_out(epoll, fd);
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, -1));
    CHECK_EQ(events_with(epoll, 0, 5), 0, "nothing is told of it");
    CHECK_EQ(events_with(epoll, 20, 5), 0, "nor a little later");
    CHECK_FAILS(control(epoll, EPOLL_CTL_MOD, fd, EPOLLIN, 5), ENOENT, "it cannot be changed");
    CHECK_FAILS(control(epoll, EPOLL_CTL_DEL, fd, EPOLLIN, 5), ENOENT, "nor taken out again");
    add(epoll, fd, EPOLLIN, 5);
    CHECK_FAILS(control(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, 5), EEXIST, "nor put in twice");
    CHECK_EQ(events_with(epoll, 0, 5), EPOLLIN, "put in again it is told of");
    take_out(epoll, fd);
    add(epoll, fd, EPOLLIN, 6);
    CHECK_EQ(events_with(epoll, -1, 6), EPOLLIN, "with new data as well");
    modify(epoll, fd, EPOLLIN | EPOLLOUT, 7);
    CHECK_EQ(events_with(epoll, -1, 7), EPOLLIN | EPOLLOUT, "and with other new data");
    modify(epoll, fd, 0, 7);
    CHECK_EQ(events_with(epoll, 20, 7), 0, "interest in nothing");
    read_all(fd, &byte, 1);
    modify(epoll, fd, EPOLLIN, 7);
    CHECK_EQ(events_with(epoll, 0, 7), 0, "nothing is left");
    CHECK_FAILS(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, (struct epoll_event *)8), EFAULT, "a bad address");
    tell('q');
}
static void out_of_the_set_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* The peer's end comes while something else is wanted. */
static void end_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    modify(epoll, fd, EPOLLOUT | EPOLLRDHUP, 5);
    tell('s');
    UNTIL(events_with(epoll, 0, 5) & EPOLLRDHUP);
    CHECK(true, "half the end is told of by the way");
    modify(epoll, fd, EPOLLOUT, 5);
    CHECK_EQ(events_with(epoll, 0, 5), EPOLLOUT, "unless only room is wanted");
    modify(epoll, fd, EPOLLIN, 5);
    CHECK_EQ(events_with(epoll, -1, 5), EPOLLIN, "then data");
    CHECK_EQ(read(fd, &byte, 1), 0, "which is the end");
    tell('q');
}
static void end_peer(int fd) {
    await('s');
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}

/* The same in a loop that never sleeps. */
static void end_for_pollers_here(int fd) {
    char byte;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLOUT, 5);
    for (int round = 0; round < 4; round++) {
        take_out(epoll, fd);
        add(epoll, fd, EPOLLOUT, 5);
        REQUIRE(events_with(epoll, 0, 5) == EPOLLOUT);
    }
    modify(epoll, fd, EPOLLIN | EPOLLOUT, 5);
    tell('s');
    UNTIL(events_with(epoll, 0, 5) & EPOLLIN);
    CHECK_EQ(read(fd, &byte, 1), 0, "the end is found without a sleep");
    tell('q');
}
#define end_for_pollers_peer end_peer

/* A number is used again by the next connection. */
static void closed_outside_the_set(void) {
    int epoll = new_epoll();
    for (int round = 0; round < 5; round++) {
        int ends[2];
        make_pair(ends);
        uint64_t data = 10 + (uint64_t)round % 2;
        add(epoll, ends[0], EPOLLIN, data);
        change_often(epoll, ends[0], data);
        write_all(ends[1], "x", 1);
        REQUIRE(events_with(epoll, -1, data) == EPOLLIN);
        if (round % 2 == 0)
            take_out(epoll, ends[0]);
        else
            modify(epoll, ends[0], EPOLLOUT, data);
        NEED(close(ends[0]));
        REQUIRE(events_with(epoll, 0, data) == 0);
        NEED(close(ends[1]));
    }
    CHECK(true, "each connection is itself");
}

/* What a duplicate keeps in the set is what was wanted last. */
static void duplicates(void) {
    char byte;
    int epoll = new_epoll(), ends[2], other[2];
    make_pair(ends);
    add(epoll, ends[0], EPOLLIN, 5);
    change_often(epoll, ends[0], 5);
    modify(epoll, ends[0], EPOLLOUT, 5);
    int copy = (int)NEED(dup(ends[0]));
    write_all(ends[1], "x", 1);
    NEED(close(ends[0]));
    CHECK_EQ(events_with(epoll, -1, 5), EPOLLOUT, "room is wanted through the duplicate");
    read_all(copy, &byte, 1);
    NEED(close(copy));
    CHECK_EQ(events_with(epoll, 0, 5), 0, "gone with it");

    make_pair(other);
    add(epoll, other[0], EPOLLIN, 6);
    change_often(epoll, other[0], 6);
    take_out(epoll, other[0]);
    copy = (int)NEED(dup(other[0]));
    write_all(other[1], "x", 1);
    NEED(close(other[0]));
    CHECK_EQ(events_with(epoll, 20, 6), 0, "what was taken out stays out");
    add(epoll, copy, EPOLLIN, 7);
    CHECK_EQ(events_with(epoll, -1, 7), EPOLLIN, "and the duplicate can be put in");
    NEED(close(copy));
    NEED(close(other[1]));
    NEED(close(ends[1]));
}

/* Two descriptors of the set. */
static void two_numbers_of_a_set_here(int fd) {
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    modify(epoll, fd, EPOLLOUT, 5);
    int copy = (int)NEED(dup(epoll));
    NEED(close(epoll));
    CHECK_EQ(events_with(copy, -1, 5), EPOLLOUT, "room is wanted");
    change_often(copy, fd, 5);
    tell('s');
    CHECK_EQ(events_with(copy, -1, 5), EPOLLIN, "data is");
    tell('q');
}
static void two_numbers_of_a_set_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* Data of one that was taken out may be another's. */
static void data_used_again_here(int fd) {
    char byte;
    int epoll = new_epoll(), ends[2];
    NEED(pipe2(ends, O_CLOEXEC));
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    take_out(epoll, fd);
    add(epoll, ends[0], EPOLLIN, 5);
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, -1));
    CHECK_EQ(events_with(epoll, 20, 5), 0, "the one that is in has nothing");
    write_all(ends[1], "p", 1);
    CHECK_EQ(events_with(epoll, -1, 5), EPOLLIN, "now it has");
    read_all(ends[0], &byte, 1);
    CHECK_EQ(events_with(epoll, 0, 5), 0, "and it is read");
    NEED(close(ends[0]));
    NEED(close(ends[1]));
    tell('q');
}
#define data_used_again_peer two_numbers_of_a_set_peer

/* Another process looks at the set. */
static void seen_by_a_child_here(int fd) {
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    modify(epoll, fd, EPOLLOUT, 5);
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        bool room = events_with(epoll, -1, 5) == EPOLLOUT;
        tell('s');
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        NEED(poll(&wait, 1, -1));
        _exit(room && events_with(epoll, -1, 5) == EPOLLOUT ? 0 : 1);
    }
    CHECK_EQ(wait_exit(child), 0, "it sees what is wanted, and no more");
    change_often(epoll, fd, 5);
    CHECK_EQ(events_with(epoll, -1, 5), EPOLLIN, "so does its parent");
    tell('q');
}
#define seen_by_a_child_peer two_numbers_of_a_set_peer

/* Another set, and poll, look at the set. */
static void seen_from_outside_here(int fd) {
    int epoll = new_epoll(), outer = new_epoll();
    struct pollfd wait = {.fd = epoll, .events = POLLIN};
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    modify(epoll, fd, EPOLLOUT, 5);
    CHECK_EQ(poll(&wait, 1, 0), 1, "poll sees that room is wanted");
    modify(epoll, fd, EPOLLIN, 5);
    CHECK_EQ(poll(&wait, 1, 0), 0, "and that it is not any more");
    add(outer, epoll, EPOLLIN, 6);
    CHECK_EQ(events_with(outer, 0, 6), 0, "so does a set");
    tell('s');
    CHECK_EQ(events_with(outer, -1, 6), EPOLLIN, "data comes");
    take_out(epoll, fd);
    CHECK_EQ(events_with(outer, 0, 6), 0, "and is not wanted");
    tell('q');
}
#define seen_from_outside_peer two_numbers_of_a_set_peer

/* Another thread waits in the set. */
static void seen_by_a_thread_here(int fd) {
    int epoll = new_epoll();
    pthread_t waiter;
    void *events;
    add(epoll, fd, EPOLLOUT, 5);
    take_out(epoll, fd);
    add(epoll, fd, EPOLLOUT, 5);
    change_often(epoll, fd, 5);
    helper_start(&waiter, wait_in_set, &epoll);
    tell('s');
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "it is told of data");
    modify(epoll, fd, 0, 5);
    helper_start(&waiter, wait_in_set, &epoll);
    modify(epoll, fd, EPOLLOUT, 5);
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLOUT, "it is told of room");
    tell('q');
}
#define seen_by_a_thread_peer two_numbers_of_a_set_peer

static _Atomic pid_t sleeper;
static void *wait_long(void *argument) {
    sleeper = (pid_t)syscall(SYS_gettid);
    return wait_in_set(argument);
}

/* Another thread has waited in the set since before the connection was anything but TCP. */
static void waited_for_long_here(int fd) {
    int epoll = new_epoll();
    pthread_t waiter;
    void *events;
    add(epoll, fd, 0, 5);
    helper_start(&waiter, wait_long, &epoll);
    UNTIL(sleeper != 0);
    until_asleep(sleeper);
    warm_up_leader(fd);
    modify(epoll, fd, EPOLLIN, 5);
    tell('s');
    pthread_join(waiter, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "it is told of what is wanted since");
    tell('q');
}
static void waited_for_long_peer(int fd) {
    warm_up_follower(fd);
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* A member taken out goes to another process by message, and is closed here. */
static void passed_on_here(int fd) {
    int epoll = new_epoll(), ends[2];
    NEED(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends));
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    take_out(epoll, fd);
    send_fd(ends[0], fd);
    NEED(close(fd));
    tell('s');
    await('w');
    CHECK_EQ(events_with(epoll, 0, 5), 0, "nothing is told of it here");
    char byte;
    fd = receive_fd(ends[1]);
    read_all(fd, &byte, 1);
    CHECK_EQ(byte, 'x', "and it lives");
    NEED(close(ends[0]));
    NEED(close(ends[1]));
    NEED(close(fd));
    tell('q');
}
static void passed_on_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    /* There, and not merely sent: Nagle's algorithm may keep it for as long as an acknowledgement takes. */
    UNTIL(unacknowledged_bytes(fd) == 0);
    tell('w');
    await('q');
}

/* No room, which only the ring knows, while wishes change. */
static void full_here(int fd) {
    char byte;
    int epoll = new_epoll();
    set_nonblocking(fd, true);
    add(epoll, fd, EPOLLIN, 5);
    change_often(epoll, fd, 5);
    size_t at = 0;
    modify(epoll, fd, EPOLLOUT, 5);
    do
        at += fill(fd, at, 1);
    while (events_with(epoll, 20, 5) & EPOLLOUT);
    for (int round = 0; round < 4; round++) {
        modify(epoll, fd, EPOLLIN, 5);
        REQUIRE(events_with(epoll, 0, 5) == 0);
        take_out(epoll, fd);
        add(epoll, fd, EPOLLIN | EPOLLOUT, 5);
        REQUIRE((events_with(epoll, 0, 5) & EPOLLIN) == 0);
    }
    tell('i');
    UNTIL(events_with(epoll, -1, 5) & EPOLLIN);
    CHECK_EQ(read(fd, &byte, 1), 1, "the other direction is open");
    modify(epoll, fd, EPOLLOUT, 5);
    tell('d');
    CHECK_EQ(events_with(epoll, -1, 5), EPOLLOUT, "room comes");
    NEED(shutdown(fd, SHUT_WR));
    tell('e');
    await('e');
}
static void full_peer(int fd) {
    await('i');
    write_all(fd, "x", 1);
    await('d');
    CHECK(drain(fd, 0, 1) > 0, "every byte came");
    await('e');
    tell('e');
}

static const struct test_case cases[] = {
    PAIR(requests),
    PAIR(out_of_the_set),
    PAIR(end),
    PAIR(end_for_pollers),
    LONER(closed_outside_the_set),
    LONER(duplicates),
    PAIR(two_numbers_of_a_set),
    PAIR(data_used_again),
    PAIR_OF_PROCESSES(seen_by_a_child),
    PAIR(seen_from_outside),
    PAIR(seen_by_a_thread),
    COLD_PAIR(waited_for_long),
    PAIR_OF_PROCESSES(passed_on),
    PAIR(full),
};
MAIN(cases)
