/* One end of connections that are made and closed, one after the other.
 *
 *   cycles server|client PORTFILE
 *
 * Reads numbers from standard input: makes that many connections, prints "done", reads the next. In between it
 * does nothing, so that what it holds can be counted from outside. Ends with its input. */
#include "meeting.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int server, listener = -1, set;
static struct sockaddr_in address;

static void begin(const char *portfile) {
    if (server)
        listener = listen_for(portfile);
    else
        address = await_server(portfile);
}

static int join(void) {
    if (server) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        return fd;
    }
    static int count;
    /* Every second one leaves no TIME_WAIT: there are not ports for too many of those. */
    struct linger now = {1, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(count++ % 2 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void turns(int fd, int count) {
    char byte = 'w';
    for (int i = 0; i < count; i++) {
        CHECK(server || send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
        CHECK(!server || send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
    }
}

/* Whether this process has a segment of a connection, which is the one that is open. */
static int has_segment(void) {
    char line[1000];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        found |= strstr(line, "memfd:vmmc-stream") != NULL;
    fclose(maps);
    return found;
}

/* Round trips until both ends say that they are upgraded. */
static void turns_until_upgraded(int fd) {
    char byte = 'w';
    if (server) {
        do {
            CHECK(recv(fd, &byte, 1, 0) == 1);
            char answer = byte == '?' && has_segment() ? 'u' : 'w';
            CHECK(send(fd, &answer, 1, MSG_NOSIGNAL) == 1);
        } while (byte != 'e');
        return;
    }
    do {
        turns(fd, 16);
        poll(NULL, 0, 1);
        CHECK(send(fd, "?", 1, MSG_NOSIGNAL) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
    } while (byte != 'u' || !has_segment());
    CHECK(send(fd, "e", 1, MSG_NOSIGNAL) == 1);
    CHECK(recv(fd, &byte, 1, 0) == 1);
}

/* Round trips with time for the daemon. */
static void many_turns(int fd) {
    for (int i = 0; i < 6; i++) {
        turns(fd, 8);
        if (!server)
            poll(NULL, 0, 1);
    }
}

/* Ends of every kind: before the offer (the 32nd call, two a turn), at it, while it is answered, and after. */
static void cycle(int number) {
    static const int lengths[] = {1, 12, 15, 16, 17, 18, 20};
    int fd = join(), kind = number % 16;
    char byte;
    if (kind == 0)
        turns_until_upgraded(fd);
    else if (kind == 1)
        many_turns(fd);
    else
        turns(fd, lengths[kind % 7]);
    if (kind % 3 == 0) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    if (kind % 5 == 1) {
        int other = dup(fd);
        close(fd);
        fd = other;
    }
    if (!server && kind % 4 == 1)
        CHECK(shutdown(fd, SHUT_WR) == 0);
    if (server && kind % 4 == 1)
        CHECK(recv(fd, &byte, 1, 0) <= 0);
    if (server && kind % 4 != 2) /* Else the client finds it closed, or something unread. */
        CHECK(recv(fd, &byte, 1, 0) <= 0);
    if (!server && kind % 4 == 2) {
        send(fd, "unread", 6, MSG_NOSIGNAL);
        CHECK(recv(fd, &byte, 1, 0) <= 0);
    }
    close(fd);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    server = strcmp(arguments[1], "server") == 0;
    set = epoll_create1(0);
    alarm(300); /* Ends a hang. */
    begin(arguments[2]);
    int cycles;
    while (scanf("%d", &cycles) == 1) {
        for (int i = 0; i < cycles; i++)
            cycle(i);
        /* Long ones last: whatever the daemon could not be told before it is told with their offers. */
        for (int i = 0; i < 3; i++)
            cycle(0);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
