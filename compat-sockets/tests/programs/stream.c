/* One end of a TCP connection, doing what ordinary programs do. Knows nothing of the library.
 *
 *   stream SCENARIO server PORTFILE      listens on a port of its own, writes it to PORTFILE
 *   stream SCENARIO client PORTFILE
 *   stream SCENARIO self   -             both ends in one process
 *
 * Prints what it saw (checksums, errors, counts); the same program under the same scenario must
 * print the same with and without the library. Exit status 0 unless something was wrong.
 */
#include "../c/meeting.h"
#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int server;
static const char *portfile;
static int listener = -1;

/* ---- pieces ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t sum, const unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ bytes[i]) * 1099511628211ull;
    return sum;
}
#define SUM0 1469598103934665603ull

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fill(uint64_t *state, unsigned char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++)
        bytes[i] = (unsigned char)next_random(state);
}

static int join(void) {
    if (server) {
        if (listener < 0)
            listener = listen_for(portfile);
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        return fd;
    }
    struct sockaddr_in address = await_server(portfile);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (getenv("MEETING_FROM") != NULL) {
        struct sockaddr_in from = port_at("MEETING_FROM", 0);
        CHECK(bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    }
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void send_all(int fd, const void *bytes, size_t len) {
    const char *at = bytes;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        CHECK(sent > 0);
        at += sent;
        len -= sent;
    }
}

static void recv_all(int fd, void *bytes, size_t len) {
    char *at = bytes;
    while (len > 0) {
        ssize_t got = recv(fd, at, len, 0);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK(got > 0);
        at += got;
        len -= got;
    }
}

/* Round trips, enough for both directions to be upgraded where that can happen. */
static void warm_up_n(int fd, int turns) {
    char byte = 'w';
    for (int i = 0; i < turns; i++) {
        if (server) {
            recv_all(fd, &byte, 1);
            send_all(fd, &byte, 1);
        } else {
            send_all(fd, &byte, 1);
            recv_all(fd, &byte, 1);
        }
        CHECK(byte == 'w');
    }
}
static void warm_up(int fd) {
    for (int i = 0; i < 60; i++) {
        warm_up_n(fd, 10);
        if (!server)
            poll(NULL, 0, 1); /* lets the daemon have the processor */
    }
}

/* One byte each way: both are at the same place. */
static void meet(int fd) { warm_up_n(fd, 1); }

static void nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
}

/* ---- scenarios --------------------------------------------------------------------------- */

/* Exchanges blocks until the connection ends, in whatever way; every block that comes whole is right. Makes a file when it
 * has been going on for a while. */
static void endless(void) {
    enum { BLOCK = 1 << 16 };
    static unsigned char block[BLOCK];
    int fd = join();
    warm_up(fd);
    for (int turn = 0;; turn++) {
        size_t done = 0;
        for (int sending = !server, half = 0; half < 2; half++, sending = !sending, done = 0) {
            if (sending)
                memset(block, turn, BLOCK);
            while (done < BLOCK) {
                ssize_t len = sending ? send(fd, block + done, BLOCK - done, MSG_NOSIGNAL)
                                      : recv(fd, block + done, BLOCK - done, 0);
                if (len <= 0) {
                    printf("ended: %s\n", len < 0 ? "error" : "end of file");
                    close(fd);
                    return;
                }
                done += len;
            }
            for (int i = 0; i < BLOCK; i++)
                CHECK(block[i] == (unsigned char)turn);
        }
        if (turn % 50 == 49 && !server) {
            char name[4096];
            snprintf(name, sizeof name, "%s.going", portfile);
            FILE *file = fopen(name, "w");
            CHECK(file != NULL && fclose(file) == 0);
        }
    }
}

/* Passes a socket to this process itself, under a number of which the library knows nothing. */
static int pass_to_oneself(int fd) {
    char byte = 'b', control[CMSG_SPACE(sizeof(int))] = {0};
    int ends[2];
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    CHECK(recvmsg(ends[1], &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    close(ends[0]);
    close(ends[1]);
    return fd;
}

/* The server passes its socket on with bytes unread and the client's FIN behind them, or after its daemon's death: there is
 * nobody to send them again, so it does not wait for anybody. A wait is turns of a millisecond. For the death both go on
 * until they are told that the connection is carried. */
static void passed(int dies) {
    char byte = 'b', name[4096];
    int fd = join(), unread = 0;
    do {
        warm_up(fd);
        if (!server) {
            snprintf(name, sizeof name, "%s.carried", portfile);
            byte = dies && access(name, F_OK) != 0 ? 'm' : 'e';
            send_all(fd, &byte, 1);
        } else {
            recv_all(fd, &byte, 1);
        }
    } while (byte == 'm');
    if (!server) {
        send_all(fd, "0123456789", 10);
        if (!dies)
            CHECK(shutdown(fd, SHUT_WR) == 0);
        while (recv(fd, &byte, 1, 0) > 0)
            ;
        close(fd);
        return;
    }
    struct pollfd entry = {.fd = fd, .events = POLLRDHUP};
    while (unread < 10) {
        CHECK(ioctl(fd, FIONREAD, &unread) == 0);
        poll(NULL, 0, 1);
    }
    if (dies) {
        snprintf(name, sizeof name, "%s.unread", portfile);
        close(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        snprintf(name, sizeof name, "%s.dead", portfile);
        while (access(name, F_OK) != 0)
            poll(NULL, 0, 1);
    } else {
        CHECK(poll(&entry, 1, -1) == 1);
    }
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
    close(pass_to_oneself(fd));
    CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
    printf("%s\n", after.ru_nvcsw - before.ru_nvcsw < 5000 ? "passed" : "waited");
    close(fd);
}
static void passed_after_the_end(void) { passed(0); }

/* The server passes a socket on that it has just offered to the daemon, which waits for the other end, and closes it: the
 * client, which offers nothing, hears of that now, and not when the daemon has waited enough. */
static void passed_while_offered(void) {
    char bytes[40] = {0};
    int before = join();
    warm_up(before);
    int fd = join();
    if (server) {
        for (int i = 0; i < 40; i++)
            send_all(fd, bytes + i, 1);
        int alone = pass_to_oneself(fd);
        close(fd);
        close(alone);
    } else {
        struct timeval patience = {.tv_sec = 20};
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_WAITALL), end = recv(fd, bytes, 1, 0);
        printf("%zd, %zd\n", got, end);
        close(fd);
    }
    meet(before);
    close(before);
}

/* The client sends and ends, and the server leaves for the kernel alone at some moment about then: when the end is there, or
 * at the first byte and a little later. It finds every byte. */
static void left_at_the_end(void) {
    static unsigned char bytes[200000];
    const size_t lengths[] = {10, 20000, 200000};
    for (int turn = 0; turn < 18; turn++) {
        int fd = join(), moment = turn / 3 % 3;
        size_t len = moment == 0 && turn % 3 == 2 ? 30000 : lengths[turn % 3];
        uint64_t state = 77 + turn, sum = SUM0, all = 0;
        warm_up(fd);
        meet(fd);
        if (!server) {
            fill(&state, bytes, len);
            send_all(fd, bytes, len);
            if (turn >= 9)
                CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, bytes, 1, 0) == 0);
            close(fd);
            continue;
        }
        struct pollfd entry = {.fd = fd, .events = moment == 0 ? POLLRDHUP : POLLIN};
        CHECK(poll(&entry, 1, -1) == 1);
        for (int i = 0; moment == 2 && i < turn; i++)
            sched_yield();
        int alone = pass_to_oneself(fd);
        close(fd);
        for (ssize_t got; (got = recv(alone, bytes, sizeof bytes, 0)) != 0; all += got) {
            CHECK(got > 0);
            sum = mix(sum, bytes, got);
        }
        printf("%d: %zu of %zu, %llx\n", turn, (size_t)all, len, (unsigned long long)sum);
        close(alone);
    }
}
static void passed_after_a_death(void) { passed(1); }

