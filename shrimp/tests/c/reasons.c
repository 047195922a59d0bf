/* Both ends of one connection, which stays plain or goes back to TCP for a reason.
 *
 *   reasons KIND [PORT]
 *
 * Prints "LOCAL REMOTE" of its connecting end, or "none none" where the machine has nothing to make it of. Then does
 * one thing for each line of its input: "one", "more", "many", round trips; "act", what makes the connection of its kind
 * ("second", "resources": another connection, named like the first). Answers each by a line. Ends with its input. */
#include "../../../compat-sockets/tests/c/meeting.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int input_number = -1; /* Where the input was moved to from 0, which the connecting end gets. */
static int near = -1, far = -1; /* far: -1 when the other end is another program's, an echo */

static void turns(int count) {
    char byte = 'x';
    for (int i = 0; i < count; i++) {
        CHECK(send(near, &byte, 1, 0) == 1);
        if (far >= 0) {
            CHECK(recv(far, &byte, 1, 0) == 1);
            CHECK(send(far, &byte, 1, 0) == 1);
        }
        CHECK(recv(near, &byte, 1, 0) == 1);
    }
}

/* The machine has nothing to make such a connection of. */
static void none(void) {
    puts("none none");
    exit(0);
}

static struct in_addr other_address(void) {
    struct in_addr found = {0};
    struct ifaddrs *all, *one;
    CHECK(getifaddrs(&all) == 0);
    for (one = all; one != NULL; one = one->ifa_next)
        if (one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_INET) {
            struct in_addr ip = ((struct sockaddr_in *)one->ifa_addr)->sin_addr;
            if (ntohl(ip.s_addr) >> 24 != 127)
                found = ip;
        }
    freeifaddrs(all);
    if (found.s_addr == 0)
        none();
    return found;
}

static void join(int port, const char *kind) {
    struct sockaddr_in to = port_at("MEETING_HOST", port), from = port_at("MEETING_FROM", 0);
    socklen_t len = sizeof to;
    int listener = -1, protocol = strcmp(kind, "not_tcp") == 0 ? IPPROTO_MPTCP : 0;
    if (strcmp(kind, "remote") == 0)
        to.sin_addr = other_address();
    if (port == 0) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(listener, (struct sockaddr *)&to, len) == 0 && listen(listener, 1) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&to, &len) == 0);
    }
    if (input_number >= 0)
        close(0);
    near = socket(AF_INET, SOCK_STREAM, protocol);
    if (near < 0 && protocol != 0)
        none();
    CHECK(input_number < 0 || near == 0);
    CHECK(bind(near, (struct sockaddr *)&from, len) == 0);
    CHECK(connect(near, (struct sockaddr *)&to, len) == 0);
    CHECK(getsockname(near, (struct sockaddr *)&from, &len) == 0);
    if (listener >= 0) {
        CHECK((far = accept(listener, NULL, NULL)) >= 0);
        close(listener);
    }
    char names[2][INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &from.sin_addr, names[0], sizeof names[0]);
    inet_ntop(AF_INET, &to.sin_addr, names[1], sizeof names[1]);
    printf("%s:%d %s:%d\n", names[0], ntohs(from.sin_port), names[1], ntohs(to.sin_port));
    fflush(stdout);
}

static void pass(int fd) {
    int pair[2];
    char byte = 'p';
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(sendmsg(pair[0], &message, 0) == 1);
}

static void fork_one(void) {
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        close(0);
        close(1);
        for (;;)
            pause();
    }
}

static void fill_exclusively(void) {
    static char bytes[1 << 16];
    struct epoll_event event = {.events = EPOLLOUT | EPOLLEXCLUSIVE};
    int set = epoll_create1(0);
    CHECK(fcntl(near, F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, near, &event) == 0);
    while (send(near, bytes, sizeof bytes, 0) > 0)
        ;
    CHECK(errno == EAGAIN);
    epoll_wait(set, &event, 1, 0);
}

/* Stays plain by an option, so that the process notes one more. */
static void note_one(void) {
    struct sockaddr_in to = port_at("MEETING_HOST", 0);
    socklen_t len = sizeof to;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&to, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&to, &len) == 0);
    CHECK(connect(one, (struct sockaddr *)&to, len) == 0);
    CHECK(setsockopt(one, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    close(one);
    close(listener);
}

static void act(const char *kind) {
    int on = 1;
    if (strcmp(kind, "second") == 0)
        join(0, kind);
    if (strcmp(kind, "resources") == 0) {
        struct rlimit nothing_more = {1, 1};
        join(0, kind);
        CHECK(setrlimit(RLIMIT_AS, &nothing_more) == 0);
    }
    if (strcmp(kind, "option") == 0 || strcmp(kind, "forgotten") == 0)
        CHECK(setsockopt(near, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    if (strcmp(kind, "forgotten") == 0)
        for (int i = 0; i < 200; i++)
            note_one();
    if (strcmp(kind, "urgent") == 0)
        CHECK(send(near, "u", 1, MSG_OOB) == 1);
    if (strcmp(kind, "forked") == 0)
        fork_one();
    if (strcmp(kind, "passed") == 0)
        pass(near);
    if (strcmp(kind, "waiter") == 0)
        fill_exclusively();
    if (strcmp(kind, "io_uring") == 0) {
        struct io_uring_params params = {0};
        /* The kernel may refuse it: the program has asked. */
        syscall(SYS_io_uring_setup, 4, &params);
    }
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    const char *kind = arguments[1];
    char line[16];
    alarm(300); /* Ends a hang. */
    if (strcmp(kind, "stdio") == 0) {
        input_number = dup(0);
        join(0, kind);
        stdin = fdopen(input_number, "r");
    } else {
        join(count > 2 ? atoi(arguments[2]) : 0, kind);
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "more\n") == 0)
            turns(10);
        if (strcmp(line, "many\n") == 0)
            turns(500);
        if (strcmp(line, "one\n") == 0)
            turns(1);
        if (strcmp(line, "act\n") == 0)
            act(kind);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
