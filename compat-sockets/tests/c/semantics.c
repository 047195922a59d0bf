/* See semantics.h. */
#include "semantics.h"
#include <dirent.h>
#include <stdarg.h>

enum { WARM_ROUNDS = 50, REPORT_SIZE = 32 * 1024, HERE = 0, PEER = 1 };

struct side {
    const char *name;
    char report[REPORT_SIZE];
    size_t used;
    const char *file;
    int line;
    int sync;
};

static struct side sides[2] = {{.name = "here", .sync = -1}, {.name = "peer", .sync = -1}};
static __thread struct side *self = &sides[HERE];
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct role *all_roles;
static size_t role_count;
static pid_t the_peer;
static bool threads_variant;
static bool death_expected;
static pthread_t peer_thread;
volatile sig_atomic_t signals_seen;

/* ---- reporting ---- */

static void add_line(const char *format, va_list arguments) {
    pthread_mutex_lock(&report_lock);
    size_t room = sizeof self->report - self->used;
    int length = vsnprintf(self->report + self->used, room, format, arguments);
    if (length > 0 && (size_t)length < room)
        self->used += (size_t)length;
    pthread_mutex_unlock(&report_lock);
}

static void line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void line(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_line(format, arguments);
    va_end(arguments);
}

void note(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    line("# %s: %s\n", self->name, text);
}

/* Straight to the kernel: the report must get out whatever the library under test does. */
static void put(const char *text, size_t length) {
    while (length > 0) {
        long done = syscall(SYS_write, 1, text, length);
        if (done <= 0)
            return;
        text += done;
        length -= (size_t)done;
    }
}

static void flush_report(struct side *side) {
    put(side->report, side->used);
    side->used = 0;
}

void at_line(const char *file, int number) {
    const char *slash = strrchr(file, '/');
    self->file = slash ? slash + 1 : file;
    self->line = number;
}

static const char *error_name(int error) {
    const char *name = error ? strerrorname_np(error) : "no error";
    return name ? name : "unknown errno";
}

bool check_true(bool good, const char *name, const char *what) {
    int error = errno;
    if (good)
        line("ok %s: %s\n", self->name, name);
    else
        line("not ok %s: %s: not (%s), errno %s [%s:%d]\n", self->name, name, what,
             error_name(error), self->file, self->line);
    return good;
}

bool check_equal(long long got, long long want, const char *name) {
    int error = errno;
    if (got == want)
        line("ok %s: %s\n", self->name, name);
    else
        line("not ok %s: %s: got %lld, want %lld, errno %s [%s:%d]\n", self->name, name, got, want,
             error_name(error), self->file, self->line);
    return got == want;
}

bool check_fails(long long result, int error, const char *name) {
    int found = errno;
    if (result == -1 && found == error)
        line("ok %s: %s\n", self->name, name);
    else
        line("not ok %s: %s: got %lld (%s), want -1 (%s) [%s:%d]\n", self->name, name, result,
             result < 0 ? error_name(found) : "success", error_name(error), self->file, self->line);
    return result == -1 && found == error;
}

/* Ends this side. The other one is left to find out: by end of file, or by its watchdog. */
static void end_side(void) __attribute__((noreturn));
static void end_side(void) {
    if (threads_variant || self == &sides[HERE]) {
        for (int i = 0; i < 2; i++)
            flush_report(&sides[i]);
        if (the_peer > 0)
            kill(the_peer, SIGKILL);
    } else {
        flush_report(self);
    }
    _exit(1);
}

void give_up(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    line("not ok %s: gave up: %s [%s:%d]\n", self->name, text, self->file, self->line);
    end_side();
}

long long need_at(long long result, const char *what, const char *file, int number) {
    if (result >= 0)
        return result;
    int error = errno;
    at_line(file, number);
    give_up("%s failed: %s", what, error_name(error));
}

/* ---- watchdog ---- */