/* Echo with random sizes; both ends print the sum of what they saw. */
static void echo(void) {
    int fd = join(), one = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    uint64_t random = 88172645463325252ull, sum = SUM0;
    static unsigned char out[100000], in[100000];
    for (int i = 0; i < 3000; i++) {
        uint32_t len;
        if (!server) {
            len = i % 50 == 0 ? next_random(&random) % sizeof out + 1 : next_random(&random) % 200 + 1;
            fill(&random, out, len);
            send_all(fd, &len, sizeof len);
            send_all(fd, out, len);
            recv_all(fd, in, len);
            CHECK(memcmp(in, out, len) == 0);
        } else {
            recv_all(fd, &len, sizeof len);
            CHECK(len > 0 && len <= sizeof in);
            recv_all(fd, in, len);
            send_all(fd, in, len);
        }
        sum = mix(sum, in, len);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    close(fd);
}

enum how { LT, ET, ONESHOT, POLL, SELECT };

/* Both ends send `total` bytes as fast as they can and receive as much, non-blocking. */
static void pump(enum how how, size_t total, int warm) {
    int fd = join();
    if (warm)
        warm_up(fd);
    nonblocking(fd);
    uint64_t random = server ? 12345 : 54321, sent_sum = SUM0, got_sum = SUM0;
    size_t sent = 0, got = 0, part = 0, part_at = 0;
    static unsigned char out[60000], in[50000];
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.data.u64 = 0x1234567887654321ull};
    if (how <= ONESHOT) {
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
        event.events |= how == ET ? EPOLLET : how == ONESHOT ? EPOLLONESHOT : 0;
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    int can_read = 1, can_write = 1;
    while (sent < total || got < total) {
        int want_write = sent < total;
        if (!(how == ET && ((can_read && got < total) || (can_write && want_write)))) {
            can_read = can_write = 0;
            if (how <= ONESHOT) {
                struct epoll_event found[4];
                if (how != ET) {
                    event.events = EPOLLIN | (want_write ? EPOLLOUT : 0) |
                                   (how == ONESHOT ? EPOLLONESHOT : 0);
                    CHECK(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event) == 0);
                }
                int count = epoll_wait(epfd, found, 4, -1);
                CHECK(count == 1 && found[0].data.u64 == 0x1234567887654321ull);
                can_read = (found[0].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
                can_write = (found[0].events & EPOLLOUT) != 0;
            } else if (how == POLL) {
                struct pollfd entry = {.fd = fd, .events = POLLIN | (want_write ? POLLOUT : 0)};
                CHECK(poll(&entry, 1, -1) == 1);
                can_read = (entry.revents & (POLLIN | POLLHUP | POLLERR)) != 0;
                can_write = (entry.revents & POLLOUT) != 0;
            } else {
                fd_set reads, writes;
                FD_ZERO(&reads);
                FD_ZERO(&writes);
                FD_SET(fd, &reads);
                if (want_write)
                    FD_SET(fd, &writes);
                CHECK(select(fd + 1, &reads, &writes, NULL, NULL) >= 1);
                can_read = FD_ISSET(fd, &reads);
                can_write = FD_ISSET(fd, &writes);
            }
        }
        if (can_read && got < total) {
            size_t most = total - got < sizeof in ? total - got : sizeof in;
            ssize_t len = read(fd, in, most);
            if (len < 0) {
                CHECK(errno == EAGAIN);
                can_read = 0;
            } else {
                CHECK(len > 0);
                got_sum = mix(got_sum, in, len);
                got += len;
            }
        }
        if (can_write && want_write) {
            if (part_at == part) {
                part = next_random(&random) % sizeof out + 1;
                part = part < total - sent ? part : total - sent;
                fill(&random, out, part);
                sent_sum = mix(sent_sum, out, part);
                part_at = 0;
            }
            ssize_t len = write(fd, out + part_at, part - part_at);
            if (len < 0) {
                CHECK(errno == EAGAIN);
                can_write = 0;
            } else {
                part_at += len;
                sent += len;
            }
        }
    }
    printf("sent %016llx got %016llx\n", (unsigned long long)sent_sum, (unsigned long long)got_sum);
    /* Nobody closes before both have everything. */
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    meet(fd);
    close(fd);
    close(epfd);
}

/* The server only sends, the client only receives, slowly at first and not before the server has found no room
 * and made a file: the ring is full and writability must come back, level- and edge-triggered. */
static void full(enum how how) {
    int fd = join();
    size_t total = 8 << 20, done = 0;
    uint64_t random = 4242, sum = SUM0;
    static unsigned char bytes[30000];
    char path[4096];
    warm_up(fd);
    snprintf(path, sizeof path, "%s.full", portfile);
    if (!server) {
        size_t turn = 0;
        while (access(path, F_OK) != 0)
            poll(NULL, 0, 5);
        while (done < total) {
            /* Let the sender run full before reading on. */
            if (turn++ < 40)
                poll(NULL, 0, 5);
            ssize_t len = recv(fd, bytes, sizeof bytes, 0);
            CHECK(len > 0);
            sum = mix(sum, bytes, len);
            done += len;
        }
    } else {
        nonblocking(fd);
        int epfd = epoll_create1(0), fulls = 0;
        struct epoll_event event = {.events = EPOLLOUT | (how == ET ? EPOLLET : 0), .data.fd = fd};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
        size_t part = 0, at = 0;
        while (done < total) {
            if (at == part) {
                part = sizeof bytes < total - done ? sizeof bytes : total - done;
                fill(&random, bytes, part);
                sum = mix(sum, bytes, part);
                at = 0;
            }
            ssize_t len = send(fd, bytes + at, part - at, MSG_NOSIGNAL);
            if (len < 0) {
                CHECK(errno == EAGAIN);
                if (fulls++ == 0)
                    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
                CHECK(epoll_wait(epfd, &event, 1, -1) == 1);
                CHECK(event.events == EPOLLOUT && event.data.fd == fd);
                continue;
            }
            at += len;
            done += len;
        }
        CHECK(fulls > 0);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    meet(fd);
    close(fd);
}

/* The same of a process that has a ring of io_uring, which its connection has nothing to do with. */
static void echo_with_io_uring(void) {
    struct io_uring_params params = {0};
    CHECK(syscall(SYS_io_uring_setup, 4, &params) >= 0);
    echo();
}

/* The same of one that is to have no ring, and does without. */
static void echo_refused_io_uring(void) {
    struct io_uring_params params = {0};
    CHECK(syscall(SYS_io_uring_setup, 4, &params) == -1 && errno == ENOSYS);
    echo();
}

static void half_close(void) {
    int fd = join();
    static unsigned char bytes[300000];
    uint64_t random = 7, sum = SUM0;
    char rest[100000];
    ssize_t len;
    size_t total = 0;
    warm_up(fd);
    if (!server) {
        fill(&random, bytes, sizeof bytes);
        send_all(fd, bytes, sizeof bytes);
        CHECK(shutdown(fd, SHUT_WR) == 0);
        CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    }
    while ((len = recv(fd, rest, sizeof rest, 0)) > 0) {
        sum = mix(sum, (unsigned char *)rest, len);
        total += len;
    }
    CHECK(len == 0);
    if (server) {
        /* The other end still reads, and has sent its FIN. */
        for (int i = 0; i < 10; i++)
            send_all(fd, bytes, sizeof bytes);
    }
    printf("total %zu sum %016llx\n", total, (unsigned long long)sum);
    close(fd);
}

static void eof_after_data(void) {
    int fd = join();
    warm_up(fd);
    if (server) {
        char bytes[5000];
        memset(bytes, 'd', sizeof bytes);
        send_all(fd, bytes, sizeof bytes);
        close(fd);
        printf("sent\n");
    } else {
        char bytes[777];
        ssize_t len;
        size_t total = 0;
        struct pollfd entry = {.fd = fd, .events = POLLIN | POLLRDHUP};
        do {
            CHECK(poll(&entry, 1, -1) == 1);
        } while (!(entry.revents & POLLRDHUP));
        while ((len = recv(fd, bytes, sizeof bytes, 0)) > 0)
            total += len;
        CHECK(len == 0 && recv(fd, bytes, 1, 0) == 0);
        printf("total %zu\n", total);
        close(fd);
    }
}

static volatile sig_atomic_t pipes;
static void on_pipe(int signal) { pipes += signal == SIGPIPE; }

/* The client closes with data unread: an RST. The server's next calls fail as TCP's do. */
static void reset(void) {
    int fd = join();
    char bytes[64] = {0};
    warm_up(fd);
    if (!server) {
        recv_all(fd, bytes, 10); /* of 20 */
        close(fd);
        printf("closed\n");
        return;
    }
    signal(SIGPIPE, on_pipe);
    send_all(fd, bytes, 20);
    ssize_t got = recv(fd, bytes, sizeof bytes, 0);
    printf("recv %zd %s\n", got, got < 0 ? strerror(errno) : "");
    got = send(fd, bytes, 1, 0);
    printf("send %zd %s pipes %d\n", got, got < 0 ? strerror(errno) : "", (int)pipes);
    got = send(fd, bytes, 1, MSG_NOSIGNAL);
    printf("send %zd %s pipes %d\n", got, got < 0 ? strerror(errno) : "", (int)pipes);
    close(fd);
}

/* The client closes properly; a server that goes on sending gets SIGPIPE and EPIPE. */
static void broken_pipe(void) {
    int fd = join();
    char byte = 'x';
    warm_up(fd);
    if (!server) {
        close(fd);
        printf("closed\n");
        return;
    }
    signal(SIGPIPE, on_pipe);
    CHECK(recv(fd, &byte, 1, 0) == 0);
    ssize_t sent;
    int turns = 0;
    do {
        sent = send(fd, &byte, 1, 0);
        turns++;
        sched_yield(); /* The answer to the first, an RST, comes in the kernel's own time. */
    } while (sent == 1 && turns < 100000);
    printf("%s pipes %d\n", strerror(errno), (int)pipes);
    close(fd);
}

static void timeouts(void) {
    int fd = join();
    warm_up(fd);
    if (server) {
        struct timeval time = {0, 50000};
        char byte;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
        ssize_t got = recv(fd, &byte, 1, 0);
        printf("recv %zd %s\n", got, strerror(errno));
        CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
        static char bytes[1 << 20];
        ssize_t sent;
        do {
            sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        } while (sent == sizeof bytes);
        while (sent > 0)
            sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        printf("send %s\n", strerror(errno));
        time.tv_usec = 0;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)) == 0);
    } else {
        /* Stay until the server goes. */
        struct pollfd entry = {.fd = fd, .events = POLLRDHUP};
        CHECK(poll(&entry, 1, -1) == 1);
    }
    close(fd);
}

/* The client kills itself while the server is blocked. */
static void killed_reader_waits(void) {
    int fd = join();
    warm_up(fd);
    if (!server) {
        fflush(NULL);
        kill(getpid(), SIGKILL);
    }
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    printf("%s\n", got <= 0 ? "ended" : "data?");
    close(fd);
}

static void killed_writer_waits(void) {
    int fd = join();
    warm_up(fd);
    if (!server) {
        /* Dies when the server cannot send any more. */
        int queued, before = -1, same = 0;
        while (same < 20) {
            CHECK(ioctl(fd, FIONREAD, &queued) == 0);
            same = queued == before && queued > 0 ? same + 1 : 0;
            before = queued;
            poll(NULL, 0, 5);
        }
        kill(getpid(), SIGKILL);
    }
    static char bytes[100000];
    ssize_t sent;
    do {
        sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    } while (sent > 0);
    printf("%s\n", errno == EPIPE || errno == ECONNRESET ? "ended" : strerror(errno));
    close(fd);
}

