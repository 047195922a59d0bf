/*
 * What the semantic tests share.
 *
 * A test program is a table of cases. Each case runs alone, in processes of its own:
 *
 *     PROG list                prints the cases, one per line
 *     PROG VARIANT/CASE        runs one and prints "ok NAME" or "not ok NAME: detail" per check
 *
 * Variants of a case with two sides ("here" accepts, "peer" connects):
 *     processes   the peer is this program executed anew, so that each end makes its own socket
 *     threads     the peer is a thread
 * and "alone" for a case that makes its own connections.
 *
 * The lines printed must be the same on every correct system: no numbers that vary, no times.
 * Both sides may check; the peer's lines follow the other's. Nothing here sleeps to synchronise: sides
 * tell each other where they are over a Unix socket of their own (tell, await), and a watchdog
 * ends a hang and says where it was.
 *
 * With SEMANTICS_GATE=1 in the environment each warmed-up connection is announced as
 * "# warm COOKIE" and the program waits for a line on its standard input: "more" to exchange
 * more messages first, anything else to go on. The harness uses the pause to ask vmmcd whether
 * that connection's bytes went through shared memory.
 */
#ifndef SEMANTICS_H
#define SEMANTICS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024u
#define MIB (1024u * 1024u)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum variants { PROCESSES = 1, THREADS = 2, ALONE = 4, COLD = 8 };

struct test_case {
    const char *name;
    void (*here)(int fd);
    void (*peer)(int fd);
    void (*alone)(void);
    unsigned variants;
};

