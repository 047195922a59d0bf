/* One process of a random program (tests/random_programs.rs): does what it is told with one TCP
 * socket, and says what came of it.
 *
 *   actor ID FD                FD: the socket, or "listen", or "connect:PORT"
 *
 * It connects to the Unix socket that ACTOR_SOCKET names and sends "hello ID COOKIE PORT
 * PID". Then come commands of a letter and numbers; the answer is "RESULT ERRNO". */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int control = -1, sock = -1, id = -1;
static char buffer[1 << 20];

static void fail(const char *what) {
    fprintf(stderr, "actor %d: %s: %s\n", id, what, strerror(errno));
    _exit(9);
}
#define NEED(call)                                                                                 \
    ({                                                                                             \
        __typeof__(call) result_ = (call);                                                         \
        if (result_ < 0)                                                                           \
            fail(#call);                                                                           \
        result_;                                                                                   \
    })

/* Byte `at` of either direction's stream. */
static char byte_at(uint64_t at) { return (char)(at * 131 + (at >> 8) * 7 + (at >> 16)); }
static void make(char *to, size_t length, uint64_t at) {
    for (size_t i = 0; i < length; i++)
        to[i] = byte_at(at + i);
}
static size_t wrong_at(const char *from, size_t length, uint64_t at) {
    for (size_t i = 0; i < length; i++)
        if (from[i] != byte_at(at + i))
            return i + 1;
    return 0;
}

static void say_hello(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sockaddr_in own = {0};
    socklen_t length = sizeof own;
    uint64_t cookie = 0;
    char text[100];
    strncpy(address.sun_path, getenv("ACTOR_SOCKET"), sizeof address.sun_path - 1);
    int fd = NEED(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    control = NEED(fcntl(fd, F_DUPFD_CLOEXEC, 300));
    close(fd);
    NEED(connect(control, (struct sockaddr *)&address, sizeof address));
    NEED(getsockname(sock, (struct sockaddr *)&own, &length));
    length = sizeof cookie;
    NEED(getsockopt(sock, SOL_SOCKET, SO_COOKIE, &cookie, &length));
    int count = snprintf(text, sizeof text, "hello %d %llu %d %d\n", id, (unsigned long long)cookie,
                         ntohs(own.sin_port), getpid());
    NEED(send(control, text, (size_t)count, 0));
}

static ssize_t put(size_t length, uint64_t at, int method) {
    make(buffer, length, at);
    struct iovec parts[3] = {{buffer, length / 3},
                             {buffer + length / 3, length / 3},
                             {buffer + length / 3 * 2, length - length / 3 * 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (method % 8) {
    case 0:
        return send(sock, buffer, length, MSG_NOSIGNAL);
    case 1:
        return writev(sock, parts, 3);
    case 2:
        return sendmsg(sock, &message, 0);
    case 3:
        return syscall(SYS_write, sock, buffer, length);
    case 4: {
        int file = NEED(memfd_create("file", MFD_CLOEXEC));
        NEED(write(file, buffer, length));
        off_t from = 0;
        ssize_t sent = sendfile(sock, file, &from, length);
        close(file);
        return sent;
    }
    case 5: {
        struct mmsghdr two = {.msg_hdr = message};
        return sendmmsg(sock, &two, 1, 0) == 1 ? (ssize_t)two.msg_len : -1;
    }
    case 6:
        return pwritev2(sock, parts, 3, -1, 0);
    default:
        return write(sock, buffer, length);
    }
}

static ssize_t get(size_t length, int method) {
    struct iovec parts[2] = {{buffer, length / 2}, {buffer + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (method % 8) {
    case 0:
        return recv(sock, buffer, length, 0);
    case 1:
        return readv(sock, parts, 2);
    case 2:
        return recvmsg(sock, &message, 0);
    case 3:
        return syscall(SYS_read, sock, buffer, length);
    case 4: {
        ssize_t there = recv(sock, buffer, length, MSG_PEEK);
        return there <= 0 ? there : recv(sock, buffer, (size_t)there, MSG_WAITALL);
    }
    case 5: {
        struct mmsghdr one = {.msg_hdr = message};
        return recvmmsg(sock, &one, 1, 0, NULL) == 1 ? (ssize_t)one.msg_len : -1;
    }
    case 6:
        return preadv2(sock, parts, 2, -1, 0);
    default:
        return read(sock, buffer, length);
    }
}

/* All of it, however many calls that takes. */
static ssize_t transfer(bool out, size_t length, uint64_t at, int method) {
    size_t done = 0;
    while (done < length) {
        size_t part = length - done < 50000 ? length - done : 50000;
        ssize_t count = out ? put(part, at + done, method) : get(part, method);
        if (count < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = sock, .events = out ? POLLOUT : POLLIN};
            NEED(poll(&wait, 1, -1));
            continue;
        }
        if (count <= 0)
            return done > 0 ? (ssize_t)done : count;
        if (!out && wrong_at(buffer, (size_t)count, at + done))
            return -2;
        done += (size_t)count;
    }
    return (ssize_t)done;
}

/* What is ready now, by one of four calls: 1 readable, 2 writable, 4 the peer has ended. */
static int ready(int method, int milliseconds) {
    int answer = 0;
    if (method % 3 == 0) {
        struct pollfd wait = {.fd = sock, .events = POLLIN | POLLOUT | POLLRDHUP};
        NEED(poll(&wait, 1, milliseconds));
        answer |= wait.revents & POLLIN ? 1 : 0;
        answer |= wait.revents & POLLOUT ? 2 : 0;
        return answer | (wait.revents & POLLRDHUP ? 4 : 0);
    }
    if (method % 3 == 1) {
        fd_set in, out;
        struct timeval time = {0, milliseconds * 1000};
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(sock, &in);
        FD_SET(sock, &out);
        NEED(select(sock + 1, &in, &out, NULL, &time));
        return (FD_ISSET(sock, &in) ? 1 : 0) | (FD_ISSET(sock, &out) ? 2 : 0);
    }
    int set = NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event));
    event.events = 0;
    NEED(epoll_wait(set, &event, 1, milliseconds));
    close(set);
    answer |= event.events & EPOLLIN ? 1 : 0;
    answer |= event.events & EPOLLOUT ? 2 : 0;
    return answer | (event.events & EPOLLRDHUP ? 4 : 0);
}

/* The set that this process keeps, and the number of the socket that is in it. */
static int set = -1, in_set = -1;
static void forget_set(void) {
    if (set >= 0)
        close(set);
    set = in_set = -1;
}

/* Asks the set for events of the socket: 1 edges, 2 one event, 4 the peer's end too. */
static int ask_set(int how) {
    struct epoll_event event = {.events = EPOLLIN | (how & 1 ? EPOLLET : 0) |
                                          (how & 2 ? EPOLLONESHOT : 0) | (how & 4 ? EPOLLRDHUP : 0),
                                .data.u64 = 77};
    if (in_set != sock)
        forget_set();
    if (set < 0)
        set = NEED(epoll_create1(EPOLL_CLOEXEC));
    int operation = in_set < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    in_set = sock;
    return epoll_ctl(set, operation, sock, &event);
}

/* What the set tells: 1 readable, 4 the peer has ended; plus 8 times what it tells when asked again at once. It waits until the
 * wanted bits were told. */
static int look_at_set(int wanted) {
    int told = 0, again;
    do {
        struct epoll_event event = {.events = 0};
        NEED(epoll_wait(set, &event, 1, wanted ? 100 : 0));
        told |= (event.events & EPOLLIN ? 1 : 0) | (event.events & EPOLLRDHUP ? 4 : 0);
    } while ((told & wanted) != wanted);
    struct epoll_event event = {.events = 0};
    NEED(epoll_wait(set, &event, 1, 0));
    again = (event.events & EPOLLIN ? 1 : 0) | (event.events & EPOLLRDHUP ? 4 : 0);
    return told + 8 * again;
}

struct work {
    bool out;
    size_t length;
    uint64_t at;
    int method;
    ssize_t result;
};
static pthread_t helper;
static struct work work;
static char helper_buffer[50000];
static void *help(void *unused) {
    size_t done = 0;
    (void)unused;
    work.result = 0;
    while (done < work.length) {
        size_t part = work.length - done < sizeof helper_buffer ? work.length - done
                                                                : sizeof helper_buffer;
        ssize_t count;
        if (work.out) {
            make(helper_buffer, part, work.at + done);
            count = work.method % 2 ? send(sock, helper_buffer, part, MSG_NOSIGNAL)
                                    : write(sock, helper_buffer, part);
        } else {
            count = work.method % 2 ? recv(sock, helper_buffer, part, 0)
                                    : read(sock, helper_buffer, part);
        }
        if (count < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = sock, .events = work.out ? POLLOUT : POLLIN};
            poll(&wait, 1, -1);
            continue;
        }
        if (count <= 0 || (!work.out && wrong_at(helper_buffer, (size_t)count, work.at + done))) {
            work.result = count <= 0 ? -1 : -2;
            return NULL;
        }
        done += (size_t)count;
    }
    work.result = (ssize_t)done;
    return NULL;
}

static void become(int new_id, bool with_library, bool spawn) {
    char number[16], fd[16], *arguments[] = {"actor", number, fd, NULL};
    char *kept[64];
    size_t count = 0;
    extern char **environ;
    for (char **one = environ; *one && count < 63; one++)
        if (with_library || strncmp(*one, "LD_PRELOAD=", 11) != 0)
            kept[count++] = *one;
    kept[count] = NULL;
    snprintf(number, sizeof number, "%d", new_id);
    snprintf(fd, sizeof fd, "%d", sock);
    if (spawn) {
        pid_t child;
        if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, kept) != 0)
            fail("posix_spawn");
    } else {
        execve("/proc/self/exe", arguments, kept);
        fail("execve");
    }
}