static void flags(void) {
    int fd = join();
    char bytes[100];
    warm_up(fd);
    if (!server) {
        /* Nothing comes to the server before it has seen that there is nothing. */
        recv_all(fd, bytes, 1);
        meet(fd);
        send_all(fd, "0123456789", 10);
        meet(fd);
        send_all(fd, "abcde", 5);
        meet(fd);
        send_all(fd, "fghij", 5);
        struct iovec out[3] = {{"one", 3}, {"", 0}, {"three", 5}};
        CHECK(writev(fd, out, 3) == 8);
        struct msghdr message = {.msg_iov = out, .msg_iovlen = 3};
        CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == 8);
        meet(fd);
        printf("done\n");
        close(fd);
        return;
    }
    int queued = -1;
    CHECK(recv(fd, bytes, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(ioctl(fd, FIONREAD, &queued) == 0 && queued == 0);
    send_all(fd, "g", 1);
    meet(fd);
    CHECK(recv(fd, bytes, 10, MSG_PEEK | MSG_WAITALL) == 10 && memcmp(bytes, "0123456789", 10) == 0);
    /* The byte of meet() may be there already. */
    CHECK(ioctl(fd, FIONREAD, &queued) == 0 && queued >= 10 && queued <= 11);
    CHECK(recv(fd, bytes, 4, MSG_PEEK) == 4 && memcmp(bytes, "0123", 4) == 0);
    CHECK(recv(fd, bytes, 4, MSG_TRUNC) == 4);
    CHECK(recv(fd, bytes, 6, 0) == 6 && memcmp(bytes, "456789", 6) == 0);
    meet(fd);
    /* The first five come now, the others after we have met again: in another thread's time. */
    CHECK(recv(fd, bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "abcde", 5) == 0);
    meet(fd);
    struct iovec in[2] = {{bytes, 3}, {bytes + 10, 2}};
    CHECK(recv(fd, bytes + 20, 5, MSG_WAITALL) == 5 && memcmp(bytes + 20, "fghij", 5) == 0);
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    CHECK(recvmsg(fd, &message, MSG_WAITALL) == 5);
    CHECK(memcmp(bytes, "one", 3) == 0 && memcmp(bytes + 10, "th", 2) == 0);
    CHECK(message.msg_flags == 0);
    CHECK(recv(fd, bytes, 3, MSG_WAITALL) == 3 && memcmp(bytes, "ree", 3) == 0);
    in[0].iov_len = 3;
    in[1].iov_len = 5;
    ssize_t got = readv(fd, in, 2);
    CHECK(got > 0 && memcmp(bytes, "one", got < 3 ? got : 3) == 0);
    if (got < 8)
        recv_all(fd, bytes, 8 - got);
    int value = 1;
    socklen_t len = sizeof value;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 0);
    value = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value != 0);
    meet(fd);
    printf("done\n");
    close(fd);
}

static void send_file(void) {
    int fd = join();
    size_t total = 3 << 20;
    uint64_t sum = SUM0;
    warm_up(fd);
    if (server) {
        char name[] = "/tmp/vmmc-stream-XXXXXX";
        int file = mkstemp(name);
        unlink(name);
        static unsigned char bytes[3 << 20];
        uint64_t random = 99;
        fill(&random, bytes, total);
        CHECK(write(file, bytes, total) == (ssize_t)total);
        sum = mix(sum, bytes, total);
        off_t offset = 0;
        while (offset < (off_t)(total / 2)) {
            off_t before = offset;
            ssize_t sent = sendfile(fd, file, &offset, total / 2 - offset);
            CHECK(sent > 0 && offset == before + sent);
        }
        CHECK(lseek(file, total / 2, SEEK_SET) == (off_t)(total / 2));
        size_t done = total / 2;
        ssize_t sent;
        while ((sent = sendfile(fd, file, NULL, 1 << 20)) > 0)
            done += sent;
        CHECK(sent == 0 && done == total && lseek(file, 0, SEEK_CUR) == (off_t)total);
    } else {
        static unsigned char bytes[3 << 20];
        recv_all(fd, bytes, total);
        sum = mix(sum, bytes, total);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    meet(fd);
    close(fd);
}

static void splices(void) {
    int fd = join();
    warm_up(fd);
    int ends[2];
    CHECK(pipe(ends) == 0);
    char bytes[9000];
    memset(bytes, 's', sizeof bytes);
    if (server) {
        CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes);
        size_t done = 0;
        while (done < sizeof bytes) {
            ssize_t len = splice(ends[0], NULL, fd, NULL, sizeof bytes - done, 0);
            CHECK(len > 0);
            done += len;
        }
    } else {
        size_t done = 0;
        while (done < sizeof bytes) {
            ssize_t len = splice(fd, NULL, ends[1], NULL, sizeof bytes - done, 0);
            CHECK(len > 0);
            CHECK(read(ends[0], bytes, len) == len);
            for (ssize_t i = 0; i < len; i++)
                CHECK(bytes[i] == 's');
            done += len;
        }
    }
    meet(fd);
    printf("done\n");
    close(fd);
}

static void duplicates(void) {
    int fd = join();
    warm_up(fd);
    int other = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 100), fourth = 200;
    CHECK(other >= 0 && third >= 100 && dup2(fd, fourth) == fourth);
    warm_up_n(other, 20);
    close(fd);
    warm_up_n(third, 20);
    warm_up_n(fourth, 20);
    close(third);
    close(other);
    meet(fourth);
    /* The last one goes: now the other end sees the end. */
    if (server) {
        close(fourth);
    } else {
        char byte;
        CHECK(recv(fourth, &byte, 1, 0) == 0);
        close(fourth);
    }
    printf("done\n");
}

/* Parent and child take turns on an upgraded connection. */
static void forked(void) {
    int fd = join();
    warm_up(fd);
    if (!server) {
        char byte;
        for (char i = 0; i < 100; i++) {
            send_all(fd, &i, 1);
            recv_all(fd, &byte, 1);
            CHECK(byte == i);
        }
        CHECK(recv(fd, &byte, 1, 0) == 0);
        printf("done\n");
        close(fd);
        return;
    }
    for (int turn = 0; turn < 10; turn++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte;
            for (int i = 0; i < 5; i++) {
                recv_all(fd, &byte, 1);
                send_all(fd, &byte, 1);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        char byte;
        for (int i = 0; i < 5; i++) {
            recv_all(fd, &byte, 1);
            send_all(fd, &byte, 1);
        }
    }
    close(fd);
    printf("done\n");
}

/* Forked by a server that has only listened so far; afterwards one process listens on and the other answers. */
static void forked_silent(void) {
    enum { BEFORE = 4000, AFTER = 1000, SIZE = 100, ANSWER = 200000 };
    static unsigned char bytes[ANSWER];
    int fd = join();
    uint64_t random = 7;
    if (!server) {
        for (int i = 0; i < BEFORE + AFTER; i++) {
            fill(&random, bytes, SIZE);
            send_all(fd, bytes, SIZE);
        }
        recv_all(fd, bytes, ANSWER);
        printf("sum %016llx\n", (unsigned long long)mix(SUM0, bytes, ANSWER));
        close(fd);
        return;
    }
    for (int i = 0; i < BEFORE; i++)
        recv_all(fd, bytes, SIZE);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char wanted[SIZE];
        for (int i = 0; i < BEFORE; i++)
            fill(&random, wanted, SIZE);
        for (int i = 0; i < AFTER; i++) {
            fill(&random, wanted, SIZE);
            recv_all(fd, bytes, SIZE);
            CHECK(memcmp(bytes, wanted, SIZE) == 0);
        }
        _exit(0);
    }
    fill(&random, bytes, ANSWER);
    send_all(fd, bytes, ANSWER);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(fd);
    printf("done\n");
}

