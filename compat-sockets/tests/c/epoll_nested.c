/* Sets that are watched by another set or by poll. */
#include "semantics.h"
#include <stdatomic.h>

/* ---- a thread that is stopped in the middle of a send ---- */

static char *page;
static size_t page_size;
static int stopped[2], go_on[2];

/* The page was taken away from under a copy: waits, gives it back. */
static void give_back(int signal) {
    char byte = (char)signal;
    syscall(SYS_write, stopped[1], &byte, 1);
    syscall(SYS_read, go_on[0], &byte, 1);
    mprotect(page, page_size, PROT_READ | PROT_WRITE);
}

static void *send_page(void *fd) {
    /* The kernel says EFAULT, as the library does for a page that it has not copied from before. */
    send(*(int *)fd, page, page_size, MSG_DONTWAIT | MSG_NOSIGNAL);
    write_all(stopped[1], "d", 1);
    return NULL;
}

static _Atomic pid_t closer, looker;
static atomic_bool has_closed, has_looked;

static void *close_it(void *fd) {
    closer = (pid_t)syscall(SYS_gettid);
    NEED(close(*(int *)fd));
    has_closed = true;
    return NULL;
}

static void *look_at_set(void *set) {
    struct pollfd wait = {.fd = *(int *)set, .events = POLLIN};
    looker = (pid_t)syscall(SYS_gettid);
    NEED(poll(&wait, 1, 0));
    has_looked = true;
    return NULL;
}

/* Sends one way until that way goes through the ring, where there is one; the other has carried nothing. */
static void warm_up_one_way(int fd) {
    do {
        for (int round = 0; round < 40; round++) {
            write_all(fd, "o", 1);
            await('o');
        }
    } while (wants_more_of_this_end(fd));
    write_all(fd, "e", 1);
    await('o');
}
static void warm_up_other_way(int fd) {
    char byte;
    do {
        read_all(fd, &byte, 1);
        tell('o');
    } while (byte != 'e');
}

/* One thread closes a member that another process has too, and cannot go on before a second has sent. Meanwhile the
 * peer sends for the first time, and a third thread looks whether a member of the set has anything. Nobody may
 * wait for whoever waits for him. */
static void closed_while_looked_at_here(int fd) {
    char byte;
    warm_up_one_way(fd);
    int last[2], set = new_epoll();
    pthread_t threads[3];
    struct sigaction action = {.sa_handler = give_back};
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    NEED(pipe2(stopped, O_CLOEXEC));
    NEED(pipe2(go_on, O_CLOEXEC));
    NEED(pipe2(last, O_CLOEXEC));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        close(last[1]);
        read(last[0], &byte, 1);
        _exit(0);
    }
    NEED(sigaction(SIGSEGV, &action, NULL));
    write_all(fd, page, page_size);
    add(set, fd, EPOLLIN, 1);
    NEED(mprotect(page, page_size, PROT_NONE));
    helper_start(&threads[0], send_page, &fd);
    read_all(stopped[0], &byte, 1);
    helper_start(&threads[1], close_it, &fd);
    UNTIL(closer != 0);
    until_asleep(closer);
    tell('s');
    await('s');
    /* With rings nobody can go on before the sender does; TCP keeps nobody waiting. Between nodes what the peer has
     * sent may be on its way still: then there was nothing to wait for, and the next look may have. */
    bool in_rings = getenv("SEMANTICS_GATE") != NULL, looked, closed, too_early;
    do {
        looker = 0;
        has_looked = false;
        helper_start(&threads[2], look_at_set, &set);
        UNTIL(looker != 0);
        until_asleep(looker);
        /* On a busy machine the sender is passed over by now, who sleeps (after 20 ms): then nobody waits any more. */
        looked = has_looked;
        closed = has_closed;
        too_early = in_rings && looked && !closed;
        if (too_early)
            pthread_join(threads[2], NULL);
    } while (too_early);
    CHECK(!in_rings || closed || !looked, "one is closing while the other looks");
    write_all(go_on[1], "g", 1);
    for (size_t i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(has_closed && has_looked, "every thread goes on");
    NEED(close(last[1]));
    CHECK_EQ(wait_exit(child), 0, "so does the process that has the member too");
}
static void closed_while_looked_at_peer(int fd) {
    char buffer[4096];
    warm_up_other_way(fd);
    await('s');
    write_all(fd, "x", 1);
    tell('s');
    while (read(fd, buffer, sizeof buffer) > 0) {
    }
}