static void hung(int signal) {
    (void)signal;
    char text[256];
    int first = threads_variant ? HERE : (int)(self - sides);
    int last = threads_variant ? PEER : first;
    for (int i = first; i <= last; i++) {
        flush_report(&sides[i]);
        int length = snprintf(text, sizeof text, "not ok %s: hung at or after %s:%d\n",
                              sides[i].name, sides[i].file ? sides[i].file : "start", sides[i].line);
        put(text, (size_t)length);
    }
    if (the_peer > 0)
        kill(the_peer, SIGKILL);
    _exit(3);
}

static void start_watchdog(unsigned less) {
    const char *text = getenv("SEMANTICS_WATCHDOG");
    unsigned seconds = text ? (unsigned)atoi(text) : 180;
    /* SA_RESTART: no program without handlers that interrupt should look like one with. */
    struct sigaction action = {.sa_handler = hung, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    if (seconds > 0)
        alarm(seconds > less ? seconds - less : 1);
}

/* ---- the other side ---- */

void tell(char what) {
    if (syscall(SYS_sendto, self->sync, &what, 1, MSG_NOSIGNAL, NULL, 0) != 1)
        give_up("the other side is gone (tell %c)", what);
}

static bool await_byte(char *found) {
    long got;
    do
        got = syscall(SYS_read, self->sync, found, 1);
    while (got < 0 && errno == EINTR);
    return got == 1;
}

char await_any(void) {
    char found = 0;
    if (!await_byte(&found))
        give_up("the other side is gone (await)");
    return found;
}

void await(char what) {
    char found = 0;
    if (!await_byte(&found))
        give_up("the other side is gone (await %c)", what);
    if (found != what)
        give_up("the other side told %c, awaited %c", found, what);
}

pid_t peer_pid(void) { return the_peer; }
bool in_threads(void) { return threads_variant; }
void peer_will_be_killed(void) { death_expected = true; }

void exit_peer(void) {
    if (threads_variant)
        pthread_exit(NULL);
    flush_report(self);
    _exit(0);
}

static char thread_state(pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 'X';
    long length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (length <= 0)
        return 'X';
    text[length] = 0;
    const char *end = strrchr(text, ')');
    return end && end[1] ? end[2] : 'X';
}

void until_asleep(pid_t tid) {
    /* Asleep at several looks in a row: not merely between two instructions. */
    struct timespec pause = {.tv_nsec = 1000000};
    for (int in_a_row = 0; in_a_row < 5;) {
        char state = thread_state(tid);
        in_a_row = state == 'S' || state == 'X' ? in_a_row + 1 : 0;
        nanosleep(&pause, NULL);
    }
}

struct helper {
    struct side *side;
    void *(*body)(void *);
    void *argument;
};

static void *helper_body(void *pointer) {
    struct helper helper = *(struct helper *)pointer;
    free(pointer);
    self = helper.side;
    return helper.body(helper.argument);
}

void helper_start(pthread_t *thread, void *(*body)(void *), void *argument) {
    struct helper *helper = malloc(sizeof *helper);
    *helper = (struct helper){self, body, argument};
    int error = pthread_create(thread, NULL, helper_body, helper);
    if (error)
        give_up("pthread_create: %s", error_name(error));
}

/* ---- connections ---- */

int listen_at(const struct sockaddr *address, socklen_t length) {
    int fd = (int)NEED(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    NEED(bind(fd, address, length));
    NEED(listen(fd, 64));
    return fd;
}

int listen_loopback(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = listen_at((struct sockaddr *)&address, length);
    NEED(getsockname(fd, (struct sockaddr *)&address, &length));
    *port = ntohs(address.sin_port);
    return fd;
}

int connect_loopback(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = (int)NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

void make_cold_pair(int ends[2]) {
    uint16_t port = 0;
    int listener = listen_loopback(&port);
    ends[1] = connect_loopback(port);
    ends[0] = (int)NEED(accept(listener, NULL, NULL));
    NEED(close(listener));
}

void make_pair(int ends[2]) {
    make_cold_pair(ends);
    warm_up(ends[0], ends[1]);
}

/* Announces the connection; true when the harness wants more messages first, of both ends or of this one. */
static bool gate_of(int fd, const char *ends) {
    if (!getenv("SEMANTICS_GATE"))
        return false;
    uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    char text[64];
    size_t used = 0;
    NEED(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length));
    int written = snprintf(text, sizeof text, "# warm %s %llu\n", ends, (unsigned long long)cookie);
    put(text, (size_t)written);
    while (used < sizeof text && syscall(SYS_read, 0, text + used, 1) == 1 && text[used] != '\n')
        used++;
    return used == 4 && memcmp(text, "more", 4) == 0;
}

static bool gate(int fd) {
    return gate_of(fd, "both");
}

bool wants_more_of_this_end(int fd) {
    return gate_of(fd, "this");
}

void warm_up_leader(int fd) {
    char byte;
    do {
        for (int round = 0; round < WARM_ROUNDS; round++) {
            write_all(fd, "p", 1);
            read_all(fd, &byte, 1);
        }
    } while (gate(fd));
    write_all(fd, "e", 1);
    read_all(fd, &byte, 1);
    if (byte != 'e')
        give_up("warm-up: got byte %d", byte);
}

void warm_up_follower(int fd) {
    char byte;
    do {
        read_all(fd, &byte, 1);
        write_all(fd, &byte, 1);
    } while (byte != 'e');
}

void warm_up(int a, int b) {
    char byte;
    do {
        for (int round = 0; round < WARM_ROUNDS; round++) {
            write_all(a, "p", 1);
            read_all(b, &byte, 1);
            write_all(b, "q", 1);
            read_all(a, &byte, 1);
        }
    } while (gate(a));
}

size_t warm_up_unread(int a, int b, uint32_t seed) {
    char byte;
    size_t sent = 0;
    do {
        for (int round = 0; round < WARM_ROUNDS; round++) {
            /* Later turns add little: all of it must find room, however long the harness has to wait for the daemon. */
            if (sent < 2000 || round == 0) {
                write_pattern(b, 10, sent, seed);
                sent += 10;
            }
            write_all(a, "p", 1);
            read_all(b, &byte, 1);
        }
    } while (gate(a));
    return sent;
}

/* ---- bytes ---- */

static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

uint32_t random_u32(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mix(*state) >> 32);
}

static uint64_t pattern_word(uint64_t index, uint32_t seed) {
    return mix(index + ((uint64_t)seed << 40) + 1);
}

void pattern(void *buffer, size_t length, uint64_t at, uint32_t seed) {
    unsigned char *bytes = buffer;
    size_t done = 0;
    while (done < length) {
        uint64_t word = pattern_word((at + done) / 8, seed);
        size_t skip = (at + done) % 8, take = 8 - skip;
        if (take > length - done)
            take = length - done;
        memcpy(bytes + done, (unsigned char *)&word + skip, take);
        done += take;
    }
}

size_t pattern_match(const void *buffer, size_t length, uint64_t at, uint32_t seed) {
    const unsigned char *bytes = buffer;
    size_t done = 0;
    while (done < length) {
        uint64_t word = pattern_word((at + done) / 8, seed);
        size_t skip = (at + done) % 8, take = 8 - skip;
        if (take > length - done)
            take = length - done;
        if (memcmp(bytes + done, (unsigned char *)&word + skip, take) != 0) {
            while (bytes[done] == ((unsigned char *)&word)[skip])
                done++, skip++;
            return done;
        }
        done += take;
    }
    return done;
}

/* Whether a transfer that gave this is to be tried again: it was interrupted, or would have blocked, and does
 * not any more. */
static bool try_again(ssize_t done, int fd, short events) {
    if (done < 0 && errno == EAGAIN) {
        struct pollfd wait = {.fd = fd, .events = events};
        poll(&wait, 1, -1);
        return true;
    }
    return done < 0 && errno == EINTR;
}

void write_all(int fd, const void *buffer, size_t length) {
    const char *bytes = buffer;
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);
        if (try_again(done, fd, POLLOUT))
            continue;
        if (done <= 0)
            give_up("write of %zu bytes: %zd, %s", length, done, error_name(errno));
        bytes += done;
        length -= (size_t)done;
    }
}