/* Children that end, each in its own way, and that the connection does not suffer from afterwards. */
static void children_that_end(void) {
    pid_t child;
    int status;
    CHECK((child = fork()) >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0)
        raise(SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    /* Nobody waits for this one. */
    CHECK((child = fork()) >= 0);
    if (child == 0)
        _exit(0);
    siginfo_t ended;
    CHECK(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A fork that fails: no more processes for a user who is not root, no memory for anybody. */
    struct rlimit was, none = {0, 0};
    CHECK(getrlimit(RLIMIT_AS, &was) == 0);
    none.rlim_max = was.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    child = fork();
    CHECK(setrlimit(RLIMIT_AS, &was) == 0);
    if (child == 0)
        _exit(0);
    if (child > 0)
        CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A byte there and back, so many times; then the end. */
static void take_turns(int fd, int turns) {
    char byte = 0;
    for (int i = 0; i < turns; i++) {
        if (!server)
            send_all(fd, &byte, 1);
        recv_all(fd, &byte, 1);
        if (server)
            send_all(fd, &byte, 1);
    }
    meet(fd);
    printf("done\n");
    close(fd);
}

/* Java starts programs by a helper of its own, which closes what it inherits: sockets of Java are not close-on-exec. */
static void java_helper(void) {
    char path[4096];
    int fd = join(), status;
    warm_up(fd);
    if (server) {
        CHECK(snprintf(path, sizeof path, "%s.d", portfile) < (int)sizeof path);
        CHECK(mkdir(path, 0700) == 0);
        strcat(path, "/jspawnhelper");
        CHECK(symlink("/bin/true", path) == 0);
        for (int i = 0; i < 3; i++) {
            pid_t child;
            CHECK(posix_spawn(&child, path, NULL, NULL, (char *[]){path, NULL}, environ) == 0);
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
    }
    take_turns(fd, 2000);
}

/* A server that has forked (redis does, to save), and goes on alone. */
static void forked_and_alone(void) {
    int fd = join();
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    warm_up(fd);
    if (server)
        children_that_end();
    take_turns(fd, 20000);
}

/* A child forked before any upgrade, whose parent keeps the connection too: it must stay whole. */
static void forked_early(void) {
    int fd = join();
    if (!server) {
        warm_up_n(fd, 200);
        printf("done\n");
        close(fd);
        return;
    }
    warm_up_n(fd, 3);
    pid_t child = fork();
    if (child == 0) {
        warm_up_n(fd, 197);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(fd);
    printf("done\n");
}

/* In the middle of the stream something that needs the kernel. */
static void demoted(void) {
    int fd = join();
    warm_up(fd);
    uint64_t random = server ? 5 : 6, sum = SUM0;
    unsigned char out[1000], in[1000];
    for (int i = 0; i < 200; i++) {
        if (i == 100 && server) {
            int one = 1;
            CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one) == 0);
        }
        size_t len = i % sizeof out + 1;
        fill(&random, out, len);
        send_all(fd, out, len);
        recv_all(fd, in, len);
        sum = mix(sum, in, len);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    meet(fd);
    close(fd);
}

/* What TCP_INFO says that this end has received, or, as the client, sent; the C library's struct ends before (linux/tcp.h). */
static uint64_t counted_by_tcp(int fd) {
    uint64_t info[27] = {0};
    socklen_t len = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0);
    return server ? info[16] : info[25] - info[26];
}

/* The server is busy now and then while its ring is full, so that the client goes on by TCP; in between, both exchange blocks. */
static void rests(void) {
    enum { ROUNDS = 2, MUCH = 3 << 19, BLOCK = 1000 };
    static unsigned char bytes[MUCH];
    const int blocks[ROUNDS + 1] = {60, 110, 10};
    int fd = join();
    warm_up(fd);
    uint64_t random = 9, sum = SUM0, counted = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        if (server) {
            poll(NULL, 0, round < ROUNDS ? 700 : 0);
            recv_all(fd, bytes, MUCH);
            sum = mix(sum, bytes, MUCH);
        } else {
            fill(&random, bytes, MUCH);
            sum = mix(sum, bytes, MUCH);
            send_all(fd, bytes, MUCH);
        }
        /* Longer than the ring rests each time. */
        for (int i = 0; i < blocks[round]; i++) {
            unsigned char block[BLOCK];
            if (!server) {
                poll(NULL, 0, 20);
                fill(&random, block, BLOCK);
                send_all(fd, block, BLOCK);
            }
            recv_all(fd, block, BLOCK);
            sum = mix(sum, block, BLOCK);
            counted = counted_by_tcp(fd);
            if (server)
                send_all(fd, block, BLOCK);
        }
    }
    /* The counts are those of the stream, whichever way its bytes went. */
    printf("sum %016llx, %llu bytes\n", (unsigned long long)sum, (unsigned long long)counted);
    meet(fd);
    close(fd);
}

/* The server closes in the middle of what it sends, while it waits for room: the client, which may just be about to say
 * that there is some, reads all of it and then the end. */
static void ends_while_rung(void) {
    static unsigned char bytes[30000];
    uint64_t random = 4242, sent = 0, got = 0;
    for (int i = 0; i < 150; i++) {
        int fd = join();
        warm_up_n(fd, 60);
        if (server) {
            nonblocking(fd);
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            struct timespec moment = {.tv_nsec = next_random(&random) % 60000};
            /* As programs with a loop do, before they know of no room. */
            CHECK(poll(&room, 1, 0) == 1);
            ssize_t len;
            for (int left = 1000; left > 0 && (len = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL)) > 0; left--)
                sent += len;
            CHECK(ppoll(&room, 1, &moment, NULL) >= 0);
        } else {
            ssize_t len;
            while ((len = recv(fd, bytes, sizeof bytes, 0)) > 0)
                got += len;
            CHECK(len == 0);
        }
        close(fd);
    }
    int fd = join();
    if (server) {
        send_all(fd, &sent, sizeof sent);
    } else {
        recv_all(fd, &sent, sizeof sent);
        CHECK(got == sent);
    }
    close(fd);
}

/* The client closes; the server's socket is inherited by a command after that, and stays what it was. */
static void inherited_after_the_end(void) {
    int fd = join();
    warm_up(fd);
    if (server) {
        struct pollfd end = {.fd = fd, .events = POLLRDHUP};
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        CHECK(poll(&end, 1, -1) == 1);
        CHECK(system("exit 3") >> 8 == 3);
        CHECK(getpeername(fd, (struct sockaddr *)&peer, &len) == 0);
        end.events = POLLIN | POLLOUT | POLLRDHUP;
        CHECK(poll(&end, 1, -1) == 1 && end.revents == (POLLIN | POLLOUT | POLLRDHUP));
        CHECK(shutdown(fd, SHUT_WR) == 0);
    }
    close(fd);
}

static int count_fds(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Many short connections, some long enough to be upgraded. */
static void churn(void) {
    int before = 0;
    for (int i = 0; i < 1000; i++) {
        int fd = join();
        warm_up_n(fd, i % 10 == 0 ? 60 : 2);
        /* The client closes first, as clients do. */
        char byte;
        if (server)
            CHECK(recv(fd, &byte, 1, 0) == 0);
        close(fd);
        if (i == 100)
            before = count_fds();
    }
    printf("grown %d\n", count_fds() - before > 3);
}

/* Many connections at once, upgraded, and then nothing: the client says so by a file and sleeps until it
 * is killed; the server sleeps until all have ended. */
static void many_idle(int live) {
    static int fds[10000];
    int set = epoll_create1(0);
    for (int i = 0; i < live; i++) {
        fds[i] = join();
        /* Long enough for an offer to be made again: vmmcd has ten thousand to answer. */
        warm_up_n(fds[i], 40);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    for (int i = 0; i < live; i++)
        warm_up_n(fds[i], 20);
    if (!server) {
        char path[4096];
        snprintf(path, sizeof path, "%s.idle", portfile);
        FILE *file = fopen(path, "w");
        CHECK(file != NULL);
        fclose(file);
    }
    for (int left = live; left > 0;) {
        struct epoll_event events[64];
        int count = epoll_wait(set, events, 64, -1);
        CHECK(count > 0 || (count < 0 && errno == EINTR));
        for (int i = 0; i < count; i++) {
            char byte;
            ssize_t got = recv(events[i].data.fd, &byte, 1, MSG_DONTWAIT);
            CHECK(got == 0 || (got < 0 && errno == ECONNRESET));
            close(events[i].data.fd);
            left--;
        }
    }
    printf("fds left %d\n", count_fds() > 20);
}
static void ten_thousand_idle(void) { many_idle(10000); }
static void forty_idle(void) { many_idle(40); }

/* ---- one sleeper for many connections ---- */

enum { MANY = 24, MANY_ROUNDS = 120 };
static int many[MANY], many_set;
static volatile int many_over;

/* Waits until the process is in a state: asleep at several looks in a row, or stopped. */
static void until_state(pid_t pid, char wanted) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    for (int in_a_row = 0; in_a_row < (wanted == 'S' ? 5 : 1);) {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL);
        size_t len = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[len] = 0;
        char *end = strrchr(text, ')');
        in_a_row = end != NULL && end[2] == wanted ? in_a_row + 1 : 0;
        poll(NULL, 0, 1);
    }
}

/* Looks at members and takes them out of the set and in again, while another thread waits. */
static void *meddle(void *unused) {
    uint64_t random = 7;
    (void)unused;
    while (!many_over) {
        int i = (int)(next_random(&random) % MANY);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        char byte;
        recv(many[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        CHECK(epoll_ctl(many_set, EPOLL_CTL_DEL, many[i], NULL) == 0);
        CHECK(epoll_ctl(many_set, EPOLL_CTL_ADD, many[i], &event) == 0);
    }
    return NULL;
}

/* The client writes to all connections while the server sleeps, which must hear of every one. In
 * every other round the server is stopped meanwhile, so that all is written into one sleep. */
static void many_connections(int meddled) {
    for (int i = 0; i < MANY; i++) {
        many[i] = join();
        warm_up(many[i]);
    }
    pid_t pid = getpid();
    pthread_t thread;
    if (server) {
        send_all(many[0], &pid, sizeof pid);
        many_set = epoll_create1(0);
        for (int i = 0; i < MANY; i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
            CHECK(epoll_ctl(many_set, EPOLL_CTL_ADD, many[i], &event) == 0);
        }
    } else {
        recv_all(many[0], &pid, sizeof pid);
    }
    for (int round = 0; round < MANY_ROUNDS; round++) {
        if (server) {
            /* The first rounds have one thread. */
            if (meddled && round == MANY_ROUNDS / 4)
                CHECK(pthread_create(&thread, NULL, meddle, NULL) == 0);
            for (int left = MANY; left > 0;) {
                struct epoll_event events[4];
                int count = epoll_wait(many_set, events, 4, -1);
                CHECK(count > 0 || (count < 0 && errno == EINTR));
                for (int i = 0; i < count; i++) {
                    char byte;
                    CHECK(recv(many[events[i].data.u32], &byte, 1, MSG_DONTWAIT) == 1);
                    left--;
                }
            }
            send_all(many[0], "a", 1);
        } else {
            char byte;
            int stopped = !meddled && round % 2 == 0;
            if (!meddled)
                until_state(pid, 'S');
            if (stopped) {
                CHECK(kill(pid, SIGSTOP) == 0);
                until_state(pid, 'T');
            }
            for (int i = 0; i < MANY; i++)
                send_all(many[(i + round) % MANY], "m", 1);
            if (stopped)
                CHECK(kill(pid, SIGCONT) == 0);
            recv_all(many[0], &byte, 1);
        }
    }
    many_over = 1;
    if (server && meddled)
        pthread_join(thread, NULL);
    printf("done\n");
}
static void many_asleep(void) { many_connections(0); }
static void many_meddled(void) { many_connections(1); }

/* A client of many connections in one loop that wants room until a request is written, then data until its
 * answer is here: one change of its wish for each. The server's wish never changes. */
static void change_wishes(int forks) {
    enum { REQUESTS = 4000, LENGTH = 100 };
    unsigned char request[LENGTH], answer[LENGTH];
    int turns[MANY] = {0}, set = epoll_create1(0);
    memset(request, 'r', sizeof request);
    for (int i = 0; i < MANY; i++) {
        many[i] = join();
        warm_up(many[i]);
        struct epoll_event event = {.events = server ? EPOLLIN : EPOLLOUT, .data.u32 = (uint32_t)i};
        CHECK(fcntl(many[i], F_SETFD, FD_CLOEXEC) == 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, many[i], &event) == 0);
    }
    if (forks)
        children_that_end();
    for (int left = MANY * REQUESTS; left > 0;) {
        struct epoll_event events[MANY];
        int count = epoll_wait(set, events, MANY, -1);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            struct epoll_event *event = &events[i];
            uint32_t which = event->data.u32;
            if (event->events == EPOLLOUT) {
                send_all(many[which], request, LENGTH);
            } else {
                CHECK(event->events == EPOLLIN);
                recv_all(many[which], answer, LENGTH);
                CHECK(memcmp(answer, request, LENGTH) == 0);
                turns[which]++;
                left--;
                if (server)
                    send_all(many[which], answer, LENGTH);
            }
            if (!server && turns[which] < REQUESTS) {
                event->events = event->events == EPOLLOUT ? EPOLLIN : EPOLLOUT;
                CHECK(epoll_ctl(set, EPOLL_CTL_MOD, many[which], event) == 0);
            }
        }
    }
    for (int i = 0; i < MANY; i++) {
        printf("%d\n", turns[i]);
        meet(many[i]);
    }
}

static void changing_wishes(void) {
    change_wishes(0);
}

static void changing_wishes_alone(void) {
    change_wishes(1);
}

/* A server that is told of edges, takes what is there by one call, and sleeps: it never finds nothing. */
static void edges_one_way(void) {
    enum { MESSAGES = 600, LENGTH = 100 };
    unsigned char bytes[MESSAGES * LENGTH];
    int fd = join(), set = epoll_create1(0);
    warm_up(fd);
    if (!server) {
        memset(bytes, 'm', LENGTH);
        for (int i = 0; i < MESSAGES; i++) {
            send_all(fd, bytes, LENGTH);
            usleep(200); /* it sleeps again */
        }
        meet(fd);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (size_t total = 0; total < sizeof bytes;) {
        CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN);
        /* Not the byte of the meeting, which may have come too. */
        ssize_t got = recv(fd, bytes, sizeof bytes - total, MSG_DONTWAIT);
        CHECK(got > 0);
        total += got;
    }
    meet(fd);
}

enum { BLOCK = 64, BLOCKS = 3000 };

static void send_blocks(int fd, char letter) {
    char block[BLOCK];
    memset(block, letter, sizeof block);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(send(fd, block, sizeof block, 0) == BLOCK);
}
static void *send_other_blocks(void *fd) {
    send_blocks(*(int *)fd, 'b');
    return NULL;
}

/* A client of one thread becomes one of two, in the middle of what it sends: no block is torn, none is lost. */
static void a_thread_comes(void) {
    for (int i = 0; i < 20; i++) {
        if (!server) {
            pid_t client = fork(); /* each has it before it once more */
            CHECK(client >= 0);
            if (client == 0) {
                int fd = join();
                warm_up(fd);
                pthread_t other;
                CHECK(pthread_create(&other, NULL, send_other_blocks, &fd) == 0);
                send_blocks(fd, 'a');
                CHECK(pthread_join(other, NULL) == 0);
                exit(0);
            }
            int status;
            CHECK(waitpid(client, &status, 0) == client && status == 0);
            continue;
        }
        int fd = join(), seen[2] = {0};
        warm_up(fd);
        for (int blocks = 0; blocks < 2 * BLOCKS; blocks++) {
            char block[BLOCK];
            recv_all(fd, block, sizeof block);
            CHECK(block[0] == 'a' || block[0] == 'b');
            CHECK(memcmp(block, block + 1, BLOCK - 1) == 0);
            seen[block[0] - 'a']++;
        }
        CHECK(seen[0] == BLOCKS && seen[1] == BLOCKS && recv(fd, seen, 1, 0) == 0);
        close(fd);
    }
}

static void *drain_to_end(void *argument) {
    int fd = *(int *)argument;
    static __thread unsigned char bytes[20000];
    uint64_t *sum = malloc(sizeof *sum);
    size_t total = 0;
    ssize_t len;
    *sum = SUM0;
    while ((len = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        *sum = mix(*sum, bytes, len);
        total += len;
    }
    CHECK(len == 0 && total > 0);
    return sum;
}

/* Traffic at full speed both ways from the first byte: the switch must not lose or turn one. */
static void stress_once(int out_fd, int in_fd, uint64_t seed, uint64_t *sent, uint64_t *got) {
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, drain_to_end, &in_fd) == 0);
    static __thread unsigned char bytes[3000];
    uint64_t random = seed, sum = SUM0;
    for (int i = 0; i < 300; i++) {
        size_t len = next_random(&random) % (i % 10 == 0 ? sizeof bytes : 64) + 1;
        fill(&random, bytes, len);
        send_all(out_fd, bytes, len);
        sum = mix(sum, bytes, len);
    }
    shutdown(out_fd, SHUT_WR);
    uint64_t *result;
    CHECK(pthread_join(reader, (void **)&result) == 0);
    *sent = sum;
    *got = *result;
    free(result);
}

