/* Many connections at once (tests/random_crowds.rs): threads and processes of two ends that write and
 * read them at the same time, and meanwhile fork, exec, pass descriptors, go back to TCP, and die.
 *
 *   crowd SEED server|client WORLD        WORLD: a file that both ends map
 *   crowd SEED plan                       prints what everybody would do
 *
 * What everybody does follows from the seed. A direction of a connection has up to three writers and up
 * to three readers, threads or processes, at the same time. A byte names its writer and counts, so
 * that whatever order the writers come in, each one's bytes must arrive in their own. At planned
 * places a worker hands its descriptor on (to a child, another program, a copy) and ends. One end of some
 * connections is killed in the middle: the other must have got a beginning of each stream, and its end.
 *
 * The client announces "# warm COUNT" when it could begin; "more" is answered by more small exchanges. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 6, WORKERS = 3, EVENTS = 3, MOST_AT_ONCE = 30000, SERVER = 0, CLIENT = 1 };

/* What both ends share, and no socket has a part in. Direction `d` is the one that end `d` writes. */
struct direction {
    _Atomic uint64_t sent[WORKERS], received[WORKERS];
    _Atomic uint32_t writers_left;
    _Atomic uint32_t wrong;
};
struct world {
    _Atomic uint32_t port;
    struct {
        struct direction directions[2];
        /* Departures from the library that this end's workers have still before them. */
        _Atomic uint32_t departures[2];
    } connections[MOST];
};
static struct world *world;
static uint64_t seed;
static const char *world_path;

static void fail(const char *what) {
    fprintf(stderr, "crowd %llu (%d): %s: %s\n", (unsigned long long)seed, getpid(), what,
            strerror(errno));
    _exit(9);
}
#define NEED(call)                                                                                 \
    ({                                                                                             \
        __typeof__(call) result_ = (call);                                                         \
        if (result_ < 0)                                                                           \
            fail(#call);                                                                           \
        result_;                                                                                   \
    })

/* --- the plan, the same for everybody who knows the seed */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
/* A number below `below`, for a purpose. */
static uint64_t plan(uint64_t below, int connection, int direction, int purpose, int index) {
    uint64_t place = (((uint64_t)connection * 4 + (uint64_t)direction) * 64 + (uint64_t)purpose) *
                         4096 + (uint64_t)index;
    return mix(mix(seed) ^ mix(place)) % below;
}
enum { COUNT, COLD, VICTIM, APART, WRITERS, READERS, TOTAL, NEXT, PLACE, KIND, FORMER, CHUNK, METHOD };

static int connections(void) { return 2 + (int)plan(MOST - 1, 0, 0, COUNT, 0); }
/* The end that is killed, or -1. */
static int victim(int c) { return plan(4, c, 0, VICTIM, 0) ? -1 : (int)plan(2, c, 1, VICTIM, 0); }
/* Whether an end is a process of its own. */
static bool apart(int c, int end) { return victim(c) == end || plan(3, c, end, APART, 0) == 0; }
static int writers(int c, int d) { return 1 + (plan(2, c, d, WRITERS, 0) ? 0 : (int)plan(3, c, d, WRITERS, 1)); }
static int readers(int c, int d) { return 1 + (plan(2, c, d, READERS, 0) ? 0 : (int)plan(3, c, d, READERS, 1)); }
static uint64_t total(int c, int d, int writer) {
    uint64_t most = plan(3, c, d, TOTAL, writer) == 0 ? 2000 : plan(6, c, d, TOTAL, writer + 8) ? 120000 : 1500000;
    return 1 + plan(most, c, d, TOTAL, writer + 16);
}
static uint64_t all(int c, int d) {
    uint64_t sum = 0;
    for (int i = 0; i < writers(c, d); i++)
        sum += total(c, d, i);
    return sum;
}

enum kind { FORK, BARE_FORK, EXEC, EXEC_WITHOUT, SPAWN, SPAWN_WITHOUT, PASS, COPY, COPY2, TO_TCP, STDIO, NONBLOCKING, KINDS };
struct event {
    uint64_t place;
    enum kind kind;
};
static bool departs(enum kind kind) {
    return kind == EXEC || kind == EXEC_WITHOUT || kind == SPAWN || kind == SPAWN_WITHOUT || kind == PASS ||
           kind == TO_TCP || kind == STDIO;
}

struct worker {
    int connection, end, index, fd;
    bool writes;
    /* Bytes written, or of a lone reader read; the next event; what a lone reader has seen of each writer. */
    uint64_t at;
    int event;
    uint64_t seen[WORKERS];
};
static int direction_of(const struct worker *w) { return w->writes ? w->end : 1 - w->end; }

/* The worker's events, in order. Readers that share a direction have theirs before their first byte, because
 * nobody knows how many bytes each of them will see. */
static int events(const struct worker *w, struct event *list) {
    int c = w->connection, d = direction_of(w), base = (w->writes ? 0 : 100) + w->index * 10;
    int count = (int)plan(EVENTS + 1, c, d, NEXT, base);
    bool lone = w->writes || readers(c, d) == 1;
    uint64_t most = w->writes ? total(c, d, w->index) : all(c, d);
    for (int i = 0; i < count; i++) {
        list[i].place = lone ? plan(most, c, d, PLACE, base + i) : 0;
        list[i].kind = (enum kind)plan(KINDS, c, d, KIND, base + i);
    }
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count; j++)
            if (list[j].place < list[i].place) {
                uint64_t place = list[i].place;
                list[i].place = list[j].place;
                list[j].place = place;
            }
    /* The child of a bare fork must not use the heap, nor fork again. */
    for (int i = 0; i + 1 < count; i++)
        if (list[i].kind == BARE_FORK)
            list[i].kind = FORK;
    return count;
}
static uint32_t departures(int c, int end) {
    struct event list[EVENTS];
    uint32_t sum = 0;
    for (int writes = 0; writes < 2; writes++) {
        struct worker w = {.connection = c, .end = end, .writes = writes};
        int d = direction_of(&w);
        for (w.index = 0; w.index < (writes ? writers(c, d) : readers(c, d)); w.index++)
            for (int i = events(&w, list) - 1; i >= 0; i--)
                sum += departs(list[i].kind);
    }
    return sum;
}

