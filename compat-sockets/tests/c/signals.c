/* Time limits, signals and cancellation while a call waits. */
#include "semantics.h"

#include <setjmp.h>

/* ---- a handler that leaves a blocked call by a jump ---- */

static sigjmp_buf outside;
static void jump_out(int signal) {
    (void)signal;
    siglongjmp(outside, 1);
}
static void jumped_out_here(int fd) {
    struct sigaction action = {.sa_handler = jump_out};
    NEED(sigaction(SIGALRM, &action, NULL));
    char buffer[100];
    if (sigsetjmp(outside, 1) == 0) {
        struct itimerval soon = {.it_value = {.tv_usec = 100000}};
        NEED(setitimer(ITIMER_REAL, &soon, NULL));
        NEED(read(fd, buffer, sizeof buffer));
        give_up("the read has returned");
    }
    /* The connection is as good as before, and ends when it is closed. */
    tell('j');
    read_all(fd, buffer, 5);
    CHECK(memcmp(buffer, "after", 5) == 0, "data after the jump");
    CHECK_EQ(close(fd), 0, "close");
    await('e');
}
static void jumped_out_peer(int fd) {
    await('j');
    write_all(fd, "after", 5);
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file while the other process goes on");
    tell('e');
}

/* The same where several threads use sockets: another one has used one, and waits for what never comes. */
static void *uses_another(void *told) {
    int ends[2];
    char byte;
    make_pair(ends);
    NEED(write(*(int *)told, "u", 1));
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    REQUIRE(read(ends[0], &byte, 1) == 0);
    return NULL;
}
static void jumped_out_of_several_here(int fd) {
    int told[2];
    char byte;
    pthread_t other;
    NEED(pipe(told));
    helper_start(&other, uses_another, &told[1]);
    REQUIRE(read(told[0], &byte, 1) == 1);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    jumped_out_here(fd);
}
static void jumped_out_of_several_peer(int fd) { jumped_out_peer(fd); }

static void set_time_limit(int fd, int option, int ms) {
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    NEED(setsockopt(fd, SOL_SOCKET, option, &limit, sizeof limit));
}

/* ---- SO_RCVTIMEO, SO_SNDTIMEO ---- */

static void receive_limit_here(int fd) {
    char buffer[16];
    struct timeval limit;
    socklen_t length = sizeof limit;
    set_time_limit(fd, SO_RCVTIMEO, 80);
    NEED(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length));
    CHECK(limit.tv_sec == 0 && limit.tv_usec >= 80000 && limit.tv_usec < 100000, "the limit is kept");
    int64_t start = now_ms();
    CHECK_FAILS(recv(fd, buffer, 16, 0), EAGAIN, "recv: EAGAIN when time is over");
    CHECK(now_ms() - start >= 79, "and not before");
    start = now_ms();
    CHECK_FAILS(read(fd, buffer, 16), EAGAIN, "read");
    CHECK(now_ms() - start >= 79, "also not before");
    CHECK_FAILS(recv(fd, buffer, 16, MSG_PEEK), EAGAIN, "peek");
    tell('s');
    set_time_limit(fd, SO_RCVTIMEO, 120000);
    CHECK_EQ(recv(fd, buffer, 16, 0), 5, "what comes in time");
    tell('s');
    /* How long the peer takes nobody knows: more and more time until it is enough. */
    ssize_t got;
    int limit_ms = 40;
    do {
        set_time_limit(fd, SO_RCVTIMEO, limit_ms *= 2);
        start = now_ms();
        got = recv(fd, buffer, 16, MSG_WAITALL);
    } while (got < 0 && errno == EAGAIN && limit_ms < 60000);
    CHECK_EQ(got, 5, "MSG_WAITALL: what came in time");
    CHECK(now_ms() - start >= limit_ms - 1, "and not before");
    set_time_limit(fd, SO_RCVTIMEO, 80);
    CHECK_FAILS(recv(fd, buffer, 16, MSG_WAITALL), EAGAIN, "or nothing");
    set_time_limit(fd, SO_RCVTIMEO, 0);
    tell('s');
    CHECK_EQ(recv(fd, buffer, 5, MSG_WAITALL), 5, "no limit any more");
    tell('q');
}
static void receive_limit_peer(int fd) {
    for (int i = 0; i < 3; i++) {
        await('s');
        write_all(fd, "01234", 5);
    }
    await('q');
}