static void stress(void) {
    uint64_t all = SUM0;
    for (int i = 0; i < 200; i++) {
        int fd = join();
        uint64_t sent, got;
        stress_once(fd, fd, 1000 + i * 2 + server, &sent, &got);
        uint64_t both = sent ^ got;
        all = mix(all, (unsigned char *)&both, sizeof both);
        close(fd);
    }
    printf("all %016llx\n", (unsigned long long)all);
}

struct one_end {
    int fd;
    uint64_t seed, sent, got;
};
static void *run_end(void *argument) {
    struct one_end *end = argument;
    stress_once(end->fd, end->fd, end->seed, &end->sent, &end->got);
    return NULL;
}

/* Both ends in one process, each in a thread (and each with a reading thread of its own). */
static void self(void) {
    for (int i = 0; i < 50; i++) {
        struct sockaddr_in address;
        int listening = listen_any(&address);
        struct one_end ends[2] = {{.seed = 3}, {.seed = 4}};
        ends[0].fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(ends[0].fd, (struct sockaddr *)&address, sizeof address) == 0);
        ends[1].fd = accept(listening, NULL, NULL);
        pthread_t threads[2];
        for (int j = 0; j < 2; j++)
            CHECK(pthread_create(&threads[j], NULL, run_end, &ends[j]) == 0);
        for (int j = 0; j < 2; j++)
            CHECK(pthread_join(threads[j], NULL) == 0);
        CHECK(ends[0].sent == ends[1].got && ends[1].sent == ends[0].got);
        close(ends[0].fd);
        close(ends[1].fd);
        close(listening);
    }
    printf("done\n");
}

/* Writes random values over everything this process shares with the server, while traffic flows, and
 * dies. */
static void scribble_and_die(int fd) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    unsigned char *start = NULL;
    size_t len = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && strcmp(rights, "rw-s") == 0 &&
            strstr(line, "memfd:") != NULL && to - from > 64 * 1024) {
            start = (unsigned char *)from;
            len = to - from;
        }
    }
    fclose(maps);
    uint64_t random = 77;
    for (int i = 0; start != NULL && i < 200000; i++) {
        size_t at = next_random(&random) % (i % 2 ? 2048 : len - 8);
        uint64_t value = next_random(&random);
        memcpy(start + (at & ~7ul), &value, 8);
        if (i % 1000 == 0)
            send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    fflush(NULL);
    kill(getpid(), SIGKILL);
}