void read_all(int fd, void *buffer, size_t length) {
    char *bytes = buffer;
    while (length > 0) {
        ssize_t done = read(fd, bytes, length);
        if (try_again(done, fd, POLLIN))
            continue;
        if (done <= 0)
            give_up("read of %zu bytes: %zd, %s", length, done, done ? error_name(errno) : "end of file");
        bytes += done;
        length -= (size_t)done;
    }
}

enum { CHUNK = 64 * 1024 };

void write_pattern(int fd, size_t length, uint64_t at, uint32_t seed) {
    static __thread char buffer[CHUNK];
    for (size_t done = 0; done < length;) {
        size_t part = length - done < CHUNK ? length - done : CHUNK;
        pattern(buffer, part, at + done, seed);
        write_all(fd, buffer, part);
        done += part;
    }
}

static void expect_pattern(const char *buffer, size_t length, uint64_t at, uint32_t seed) {
    size_t good = pattern_match(buffer, length, at, seed);
    if (good != length)
        give_up("wrong byte at offset %llu", (unsigned long long)(at + good));
}

void read_pattern(int fd, size_t length, uint64_t at, uint32_t seed) {
    static __thread char buffer[CHUNK];
    for (size_t done = 0; done < length;) {
        size_t part = length - done < CHUNK ? length - done : CHUNK;
        read_all(fd, buffer, part);
        expect_pattern(buffer, part, at + done, seed);
        done += part;
    }
}