/* --- bytes */

/* The two upper bits name the writer; the others count, so that what is lost or doubled is seen. */
static unsigned char byte_at(int writer, uint64_t at) {
    return (unsigned char)(writer << 6 | ((at + (at >> 6) * 5 + (at >> 12) * 3) & 63));
}
static struct direction *shared(const struct worker *w) {
    return &world->connections[w->connection].directions[direction_of(w)];
}
static void take(struct worker *w, const unsigned char *bytes, size_t count) {
    struct direction *d = shared(w);
    uint64_t fresh[WORKERS] = {0};
    bool lone = readers(w->connection, direction_of(w)) == 1;
    for (size_t i = 0; i < count; i++) {
        int writer = bytes[i] >> 6;
        if (writer >= writers(w->connection, direction_of(w)) ||
            (lone && bytes[i] != byte_at(writer, w->seen[writer]))) {
            if (atomic_exchange(&d->wrong, 1) == 0)
                fprintf(stderr, "crowd %llu: connection %d, direction %d: byte %llu of writer %d is wrong\n",
                        (unsigned long long)seed, w->connection, direction_of(w),
                        (unsigned long long)(w->at + i), writer);
            continue;
        }
        w->seen[writer]++;
        fresh[writer]++;
    }
    for (int i = 0; i < WORKERS; i++)
        atomic_fetch_add(&d->received[i], fresh[i]);
    w->at += count;
}

/* --- calls */