/* The server must see an error or an end, or garbage; but not crash and not hang. */
static void scribble(void) {
    int fd = join();
    warm_up(fd);
    if (!server)
        scribble_and_die(fd);
    char bytes[5000];
    nonblocking(fd);
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
    for (;;) {
        CHECK(poll(&entry, 1, -1) >= 0);
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        ssize_t sent = send(fd, bytes, 100, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            break;
    }
    close(fd);
    printf("survived\n");
}

/* One byte on the TCP connection that no part of the library has seen. */
static void send_unseen(int fd) {
    char byte = 'u';
    long sent;
    __asm__ volatile("syscall" : "=a"(sent) : "a"(SYS_write), "D"(fd), "S"(&byte), "d"(1) : "rcx", "r11", "memory");
    CHECK(sent == 1);
}

/* To who has switched that is nonsense, and he is told so: he must not wait for it to go away, at full speed for ever. */
static void scribble_uncounted(void) {
    for (int how = LT; how <= SELECT; how++) {
        int fd = join();
        char byte = 's';
        warm_up(fd);
        if (!server) {
            recv_all(fd, &byte, 1);
            send_unseen(fd);
            while (recv(fd, &byte, 1, 0) > 0)
                ;
            close(fd);
            continue;
        }
        nonblocking(fd);
        CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        event.events |= how == ET ? (uint32_t)EPOLLET : how == ONESHOT ? (uint32_t)EPOLLONESHOT : 0;
        if (how != POLL && how != SELECT)
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        send_all(fd, &byte, 1);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        if (how == POLL)
            CHECK(poll(&entry, 1, -1) == 1);
        else if (how == SELECT)
            CHECK(select(fd + 1, &reads, NULL, NULL, NULL) == 1);
        else
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
        ssize_t got = recv(fd, &byte, 1, 0);
        CHECK(got == 1 || (got < 0 && errno == ECONNRESET));
        close(set);
        close(fd);
    }
    printf("told\n");
}

/* One client scribbles, another one is honest. One thread of the server sleeps for both; the honest
 * connection must carry every byte, and must be woken. */
static void scribble_beside(void) {
    enum { TURNS = 4000 };
    static unsigned char out[700], in[700];
    uint64_t sum = SUM0, random = 5;
    if (!server) {
        pid_t child = fork();
        CHECK(child >= 0);
        int fd = join();
        warm_up(fd);
        send_all(fd, child == 0 ? "x" : "h", 1);
        recv_all(fd, in, 1); /* The server knows which this is. */
        if (child == 0)
            scribble_and_die(fd);
        for (int turn = 0; turn < TURNS; turn++) {
            size_t len = next_random(&random) % sizeof out + 1;
            fill(&random, out, len);
            send_all(fd, out, len);
            recv_all(fd, in, len);
            CHECK(memcmp(in, out, len) == 0);
            sum = mix(sum, in, len);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        printf("sum %llx\n", (unsigned long long)sum);
        close(fd);
        return;
    }
    int set = epoll_create1(0), honest = -1;
    /* Each client warms up by itself: one after the other, whoever comes first. */
    for (int i = 0; i < 2; i++) {
        char kind;
        int fd = join();
        warm_up(fd);
        recv_all(fd, &kind, 1);
        if (kind == 'h')
            honest = fd;
        send_all(fd, &kind, 1);
        nonblocking(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    CHECK(honest >= 0);
    for (;;) {
        struct epoll_event event;
        int count = epoll_wait(set, &event, 1, -1);
        CHECK(count == 1);
        int fd = event.data.fd;
        ssize_t got = recv(fd, in, sizeof in, 0);
        if (fd == honest) {
            if (got == 0)
                break;
            CHECK(got > 0 || errno == EAGAIN);
            if (got > 0) {
                sum = mix(sum, in, (size_t)got);
                send_all(fd, in, (size_t)got);
            }
        } else if (got == 0 || (got < 0 && errno != EAGAIN)) {
            close(fd);
        }
    }
    printf("sum %llx\n", (unsigned long long)sum);
    close(honest);
}

/* ---- one lie at a time ---- */

/* A word of the control block (`src/segment.rs`), in both directions or of both sides: the liar need not know which is its
 * own, and no word that it can write is protected from it. */
enum { DIRECTION = 0, SIDE = 1024, APART = 512 };
enum word_kind { SET32, SET64, ADD64, HEAD_BEYOND_TAIL, CUT, SHORTEN, FLOOD, CLOSE };
static const struct lie {
    const char *what;
    int at;
    enum word_kind kind;
    uint64_t value;
} lie_table[] = {
    {"a tail beyond the ring", DIRECTION + 0, ADD64, 1ull << 40},
    {"a tail a little beyond the ring", DIRECTION + 0, ADD64, (64 << 20) + 1},
    {"a tail that goes back", DIRECTION + 0, ADD64, (uint64_t)-1},
    {"a tail at its beginning again", DIRECTION + 0, SET64, 0},
    {"a tail about to wrap", DIRECTION + 0, SET64, UINT64_MAX},
    {"a head beyond the ring", DIRECTION + 128, ADD64, 1ull << 40},
    {"a head that goes back", DIRECTION + 128, ADD64, (uint64_t)-100},
    {"a head about to wrap", DIRECTION + 128, SET64, UINT64_MAX},
    {"more credit than was sent", DIRECTION + 128, HEAD_BEYOND_TAIL, 1},
    {"a prefix in the future", DIRECTION + 8, SET64, 1ull << 50},
    {"a prefix about to wrap", DIRECTION + 8, SET64, UINT64_MAX},
    {"no prefix", DIRECTION + 8, SET64, 0},
    {"a state that there is not", DIRECTION + 32, SET32, 77},
    {"a state far from any", DIRECTION + 32, SET32, UINT32_MAX},
    {"never switched", DIRECTION + 32, SET32, 0},
    {"an end at the beginning", DIRECTION + 32, SET32, 2},
    {"not seen yet", DIRECTION + 32, SET32, 1},
    {"seen before it was", DIRECTION + 32, SET32, 3},
    {"at rest in the middle", DIRECTION + 32, SET32, 4},
    {"announced in the middle", DIRECTION + 32, SET32, 5},
    {"an end far away", DIRECTION + 16, SET64, 1ull << 50},
    {"bells that were never rung", SIDE + 128, ADD64, 1000000},
    {"bells that wrap", SIDE + 128, SET64, UINT64_MAX},
    {"fewer bells", SIDE + 128, ADD64, (uint64_t)-3},
    {"a debt of bells", SIDE + 136, SET64, 1ull << 40},
    {"a request for TCP", SIDE + 8, SET32, 1},
    {"a request for the rest by TCP", SIDE + 8, SET32, 2},
    {"a pump that refused", SIDE + 8, SET32, 3},
    {"a sender that is at it", SIDE + 8, SET32, 4},
    {"a pump that is at it", SIDE + 8, SET32, 5},
    {"a pump that is done", SIDE + 8, SET32, 6},
    {"a request that there is not", SIDE + 8, SET32, 77},
    {"pumped further than there is", DIRECTION + 40, SET64, UINT64_MAX},
    {"closed, and goes on", SIDE + 4, SET32, 1},
    {"reset, and goes on", SIDE + 4, SET32, 2},
    {"closed how nobody closes", SIDE + 4, SET32, UINT32_MAX},
    {"not ready any more", SIDE + 0, SET32, 0},
    {"nobody asleep", SIDE + 16, SET32, 0},
    {"asleep always", SIDE + 16, SET32, UINT32_MAX},
    {"waits for room always", SIDE + 20, SET32, UINT32_MAX},
    {"another sleep", SIDE + 32, SET64, UINT64_MAX},
    {"an error of a carrier's", SIDE + 44, SET32, 104},
    {"a sender asleep for room", DIRECTION + 256, SET32, UINT32_MAX},
    {"the segment cut away", 0, CUT, 0},
    {"the segment shortened", 0, SHORTEN, 0},
    {"a flood of doorbells", 0, FLOOD, 0},
    {"the descriptor closed unseen", 0, CLOSE, 0},
};
enum { LIES = sizeof lie_table / sizeof *lie_table, HONEST_TURNS = 40 };

/* The last segment that this process has mapped. */
static unsigned char *own_segment(size_t *len) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    unsigned char *start = NULL;
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx rw-s", &from, &to) == 2 && strstr(line, "rw-s") != NULL &&
            strstr(line, "memfd:vmmc-stream") != NULL) {
            start = (unsigned char *)from;
            *len = to - from;
        }
    }
    fclose(maps);
    return start;
}

/* Without going through the library. */
static long unseen(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* Whether it can lie: there is a segment. */
static int tell_lie(int fd, const struct lie *lie) {
    size_t len = 0;
    unsigned char *start = own_segment(&len);
    if (start == NULL)
        return 0;
    for (int which = 0; which < 2; which++) {
        unsigned char *at = start + lie->at + which * APART;
        uint64_t word;
        uint32_t half = (uint32_t)lie->value;
        memcpy(&word, at, sizeof word);
        switch (lie->kind) {
        case SET32:
            memcpy(at, &half, sizeof half);
            break;
        case SET64:
            memcpy(at, &lie->value, sizeof lie->value);
            break;
        case ADD64:
            word += lie->value;
            memcpy(at, &word, sizeof word);
            break;
        case HEAD_BEYOND_TAIL:
            memcpy(&word, start + which * APART, sizeof word);
            word += lie->value;
            memcpy(at, &word, sizeof word);
            break;
        case CUT:
            CHECK(madvise(start, len, MADV_REMOVE) == 0);
            break;
        case SHORTEN: {
            /* Not everybody may open it so; and who can finds it sealed. */
            char path[100];
            snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)start, (unsigned long)start + len);
            int file = open(path, O_RDWR);
            CHECK(file < 0 || (ftruncate(file, 0) < 0 && errno == EPERM));
            break;
        }
        case FLOOD:
            for (int i = 0; i < 20000; i++)
                unseen(SYS_sendto, fd, (long)start, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            break;
        case CLOSE:
            unseen(SYS_close, fd, 0, 0, 0);
            break;
        }
    }
    /* So that whoever sleeps looks at it. */
    if (lie->kind != CLOSE)
        unseen(SYS_sendto, fd, (long)start, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return 1;
}

static void *serves_liar(void *argument) {
    int fd = *(int *)argument;
    char bytes[3000];
    /* A stream of garbage ends with the liar; a send may find a full ring. */
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        send(fd, bytes, 10, MSG_DONTWAIT | MSG_NOSIGNAL);
    return NULL;
}

/* The server's part: a thread sleeps for the witness and every other liar, the rest have threads of their own. */
static void hear_lies(void) {
    static unsigned char in[700];
    int set = epoll_create1(0), witness = join();
    uint32_t own = (uint32_t)getpid();
    send_all(witness, &own, sizeof own);
    warm_up(witness);
    nonblocking(witness);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = witness};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, witness, &event) == 0);
    for (int i = 0; i < 2 * LIES; i++) {
        char byte;
        int liar = join(), left = 1;
        pthread_t thread;
        warm_up(liar);
        recv_all(liar, &byte, 1);
        send_all(liar, &byte, 1);
        if (i % 2) {
            CHECK(pthread_create(&thread, NULL, serves_liar, &liar) == 0);
        } else {
            nonblocking(liar);
            event.data.fd = liar;
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, liar, &event) == 0);
        }
        /* Until the witness says that the liar is dead, and the liar's connection has ended. */
        int lied_to = i % 2 == 0;
        while (left || lied_to) {
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
            int fd = event.data.fd;
            ssize_t got = recv(fd, in, sizeof in, 0);
            if (fd == witness) {
                CHECK(got > 0 || (got < 0 && errno == EAGAIN));
                if (got > 0 && in[got - 1] == '.')
                    left = 0;
                if (got > 0)
                    send_all(fd, in, (size_t)got);
            } else if (got > 0) {
                send(fd, in, 10, MSG_NOSIGNAL);
            } else if (got == 0 || errno != EAGAIN) {
                CHECK(epoll_ctl(set, EPOLL_CTL_DEL, liar, NULL) == 0);
                lied_to = 0;
            }
        }
        if (i % 2)
            pthread_join(thread, NULL);
        close(liar);
    }
    printf("%d lies heard\n", LIES);
    close(witness);
}

/* Time that a process has used, in ticks. */
static long ticks_of(uint32_t pid) {
    char path[64], text[1000];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = 0;
    unsigned long user, system;
    CHECK(sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2);
    return (long)(user + system);
}

static void honest_turns(int fd, char last) {
    char out[500], in[500];
    for (int turn = 0; turn < HONEST_TURNS; turn++) {
        size_t len = 1 + (size_t)turn * 37 % (sizeof out - 1);
        memset(out, 'a' + turn % 26, len);
        if (turn == HONEST_TURNS - 1)
            out[len - 1] = last;
        send_all(fd, out, len);
        recv_all(fd, in, len);
        CHECK(memcmp(in, out, len) == 0);
    }
}