/* Sends the pattern until a send fails: the error; `*at`: bytes sent by then, `*start`: when that send began. */
static int send_pattern_until_error(int fd, uint64_t *at, int64_t *start) {
    static char buffer[64 * KIB];
    for (*at = 0;;) {
        pattern(buffer, sizeof buffer, *at, 1);
        *start = now_ms();
        ssize_t sent = send(fd, buffer, sizeof buffer, 0);
        if (sent < 0)
            return errno;
        *at += (uint64_t)sent;
    }
}

static void send_limit_here(int fd) {
    uint64_t at;
    int64_t start;
    set_time_limit(fd, SO_SNDTIMEO, 80);
    int error = send_pattern_until_error(fd, &at, &start);
    CHECK_EQ(error, EAGAIN, "EAGAIN when time is over");
    CHECK(now_ms() - start >= 79, "and not before");
    tell('d');
    NEED(shutdown(fd, SHUT_WR));
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "what the calls said is what came");
}
static void send_limit_peer(int fd) {
    await('d');
    uint64_t got = (uint64_t)drain(fd, 0, 1);
    write_all(fd, &got, sizeof got);
}

/* The time is for a call: it does not begin anew with each bit of progress. */

static char many[64 * MIB];

static void trickle_in_here(int fd) {
    ssize_t got;
    int limit_ms = 100;
    tell('s');
    do {
        set_time_limit(fd, SO_RCVTIMEO, limit_ms *= 2);
        got = recv(fd, many, sizeof many, MSG_WAITALL);
    } while (got < 0 && errno == EAGAIN && limit_ms < 60000);
    CHECK(got > 0 && got < (ssize_t)sizeof many, "recv: what came in time");
    write_all(fd, "q", 1);
}
static void trickle_in_peer(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    await('s');
    while (poll(&wait, 1, 10) == 0)
        write_all(fd, "0", 1);
}

static void trickle_look_here(int fd) {
    ssize_t got;
    int limit_ms = 100;
    tell('s');
    do {
        set_time_limit(fd, SO_RCVTIMEO, limit_ms *= 2);
        got = recv(fd, many, 30000, MSG_PEEK | MSG_WAITALL);
    } while (got < 0 && errno == EAGAIN && limit_ms < 60000);
    CHECK(got > 0 && got < 30000, "a look: what came in time");
    CHECK(readable_bytes(fd) >= got, "and is still there");
    write_all(fd, "q", 1);
}

static void trickle_out_here(int fd) {
    int length = 64 * KIB;
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &length, sizeof length));
    set_time_limit(fd, SO_SNDTIMEO, 200);
    ssize_t sent = send(fd, many, sizeof many, 0);
    CHECK(sent > 0 && sent < (ssize_t)sizeof many, "send: what there was room for in time");
    NEED(shutdown(fd, SHUT_WR));
    await('q');
}
static void trickle_out_peer(int fd) {
    int length = 64 * KIB;
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &length, sizeof length));
    char buffer[4 * KIB];
    while (read(fd, buffer, sizeof buffer) > 0)
        poll(NULL, 0, 10);
    tell('q');
}

/* ---- signals ---- */

static timer_t start_timer(int signal, int every_ms) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    timer_t timer;
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec period = {{0, every_ms * 1000000L}, {0, every_ms * 1000000L}};
    NEED(timer_settime(timer, 0, &period, NULL));
    return timer;
}