/* ---- what a set is told of a set ---- */

/* Nobody was asleep when the byte came. */
static void news_of_before_here(int fd) {
    char buffer[2];
    int inner = new_epoll(), outer = new_epoll();
    REQUIRE(recv(fd, buffer, 1, MSG_DONTWAIT) == -1);
    add(inner, fd, EPOLLIN, 1);
    tell('s');
    UNTIL(readable_bytes(fd) == 2);
    add(outer, inner, EPOLLIN, 2);
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "told of");
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "again");
    CHECK_EQ(events_with(inner, -1, 1), EPOLLIN, "by the member");
    read_all(fd, buffer, 1);
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "half of it is there");
    read_all(fd, buffer, 1);
    CHECK_EQ(events_with(outer, 0, 2), 0, "until all is read");
    CHECK_EQ(events_with(inner, 0, 1), 0, "by both sets");
    tell('t');
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "what comes later");
    tell('q');
}
static void news_of_before_peer(int fd) {
    await('s');
    write_all(fd, "xy", 2);
    await('t');
    write_all(fd, "z", 1);
    await('q');
}

/* A member with something to tell comes into the inner set while a thread sleeps in the outer one. */
static _Atomic pid_t waiter;
static void *sleep_in_set(void *set) {
    waiter = (pid_t)syscall(SYS_gettid);
    return wait_in_set(set);
}
static void news_for_a_sleeper_here(int fd) {
    char byte;
    int inner = new_epoll(), outer = new_epoll();
    pthread_t thread;
    void *events;
    REQUIRE(recv(fd, &byte, 1, MSG_DONTWAIT) == -1);
    add(outer, inner, EPOLLIN, 2);
    helper_start(&thread, sleep_in_set, &outer);
    UNTIL(waiter != 0);
    until_asleep(waiter);
    tell('s');
    UNTIL(readable_bytes(fd) == 1);
    add(inner, fd, EPOLLIN, 1);
    pthread_join(thread, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "it is told");
    CHECK_EQ(events_with(inner, -1, 1), EPOLLIN, "of the member");
    tell('q');
}
static void news_for_a_sleeper_peer(int fd) {
    await('s');
    write_all(fd, "x", 1);
    await('q');
}

/* Others in the outer set are told of too, one event at a time. */
static void news_among_others_here(int fd) {
    char byte;
    int inner = new_epoll(), outer = new_epoll(), others[2];
    bool seen[4] = {false};
    NEED(pipe2(others, O_CLOEXEC));
    REQUIRE(recv(fd, &byte, 1, MSG_DONTWAIT) == -1);
    add(inner, fd, EPOLLIN, 1);
    add(outer, others[0], EPOLLIN, 3);
    tell('s');
    UNTIL(readable_bytes(fd) == 1);
    add(outer, inner, EPOLLIN, 2);
    write_all(others[1], "p", 1);
    for (int i = 0; i < 8; i++) {
        struct epoll_event event;
        REQUIRE(epoll_wait(outer, &event, 1, -1) == 1 && event.data.u64 < COUNT(seen));
        seen[event.data.u64] = true;
    }
    CHECK(seen[2] && seen[3], "each has its turn");
    struct epoll_event both[4];
    CHECK_EQ(epoll_wait(outer, both, COUNT(both), -1), 2, "and both are told of where there is room");
    tell('q');
}
#define news_among_others_peer news_for_a_sleeper_peer

