/* What only the kernel can answer: time stamps, sending without a copy; and a close under a send that waits. */
#include "semantics.h"
#include <linux/errqueue.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#define TCP_CM_INQ TCP_INQ
#endif

/* ---- SO_TIMESTAMP and its kin ---- */

/* Whether one byte came with a control message of this type. */
static bool came_with(int fd, int type) {
    char byte, room[256];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    NEED(recvmsg(fd, &message, 0));
    bool found = false;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one != NULL; one = CMSG_NXTHDR(&message, one))
        found |= one->cmsg_level == SOL_SOCKET && one->cmsg_type == type;
    return found;
}

static void time_stamps_here(int fd) {
    static const int options[] = {SO_TIMESTAMP, SO_TIMESTAMPNS};
    for (size_t i = 0; i < COUNT(options); i++) {
        set_option(fd, SOL_SOCKET, options[i], 1);
        /* The kernel begins to stamp in its own time. */
        bool found = false;
        while (!found) {
            tell('s');
            found = came_with(fd, options[i]);
        }
        CHECK(found, "a byte has a time stamp");
        set_option(fd, SOL_SOCKET, options[i], 0);
        tell('s');
        CHECK(!came_with(fd, options[i]), "and none when it is off");
    }
    tell('q');
}
static void time_stamps_peer(int fd) {
    while (await_any() == 's')
        write_all(fd, "x", 1);
}

/* ---- TCP_INQ ---- */

/* Receives `len` bytes with `room` bytes for control data; what it is told is left, -1 for nothing. */
static int left_after(int fd, size_t len, int flags, size_t room, struct msghdr *message) {
    static char bytes[100], control[64];
    static struct iovec part;
    part = (struct iovec){bytes, len};
    memset(control, 0x55, sizeof control);
    *message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    NEED(recvmsg(fd, message, flags));
    struct cmsghdr *one = CMSG_FIRSTHDR(message);
    if (one == NULL || one->cmsg_level != IPPROTO_TCP || one->cmsg_type != TCP_CM_INQ)
        return -1;
    int left;
    memcpy(&left, CMSG_DATA(one), sizeof left);
    return left;
}
static void inq_here(int fd) {
    struct msghdr message;
    int on = 0;
    socklen_t len = sizeof on;
    for (int i = 0; i < 3; i++) {
        set_option(fd, IPPROTO_TCP, TCP_INQ, 1);
        NEED(getsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, &len));
        CHECK_EQ(on, 1, "it is on");
        tell('s');
        UNTIL(readable_bytes(fd) == 100);
        CHECK_EQ(left_after(fd, 30, MSG_PEEK, 64, &message), 100, "a look takes nothing");
        CHECK_EQ(left_after(fd, 30, 0, 64, &message), 70, "a receive is told what is left");
        CHECK_EQ(message.msg_controllen, CMSG_SPACE(sizeof(int)), "which is all");
        CHECK_EQ(message.msg_flags, 0, "and whole");
        left_after(fd, 10, 0, CMSG_LEN(2), &message);
        CHECK_EQ(message.msg_flags, MSG_CTRUNC, "cut off");
        CHECK_EQ(message.msg_controllen, CMSG_LEN(2), "where there is too little room");
        CHECK_EQ(CMSG_FIRSTHDR(&message)->cmsg_len, CMSG_LEN(2), "as its head says");
        CHECK_EQ(left_after(fd, 10, 0, 8, &message), -1, "nothing");
        CHECK_EQ(message.msg_flags, MSG_CTRUNC, "where there is none");
        CHECK_EQ(message.msg_controllen, 0, "at all");
        CHECK_EQ(left_after(fd, 50, 0, CMSG_LEN(sizeof(int)), &message), 0, "none is left");
        set_option(fd, IPPROTO_TCP, TCP_INQ, 0);
        tell('s');
        UNTIL(readable_bytes(fd) == 100);
        CHECK_EQ(left_after(fd, 100, 0, 64, &message), -1, "no word when that is off");
        CHECK_EQ(message.msg_flags, 0, "nor a flag");
    }
    set_option(fd, IPPROTO_TCP, TCP_INQ, 1);
    tell('q');
    CHECK_EQ(left_after(fd, 100, 0, 64, &message), 1, "at the end, to have it seen");
}
static void inq_peer(int fd) {
    char bytes[100] = {0};
    while (await_any() == 's')
        write_all(fd, bytes, sizeof bytes);
    NEED(shutdown(fd, SHUT_WR));
}