static void interrupted_here(int fd) {
    char buffer[16];
    count_signal(SIGUSR1, 0);
    timer_t timer = start_timer(SIGUSR1, 20);
    CHECK_FAILS(recv(fd, buffer, 16, 0), EINTR, "recv");
    CHECK_FAILS(read(fd, buffer, 16), EINTR, "read");
    CHECK_FAILS(recv(fd, buffer, 16, MSG_PEEK), EINTR, "peek");
    CHECK_FAILS(recv(fd, buffer, 16, MSG_WAITALL), EINTR, "MSG_WAITALL with nothing yet");
    struct iovec part = {buffer, 16};
    CHECK_FAILS(readv(fd, &part, 1), EINTR, "readv");
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK_FAILS(recvmsg(fd, &message, 0), EINTR, "recvmsg");
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    CHECK_FAILS(poll(&wait, 1, -1), EINTR, "poll");
    CHECK_FAILS(ppoll(&wait, 1, NULL, NULL), EINTR, "ppoll");
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_FAILS(select(fd + 1, &in, NULL, NULL, NULL), EINTR, "select");
    struct epoll_event event;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 0);
    CHECK_FAILS(epoll_wait(epoll, &event, 1, -1), EINTR, "epoll_wait");
    CHECK(signals_seen >= 10, "each by a signal");
    NEED(timer_delete(timer));
    tell('s');
    CHECK_EQ(recv(fd, buffer, 5, MSG_WAITALL), 5, "the stream goes on");
    tell('q');
}
static void interrupted_peer(int fd) {
    await('s');
    write_all(fd, "01234", 5);
    await('q');
}

static void *tell_after_signals(void *argument) {
    (void)argument;
    UNTIL(signals_seen >= 3);
    tell('s');
    return NULL;
}

static void restarted_here(int fd) {
    char buffer[16];
    pthread_t teller;
    count_signal(SIGUSR1, SA_RESTART);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    timer_t timer = start_timer(SIGUSR1, 20);
    helper_start(&teller, tell_after_signals, NULL);
    CHECK_EQ(recv(fd, buffer, 16, 0), 5, "recv goes on");
    CHECK(signals_seen >= 3, "through signals");
    pthread_join(teller, NULL);
    signals_seen = 0;
    helper_start(&teller, tell_after_signals, NULL);
    CHECK_EQ(read(fd, buffer, 16), 5, "read goes on");
    pthread_join(teller, NULL);
    signals_seen = 0;
    helper_start(&teller, tell_after_signals, NULL);
    CHECK_EQ(recv(fd, buffer, 5, MSG_WAITALL), 5, "MSG_WAITALL goes on");
    pthread_join(teller, NULL);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    CHECK_FAILS(poll(&wait, 1, -1), EINTR, "poll never does");
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_FAILS(select(fd + 1, &in, NULL, NULL, NULL), EINTR, "nor select");
    struct epoll_event event;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 0);
    CHECK_FAILS(epoll_wait(epoll, &event, 1, -1), EINTR, "nor epoll_wait");
    set_time_limit(fd, SO_RCVTIMEO, 120000);
    CHECK_FAILS(recv(fd, buffer, 16, 0), EINTR, "nor recv with a time limit");
    set_time_limit(fd, SO_RCVTIMEO, 0);
    NEED(timer_delete(timer));
    tell('q');
}
#define restarted_peer receive_limit_peer

static void send_interrupted_here(int fd) {
    static char buffer[64 * KIB];
    uint64_t at;
    int64_t start;
    count_signal(SIGUSR1, 0);
    timer_t timer = start_timer(SIGUSR1, 20);
    int error = send_pattern_until_error(fd, &at, &start);
    CHECK_EQ(error, EINTR, "send without room");
    CHECK(signals_seen >= 1, "by a signal");
    /* With SA_RESTART it goes on until everything is sent. */
    count_signal(SIGUSR1, SA_RESTART);
    pthread_t teller;
    helper_start(&teller, tell_after_signals, NULL);
    pattern(buffer, sizeof buffer, at, 1);
    ssize_t sent = send(fd, buffer, sizeof buffer, 0);
    CHECK(sent > 0, "SA_RESTART: it goes on");
    at += (uint64_t)sent;
    pthread_join(teller, NULL);
    NEED(timer_delete(timer));
    NEED(shutdown(fd, SHUT_WR));
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "what the calls said is what came");
}
static void send_interrupted_peer(int fd) {
    await('s');
    uint64_t got = (uint64_t)drain(fd, 0, 1);
    write_all(fd, &got, sizeof got);
}