void exchange(int a, int b, uint32_t seed) {
    write_pattern(a, 3000, 0, seed);
    read_pattern(b, 3000, 0, seed);
    write_pattern(b, 3000, 0, seed + 1);
    read_pattern(a, 3000, 0, seed + 1);
}

size_t fill(int fd, uint64_t at, uint32_t seed) {
    static __thread char buffer[CHUNK];
    size_t sent = 0;
    for (;;) {
        pattern(buffer, CHUNK, at + sent, seed);
        ssize_t done = send(fd, buffer, CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && errno == EAGAIN)
            return sent;
        if (done <= 0)
            give_up("send while filling: %zd, %s", done, error_name(errno));
        sent += (size_t)done;
    }
}

long long drain(int fd, uint64_t at, uint32_t seed) {
    static __thread char buffer[CHUNK];
    long long total = 0;
    for (;;) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got == 0)
            return total;
        if (got < 0)
            return -1;
        expect_pattern(buffer, (size_t)got, at + (uint64_t)total, seed);
        total += got;
    }
}

/* ---- descriptor passing ---- */

/* A message of one byte with room for one descriptor. */
struct carrier {
    char byte;
    struct iovec part;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message;
};

static struct msghdr *prepare(struct carrier *carrier) {
    *carrier = (struct carrier){.byte = 'f', .part = {&carrier->byte, 1}};
    carrier->message = (struct msghdr){.msg_iov = &carrier->part,
                                       .msg_iovlen = 1,
                                       .msg_control = carrier->control.room,
                                       .msg_controllen = sizeof carrier->control.room};
    return &carrier->message;
}

static struct msghdr *prepare_with(struct carrier *carrier, int fd) {
    struct msghdr *message = prepare(carrier);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return message;
}

void send_fd(int channel, int fd) {
    struct carrier carrier;
    REQUIRE(sendmsg(channel, prepare_with(&carrier, fd), 0) == 1);
}

void send_fd_with_many(int channel, int fd) {
    struct carrier carrier;
    struct iovec first = {"f", 1};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &first, .msg_iovlen = 1}}};
    messages[1].msg_hdr = *prepare_with(&carrier, fd);
    REQUIRE(sendmmsg(channel, messages, 2, 0) == 2);
    shutdown(channel, SHUT_WR);
}