static void lies(void) {
    if (server)
        return hear_lies();
    /* Liars are forked by who has no connection: they have no segment but their own. */
    int ask[2], done[2];
    CHECK(pipe2(ask, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0);
    uint32_t server_pid = 0;
    pid_t witness = fork();
    if (witness == 0) {
        char what;
        int fd = join();
        recv_all(fd, &server_pid, sizeof server_pid);
        warm_up(fd);
        CHECK(write(done[1], &server_pid, sizeof server_pid) == sizeof server_pid);
        close(ask[1]);
        while (read(ask[0], &what, 1) == 1) {
            honest_turns(fd, what);
            CHECK(write(done[1], &what, 1) == 1);
        }
        close(fd);
        exit(0);
    }
    close(ask[0]);
    CHECK(read(done[0], &server_pid, sizeof server_pid) == sizeof server_pid);
    int busy = 0;
    for (int i = 0; i < 2 * LIES; i++) {
        int told[2], status;
        char byte;
        CHECK(pipe2(told, O_CLOEXEC) == 0);
        pid_t liar = fork();
        if (liar == 0) {
            int fd = join();
            warm_up(fd);
            send_all(fd, "x", 1);
            recv_all(fd, &byte, 1);
            byte = tell_lie(fd, &lie_table[i / 2]) ? 'l' : 'n';
            CHECK(write(told[1], &byte, 1) == 1);
            for (;;)
                pause();
        }
        char lied;
        CHECK(read(told[0], &lied, 1) == 1);
        CHECK(write(ask[1], "h", 1) == 1 && read(done[0], &byte, 1) == 1);
        /* Nobody says anything: a server that is busy all the same has fallen for it. */
        long before = ticks_of(server_pid);
        if (lied == 'l')
            poll(NULL, 0, 120);
        if (ticks_of(server_pid) - before >= 8) {
            fprintf(stderr, "busy after: %s\n", lie_table[i / 2].what);
            busy++;
        }
        kill(liar, SIGKILL);
        CHECK(waitpid(liar, &status, 0) == liar && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(write(ask[1], ".", 1) == 1 && read(done[0], &byte, 1) == 1);
        close(told[0]);
        close(told[1]);
    }
    int status;
    close(ask[1]);
    CHECK(waitpid(witness, &status, 0) == witness && status == 0);
    printf("%d lies told, busy after %d\n", LIES, busy);
}

/* ---- what goes back to TCP and is not read there ---- */

enum step { FILLED, HELD, DONE };

static void step_name(char name[static 300], enum step step, int turn) {
    snprintf(name, 300, "%s.%d.%d", portfile, step, turn);
}

/* Tells the other end, by another way than the connection. */
static void mark(enum step step, int turn) {
    char name[300];
    step_name(name, step, turn);
    int file = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(file >= 0 && close(file) == 0);
}

static void await(enum step step, int turn) {
    char name[300];
    step_name(name, step, turn);
    while (access(name, F_OK) != 0)
        poll(NULL, 0, 2);
}

/* More than a small send buffer takes, and less than a ring, is sent before the buffer is small. */
enum { LEFT = 200000 };

static int fill_and_shrink(int turn) {
    static char bytes[LEFT];
    int fd = join(), small = 1;
    warm_up(fd);
    send_all(fd, bytes, sizeof bytes);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    mark(FILLED, turn);
    await(HELD, turn);
    return fd;
}

/* The socket goes to a program without the library as its standard input and output, in a child. */
static pid_t hold(int fd, int turn, const char *script) {
    await(FILLED, turn);
    pid_t child = fork();
    if (child == 0) {
        char go[300];
        step_name(go, DONE, turn);
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
        mark(HELD, turn);
        execl("/bin/sh", "sh", "-c", script, "sh", go, (char *)NULL);
        _exit(99);
    }
    CHECK(child > 0);
    return child;
}

/* An end that follows what the new holder reads only later holds up nobody for ever, and comes. */
static void ends_behind_a_pump(void) {
    enum { TURNS = 3 };
    for (int turn = 0; turn < TURNS; turn++) {
        if (!server) {
            int fd = join(), status;
            warm_up(fd);
            pid_t child = hold(fd, turn, "while [ ! -e $1 ]; do sleep 0.02; done; exec wc -c");
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            close(fd);
            continue;
        }
        int fd = fill_and_shrink(turn), set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(shutdown(fd, SHUT_WR) == 0);
        CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
        /* Only now is anything read there, all of it and the end, before there is an answer. */
        mark(DONE, turn);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (turn == 1)
            CHECK(poll(&entry, 1, -1) == 1);
        else if (turn == 2)
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
        char answer[100] = "";
        ssize_t got;
        size_t len = 0;
        while ((got = recv(fd, answer + len, sizeof answer - 1 - len, 0)) > 0)
            len += (size_t)got;
        CHECK(got == 0);
        printf("%d bytes and the end: %s", LEFT, answer);
        close(set);
        close(fd);
    }
}

/* A peer that wants what is in the ring back by TCP, and reads nothing there, holds up nobody for ever; nor does one that says
 * somebody was at it. */
static void held_up(void) {
    enum { BACK, REFUSED, HOLDER, PUMP, TURNS };
    static const struct lie requests[] = {[BACK] = {"back", SIDE + 8, SET32, 2},
                                          [REFUSED] = {"refused", SIDE + 8, SET32, 3},
                                          [PUMP] = {"pump", SIDE + 8, SET32, 5}};
    uint64_t *pumper = mmap(NULL, sizeof *pumper, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(pumper != MAP_FAILED);
    for (int turn = 0; turn < TURNS; turn++) {
        if (!server) {
            int status;
            pid_t liar = fork();
            if (liar == 0) {
                int fd = join();
                warm_up(fd);
                size_t len = 0;
                unsigned char *start = own_segment(&len);
                if (turn == HOLDER) {
                    hold(fd, turn, "exec sleep 1000");
                    await(HELD, turn);
                    for (int which = 0; which < 2 && start != NULL && *pumper == 0; which++)
                        memcpy(pumper, start + DIRECTION + which * APART + 48, sizeof *pumper);
                } else {
                    await(FILLED, turn);
                    struct lie number = {"pumper", DIRECTION + 48, SET64, *pumper};
                    tell_lie(fd, &number);
                    tell_lie(fd, &requests[turn]);
                    mark(HELD, turn);
                }
                for (;;)
                    pause();
            }
            await(DONE, turn);
            kill(liar, SIGKILL);
            CHECK(waitpid(liar, &status, 0) == liar);
            continue;
        }
        int fd = fill_and_shrink(turn);
        char byte;
        switch (turn) {
        case BACK:
        case REFUSED:
            for (int i = 0; i < 100; i++) {
                struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
                send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
                recv(fd, &byte, 1, MSG_DONTWAIT);
                CHECK(poll(&entry, 1, 0) >= 0);
            }
            break;
        case HOLDER:
            CHECK(shutdown(fd, SHUT_WR) == 0);
            CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
            CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
            break;
        case PUMP: {
            int zero = dup(0);
            CHECK(zero >= 0 && dup2(fd, 0) == 0 && dup2(zero, 0) == 0);
            close(zero);
            break;
        }
        }
        mark(DONE, turn);
        printf("goes on\n");
        close(fd);
    }
}

/* ---- a wait that begins before the upgrade ---- */

enum { EARLY_LEN = 64, EARLY_MESSAGES = 400, EARLY_ANSWERS = 3 };
enum early_way { BY_POLL, BY_SELECT, BY_POLL_OF_TWO, EARLY_WAYS };

static struct early {
    int fd, other;
    enum early_way way;
} early_of;

/* One answer after the other, each waited for without end. What is said to be there is there. */
static void *waits_early(void *unused) {
    (void)unused;
    int fd = early_of.fd;
    for (int i = 0; i < EARLY_ANSWERS; i++) {
        struct pollfd entries[2] = {{.fd = fd, .events = POLLIN}, {.fd = early_of.other, .events = POLLIN}};
        fd_set reads;
        char answer[7];
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        if (early_of.way == BY_SELECT)
            CHECK(select(fd + 1, &reads, NULL, NULL, NULL) == 1);
        else
            CHECK(poll(entries, early_of.way == BY_POLL_OF_TWO ? 2 : 1, -1) == 1);
        CHECK(recv(fd, answer, sizeof answer, MSG_DONTWAIT) == sizeof answer);
        CHECK(memcmp(answer, "answer.", sizeof answer) == 0);
    }
    return NULL;
}

/* A thread waits for answers since before the connection is upgraded, and another one sends, waiting for room. */
static void early_wait(void) {
    static char bytes[1 << 20];
    for (enum early_way way = 0; way < EARLY_WAYS; way++) {
        int fd = join();
        size_t left = sizeof bytes;
        if (server) {
            for (int i = 0; i < EARLY_MESSAGES; i++) {
                if (i == 33)
                    poll(NULL, 0, 100); /* the other end is upgraded, and sees that this one is not yet */
                recv_all(fd, bytes, EARLY_LEN);
            }
            poll(NULL, 0, 50); /* the ring is full meanwhile */
            recv_all(fd, bytes, sizeof bytes);
            for (int i = 0; i < EARLY_ANSWERS; i++) {
                poll(NULL, 0, 20);
                send_all(fd, "answer.", 7);
            }
            CHECK(recv(fd, bytes, 1, 0) == 0);
            close(fd);
            continue;
        }
        pthread_t thread;
        int ends[2];
        CHECK(pipe(ends) == 0);
        early_of = (struct early){fd, ends[0], way};
        CHECK(pthread_create(&thread, NULL, waits_early, NULL) == 0);
        poll(NULL, 0, 50); /* it waits */
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        for (int i = 0; i < EARLY_MESSAGES; i++) {
            CHECK(poll(&room, 1, -1) == 1);
            CHECK(send(fd, bytes, EARLY_LEN, MSG_DONTWAIT) == EARLY_LEN);
            if (i < 60)
                poll(NULL, 0, 1);
        }
        while (left > 0) {
            CHECK(poll(&room, 1, -1) == 1);
            ssize_t sent = send(fd, bytes, left < 30000 ? left : 30000, MSG_DONTWAIT);
            CHECK(sent > 0 || (sent < 0 && errno == EAGAIN));
            left -= sent > 0 ? (size_t)sent : 0;
        }
        CHECK(pthread_join(thread, NULL) == 0);
        close(ends[0]);
        close(ends[1]);
        close(fd);
    }
    printf("%d answers each\n", EARLY_ANSWERS);
}

/* Short downloads, each by a connection of its own, then a long one. None is over before the daemon could answer. */
static void downloads(void) {
    enum { SHORT = 2 << 20, LONG = 96 << 20, COUNT = 40 };
    static unsigned char bytes[1 << 16];
    uint64_t sum = SUM0, random = 9;
    fill(&random, bytes, sizeof bytes);
    for (int i = 0; i <= COUNT; i++) {
        int fd = join();
        size_t total = i < COUNT ? SHORT : LONG, done = 0;
        for (size_t upto = SHORT / 4 * 3; done < total; upto = total) {
            for (; done < upto; done += sizeof bytes)
                if (server)
                    send_all(fd, bytes, sizeof bytes);
                else
                    recv_all(fd, bytes, sizeof bytes);
            sum = mix(sum, bytes, 100);
            if (done < total) {
                char byte = 'd';
                if (server)
                    recv_all(fd, &byte, 1);
                else
                    send_all(fd, &byte, 1);
                poll(NULL, 0, 3);
            }
        }
        close(fd);
    }
    printf("sum %llx\n", (unsigned long long)sum);
}

/* ---- cancellation ---- */

enum block { IN_RECV, IN_PEEK, IN_POLL, IN_SELECT, IN_EPOLL, IN_SEND };
struct blocked {
    int fd, set;
    enum block how;
    volatile pid_t tid;
};
/* One call that blocks, until the thread is cancelled. */
static void *block(void *argument) {
    struct blocked *it = argument;
    static char room[1 << 16];
    struct pollfd entry = {.fd = it->fd, .events = POLLIN};
    struct epoll_event event;
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(it->fd, &reads);
    it->tid = (pid_t)syscall(SYS_gettid);
    switch (it->how) {
    case IN_RECV:
        recv(it->fd, room, 1, 0);
        break;
    case IN_PEEK:
        recv(it->fd, room, 2, MSG_PEEK | MSG_WAITALL);
        break;
    case IN_POLL:
        poll(&entry, 1, -1);
        break;
    case IN_SELECT:
        select(it->fd + 1, &reads, NULL, NULL, NULL);
        break;
    case IN_EPOLL:
        epoll_wait(it->set, &event, 1, -1);
        break;
    case IN_SEND:
        while (send(it->fd, room, sizeof room, MSG_NOSIGNAL) > 0)
            ;
    }
    return NULL;
}
static void cancel_in(enum block how, int fd, int set) {
    struct blocked it = {fd, set, how, 0};
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, block, &it) == 0);
    while (it.tid == 0)
        sched_yield();
    until_state(it.tid, 'S');
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}
/* Segments of connections that this process has mapped. */
static int segments(void) {
    char line[500];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "vmmc-stream") != NULL;
    fclose(maps);
    return count;
}
/* One byte each way, the server's first: until then nothing comes to it. */
static void answer(int fd) {
    char byte = 'a';
    if (server) {
        send_all(fd, &byte, 1);
        recv_all(fd, &byte, 1);
    } else {
        recv_all(fd, &byte, 1);
        send_all(fd, &byte, 1);
    }
}
/* Waits, awake, until something has come. */
static void await_byte(int fd) {
    for (int there = 0; there == 0; sched_yield())
        CHECK(ioctl(fd, FIONREAD, &there) == 0);
}
/* Threads that were cancelled in a call hold nothing: the connection is upgraded, sleeps and wakes, and goes when it is
 * closed. One of them was in a plain receive. */