/* ppoll and pselect unblock a signal for as long as they wait. */
static void mask_while_waiting_here(int fd) {
    sigset_t usr1, none;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    NEED(pthread_sigmask(SIG_BLOCK, &usr1, NULL));
    count_signal(SIGUSR1, SA_RESTART);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    struct timespec some = {.tv_sec = 120};
    NEED(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    CHECK_EQ(signals_seen, 0, "blocked");
    CHECK_EQ(ppoll(&wait, 1, &(struct timespec){0}, &usr1), 0, "and still so in ppoll");
    CHECK_FAILS(ppoll(&wait, 1, &some, &none), EINTR, "ppoll lets it in");
    CHECK_EQ(signals_seen, 1, "once");
    NEED(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_FAILS(pselect(fd + 1, &in, NULL, NULL, &some, &none), EINTR, "pselect does");
    NEED(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    struct epoll_event event;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 0);
    CHECK_FAILS(epoll_pwait(epoll, &event, 1, 120000, &none), EINTR, "epoll_pwait does");
    CHECK_EQ(signals_seen, 3, "once each");
    NEED(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    NEED(pthread_sigmask(SIG_SETMASK, NULL, &none));
    CHECK_EQ(sigismember(&none, SIGUSR1), 1, "and it is blocked afterwards");
    tell('q');
}
static void mask_while_waiting_peer(int fd) {
    (void)fd;
    await('q');
}

/* A handler that itself uses sockets, the interrupted one included. */
static int handler_fd = -1;
static volatile sig_atomic_t handler_sent;
static void send_in_handler(int signal) {
    (void)signal;
    int error = errno;
    char byte = 'h';
    if (send(handler_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1)
        handler_sent = handler_sent + 1;
    errno = error;
}

static void handler_sends_here(int fd) {
    struct sigaction action = {.sa_handler = send_in_handler, .sa_flags = SA_RESTART};
    handler_fd = fd;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    NEED(sigaction(SIGUSR1, &action, NULL));
    timer_t timer = start_timer(SIGUSR1, 1);
    char byte;
    int rounds = 0;
    while (rounds < 3000 || handler_sent < 20) {
        write_all(fd, "m", 1);
        read_all(fd, &byte, 1);
        REQUIRE(byte == 'a');
        rounds++;
    }
    NEED(timer_delete(timer));
    signal(SIGUSR1, SIG_IGN);
    NEED(shutdown(fd, SHUT_WR));
    int told[2];
    read_all(fd, told, sizeof told);
    CHECK_EQ(told[0], rounds, "the program's own bytes");
    CHECK_EQ(told[1], handler_sent, "the handler's bytes");
}
static void handler_sends_peer(int fd) {
    int told[2] = {0, 0};
    char byte;
    ssize_t got;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    while ((got = NEED(read(fd, &byte, 1))) == 1) {
        told[byte == 'h']++;
        if (byte == 'm')
            write_all(fd, "a", 1);
    }
    write_all(fd, told, sizeof told);
}

/* Stopped and continued while it waits: nothing happened. */
static void stopped_here(int fd) {
    await('r');
    until_asleep(peer_pid());
    NEED(kill(peer_pid(), SIGSTOP));
    int status;
    NEED(waitpid(peer_pid(), &status, WUNTRACED));
    REQUIRE(WIFSTOPPED(status));
    write_pattern(fd, 50 * KIB, 0, 1); /* data lands while it is stopped */
    NEED(kill(peer_pid(), SIGCONT));
    char byte;
    read_all(fd, &byte, 1);
    CHECK(byte == 'k', "answered");
}
static void stopped_peer(int fd) {
    tell('r');
    read_pattern(fd, 50 * KIB, 0, 1);
    CHECK(true, "read as if nothing had happened");
    write_all(fd, "k", 1);
}

/* ---- cancellation ---- */

static volatile sig_atomic_t cleaned;
static void clean(void *argument) {
    (void)argument;
    cleaned = cleaned + 1;
}

static _Atomic pid_t waiter_tid;
static void *wait_in_recv(void *argument) {
    char buffer[16];
    pthread_cleanup_push(clean, NULL);
    waiter_tid = (pid_t)syscall(SYS_gettid);
    recv(*(int *)argument, buffer, sizeof buffer, 0);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *wait_in_poll(void *argument) {
    pthread_cleanup_push(clean, NULL);
    struct pollfd wait = {.fd = *(int *)argument, .events = POLLIN};
    waiter_tid = (pid_t)syscall(SYS_gettid);
    poll(&wait, 1, -1);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *wait_in_send(void *argument) {
    static char buffer[64 * KIB];
    pthread_cleanup_push(clean, NULL);
    waiter_tid = (pid_t)syscall(SYS_gettid);
    while (send(*(int *)argument, buffer, sizeof buffer, 0) > 0)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel_in(void *(*body)(void *), int fd, const char *name) {
    pthread_t thread;
    void *result;
    waiter_tid = 0;
    cleaned = 0;
    helper_start(&thread, body, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    REQUIRE(pthread_cancel(thread) == 0);
    REQUIRE(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1, name);
}

static void cancelled_here(int fd) {
    char buffer[16];
    cancel_in(wait_in_recv, fd, "in recv");
    cancel_in(wait_in_poll, fd, "in poll");
    tell('s');
    read_all(fd, buffer, 5);
    CHECK(memcmp(buffer, "01234", 5) == 0, "the stream goes on, no byte was lost");
    write_all(fd, "x", 1);
    cancel_in(wait_in_send, fd, "in send without room");
    NEED(shutdown(fd, SHUT_WR));
    tell('d');
    read_all(fd, buffer, 1);
    CHECK(buffer[0] == 'z', "the other direction goes on");
}
static void cancelled_peer(int fd) {
    static char buffer[64 * KIB];
    char byte;
    await('s');
    write_all(fd, "01234", 5);
    read_all(fd, &byte, 1);
    await('d');
    while (NEED(read(fd, buffer, sizeof buffer)) > 0)
        ;
    CHECK(true, "end of file after what was sent");
    write_all(fd, "z", 1);
}

/* ---- other threads meddle ---- */

static void *receive_one(void *argument) {
    char byte = 0;
    waiter_tid = (pid_t)syscall(SYS_gettid);
    ssize_t got = recv(*(int *)argument, &byte, 1, 0);
    return (void *)(intptr_t)(got == 1 ? byte : got);
}
static void *send_until_error(void *argument) {
    static char buffer[64 * KIB];
    waiter_tid = (pid_t)syscall(SYS_gettid);
    while (send(*(int *)argument, buffer, sizeof buffer, MSG_NOSIGNAL) > 0)
        ;
    return (void *)(intptr_t)errno;
}

/* Linux: the call that waits keeps the connection alive until it returns. */
static void closed_under_a_reader_here(int fd) {
    pthread_t reader;
    void *result;
    waiter_tid = 0;
    helper_start(&reader, receive_one, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    CHECK_EQ(close(fd), 0, "closed");
    tell('s');
    pthread_join(reader, &result);
    CHECK_EQ((intptr_t)result, 'x', "the waiting call ends with what came");
    int null = (int)NEED(open("/dev/null", O_RDWR)), fresh = (int)NEED(fcntl(null, F_DUPFD, fd));
    CHECK_EQ(fresh, fd, "the number is free for another");
    CHECK_EQ(write(fresh, "abc", 3), 3, "and is another");
}
static void closed_under_a_reader_peer(int fd) {
    char byte;
    await('s');
    CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1, "a byte for it");
    CHECK_EQ(read(fd, &byte, 1), 0, "then the end");
}

/* The same by dup2 of something else onto the number. */
static void replaced_under_a_reader_here(int fd) {
    pthread_t reader;
    void *result;
    waiter_tid = 0;
    helper_start(&reader, receive_one, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    int ends[2];
    NEED(pipe(ends));
    CHECK_EQ(dup2(ends[1], fd), fd, "replaced");
    tell('s');
    pthread_join(reader, &result);
    CHECK_EQ((intptr_t)result, 'x', "the waiting call ends with what came");
    CHECK_EQ(write(fd, "abc", 3), 3, "the number is the pipe");
    char text[4] = "";
    CHECK_EQ(read(ends[0], text, 3), 3, "which has what was written");
}
static void replaced_under_a_reader_peer(int fd) { closed_under_a_reader_peer(fd); }

/* poll looks at the number again when it wakes. */
static void *poll_one(void *argument) {
    struct pollfd wait = {.fd = *(int *)argument, .events = POLLIN};
    waiter_tid = gettid();
    return (void *)(intptr_t)(poll(&wait, 1, -1) == 1 ? wait.revents : -1);
}
static void closed_under_a_poller_here(int fd) {
    pthread_t poller;
    void *result;
    waiter_tid = 0;
    helper_start(&poller, poll_one, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    CHECK_EQ(close(fd), 0, "closed");
    tell('s');
    pthread_join(poller, &result);
    CHECK_EQ((intptr_t)result, POLLNVAL, "poll tells that the number is gone");
}
static void closed_under_a_poller_peer(int fd) {
    char byte;
    await('s');
    CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1, "a byte for it");
    CHECK_FAILS(read(fd, &byte, 1), ECONNRESET, "closed with the byte unread");
}

/* A cancelled call holds nothing. */
static void cancelled_and_closed_here(int fd) {
    cancel_in(wait_in_recv, fd, "in recv");
    cancel_in(wait_in_poll, fd, "in poll");
    CHECK_EQ(close(fd), 0, "closed");
    await('q');
}
static void cancelled_and_closed_peer(int fd) {
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file");
    tell('q');
}

static void shut_under_a_reader_here(int fd) {
    pthread_t reader;
    void *result = (void *)99;
    waiter_tid = 0;
    helper_start(&reader, receive_one, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    CHECK_EQ(shutdown(fd, SHUT_RDWR), 0, "shut");
    pthread_join(reader, &result);
    CHECK_EQ((intptr_t)result, 0, "the waiting call reads end of file");
}
static void shut_under_a_reader_peer(int fd) {
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file here too");
}

static void shut_under_a_writer_here(int fd) {
    pthread_t writer;
    void *result = NULL;
    waiter_tid = 0;
    helper_start(&writer, send_until_error, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    CHECK_EQ(shutdown(fd, SHUT_WR), 0, "shut");
    pthread_join(writer, &result);
    CHECK_EQ((intptr_t)result, EPIPE, "the waiting call finds the pipe broken");
    tell('d');
}
static void shut_under_a_writer_peer(int fd) {
    static char buffer[64 * KIB];
    await('d');
    ssize_t got;
    while ((got = NEED(read(fd, buffer, sizeof buffer))) > 0)
        ;
    CHECK_EQ(got, 0, "what was sent, then end of file");
}

static void *write_stream(void *argument) {
    write_pattern(*(int *)argument, 4 * MIB, 0, 1);
    return NULL;
}
/* A waiting reader does not keep a writer of the same socket out. */
static void reader_and_writer_here(int fd) {
    pthread_t reader, writer;
    void *result;
    waiter_tid = 0;
    helper_start(&reader, receive_one, &fd);
    UNTIL(waiter_tid != 0);
    until_asleep(waiter_tid);
    helper_start(&writer, write_stream, &fd);
    pthread_join(writer, NULL);
    tell('w');
    pthread_join(reader, &result);
    CHECK_EQ((intptr_t)result, 'x', "both did their part");
}
static void reader_and_writer_peer(int fd) {
    read_pattern(fd, 4 * MIB, 0, 1);
    await('w');
    write_all(fd, "x", 1);
}

/* A limit holds for who polls for ever, too: the watchdog is the judge. */
static int role_spinner(int argc, char **argv) {
    (void)argc, (void)argv;
    int ends[2], epoll = new_epoll();
    make_pair(ends);
    add(epoll, ends[0], EPOLLIN, 1);
    struct pollfd wait = {.fd = ends[0], .events = POLLIN};
    for (int round = 0; round < 30; round++) {
        REQUIRE(events_with(epoll, 10, 1) == 0);
        REQUIRE(poll(&wait, 1, 10) == 0);
    }
    write_all(ends[1], "x", 1);
    REQUIRE(events_with(epoll, 120000, 1) == EPOLLIN);
    REQUIRE(poll(&wait, 1, 120000) == 1);
    return 0;
}
static void limit_of_a_spinner(void) {
    int ends[2];
    make_pair(ends);
    NEED(setenv("VMMC_WAIT", "spin", 1));
    CHECK_EQ(wait_exit(spawn_role("spinner", (char *[]){NULL})), 0, "every wait ended in time");
}
static const struct role roles[] = {{"spinner", role_spinner}};

/* ---- a signal for each arrival ---- */

static void signal_driven_here(int fd) {
    char byte;
    sigset_t arrivals;
    sigemptyset(&arrivals);
    sigaddset(&arrivals, SIGIO);
    NEED(sigprocmask(SIG_BLOCK, &arrivals, NULL));
    struct pollfd look = {.fd = fd, .events = POLLIN | POLLOUT};
    NEED(poll(&look, 1, 0));
    NEED(fcntl(fd, F_SETOWN, getpid()));
    NEED(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK | O_ASYNC));
    for (int i = 0; i < 5; i++) {
        tell('s');
        while (recv(fd, &byte, 1, 0) != 1) {
            REQUIRE(errno == EAGAIN);
            NEED(sigwaitinfo(&arrivals, NULL));
        }
        CHECK(byte == (char)('0' + i), "told of by a signal");
    }
    tell('q');
}
static void signal_driven_peer(int fd) {
    for (int i = 0; i < 5; i++) {
        char byte = (char)('0' + i);
        await('s');
        write_all(fd, &byte, 1);
    }
    await('q');
}

static const struct test_case cases[] = {
    PAIR_OF_PROCESSES(signal_driven),
    PAIR_OF_PROCESSES(jumped_out),
    PAIR_OF_PROCESSES(jumped_out_of_several),
    PAIR(receive_limit),
    PAIR(send_limit),
    PAIR(trickle_in), {"trickle_look", trickle_look_here, trickle_in_peer, NULL, PROCESSES | THREADS},
    PAIR(trickle_out),
    PAIR(interrupted),
    PAIR_OF_PROCESSES(restarted),
    PAIR_OF_PROCESSES(send_interrupted),
    PAIR(mask_while_waiting),
    PAIR(handler_sends),
    PAIR_OF_PROCESSES(stopped),
    PAIR(cancelled),
    PAIR(closed_under_a_reader),
    PAIR(replaced_under_a_reader),
    PAIR(closed_under_a_poller),
    PAIR(cancelled_and_closed),
    PAIR(shut_under_a_reader),
    PAIR(shut_under_a_writer),
    PAIR(reader_and_writer),
    LONER(limit_of_a_spinner),
};

int main(int argc, char **argv) {
    set_roles(roles, COUNT(roles));
    return run_cases(argc, argv, cases, COUNT(cases));
}
