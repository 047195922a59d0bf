/* Ends: half-close, end of file after all data, resets, broken pipes, and dying peers. */
#include "semantics.h"

static void set_linger(int fd, int on, int seconds) {
    struct linger linger = {on, seconds};
    NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

/* ---- shutdown ---- */

static void half_close_here(int fd) {
    char byte;
    write_pattern(fd, 300 * KIB, 0, 1);
    CHECK_EQ(shutdown(fd, SHUT_WR), 0, "shut for writing");
    count_signal(SIGPIPE, 0);
    CHECK_FAILS(write(fd, "x", 1), EPIPE, "no more writing");
    CHECK_EQ(signals_seen, 1, "with SIGPIPE");
    CHECK_FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE, "MSG_NOSIGNAL");
    CHECK_EQ(signals_seen, 1, "without");
    CHECK_EQ(shutdown(fd, SHUT_WR), 0, "shut again");
    read_pattern(fd, 1 * MIB, 0, 2);
    CHECK_EQ(read(fd, &byte, 1), 0, "the other direction goes on to its own end");
    CHECK_EQ(read(fd, &byte, 1), 0, "which lasts");
}
static void half_close_peer(int fd) {
    char byte;
    CHECK_EQ(drain(fd, 0, 1), 300 * KIB, "all data, then end of file");
    CHECK_EQ(read(fd, &byte, 1), 0, "which lasts");
    write_pattern(fd, 1 * MIB, 0, 2);
    CHECK_EQ(shutdown(fd, SHUT_WR), 0, "shut for writing");
}

static void shut_read_here(int fd) {
    char buffer[16];
    tell('s');
    UNTIL(readable_bytes(fd) == 5);
    CHECK_EQ(shutdown(fd, SHUT_RD), 0, "shut for reading");
    CHECK_EQ(read(fd, buffer, 3), 3, "what is there can be read");
    CHECK_EQ(read(fd, buffer, 16), 2, "all of it");
    CHECK_EQ(read(fd, buffer, 16), 0, "then end of file at once");
    CHECK_EQ(write(fd, "x", 1), 1, "writing goes on");
    tell('q');
}
static void shut_read_peer(int fd) {
    char byte;
    await('s');
    write_all(fd, "01234", 5);
    CHECK_EQ(read(fd, &byte, 1), 1, "the peer can still write");
    await('q');
}

/* connect(2) to no address ends a connection, and the socket may make another. */
static void connected_anew(void) {
    int ends[2];
    uint16_t port;
    char byte;
    make_pair(ends);
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    int set = new_epoll();
    add(set, ends[1], EPOLLIN, 5);
    write_pattern(ends[0], 1000, 0, 1);
    read_pattern(ends[1], 1000, 0, 1);
    CHECK_EQ(connect(ends[1], &nowhere, sizeof nowhere), 0, "disconnected");
    ssize_t got = read(ends[0], &byte, 1);
    CHECK(got == 0 || (got < 0 && errno == ECONNRESET), "which the other end sees");
    int listener = listen_loopback(&port);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    NEED(connect(ends[1], (struct sockaddr *)&at, sizeof at));
    int other = (int)NEED(accept(listener, NULL, NULL));
    for (uint32_t i = 0; i < 100; i++) {
        write_pattern(ends[1], 500, 0, i);
        read_pattern(other, 500, 0, i);
        write_pattern(other, 500, 0, i);
        read_pattern(ends[1], 500, 0, i);
    }
    CHECK(true, "and connected to somebody else");
    CHECK_EQ(events_of(set, 0), 0, "in the set still, and silent");
    write_all(other, "x", 1);
    CHECK_EQ(events_with(set, -1, 5), EPOLLIN, "and told of");
    modify(set, ends[1], EPOLLIN | EPOLLOUT, 6);
    CHECK_EQ(events_with(set, -1, 6), EPOLLIN | EPOLLOUT, "and changed");
    read_all(ends[1], &byte, 1);
    NEED(close(ends[1]));
    CHECK_EQ(read(other, &byte, 1), 0, "to the end");
}