static void wait_for(int fd, short events, int method) {
    if (method % 3 == 0) {
        struct pollfd one = {.fd = fd, .events = events};
        while (poll(&one, 1, -1) < 0 && errno == EINTR)
            ;
    } else if (method % 3 == 1) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        select(fd + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL, NULL, NULL);
    } else {
        int set = NEED(epoll_create1(EPOLL_CLOEXEC));
        struct epoll_event event = {.events = events == POLLIN ? EPOLLIN : EPOLLOUT};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        while (epoll_wait(set, &event, 1, -1) < 0 && errno == EINTR)
            ;
        close(set);
    }
}
static ssize_t put(int fd, unsigned char *bytes, size_t length, int method) {
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (method % 5) {
    case 0: return send(fd, bytes, length, MSG_DONTWAIT);
    case 1: return writev(fd, parts, 2);
    case 2: return sendmsg(fd, &message, 0);
    case 3: return syscall(SYS_write, fd, bytes, length);
    default: return write(fd, bytes, length);
    }
}
static ssize_t get(int fd, unsigned char *bytes, size_t length, int method) {
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (method % 6) {
    case 0: return recv(fd, bytes, length, MSG_DONTWAIT);
    case 1: return readv(fd, parts, 2);
    case 2: return recvmsg(fd, &message, 0);
    case 3: return syscall(SYS_read, fd, bytes, length);
    case 4: wait_for(fd, POLLIN, method / 6); return recv(fd, bytes, length, MSG_DONTWAIT);
    default: return read(fd, bytes, length);
    }
}

/* --- handing on */

static void work(struct worker *w);