static void pass(const char *path, bool take) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char byte = 'f', room[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = NEED(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (take) {
        NEED(bind(fd, (struct sockaddr *)&address, sizeof address));
        NEED(listen(fd, 1));
        NEED(send(control, "0 0\n", 4, 0));
        int channel = NEED(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
        NEED(recvmsg(channel, &message, 0));
        close(sock);
        memcpy(&sock, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sock);
        close(channel);
        unlink(path);
    } else {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof sock);
        memcpy(CMSG_DATA(header), &sock, sizeof sock);
        NEED(connect(fd, (struct sockaddr *)&address, sizeof address));
        NEED(sendmsg(fd, &message, 0));
    }
    close(fd);
}

static void serve(void) {
    for (;;) {
        char command[200] = "", answer[100], path[108] = "";
        long long a = 0, b = 0, c = 0, result = 0;
        ssize_t got = recv(control, command, sizeof command - 1, 0);
        if (got <= 0)
            _exit(0);
        sscanf(command + 1, "%lld %lld %lld %107s", &a, &b, &c, path);
        errno = 0;
        switch (command[0]) {
        case 'w': /* length, offset, method */
            result = put((size_t)a, (uint64_t)b, (int)c);
            break;
        case 'r':
            result = get((size_t)a, (int)c);
            if (result > 0 && wrong_at(buffer, (size_t)result, (uint64_t)b)) {
                errno = (int)wrong_at(buffer, (size_t)result, (uint64_t)b);
                result = -2;
            }
            break;
        case 'W':
        case 'R':
            result = transfer(command[0] == 'W', (size_t)a, (uint64_t)b, (int)c);
            break;
        case 'b': /* a thread reads or (negative method) writes */
        case 'B':
            work = (struct work){command[0] == 'B', (size_t)a, (uint64_t)b, (int)c, 0};
            result = pthread_create(&helper, NULL, help, NULL);
            break;
        case 'j':
            pthread_join(helper, NULL);
            result = work.result;
            break;
        case 'u': {
            /* Until so many bytes can be read. */
            int count = -1;
            do
                NEED(ioctl(sock, FIONREAD, &count));
            while (count < a);
            result = count;
            break;
        }
        case 'p': /* method; waits until the bits in b are there, then says which are */
            do
                result = ready((int)a, b ? 100 : 0);
            while ((result & b) != b);
            break;
        case 'f': {
            pid_t child = NEED(c % 2 ? _Fork() : fork());
            if (child == 0) {
                close(control);
                forget_set();
                id = (int)a;
                say_hello();
                continue;
            }
            break;
        }
        case 'x':
            become((int)a, b != 0, false);
            break;
        case 's':
            become((int)a, b != 0, true);
            break;
        case 'g':
        case 'G':
            if (command[0] == 'g')
                forget_set();
            pass(path, command[0] == 'g');
            break;
        case 'd': {
            int two = 100 + (int)b % 50, three = 150 + (int)b % 50;
            /* A number that it has already is no copy. */
            int fresh = a % 4 == 0                     ? dup(sock)
                        : a % 4 == 1 && two != sock   ? dup2(sock, two)
                        : a % 4 == 2 && three != sock ? dup3(sock, three, 0)
                                     : fcntl(sock, F_DUPFD, 200);
            NEED(fresh);
            close(sock);
            sock = fresh;
            break;
        }
        case 'c':
            result = close(sock);
            sock = -1;
            break;
        case 'l': { /* closes with a reset */
            struct linger none = {.l_onoff = 1};
            NEED(setsockopt(sock, SOL_SOCKET, SO_LINGER, &none, sizeof none));
            result = close(sock);
            sock = -1;
            break;
        }
        case 'e':
            result = ask_set((int)a);
            break;
        case 'E':
            result = look_at_set((int)a);
            break;
        case 't': { /* reads with a time limit */
            struct timeval limit = {0, 3000};
            NEED(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
            result = get((size_t)a, (int)c);
            int error = errno;
            limit.tv_usec = 0;
            NEED(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
            errno = error;
            break;
        }
        case 'v': { /* until TCP's state is that, or with 0 no longer the one in which a FIN is unacknowledged */
            struct tcp_info info;
            do {
                socklen_t length = sizeof info;
                NEED(getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &length));
            } while (a ? info.tcpi_state != a : info.tcpi_state == TCP_FIN_WAIT1);
            result = a;
            break;
        }
        case 'q': /* a byte of urgent data */
            result = send(sock, "!", 1, MSG_OOB);
            break;
        case 'Q': {
            struct pollfd urgent = {.fd = sock, .events = POLLPRI};
            char byte = 0;
            NEED(poll(&urgent, 1, -1));
            result = recv(sock, &byte, 1, MSG_OOB);
            result = result == 1 ? byte : -1;
            break;
        }
        case 'h':
            result = shutdown(sock, SHUT_WR);
            break;
        case 'n':
            if (b) {
                int on = (int)a;
                NEED(ioctl(sock, FIONBIO, &on));
            } else {
                NEED(fcntl(sock, F_SETFL, a ? O_NONBLOCK : 0));
            }
            break;
        case 'o': { /* things that send the connection back to TCP */
            int one = 1;
            FILE *file;
            switch (a % 3) {
            case 0:
                NEED(setsockopt(sock, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one));
                break;
            case 1:
                NEED(setsockopt(sock, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one));
                break;
            default:
                file = fdopen(NEED(dup(sock)), "r+");
                fclose(file);
            }
            break;
        }
        default:
            fail("unknown command");
        }
        int count = snprintf(answer, sizeof answer, "%lld %d\n", result, errno);
        NEED(send(control, answer, (size_t)count, 0));
    }
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    id = atoi(argv[1]);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (strcmp(argv[2], "listen") == 0) {
        int listener = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        NEED(bind(listener, (struct sockaddr *)&address, sizeof address));
        NEED(listen(listener, 1));
        sock = listener;
        say_hello();
        sock = NEED(accept(listener, NULL, NULL));
        close(listener);
        close(control);
        say_hello();
    } else if (strncmp(argv[2], "connect:", 8) == 0) {
        address.sin_port = htons((uint16_t)atoi(argv[2] + 8));
        sock = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(sock, (struct sockaddr *)&address, sizeof address));
        say_hello();
    } else {
        sock = atoi(argv[2]);
        say_hello();
    }
    serve();
}