static void shutdown_errors(void) {
    int ends[2];
    char byte;
    make_pair(ends);
    CHECK_FAILS(shutdown(ends[0], 7), EINVAL, "no such direction");
    CHECK_FAILS(shutdown(999, SHUT_WR), EBADF, "no such descriptor");
    CHECK_EQ(shutdown(ends[0], SHUT_RDWR), 0, "both directions");
    CHECK_EQ(read(ends[0], &byte, 1), 0, "reads end of file");
    CHECK_FAILS(send(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE, "writes nowhere");
    CHECK_EQ(read(ends[1], &byte, 1), 0, "the peer reads end of file");
    NEED(close(ends[1]));
    UNTIL(shutdown(ends[0], SHUT_RDWR) < 0);
    CHECK_FAILS(shutdown(ends[0], SHUT_RDWR), ENOTCONN, "no connection left to shut");
}

/* ---- close ---- */

static void data_before_end_here(int fd) {
    CHECK_EQ(drain(fd, 0, 1), 3 * MIB, "all data, then end of file");
}
static void data_before_end_peer(int fd) {
    write_pattern(fd, 3 * MIB, 0, 1);
    CHECK_EQ(close(fd), 0, "closed at once");
    CHECK_FAILS(write(fd, "x", 1), EBADF, "the number is free");
    CHECK_FAILS(read(fd, NULL, 0), EBADF, "for reading too");
    CHECK_FAILS(close(fd), EBADF, "closed twice");
}

/* Everything that calls accepted arrives, though the writer's process ends at once. */
static void data_before_exit_here(int fd) {
    CHECK_EQ(drain(fd, 0, 1), 100 * KIB, "all data, then end of file");
}
static void data_before_exit_peer(int fd) {
    write_pattern(fd, 100 * KIB, 0, 1);
    exit_peer();
}

static void full_then_close_here(int fd) {
    await('f');
    long long got = drain(fd, 0, 1);
    CHECK(got > 0, "data, then end of file");
    tell('t');
    await('t');
}
static void full_then_close_peer(int fd) {
    size_t sent = fill(fd, 0, 1);
    CHECK(sent > 0, "filled");
    CHECK_EQ(close(fd), 0, "closed while full");
    tell('f');
    await('t');
    tell('t');
}

static void full_then_shutdown_here(int fd) {
    await('f');
    long long got = drain(fd, 0, 1);
    uint64_t told = (uint64_t)got;
    write_all(fd, &told, sizeof told);
}
static void full_then_shutdown_peer(int fd) {
    size_t sent = fill(fd, 0, 1);
    uint64_t told = 0;
    CHECK_EQ(shutdown(fd, SHUT_WR), 0, "shut while full");
    tell('f');
    read_all(fd, &told, sizeof told);
    CHECK(told == sent, "nothing lost");
}

/* Closing with unread data resets: the peer reads what it was sent, then ECONNRESET. */
static void close_with_unread_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 10);
    CHECK_EQ(close(fd), 0, "closed with ten bytes unread");
    tell('c');
}
static void close_with_unread_peer(int fd) {
    char buffer[16];
    await('s');
    write_all(fd, "0123456789", 10);
    await('c');
    CHECK_FAILS(read(fd, buffer, 16), ECONNRESET, "reset");
    CHECK_EQ(read(fd, buffer, 16), 0, "then end of file");
    CHECK_FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE, "and a broken pipe");
}

static void data_then_reset_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 10);
    write_pattern(fd, 1000, 0, 4);
    CHECK_EQ(close(fd), 0, "sent 1000 bytes, closed with ten unread");
    tell('c');
}
static void data_then_reset_peer(int fd) {
    char buffer[16];
    await('s');
    write_all(fd, "0123456789", 10);
    await('c');
    read_pattern(fd, 1000, 0, 4);
    CHECK_FAILS(read(fd, buffer, 16), ECONNRESET, "the data, then reset");
    CHECK_EQ(read(fd, buffer, 16), 0, "then end of file");
}

/* A receive that has something returns that; the error is the next one's. */
static void reset_in_a_receive_here(int fd) {
    char buffer[200];
    tell('s');
    CHECK_EQ(recv(fd, buffer, 200, MSG_WAITALL), 100, "what came before the reset");
    CHECK_FAILS(recv(fd, buffer, 200, MSG_ERRQUEUE), EAGAIN, "which is in no queue");
    CHECK_FAILS(recv(fd, buffer, 200, 0), ECONNRESET, "then the reset");
    CHECK_EQ(recv(fd, buffer, 200, 0), 0, "then end of file");
}
static void reset_in_a_receive_peer(int fd) {
    await('s');
    write_pattern(fd, 100, 0, 1);
    UNTIL(unacknowledged_bytes(fd) == 0);
    set_linger(fd, 1, 0);
    CHECK_EQ(close(fd), 0, "reset");
}