/* The arguments of a program that goes on with the work, and its environment. */
struct image {
    char numbers[12][24], *arguments[16], *environment[64];
};
static void image_of(struct image *image, const struct worker *w, bool with_library) {
    extern char **environ;
    uint64_t values[] = {(uint64_t)w->connection, (uint64_t)w->end, (uint64_t)w->index, (uint64_t)w->fd, w->writes,
                         w->at, (uint64_t)w->event, w->seen[0], w->seen[1], w->seen[2]};
    int count = 0, kept = 0;
    snprintf(image->numbers[11], sizeof image->numbers[11], "%llu", (unsigned long long)seed);
    image->arguments[count++] = "crowd";
    image->arguments[count++] = image->numbers[11];
    image->arguments[count++] = "work";
    image->arguments[count++] = (char *)world_path;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(image->numbers[i], sizeof image->numbers[i], "%llu", (unsigned long long)values[i]);
        image->arguments[count++] = image->numbers[i];
    }
    image->arguments[count] = NULL;
    for (char **one = environ; *one && kept < 63; one++)
        if (with_library || strncmp(*one, "LD_PRELOAD=", 11) != 0)
            image->environment[kept++] = *one;
    image->environment[kept] = NULL;
}
/* The child has what the work needs, and nothing else that would keep other connections alive. */
static void keep_only(int fd) {
    if (fd > 3)
        NEED(close_range(3, (unsigned)fd - 1, 0));
    NEED(close_range((unsigned)fd + 1, ~0u, 0));
}
static void await(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    if (status != 0) {
        errno = 0;
        fprintf(stderr, "crowd %llu: a worker ended with %x\n", (unsigned long long)seed, status);
        fail("a worker");
    }
}
static void send_descriptor(int channel, int fd) {
    char byte = 'f', room[CMSG_SPACE(sizeof fd)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    NEED(sendmsg(channel, &message, 0));
}
static int receive_descriptor(int channel) {
    int fd = -1;
    char byte, room[CMSG_SPACE(sizeof fd)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    NEED(recvmsg(channel, &message, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
static void departed(const struct worker *w) {
    atomic_fetch_sub(&world->connections[w->connection].departures[w->end], 1);
}

/* Does what the plan says; returns whether somebody else has gone on with the work, and has ended. */
static bool happens(struct worker *w, enum kind kind, bool *own_fd) {
    struct image image;
    pid_t child;
    int pair[2], fresh, one = 1;
    w->event++;
    switch (kind) {
    case FORK:
    case BARE_FORK:
        child = NEED(kind == FORK ? fork() : _Fork());
        if (child == 0) {
            keep_only(w->fd);
            work(w);
            _exit(0);
        }
        await(child);
        return true;
    case EXEC:
    case EXEC_WITHOUT:
        image_of(&image, w, kind == EXEC);
        child = NEED(fork());
        if (child == 0) {
            keep_only(w->fd);
            NEED(fcntl(w->fd, F_SETFD, 0));
            execve("/proc/self/exe", image.arguments, image.environment);
            fail("execve");
        }
        await(child);
        return true;
    case SPAWN:
    case SPAWN_WITHOUT: {
        /* Only this descriptor: all others are close-on-exec. */
        posix_spawn_file_actions_t actions;
        int target = 400 + w->connection * 20 + w->end * 10 + w->writes * 4 + w->index, old = w->fd;
        w->fd = target;
        image_of(&image, w, kind == SPAWN);
        w->fd = old;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, old, target);
        if ((errno = posix_spawn(&child, "/proc/self/exe", &actions, NULL, image.arguments, image.environment)) != 0)
            fail("posix_spawn");
        posix_spawn_file_actions_destroy(&actions);
        await(child);
        return true;
    }
    case PASS:
        NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        child = NEED(fork());
        if (child == 0) {
            keep_only(pair[1]);
            w->fd = receive_descriptor(pair[1]);
            close(pair[1]);
            departed(w);
            work(w);
            _exit(0);
        }
        close(pair[1]);
        send_descriptor(pair[0], w->fd);
        close(pair[0]);
        await(child);
        return true;
    case COPY:
    case COPY2:
        fresh = kind == COPY ? NEED(fcntl(w->fd, F_DUPFD_CLOEXEC, 40)) : NEED(fcntl(w->fd, F_DUPFD, 200));
        if (kind == COPY2)
            NEED(fcntl(fresh, F_SETFD, FD_CLOEXEC));
        if (*own_fd)
            close(w->fd);
        w->fd = fresh;
        *own_fd = true;
        return false;
    case TO_TCP:
        NEED(setsockopt(w->fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one));
        departed(w);
        return false;
    case STDIO: {
        FILE *file = fdopen(NEED(fcntl(w->fd, F_DUPFD_CLOEXEC, 100)), "r+");
        fclose(file);
        departed(w);
        return false;
    }
    default:
        one = (int)plan(2, w->connection, w->end, METHOD, w->event + 50);
        NEED(ioctl(w->fd, FIONBIO, &one));
        return false;
    }
}

/* --- the work */

static bool peer_died(const struct worker *w) {
    return victim(w->connection) == 1 - w->end && (errno == EPIPE || errno == ECONNRESET);
}
/* After the last writer: the end of the stream, when nobody at the other end is about to leave the library, who would
 * not get what is unread then. The ends of a connection with a victim come by its death. */
static void ended(const struct worker *w) {
    if (atomic_fetch_sub(&shared(w)->writers_left, 1) != 1 || victim(w->connection) >= 0)
        return;
    while (atomic_load(&world->connections[w->connection].departures[1 - w->end]) > 0)
        usleep(300);
    NEED(shutdown(w->fd, SHUT_WR));
}
static void work(struct worker *w) {
    int c = w->connection, d = direction_of(w), turn = 0;
    unsigned char bytes[MOST_AT_ONCE];
    struct event list[EVENTS];
    int count = events(w, list);
    /* The victim ends itself, and all that are with it, when this many bytes have come. */
    bool kills = victim(c) == w->end && !w->writes;
    uint64_t death = kills ? plan(all(c, d), c, d, VICTIM, 5) : 0;
    uint64_t length = w->writes ? total(c, d, w->index) : 0;
    bool own_fd = false;
    for (;; turn++) {
        while (w->event < count && list[w->event].place <= w->at) {
            enum kind kind = list[w->event].kind;
            if (happens(w, kind, &own_fd)) {
                if (own_fd)
                    close(w->fd);
                return;
            }
        }
        if (kills) {
            struct direction *came = shared(w);
            uint64_t sum = 0;
            for (int i = 0; i < WORKERS; i++)
                sum += atomic_load(&came->received[i]);
            if (sum >= death)
                kill(0, SIGKILL);
        }
        int method = (int)plan(60, c, d, METHOD, (w->writes ? 0 : 1000) + turn % 900 + w->index);
        size_t most = 1 + (size_t)plan(plan(3, c, d, CHUNK, turn % 700) ? 600 : MOST_AT_ONCE, c, d, CHUNK,
                                       700 + turn % 900 + w->index);
        if (w->writes) {
            if (w->at == length)
                break;
            if (most > length - w->at)
                most = (size_t)(length - w->at);
            for (size_t i = 0; i < most; i++)
                bytes[i] = byte_at(w->index, w->at + i);
            atomic_store(&shared(w)->sent[w->index], w->at + most);
            ssize_t done = put(w->fd, bytes, most, method);
            if (done < 0 && errno == EAGAIN) {
                wait_for(w->fd, POLLOUT, method / 5);
                continue;
            }
            if (done <= 0) {
                if (peer_died(w))
                    break;
                fail("send");
            }
            w->at += (uint64_t)done;
        } else {
            ssize_t done = get(w->fd, bytes, most, method);
            if (done < 0 && errno == EAGAIN) {
                wait_for(w->fd, POLLIN, method / 6);
                continue;
            }
            if (done == 0 || (done < 0 && peer_died(w)))
                break;
            if (done < 0)
                fail("receive");
            take(w, bytes, (size_t)done);
        }
    }
    /* Nobody waits for departures that do not come any more. */
    for (; w->event < count; w->event++)
        if (departs(list[w->event].kind))
            departed(w);
    if (w->writes)
        ended(w);
    if (own_fd)
        close(w->fd);
}
static void *work_of(void *worker) {
    work(worker);
    return NULL;
}

/* Both directions of one end of one connection, a thread for each worker. */
struct end {
    struct worker workers[2 * WORKERS];
    pthread_t threads[2 * WORKERS];
    int count, fd;
};
static void begin(struct end *e, int c, int end, int fd) {
    e->fd = fd;
    e->count = 0;
    for (int writes = 0; writes < 2; writes++) {
        int d = writes ? end : 1 - end;
        for (int i = 0; i < (writes ? writers(c, d) : readers(c, d)); i++)
            e->workers[e->count++] = (struct worker){.connection = c, .end = end, .index = i, .fd = fd, .writes = writes};
    }
    for (int i = 0; i < e->count; i++)
        if (pthread_create(&e->threads[i], NULL, work_of, &e->workers[i]) != 0)
            fail("pthread_create");
}
static void finish(struct end *e, int c, int end) {
    for (int i = 0; i < e->count; i++)
        pthread_join(e->threads[i], NULL);
    /* Its death ends a connection with a victim. */
    if (victim(c) == end)
        for (;;)
            pause();
    close(e->fd);
}

static void report(int c, int end) {
    struct direction *d = &world->connections[c].directions[1 - end];
    if (victim(c) == end)
        return;
    bool right = !atomic_load(&d->wrong);
    for (int i = 0; i < writers(c, 1 - end); i++) {
        uint64_t came = atomic_load(&d->received[i]), sent = atomic_load(&d->sent[i]);
        if (victim(c) < 0 ? came != total(c, 1 - end, i) : came > sent) {
            fprintf(stderr, "crowd %llu: connection %d: %llu of %llu bytes of writer %d came (%llu sent)\n",
                    (unsigned long long)seed, c, (unsigned long long)came,
                    (unsigned long long)total(c, 1 - end, i), i, (unsigned long long)sent);
            right = false;
        }
    }
    printf("connection %d: %d writers, %d readers%s: %s\n", c, writers(c, 1 - end), readers(c, 1 - end),
           victim(c) < 0 ? "" : ", the peer is killed", right ? "all is right" : "WRONG");
}

/* --- both ends */

static void exactly(int fd, bool out, char *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t count = out ? send(fd, bytes + done, length - done, 0) : recv(fd, bytes + done, length - done, 0);
        if (count <= 0)
            fail("warm-up");
        done += (size_t)count;
    }
}
static void warm_up(int end, const int *fds) {
    char question[16] = "w", answer[64];
    for (int rounds = 0;; rounds++) {
        bool last = false;
        if (end == CLIENT && (last = rounds >= 20 && plan(3, 0, 0, COLD, 0) == 0) == false && rounds > 0 && rounds % 50 == 0) {
            printf("# warm %d\n", connections());
            fflush(stdout);
            if (!fgets(answer, sizeof answer, stdin))
                fail("the harness");
            last = strcmp(answer, "go\n") == 0;
        }
        if (end == CLIENT)
            *question = last ? 'g' : 'w';
        for (int c = 0; c < connections(); c++) {
            exactly(fds[c], end == CLIENT, question, sizeof question);
            exactly(fds[c], end == SERVER, question, sizeof question);
        }
        if (*question == 'g')
            return;
    }
}

static void print_plan(void) {
    static const char *names[] = {"fork", "_Fork", "exec", "exec without", "spawn", "spawn without", "pass",
                                  "copy", "copy2", "to TCP", "stdio", "nonblocking"};
    for (int c = 0; c < connections(); c++)
        for (int end = 0; end < 2; end++) {
            printf("connection %d, end %d%s%s\n", c, end, apart(c, end) ? ", apart" : "",
                   victim(c) == end ? ", is killed" : "");
            for (int writes = 0; writes < 2; writes++) {
                struct worker w = {.connection = c, .end = end, .writes = writes};
                int d = direction_of(&w);
                for (w.index = 0; w.index < (writes ? writers(c, d) : readers(c, d)); w.index++) {
                    struct event list[EVENTS];
                    int count = events(&w, list);
                    printf("  %s %d of %llu bytes:", writes ? "writer" : "reader", w.index,
                           (unsigned long long)(writes ? total(c, d, w.index) : all(c, d)));
                    for (int i = 0; i < count; i++)
                        printf(" %llu %s,", (unsigned long long)list[i].place, names[list[i].kind]);
                    printf("\n");
                }
            }
        }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    seed = strtoull(argv[1], NULL, 10);
    if (argc < 4) {
        print_plan();
        return 0;
    }
    world_path = argv[3];
    int file = NEED(open(world_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    NEED(ftruncate(file, sizeof *world));
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (world == MAP_FAILED)
        fail("mmap");
    close(file);

    if (strcmp(argv[2], "work") == 0) {
        uint64_t v[10];
        for (int i = 0; i < 10; i++)
            v[i] = strtoull(argv[4 + i], NULL, 10);
        struct worker w = {(int)v[0], (int)v[1], (int)v[2], (int)v[3], v[4] != 0, v[5], (int)v[6], {v[7], v[8], v[9]}};
        NEED(fcntl(w.fd, F_SETFD, FD_CLOEXEC));
        departed(&w);
        work(&w);
        return 0;
    }

    int end = strcmp(argv[2], "server") == 0 ? SERVER : CLIENT, fds[MOST];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (end == SERVER) {
        for (int c = 0; c < connections(); c++)
            for (int e = 0; e < 2; e++) {
                atomic_store(&world->connections[c].departures[e], departures(c, e));
                atomic_store(&world->connections[c].directions[e].writers_left, (uint32_t)writers(c, e));
            }
        int listener = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        NEED(bind(listener, (struct sockaddr *)&address, sizeof address));
        NEED(listen(listener, MOST));
        NEED(getsockname(listener, (struct sockaddr *)&address, &length));
        atomic_store(&world->port, address.sin_port);
        for (int c = 0; c < connections(); c++)
            fds[c] = NEED(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        close(listener);
    } else {
        while (atomic_load(&world->port) == 0)
            usleep(200);
        address.sin_port = (in_port_t)atomic_load(&world->port);
        for (int c = 0; c < connections(); c++) {
            fds[c] = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            NEED(connect(fds[c], (struct sockaddr *)&address, sizeof address));
        }
    }
    warm_up(end, fds);

    static struct end ends[MOST];
    pid_t children[MOST] = {0};
    for (int c = 0; c < connections(); c++) {
        if (!apart(c, end))
            continue;
        children[c] = NEED(fork());
        if (children[c] == 0) {
            if (victim(c) == end)
                NEED(setpgid(0, 0));
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            keep_only(fds[c]);
            begin(&ends[c], c, end, fds[c]);
            finish(&ends[c], c, end);
            return 0;
        }
        close(fds[c]);
    }
    for (int c = 0; c < connections(); c++)
        if (!apart(c, end))
            begin(&ends[c], c, end, fds[c]);
    for (int c = 0; c < connections(); c++) {
        int status = 0;
        if (!apart(c, end))
            finish(&ends[c], c, end);
        else if (waitpid(children[c], &status, 0) < 0)
            fail("waitpid");
        else if (status != (victim(c) == end ? SIGKILL : 0)) {
            fprintf(stderr, "crowd %llu: connection %d's process ended with %x\n", (unsigned long long)seed, c, status);
            fail("a process");
        }
        report(c, end);
    }
    return 0;
}