int receive_fd(int channel) {
    struct carrier carrier;
    struct msghdr *message = prepare(&carrier);
    int fd;
    REQUIRE(recvmsg(channel, message, MSG_CMSG_CLOEXEC) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    REQUIRE(header && header->cmsg_type == SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

/* ---- epoll ---- */

int new_epoll(void) { return (int)NEED(epoll_create1(EPOLL_CLOEXEC)); }

int control(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event);
}

void add(int epoll, int fd, uint32_t events, uint64_t data) {
    NEED(control(epoll, EPOLL_CTL_ADD, fd, events, data));
}

void modify(int epoll, int fd, uint32_t events, uint64_t data) {
    NEED(control(epoll, EPOLL_CTL_MOD, fd, events, data));
}

void take_out(int epoll, int fd) { NEED(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL)); }

static uint32_t only_event(int epoll, int timeout_ms, uint64_t *data) {
    struct epoll_event got[4] = {0};
    long long count = NEED(epoll_wait(epoll, got, COUNT(got), timeout_ms));
    *data = got[0].data.u64;
    return count == 0 ? 0 : count == 1 ? got[0].events : ~0u;
}

uint32_t events_of(int epoll, int timeout_ms) {
    uint64_t ignored;
    return only_event(epoll, timeout_ms, &ignored);
}

uint32_t events_with(int epoll, int timeout_ms, uint64_t data) {
    uint64_t found;
    uint32_t events = only_event(epoll, timeout_ms, &found);
    REQUIRE(events != ~0u && (events == 0 || found == data));
    return events;
}

void *wait_in_set(void *epoll) {
    struct epoll_event got = {0};
    NEED(epoll_wait(*(int *)epoll, &got, 1, -1));
    return (void *)(uintptr_t)got.events;
}

/* ---- small things ---- */

void set_nonblocking(int fd, bool on) {
    int flags = (int)NEED(fcntl(fd, F_GETFL));
    NEED(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void set_option(int fd, int level, int option, int value) {
    NEED(setsockopt(fd, level, option, &value, sizeof value));
}

int get_option(int fd, int level, int option) {
    int value = -1;
    socklen_t length = sizeof value;
    NEED(getsockopt(fd, level, option, &value, &length));
    return value;
}

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int count_fds(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory)
        give_up("/proc/self/fd: %s", error_name(errno));
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 3; /* ".", ".." and the directory itself */
}

int readable_bytes(int fd) {
    int count = -1;
    NEED(ioctl(fd, FIONREAD, &count));
    return count;
}

int unacknowledged_bytes(int fd) {
    int count = -1;
    NEED(ioctl(fd, SIOCOUTQ, &count));
    return count;
}

static void count_one(int signal) {
    (void)signal;
    signals_seen = signals_seen + 1;
}

void count_signal(int signal, int flags) {
    struct sigaction action = {.sa_handler = count_one, .sa_flags = flags};
    signals_seen = 0;
    NEED(sigaction(signal, &action, NULL));
}

/* ---- processes ---- */

static pid_t spawn_self(const char *const arguments[], int out) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 0);
        if (out >= 0)
            dup2(out, 1);
        execv("/proc/self/exe", (char *const *)arguments);
        _exit(127);
    }
    return child;
}

void set_roles(const struct role *roles, size_t count) {
    all_roles = roles;
    role_count = count;
}

pid_t spawn_role(const char *name, char *const arguments[]) {
    const char *full[16] = {"semantics", "role", name};
    for (size_t i = 0; arguments[i] && i + 3 < COUNT(full) - 1; i++)
        full[i + 3] = arguments[i];
    return spawn_self(full, -1);
}

int wait_exit(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            give_up("waitpid: %s", error_name(errno));
    }
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct start {
    const struct test_case *one;
    uint16_t port;
};