static void reset_in_many_receives_here(int fd) {
    char buffer[200];
    struct iovec parts[2] = {{buffer, 100}, {buffer + 100, 100}};
    struct mmsghdr messages[2] = {{{.msg_iov = parts, .msg_iovlen = 1}, 0}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 0}};
    tell('s');
    CHECK_EQ(recvmmsg(fd, messages, 2, 0, NULL), 1, "one message came before the reset");
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET, "the reset");
    CHECK_EQ(recv(fd, buffer, 200, 0), 0, "then end of file");
}
static void reset_in_many_receives_peer(int fd) { reset_in_a_receive_peer(fd); }

/* The same of sends, by whichever call the library hears of it. */
static void reset_in_a_send_here(int fd) {
    static char buffer[1000000];
    count_signal(SIGPIPE, 0);
    size_t length = sizeof buffer;
    while (send(fd, buffer, length, 0) > 0)
        length = 60000;
    int error = errno;
    CHECK_EQ(error, ECONNRESET, "the first error");
    CHECK_EQ(signals_seen, 0, "and no signal");
    CHECK_FAILS(send(fd, buffer, 1, 0), EPIPE, "the second");
    CHECK_EQ(signals_seen, 1, "and a signal");
}
static void reset_in_a_send_peer(int fd) {
    static char buffer[300000];
    read_all(fd, buffer, sizeof buffer);
    CHECK_EQ(close(fd), 0, "with more unread");
}
static void reset_in_a_file_here(int fd) {
    int file = (int)NEED(memfd_create("sent", 0));
    NEED(ftruncate(file, 64 * MIB));
    count_signal(SIGPIPE, 0);
    for (off_t at = 0; at < 64 * MIB;)
        if (sendfile(fd, file, &at, 60000) < 0)
            break;
    int error = errno;
    CHECK(error == ECONNRESET || error == EPIPE, "ended by an error");
}
static void reset_in_a_file_peer(int fd) { reset_in_a_send_peer(fd); }

static void linger_zero_here(int fd) {
    set_linger(fd, 1, 0);
    CHECK_EQ(close(fd), 0, "closed with SO_LINGER {1, 0}");
    tell('c');
}
static void linger_zero_peer(int fd) {
    char byte;
    struct pollfd wait = {.fd = fd};
    await('c');
    UNTIL(poll(&wait, 1, 0) == 1 && (wait.revents & POLLHUP));
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), ECONNRESET, "SO_ERROR tells of the reset");
    CHECK_EQ(get_option(fd, SOL_SOCKET, SO_ERROR), 0, "once");
    CHECK_EQ(read(fd, &byte, 1), 0, "then end of file");
    CHECK_FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE, "and a broken pipe");
}

static void linger_some_here(int fd) {
    write_pattern(fd, 200 * KIB, 0, 1);
    set_linger(fd, 1, 120);
    CHECK_EQ(close(fd), 0, "closed with SO_LINGER {1, 120}");
}
static void linger_some_peer(int fd) { CHECK_EQ(drain(fd, 0, 1), 200 * KIB, "all data, then end of file"); }

/* After the peer has closed: one write goes, the next finds the pipe broken. */
static void write_to_closed_here(int fd) {
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "the peer closed");
    count_signal(SIGPIPE, 0);
    CHECK_EQ(write(fd, "x", 1), 1, "the first write is taken");
    struct pollfd wait = {.fd = fd};
    UNTIL(poll(&wait, 1, 0) == 1 && (wait.revents & POLLHUP));
    CHECK_FAILS(write(fd, "x", 1), EPIPE, "the second is not");
    CHECK_EQ(signals_seen, 1, "with SIGPIPE");
    struct iovec part = {"xy", 2};
    CHECK_FAILS(writev(fd, &part, 1), EPIPE, "nor by writev");
    CHECK_EQ(signals_seen, 2, "with SIGPIPE");
    CHECK_FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE, "nor by send");
    CHECK_EQ(signals_seen, 2, "MSG_NOSIGNAL: without");
    signal(SIGPIPE, SIG_IGN);
    CHECK_FAILS(write(fd, "x", 1), EPIPE, "ignored");
    CHECK_EQ(read(fd, &byte, 1), 0, "and still end of file");
}
static void write_to_closed_peer(int fd) { NEED(close(fd)); }

/* ---- a peer that dies ---- */