/* The peer: a byte for each 's', answered when it is sent, its doorbell too, if it needed one; an end for 'e'. */
static void a_byte_each_peer(int fd) {
    for (char order = 0; order != 'q';) {
        order = await_any();
        if (order == 's')
            write_all(fd, "x", 1);
        if (order == 'e')
            NEED(shutdown(fd, SHUT_WR));
        if (order != 'q')
            tell('d');
    }
}
static void have_sent(char order) {
    tell(order);
    await('d');
}

/* One of two descriptors of a set is closed, the one that it is a member by. */
static void known_by_another_here(int fd) {
    char byte;
    int inner = new_epoll(), outer = new_epoll();
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN, 2);
    int other = (int)NEED(dup(inner));
    NEED(close(inner));
    have_sent('s');
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "told of");
    read_all(fd, &byte, 1);
    CHECK_EQ(events_with(outer, 0, 2), 0, "until it is read");
    have_sent('s');
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "and again");
    CHECK_EQ(events_with(other, -1, 1), EPOLLIN, "by the member");
    read_all(fd, &byte, 1);
    NEED(close(other));
    have_sent('s');
    CHECK_EQ(events_with(outer, 0, 2), 0, "no more when it has none");
    tell('q');
}
#define known_by_another_peer a_byte_each_peer

/* The number under which a socket is a member means a set now. */
static void a_number_used_again_here(int fd) {
    char byte;
    int set = new_epoll(), empty = new_epoll(), number = (int)NEED(dup(fd));
    add(set, number, EPOLLIN | EPOLLRDHUP, 1);
    have_sent('s');
    CHECK_EQ(events_with(set, -1, 1), EPOLLIN, "the socket's");
    read_all(fd, &byte, 1);
    NEED(dup2(empty, number));
    CHECK_EQ(events_with(set, 0, 1), 0, "nothing");
    have_sent('s');
    CHECK_EQ(events_with(set, -1, 1), EPOLLIN, "the socket's still");
    read_all(fd, &byte, 1);
    have_sent('e');
    CHECK_EQ(events_with(set, -1, 1), EPOLLIN | EPOLLRDHUP, "also its end");
    tell('q');
}
#define a_number_used_again_peer a_byte_each_peer

/* What is told once is not used up by what is no event. */
static void told_once_here(int fd) {
    char byte;
    int inner = new_epoll(), outer = new_epoll();
    add(inner, fd, EPOLLIN, 1);
    add(outer, inner, EPOLLIN | EPOLLONESHOT, 2);
    for (int round = 0; round < 3; round++) {
        have_sent('s');
        read_all(fd, &byte, 1);
        REQUIRE(events_with(outer, 0, 2) == 0);
        have_sent('s');
        REQUIRE(events_with(outer, -1, 2) == EPOLLIN);
        REQUIRE(events_with(outer, 0, 2) == 0);
        read_all(fd, &byte, 1);
        have_sent('s');
        REQUIRE(events_with(outer, 0, 2) == 0);
        modify(outer, inner, EPOLLIN | EPOLLONESHOT, 2);
        REQUIRE(events_with(outer, -1, 2) == EPOLLIN);
        read_all(fd, &byte, 1);
        modify(outer, inner, EPOLLIN | EPOLLONESHOT, 2);
    }
    CHECK(true, "each time once, and only by what is there");
    tell('q');
}
#define told_once_peer a_byte_each_peer

static int readable_by_poll(int fd, int timeout_ms) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    NEED(poll(&wait, 1, timeout_ms));
    return wait.revents;
}
static bool readable_by_select(int fd) {
    fd_set in;
    struct timeval zero = {0};
    FD_ZERO(&in);
    FD_SET(fd, &in);
    return NEED(select(fd + 1, &in, NULL, NULL, &zero)) == 1;
}