static void cancelled(void) {
    enum { QUIET = 1500 };
    char byte = 'c', name[4096];
    int fd = join();
    meet(fd);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (server) {
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        cancel_in(IN_RECV, fd, set);
    }
    answer(fd);
    warm_up(fd);
    for (enum block how = IN_RECV; how <= IN_EPOLL; how++) {
        /* A look that waits for a second byte. */
        if (how == IN_PEEK && server)
            await_byte(fd);
        else if (how == IN_PEEK)
            send_all(fd, &byte, 1);
        if (server)
            cancel_in(how, fd, set);
        if (how == IN_PEEK && server)
            recv_all(fd, &byte, 1);
        answer(fd);
    }
    /* Who does not sleep any more is not rung. */
    for (int turn = 0; turn < QUIET; turn++) {
        if (!server) {
            recv_all(fd, &byte, 1);
            send_all(fd, &byte, 1);
            continue;
        }
        CHECK(epoll_wait(set, &event, 1, 1) == 0);
        send_all(fd, &byte, 1);
        await_byte(fd);
        recv_all(fd, &byte, 1);
    }
    /* Nobody waits in the set: wishes need not reach the kernel. */
    for (int turn = 0; server && turn < 200; turn++) {
        event = (struct epoll_event){.events = EPOLLIN | (turn % 2 ? 0 : EPOLLOUT), .data.fd = fd};
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    }
    answer(fd);
    /* The client reads once the sender that waits for room is cancelled: else each would wake the other until then. The
     * connection is full, so a file says so. */
    snprintf(name, sizeof name, "%s.cancelled", portfile);
    if (server) {
        cancel_in(IN_SEND, fd, set);
        close(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        CHECK(shutdown(fd, SHUT_WR) == 0);
        recv_all(fd, &byte, 1);
    } else {
        static char room[1 << 16];
        ssize_t got;
        while (access(name, F_OK) != 0)
            poll(NULL, 0, 1);
        while ((got = recv(fd, room, sizeof room, 0)) > 0)
            ;
        CHECK(got == 0);
        send_all(fd, &byte, 1);
    }
    close(set);
    close(fd);
    printf("segments left: %d\n", segments());
}

static void idle(void) {
    /* Upgraded and then quiet: waits must end when asked, and cost nothing meanwhile. */
    int fd = join();
    warm_up(fd);
    if (server) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        CHECK(poll(&entry, 1, 60) == 0);
        int epfd = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(epoll_wait(epfd, &event, 1, 60) == 0);
        CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        struct timeval time = {0, 60000};
        CHECK(select(fd + 1, &reads, NULL, NULL, &time) == 0);
        close(epfd);
        send_all(fd, "g", 1);
    } else {
        char byte;
        recv_all(fd, &byte, 1);
    }
    printf("done\n");
    close(fd);
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    const char *name = arguments[1];
    server = strcmp(arguments[2], "server") == 0;
    portfile = arguments[3];
    signal(SIGPIPE, SIG_IGN);
    struct {
        const char *name;
        void (*run)(void);
    } plain[] = {{"echo", echo},
                 {"echo_with_io_uring", echo_with_io_uring},
                 {"echo_refused_io_uring", echo_refused_io_uring},
                 {"endless", endless},
                 {"passed_after_the_end", passed_after_the_end},
                 {"passed_while_offered", passed_while_offered},
                 {"left_at_the_end", left_at_the_end},
                 {"passed_after_a_death", passed_after_a_death},
                 {"half_close", half_close},
                 {"eof_after_data", eof_after_data},
                 {"reset", reset},
                 {"broken_pipe", broken_pipe},
                 {"timeouts", timeouts},
                 {"killed_reader_waits", killed_reader_waits},
                 {"killed_writer_waits", killed_writer_waits},
                 {"flags", flags},
                 {"send_file", send_file},
                 {"splices", splices},
                 {"duplicates", duplicates},
                 {"forked", forked},
                 {"forked_silent", forked_silent},
                 {"forked_early", forked_early},
                 {"forked_and_alone", forked_and_alone},
                 {"java_helper", java_helper},
                 {"demoted", demoted},
                 {"churn", churn},
                 {"ten_thousand_idle", ten_thousand_idle},
                 {"forty_idle", forty_idle},
                 {"many_asleep", many_asleep},
                 {"many_meddled", many_meddled},
                 {"changing_wishes", changing_wishes},
                 {"changing_wishes_alone", changing_wishes_alone},
                 {"edges_one_way", edges_one_way},
                 {"ends_while_rung", ends_while_rung},
                 {"inherited_after_the_end", inherited_after_the_end},
                 {"a_thread_comes", a_thread_comes},
                 {"stress", stress},
                 {"self", self},
                 {"idle", idle},
                 {"cancelled", cancelled},
                 {"downloads", downloads},
                 {"rests", rests},
                 {"scribble", scribble},
                 {"scribble_uncounted", scribble_uncounted},
                 {"scribble_beside", scribble_beside},
                 {"lies", lies},
                 {"ends_behind_a_pump", ends_behind_a_pump},
                 {"held_up", held_up},
                 {"early_wait", early_wait}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(name, plain[i].name) == 0) {
            plain[i].run();
            return 0;
        }
    static const char *hows[] = {"lt", "et", "oneshot", "poll", "select"};
    for (int how = LT; how <= SELECT; how++) {
        char full_name[40];
        snprintf(full_name, sizeof full_name, "pump_%s", hows[how]);
        if (strcmp(name, full_name) == 0) {
            pump(how, 12 << 20, 1);
            return 0;
        }
        snprintf(full_name, sizeof full_name, "cold_pump_%s", hows[how]);
        if (strcmp(name, full_name) == 0) {
            pump(how, 4 << 20, 0);
            return 0;
        }
        snprintf(full_name, sizeof full_name, "full_%s", hows[how]);
        if (how <= ET && strcmp(name, full_name) == 0) {
            full(how);
            return 0;
        }
    }
    fprintf(stderr, "no scenario %s\n", name);
    return 2;
}