static void wait_forever(void) {
    for (;;)
        pause();
}

static void exits_while_we_read_here(int fd) {
    char byte;
    tell('x');
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file");
}
static void exits_while_we_read_peer(int fd) {
    (void)fd;
    await('x');
    exit_peer();
}

static void *kill_when_asleep(void *argument) {
    until_asleep(*(pid_t *)argument);
    NEED(kill(peer_pid(), SIGKILL));
    return NULL;
}
static pthread_t killer;
static pid_t victim_waits;
static void kill_peer_when_we_sleep(void) {
    victim_waits = (pid_t)syscall(SYS_gettid);
    peer_will_be_killed();
    helper_start(&killer, kill_when_asleep, &victim_waits);
}

static void killed_while_we_read_here(int fd) {
    char byte;
    await('r');
    kill_peer_when_we_sleep();
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file");
    pthread_join(killer, NULL);
    CHECK_EQ(read(fd, &byte, 1), 0, "for good");
}
static void killed_while_we_read_peer(int fd) {
    (void)fd;
    tell('r');
    wait_forever();
}

static void killed_after_sending_here(int fd) {
    await('r');
    peer_will_be_killed();
    NEED(kill(peer_pid(), SIGKILL));
    CHECK_EQ(drain(fd, 0, 1), 100 * KIB, "all it sent, then end of file");
}
static void killed_after_sending_peer(int fd) {
    write_pattern(fd, 100 * KIB, 0, 1);
    tell('r');
    wait_forever();
}

static void killed_with_unread_here(int fd) {
    char byte;
    write_all(fd, "0123456789", 10);
    await('r');
    kill_peer_when_we_sleep();
    CHECK_FAILS(read(fd, &byte, 1), ECONNRESET, "reset, since it had not read all");
    pthread_join(killer, NULL);
}
static void killed_with_unread_peer(int fd) {
    UNTIL(readable_bytes(fd) == 10);
    tell('r');
    wait_forever();
}

static void killed_while_we_write_here(int fd) {
    static char buffer[64 * KIB];
    await('r');
    count_signal(SIGPIPE, 0);
    /* It has something unread, whatever we may sleep for first. */
    write_all(fd, buffer, sizeof buffer);
    kill_peer_when_we_sleep();
    while (write(fd, buffer, sizeof buffer) > 0)
        ;
    int error = errno;
    CHECK_EQ(error, ECONNRESET, "a blocked write ends with the reset");
    CHECK_FAILS(write(fd, buffer, 1), EPIPE, "then a broken pipe");
    CHECK_EQ(signals_seen, 1, "with SIGPIPE");
    pthread_join(killer, NULL);
}
static void killed_while_we_write_peer(int fd) {
    (void)fd;
    tell('r');
    wait_forever();
}

static void killed_while_we_wait_here(int fd) {
    char byte;
    int epoll = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    await('r');
    kill_peer_when_we_sleep();
    CHECK_EQ(epoll_wait(epoll, &event, 1, -1), 1, "epoll_wait wakes");
    CHECK_EQ(event.events, EPOLLIN | EPOLLRDHUP, "for the end");
    CHECK_EQ(read(fd, &byte, 1), 0, "of file");
    pthread_join(killer, NULL);
}
static void killed_while_we_wait_peer(int fd) {
    (void)fd;
    tell('r');
    wait_forever();
}

/* It has sent nothing, and has read all but a doorbell, that is nothing to TCP. */
static void killed_after_listening_here(int fd) {
    char byte = 'b';
    int epoll = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    for (int i = 0; i < 200; i++) {
        write_all(fd, &byte, 1);
        if (i % 10 == 9)
            usleep(1000); /* Not to synchronise: lets the daemon pair them. */
    }
    await('s');
    usleep(20000); /* The same: lets it fall asleep. */
    write_all(fd, &byte, 1);
    await('r');
    kill_peer_when_we_sleep();
    CHECK_EQ(epoll_wait(epoll, &event, 1, -1), 1, "epoll_wait wakes");
    CHECK_EQ(read(fd, &byte, 1), 0, "for the end of file");
    pthread_join(killer, NULL);
}
static void killed_after_listening_peer(int fd) {
    char byte;
    for (int i = 0; i < 200; i++)
        read_all(fd, &byte, 1);
    tell('s');
    read_all(fd, &byte, 1);
    tell('r');
    wait_forever();
}