/* Asked for before there is a connection: of the one end itself, of the other by way of its listener. */
static void time_stamps_early(void) {
    uint16_t port = 0;
    int listener = listen_loopback(&port), near = (int)NEED(socket(AF_INET, SOCK_STREAM, 0)), without = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    set_option(listener, SOL_SOCKET, SO_TIMESTAMP, 1);
    set_option(near, SOL_SOCKET, SO_TIMESTAMP, 1);
    NEED(connect(near, (struct sockaddr *)&address, sizeof address));
    int far = (int)NEED(accept(listener, NULL, NULL));
    /* The kernel begins to stamp in its own time. */
    bool begun = false;
    for (int round = 0; round < 300; round += begun) {
        write_all(near, "x", 1);
        bool there = came_with(far, SO_TIMESTAMP);
        write_all(far, "y", 1);
        bool back = came_with(near, SO_TIMESTAMP);
        without += begun && !(there && back);
        begun |= there && back;
        if (round % 10 == 9)
            usleep(1000); /* Not to synchronise: lets the daemon pair them, if it would. */
    }
    CHECK_EQ(without, 0, "every byte has its time stamp");
}

/* ---- MSG_ZEROCOPY ---- */

static void no_copy_here(int fd) {
    enum { LENGTH = 64 * KIB };
    static char bytes[LENGTH];
    pattern(bytes, LENGTH, 0, 7);
    CHECK_EQ(send(fd, bytes, 1000, MSG_ZEROCOPY), 1000, "the flag alone is no mistake");
    set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    CHECK_EQ(send(fd, bytes + 1000, LENGTH - 1000, MSG_ZEROCOPY), LENGTH - 1000, "sent");
    await('r');
    char room[256];
    struct msghdr message = {.msg_control = room, .msg_controllen = sizeof room};
    UNTIL(recvmsg(fd, &message, MSG_ERRQUEUE) == 0);
    struct cmsghdr *one = CMSG_FIRSTHDR(&message);
    REQUIRE(one != NULL);
    struct sock_extended_err told;
    memcpy(&told, CMSG_DATA(one), sizeof told);
    CHECK_EQ(told.ee_origin, SO_EE_ORIGIN_ZEROCOPY, "the kernel tells that the buffer is free");
    write_all(fd, "after", 5);
    tell('q');
}
static void no_copy_peer(int fd) {
    enum { LENGTH = 64 * KIB };
    char text[6] = "";
    read_pattern(fd, LENGTH, 0, 7);
    tell('r');
    read_all(fd, text, 5);
    CHECK(strcmp(text, "after") == 0, "the stream goes on");
    await('q');
}

/* ---- close under a send ---- */

enum { MUCH = 16 * MIB };
static volatile pid_t writer;

static void *send_much(void *argument) {
    static char bytes[MUCH];
    pattern(bytes, MUCH, 0, 9);
    writer = (pid_t)syscall(SYS_gettid);
    return (void *)(intptr_t)send(*(int *)argument, bytes, MUCH, MSG_NOSIGNAL);
}
/* The call that waits goes on with the socket that the number meant, and ends with all that it was given. */
static void closed_under_a_writer_here(int fd) {
    pthread_t thread;
    void *result;
    helper_start(&thread, send_much, &fd);
    UNTIL(writer != 0);
    until_asleep(writer);
    CHECK_EQ(close(fd), 0, "closed");
    int null = (int)NEED(open("/dev/null", O_RDWR)), fresh = (int)NEED(fcntl(null, F_DUPFD, fd));
    CHECK_EQ(fresh, fd, "the number is free for another");
    tell('s');
    NEED(pthread_join(thread, &result));
    CHECK_EQ((intptr_t)result, MUCH, "the waiting call sends all");
}
static void closed_under_a_writer_peer(int fd) {
    await('s');
    CHECK_EQ(drain(fd, 0, 9), MUCH, "all of it comes, then the end");
}

static const struct test_case cases[] = {
    PAIR(time_stamps),
    PAIR(inq),
    LONER(time_stamps_early),
    PAIR(no_copy),
    PAIR(closed_under_a_writer),
};
MAIN(cases)