static void run_peer(const struct test_case *one, uint16_t port) {
    int fd = connect_loopback(port);
    if (!(one->variants & COLD))
        warm_up_follower(fd);
    one->peer(fd);
}

static void *peer_thread_body(void *pointer) {
    struct start *start = pointer;
    self = &sides[PEER];
    run_peer(start->one, start->port);
    return NULL;
}

static void copy_report(int fd) {
    char buffer[4096];
    long got;
    while ((got = syscall(SYS_read, fd, buffer, sizeof buffer)) > 0)
        put(buffer, (size_t)got);
}

static int run_pair(const struct test_case *one) {
    int sync[2], out[2] = {-1, -1};
    struct start start = {one, 0};
    int listener = listen_loopback(&start.port);
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync));
    sides[HERE].sync = sync[0];
    sides[PEER].sync = sync[1];
    if (threads_variant) {
        int error = pthread_create(&peer_thread, NULL, peer_thread_body, &start);
        if (error)
            give_up("pthread_create: %s", error_name(error));
    } else {
        char port[16], fd[16];
        snprintf(port, sizeof port, "%d", start.port);
        snprintf(fd, sizeof fd, "%d", sync[1]);
        NEED(pipe2(out, O_CLOEXEC));
        NEED(fcntl(sync[1], F_SETFD, 0));
        const char *const arguments[] = {"semantics", "peer", one->name, port, fd, NULL};
        the_peer = spawn_self(arguments, out[1]);
        close(out[1]);
        close(sync[1]);
        sides[PEER].sync = -1;
    }
    int fd = (int)NEED(accept(listener, NULL, NULL));
    NEED(close(listener));
    if (!(one->variants & COLD))
        warm_up_leader(fd);
    one->here(fd);
    flush_report(&sides[HERE]);
    if (threads_variant) {
        pthread_join(peer_thread, NULL);
        flush_report(&sides[PEER]);
        return 0;
    }
    copy_report(out[0]);
    int status = wait_exit(the_peer);
    the_peer = 0;
    if (status != 0 && !(death_expected && status > 1000))
        line("not ok peer: ended with status %d\n", status);
    flush_report(&sides[HERE]);
    return 0;
}

static const struct test_case *find(const struct test_case *cases, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    fprintf(stderr, "no case named %s; see `list`\n", name);
    exit(2);
}

int run_cases(int argc, char **argv, const struct test_case *cases, size_t count) {
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < count; i++) {
            if (cases[i].variants & PROCESSES)
                printf("processes/%s\n", cases[i].name);
            if (cases[i].variants & THREADS)
                printf("threads/%s\n", cases[i].name);
            if (cases[i].variants & ALONE)
                printf("alone/%s\n", cases[i].name);
        }
        return 0;
    }
    if (argc >= 3 && strcmp(argv[1], "role") == 0) {
        start_watchdog(4);
        self = &sides[PEER];
        for (size_t i = 0; i < role_count; i++)
            if (strcmp(all_roles[i].name, argv[2]) == 0)
                return all_roles[i].body(argc - 3, argv + 3);
        return 2;
    }
    if (argc == 5 && strcmp(argv[1], "peer") == 0) {
        self = &sides[PEER];
        self->sync = atoi(argv[4]);
        start_watchdog(2);
        run_peer(find(cases, count, argv[2]), (uint16_t)atoi(argv[3]));
        flush_report(self);
        return 0;
    }
    const char *slash = argc == 2 ? strchr(argv[1], '/') : NULL;
    if (!slash) {
        fprintf(stderr, "usage: %s list | VARIANT/CASE\n", argv[0]);
        return 2;
    }
    const struct test_case *one = find(cases, count, slash + 1);
    threads_variant = strncmp(argv[1], "threads/", 8) == 0;
    start_watchdog(0);
    if (one->alone) {
        one->alone();
        flush_report(self);
        return 0;
    }
    return run_pair(one);
}