static void killed_while_full_here(int fd) {
    await('r');
    size_t sent;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    do
        sent = fill(fd, 0, 1);
    while (sent > 0 && poll(&wait, 1, 20));
    kill_peer_when_we_sleep();
    CHECK_EQ(poll(&wait, 1, -1), 1, "poll for writing wakes");
    REQUIRE(wait.revents & POLLERR);
    /* The kernel stores the error before it ends the connection. */
    UNTIL(poll(&wait, 1, -1) == 1 && (wait.revents & POLLHUP));
    CHECK_EQ(wait.revents & (POLLERR | POLLHUP), POLLERR | POLLHUP, "for the reset");
    CHECK_FAILS(send(fd, "x", 1, MSG_NOSIGNAL), ECONNRESET, "which the next call tells");
    pthread_join(killer, NULL);
}
static void killed_while_full_peer(int fd) {
    (void)fd;
    tell('r');
    wait_forever();
}

/* Killed in the middle of a stream: what arrives is the beginning of what was sent. */
static void killed_in_a_stream_here(int fd) {
    read_pattern(fd, 2 * MIB, 0, 1);
    peer_will_be_killed();
    NEED(kill(peer_pid(), SIGKILL));
    CHECK(drain(fd, 2 * MIB, 1) >= 0, "right to the last byte, then end of file");
}
static void killed_in_a_stream_peer(int fd) {
    for (uint64_t at = 0;; at += 10000)
        write_pattern(fd, 10000, at, 1);
}

/* The sender stops using memory (an option that it does not carry) while we read: what it sends once
 * more by TCP, and we have read already, does not turn our close into a reset. */
static void close_behind_the_switch_here(int fd) {
    await('w');
    read_pattern(fd, 4, 0, 1);
    tell('r');
    await('o');
    read_pattern(fd, 5996, 4, 1);
    NEED(close(fd));
}
static void close_behind_the_switch_peer(int fd) {
    char byte;
    write_pattern(fd, 6000, 0, 1);
    tell('w');
    await('r');
    set_option(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    tell('o');
    CHECK_EQ(recv(fd, &byte, 1, 0), 0, "the end, and no reset");
}

/* The direction of the reset has carried nothing: its receiver has never seen it switch. */
static void reset_of_the_silent(void) {
    struct linger now = {1, 0};
    char byte = 'b';
    for (int round = 0; round < 10; round++) {
        int ends[2];
        make_cold_pair(ends);
        for (int i = 0; i < 120; i++) {
            write_all(ends[0], &byte, 1);
            read_all(ends[1], &byte, 1);
            if (i % 10 == 9)
                usleep(1000); /* Not to synchronise: lets the daemon pair them. */
        }
        CHECK_FAILS(recv(ends[0], &byte, 1, MSG_DONTWAIT), EAGAIN, "nothing");
        NEED(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &now, sizeof now));
        NEED(close(ends[1]));
        CHECK_FAILS(read(ends[0], &byte, 1), ECONNRESET, "reset");
        CHECK_EQ(read(ends[0], &byte, 1), 0, "then the end");
        NEED(close(ends[0]));
    }
}

static const struct test_case cases[] = {
    LONER(reset_of_the_silent),
    PAIR(half_close),
    PAIR(shut_read),
    LONER(connected_anew),
    LONER(shutdown_errors),
    PAIR(data_before_end),
    PAIR_OF_PROCESSES(data_before_exit),
    PAIR(close_behind_the_switch),
    PAIR(full_then_close),
    PAIR(full_then_shutdown),
    PAIR(close_with_unread),
    PAIR(data_then_reset),
    PAIR(reset_in_a_receive),
    PAIR(reset_in_many_receives),
    PAIR(reset_in_a_send),
    PAIR(reset_in_a_file),
    PAIR(linger_zero),
    PAIR(linger_some),
    PAIR(write_to_closed),
    PAIR_OF_PROCESSES(exits_while_we_read),
    PAIR_OF_PROCESSES(killed_while_we_read),
    PAIR_OF_PROCESSES(killed_after_sending),
    PAIR_OF_PROCESSES(killed_with_unread),
    PAIR_OF_PROCESSES(killed_while_we_write),
    PAIR_OF_PROCESSES(killed_while_we_wait),
    COLD_PAIR_OF_PROCESSES(killed_after_listening),
    PAIR_OF_PROCESSES(killed_while_full),
    PAIR_OF_PROCESSES(killed_in_a_stream),
};
MAIN(cases)