/* A doorbell makes no set readable. */
static void doorbell_in_a_polled_set_here(int fd) {
    char byte;
    int inner = new_epoll();
    add(inner, fd, EPOLLIN, 1);
    for (int round = 0; round < 3; round++) {
        REQUIRE(readable_by_poll(inner, 0) == 0);
        have_sent('s');
        read_all(fd, &byte, 1);
        REQUIRE(readable_by_poll(inner, 0) == 0);
        have_sent('s');
        REQUIRE(readable_by_poll(inner, -1) == POLLIN);
        read_all(fd, &byte, 1);
        REQUIRE(!readable_by_select(inner));
        have_sent('s');
        UNTIL(readable_by_select(inner));
        read_all(fd, &byte, 1);
    }
    CHECK(true, "readable with something to read, and not without");
    tell('q');
}
#define doorbell_in_a_polled_set_peer a_byte_each_peer

/* Fills the way to the peer, and looks whether the set, which waits for room there, knows: the last look does not
 * wait, and so leaves nobody waiting. */
static void fill_in_set(int inner, int fd) {
    add(inner, fd, EPOLLOUT, 1);
    size_t at = 0;
    do
        at += fill(fd, at, 1);
    while (events_with(inner, 0, 1) != 0);
    tell('d');
}
static void room_in_a_polled_set_here(int fd) {
    int inner = new_epoll();
    fill_in_set(inner, fd);
    CHECK_EQ(readable_by_poll(inner, -1), POLLIN, "poll tells of room");
    CHECK_EQ(events_with(inner, -1, 1), EPOLLOUT, "in the set");
    NEED(shutdown(fd, SHUT_WR));
}
static void room_in_a_watched_set_here(int fd) {
    int inner = new_epoll(), outer = new_epoll();
    fill_in_set(inner, fd);
    add(outer, inner, EPOLLIN | EPOLLET, 2);
    CHECK_EQ(events_with(outer, -1, 2), EPOLLIN, "the set around it tells of room");
    CHECK_EQ(events_with(inner, -1, 1), EPOLLOUT, "in the set");
    NEED(shutdown(fd, SHUT_WR));
}
/* A full way is not told of, neither at a look nor to a sleeper, before there is room. */
static void no_room_in_a_set_here(int fd) {
    int inner = new_epoll(), outer = -1;
    pthread_t thread;
    void *events;
    size_t at = 0;
    bool told;
    add(inner, fd, EPOLLOUT, 1);
    /* What the kernel has on its way may still move and make room. */
    do {
        do
            at += fill(fd, at, 1);
        while (readable_by_poll(inner, 20) != 0);
        close(outer);
        outer = new_epoll();
        add(outer, inner, EPOLLIN, 2);
        told = events_with(outer, 0, 2) != 0 || readable_by_select(inner) || events_with(inner, 0, 1) != 0;
    } while (told);
    CHECK(!told, "not by the set around it, nor by select, nor in the set");
    helper_start(&thread, sleep_in_set, &outer);
    UNTIL(waiter != 0);
    until_asleep(waiter);
    tell('d');
    pthread_join(thread, &events);
    CHECK_EQ((uintptr_t)events, EPOLLIN, "a sleeper hears of room");
    CHECK_EQ(events_with(inner, -1, 1), EPOLLOUT, "in the set");
    NEED(shutdown(fd, SHUT_WR));
}
static void room_in_a_polled_set_peer(int fd) {
    await('d');
    CHECK(drain(fd, 0, 1) > 0, "all that came is right");
}
#define room_in_a_watched_set_peer room_in_a_polled_set_peer
#define no_room_in_a_set_peer room_in_a_polled_set_peer

static const struct test_case cases[] = {
    {"closed_while_looked_at", closed_while_looked_at_here, closed_while_looked_at_peer, NULL, PROCESSES | COLD},
    PAIR(news_of_before),
    PAIR(news_for_a_sleeper),
    PAIR(news_among_others),
    PAIR(known_by_another),
    PAIR(a_number_used_again),
    PAIR(told_once),
    PAIR(doorbell_in_a_polled_set),
    PAIR(room_in_a_polled_set),
    PAIR(room_in_a_watched_set),
    PAIR(no_room_in_a_set),
};
MAIN(cases)