/* Both variants, over a connection that was warmed up. */
#define PAIR(name) {#name, name##_here, name##_peer, NULL, PROCESSES | THREADS}
/* Two processes only. */
#define PAIR_OF_PROCESSES(name) {#name, name##_here, name##_peer, NULL, PROCESSES}
/* Two threads only. */
#define PAIR_OF_THREADS(name) {#name, name##_here, name##_peer, NULL, THREADS}
/* Both variants, over a connection that has carried nothing yet. */
#define COLD_PAIR(name) {#name, name##_here, name##_peer, NULL, PROCESSES | THREADS | COLD}
/* Two processes, over a connection that has carried nothing yet. */
#define COLD_PAIR_OF_PROCESSES(name)                                                               \
    {#name, name##_here, name##_peer, NULL, PROCESSES | COLD}
/* Makes its own connections. */
#define LONER(name) {#name, NULL, NULL, name, ALONE}

int run_cases(int argc, char **argv, const struct test_case *cases, size_t count);
#define MAIN(cases)                                                                                \
    int main(int argc, char **argv) { return run_cases(argc, argv, cases, COUNT(cases)); }

/* Checks. Each prints one line; a failed one gives what was found. */
void at_line(const char *file, int line);
bool check_true(bool good, const char *name, const char *what);
bool check_equal(long long got, long long want, const char *name);
bool check_fails(long long result, int error, const char *name);
#define CHECK(condition, name)                                                                     \
    (at_line(__FILE__, __LINE__), check_true((condition), (name), #condition))
#define CHECK_EQ(got, want, name)                                                                  \
    (at_line(__FILE__, __LINE__), errno = 0, check_equal((got), (want), (name)))
/* The call returns -1 with this errno. */
#define CHECK_FAILS(call, error, name)                                                             \
    (at_line(__FILE__, __LINE__), errno = 0, check_fails((call), (error), (name)))

/* Set-up and bodies of loops: ends this side of the case when the call gives a negative result. */
long long need_at(long long result, const char *what, const char *file, int line);
#define NEED(call)                                                                                 \
    (at_line(__FILE__, __LINE__), errno = 0, need_at((long long)(call), #call, __FILE__, __LINE__))
/* The same for a condition. */
#define REQUIRE(condition)                                                                         \
    ((void)(at_line(__FILE__, __LINE__),                                                           \
            need_at((condition) ? 0 : -1, #condition, __FILE__, __LINE__)))
/* Ends this side of the case with a message. */
void give_up(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* A line that is not compared. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Polls until the condition holds; the watchdog is the limit. For what the kernel does in its
 * own time and offers no way to wait for. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        at_line(__FILE__, __LINE__);                                                               \
        while (!(condition))                                                                       \
            sched_yield();                                                                         \
    } while (0)

/* The other side. */
void tell(char what);             /* wakes the other side's await(what) */
void await(char what);            /* waits for it */
char await_any(void);             /* waits for whatever it tells */
pid_t peer_pid(void);             /* process of the peer (variant processes, from here) */
bool in_threads(void);            /* whether the variant is threads */
void peer_will_be_killed(void);   /* the peer's end by a signal is part of the case */
void until_asleep(pid_t tid);     /* waits until that thread is asleep in the kernel, or has ended */
void exit_peer(void) __attribute__((noreturn)); /* ends the peer's side at once, report kept */

/* A helper thread of this side; its checks count here. */
void helper_start(pthread_t *thread, void *(*body)(void *), void *argument);

/* Connections. `port` in host order; 0: the kernel's choice. */
int listen_at(const struct sockaddr *address, socklen_t length);
int listen_loopback(uint16_t *port);
int connect_loopback(uint16_t port);
/* Two ends of one connection in this process, warmed up. ends[0] was accepted. */
void make_pair(int ends[2]);
void make_cold_pair(int ends[2]);
/* Ping-pong over a pair held by one thread, enough to be upgraded, with the gate. */
void warm_up(int a, int b);
/* Enough for it, with nothing read by a of what b sends: bytes of pattern `seed`. How many. */
size_t warm_up_unread(int a, int b, uint32_t seed);
/* The same with the other side doing the opposite. */
void warm_up_leader(int fd);
void warm_up_follower(int fd);
/* For a warm-up in which only this end sends: whether the harness wants more of it. */
bool wants_more_of_this_end(int fd);
/* Executes this program as `PROG peer CASE ...` would be: role "role:NAME" of the program, found
 * in the table given to set_roles. Descriptors without FD_CLOEXEC are inherited. */
struct role {
    const char *name;
    int (*body)(int argc, char **argv);
};
void set_roles(const struct role *roles, size_t count);
pid_t spawn_role(const char *name, char *const arguments[]);
int wait_exit(pid_t pid); /* exit status, or 1000 + signal */

/* Bytes that tell their own place: byte at offset `at` of stream `seed`. */
void pattern(void *buffer, size_t length, uint64_t at, uint32_t seed);
/* Length of the part that is right. */
size_t pattern_match(const void *buffer, size_t length, uint64_t at, uint32_t seed);
/* Whole transfers by read and write; end the case on any error or early end of file. */
void write_all(int fd, const void *buffer, size_t length);
void read_all(int fd, void *buffer, size_t length);
void write_pattern(int fd, size_t length, uint64_t at, uint32_t seed);
void read_pattern(int fd, size_t length, uint64_t at, uint32_t seed);
/* A few kilobytes from a to b, then from b to a, checked. */
void exchange(int a, int b, uint32_t seed);
/* Writes without blocking until EAGAIN; returns how many bytes went. */
size_t fill(int fd, uint64_t at, uint32_t seed);
/* Reads until end of file; returns how many bytes came, all checked. -1: an error ended it. */
long long drain(int fd, uint64_t at, uint32_t seed);

/* Small random numbers, the same in every run. */
uint32_t random_u32(uint64_t *state);

/* Descriptor passing, over a Unix socket. */
void send_fd(int channel, int fd);
void send_fd_with_many(int channel, int fd); /* the second message of two, by one sendmmsg */
int receive_fd(int channel);

/* epoll. `control` gives the call's result; the others end the case when it fails. */
int new_epoll(void);
int control(int epoll, int operation, int fd, uint32_t events, uint64_t data);
void add(int epoll, int fd, uint32_t events, uint64_t data);
void modify(int epoll, int fd, uint32_t events, uint64_t data);
void take_out(int epoll, int fd);
/* The events of the only descriptor reported; 0 when there is none, ~0 when there are more. */
uint32_t events_of(int epoll, int timeout_ms);
/* The same; there are no more, and these are its data. */
uint32_t events_with(int epoll, int timeout_ms, uint64_t data);
/* Body of a helper thread: waits without end in the set that the argument points to; returns the events. */
void *wait_in_set(void *epoll);

void set_nonblocking(int fd, bool on);
void set_option(int fd, int level, int option, int value);
int get_option(int fd, int level, int option);
int64_t now_ms(void);
int count_fds(void);
int readable_bytes(int fd);       /* FIONREAD */
int unacknowledged_bytes(int fd); /* SIOCOUTQ: 0 when all that was sent is in the peer's queue, or read */

/* Signals: installs a handler that counts in `signals_seen`; flags as for sigaction. */
extern volatile sig_atomic_t signals_seen;
void count_signal(int signal, int flags);

#endif
