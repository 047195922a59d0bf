/* A connection in several processes: fork, exec, inetd, descriptor passing, daemons. */
#include "semantics.h"

/* ---- fork ---- */

/* The parent writes, the child reads. */
static void fork_split_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        read_pattern(fd, 3 * MIB, 0, 1);
        _exit(7);
    }
    write_pattern(fd, 3 * MIB, 0, 2);
    CHECK_EQ(wait_exit(child), 7, "the child read everything");
    char byte;
    tell('c');
    read_all(fd, &byte, 1);
    CHECK(byte == 'p', "its end closed nothing: the parent reads on");
    write_all(fd, "q", 1);
}
static void *fork_split_writer(void *argument) {
    write_pattern(*(int *)argument, 3 * MIB, 0, 1);
    return NULL;
}
static void fork_split_peer(int fd) {
    pthread_t writer;
    char byte;
    helper_start(&writer, fork_split_writer, &fd);
    read_pattern(fd, 3 * MIB, 0, 2);
    pthread_join(writer, NULL);
    await('c');
    write_all(fd, "p", 1);
    read_all(fd, &byte, 1);
    CHECK(byte == 'q', "and writes on");
}

/* Five hundred bytes, one at a time, and back. */
static void give_back(int fd) {
    for (int i = 0; i < 500; i++) {
        char byte;
        read_all(fd, &byte, 1);
        write_all(fd, &byte, 1);
    }
}
static void get_back(int fd) {
    for (int i = 0; i < 500; i++) {
        char byte, sent = (char)i;
        write_all(fd, &sent, 1);
        read_all(fd, &byte, 1);
        REQUIRE(byte == sent);
    }
    CHECK(true, "all came back");
}

/* A child closes all that it does not know, and serves. */
static void fork_tidy_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        closefrom(fd + 1);
        give_back(fd);
        _exit(0);
    }
    CHECK_EQ(wait_exit(child), 0, "the child served");
    read_pattern(fd, KIB, 0, 3);
    CHECK(true, "the parent goes on");
}
static void fork_tidy_peer(int fd) {
    get_back(fd);
    write_pattern(fd, KIB, 0, 3);
}

/* A request, then no more; a command is run before the answer. */
static void answers_late_here(int fd) {
    char byte;
    read_pattern(fd, 20 * KIB, 0, 1);
    CHECK_EQ(read(fd, &byte, 1), 0, "the end of the request");
    CHECK_EQ(system("true"), 0, "a command is run meanwhile");
    write_pattern(fd, 300 * KIB, 0, 2);
    NEED(close(fd));
}
static void answers_late_peer(int fd) {
    char byte;
    write_pattern(fd, 20 * KIB, 0, 1);
    NEED(shutdown(fd, SHUT_WR));
    read_pattern(fd, 300 * KIB, 0, 2);
    CHECK_EQ(read(fd, &byte, 1), 0, "the answer, and its end");
}

/* A child that nobody is told of, by a system call. */
static pid_t unseen_child(void) {
    return (pid_t)NEED(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

/* It closes its copy at once, which is not the end; or it ends without that. */
static void unseen_child_here(int fd) {
    for (int closes = 1; closes >= 0; closes--) {
        pid_t child = unseen_child();
        if (child == 0) {
            if (closes)
                close(fd);
            _exit(7);
        }
        CHECK_EQ(wait_exit(child), 7, "the child ended");
        give_back(fd);
    }
    NEED(close(fd));
}
static void unseen_child_peer(int fd) {
    char byte;
    get_back(fd);
    get_back(fd);
    CHECK_EQ(read(fd, &byte, 1), 0, "the parent's close is the end");
}

/* The same of a process in which several threads use the connection; the child uses it first. */
static void *gives_back(void *argument) {
    give_back(*(int *)argument);
    return NULL;
}
static void unseen_user_here(int fd) {
    pthread_t other;
    helper_start(&other, gives_back, &fd);
    pthread_join(other, NULL);
    give_back(fd);
    pid_t child = unseen_child();
    if (child == 0) {
        give_back(fd);
        close(fd);
        _exit(7);
    }
    CHECK_EQ(wait_exit(child), 7, "the child served");
    give_back(fd);
    NEED(close(fd));
}
static void unseen_user_peer(int fd) {
    char byte;
    for (int i = 0; i < 4; i++)
        get_back(fd);
    CHECK_EQ(read(fd, &byte, 1), 0, "the parent's close is the end");
}

/* The classic server: the parent closes its copy and the child serves. */
static void fork_server_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        give_back(fd);
        _exit(0);
    }
    CHECK_EQ(close(fd), 0, "the parent closes its copy");
    CHECK_EQ(wait_exit(child), 0, "the child served");
}
static void fork_server_peer(int fd) {
    char byte;
    get_back(fd);
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file only when the child has ended");
}

/* Forked before the connection has carried anything, as PostgreSQL does: once the parent has closed
 * its copy the child's is upgraded like any other. */
static void fork_early_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        warm_up_leader(fd);
        for (int i = 0; i < 1000; i++) {
            char byte;
            read_all(fd, &byte, 1);
            write_all(fd, &byte, 1);
        }
        _exit(0);
    }
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 0, "the child served");
}
static void fork_early_peer(int fd) {
    char byte;
    warm_up_follower(fd);
    for (int i = 0; i < 1000; i++) {
        char sent = (char)i;
        write_all(fd, &sent, 1);
        read_all(fd, &byte, 1);
        REQUIRE(byte == sent);
    }
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file when the child has ended");
}

/* Both write small records: whole records arrive, from each in its order. */
struct record {
    uint32_t who, number;
    uint64_t check;
};
enum { RECORDS = 2000 };
static void write_records(int fd, uint32_t who) {
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct record record = {who, i, (uint64_t)who << 32 ^ i ^ 0x5a5a5a5a};
        if (write(fd, &record, sizeof record) != sizeof record)
            give_up("write of a record");
    }
}
static void fork_both_write_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        write_records(fd, 1);
        _exit(0);
    }
    write_records(fd, 0);
    CHECK_EQ(wait_exit(child), 0, "the child wrote");
    NEED(shutdown(fd, SHUT_WR));
    tell('q');
}
static void fork_both_write_peer(int fd) {
    uint32_t next[2] = {0, 0};
    for (int i = 0; i < 2 * RECORDS; i++) {
        struct record record;
        read_all(fd, &record, sizeof record);
        REQUIRE(record.who < 2 && record.number == next[record.who]);
        REQUIRE(record.check == ((uint64_t)record.who << 32 ^ record.number ^ 0x5a5a5a5a));
        next[record.who]++;
    }
    CHECK(true, "records whole and in each one's order");
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "then end of file");
    await('q');
}

/* Both read: each byte goes to one of them. */
static void fork_both_read_here(int fd) {
    uint64_t *sums = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(sums != MAP_FAILED);
    pid_t child = (pid_t)NEED(fork());
    uint64_t count = 0, sum = 0;
    unsigned char buffer[333];
    ssize_t got;
    while ((got = NEED(read(fd, buffer, sizeof buffer))) > 0) {
        count += (uint64_t)got;
        for (ssize_t i = 0; i < got; i++)
            sum += buffer[i];
    }
    if (child == 0) {
        sums[0] = count;
        sums[1] = sum;
        _exit(0);
    }
    CHECK_EQ(wait_exit(child), 0, "the child saw the end too");
    unsigned char *all = malloc(1 * MIB);
    uint64_t want = 0;
    pattern(all, 1 * MIB, 0, 5);
    for (size_t i = 0; i < 1 * MIB; i++)
        want += all[i];
    CHECK_EQ(count + sums[0], 1 * MIB, "every byte once");
    CHECK_EQ(sum + sums[1], want, "and the right ones");
}
static void fork_both_read_peer(int fd) {
    write_pattern(fd, 1 * MIB, 0, 5);
    NEED(shutdown(fd, SHUT_WR));
}

/* Many short-lived children hold copies; nobody notices. */
static void fork_often_here(int fd) {
    for (uint32_t i = 0; i < 30; i++) {
        pid_t child = (pid_t)NEED(fork());
        if (child == 0) {
            if (i % 3 == 0)
                close(fd);
            if (i % 3 == 1)
                write_all(fd, "c", 1);
            _exit(0);
        }
        if (i % 3 == 1)
            REQUIRE(wait_exit(child) == 0);
        write_all(fd, "p", 1);
        char byte;
        read_all(fd, &byte, 1);
        if (i % 3 != 1)
            REQUIRE(wait_exit(child) == 0);
    }
    CHECK(true, "answered each time");
    NEED(close(fd));
}
static void fork_often_peer(int fd) {
    char byte;
    int children = 0, parents = 0;
    ssize_t got;
    while ((got = NEED(read(fd, &byte, 1))) == 1) {
        children += byte == 'c';
        parents += byte == 'p';
        if (byte == 'p')
            write_all(fd, "a", 1);
    }
    CHECK_EQ(children, 10, "what children wrote");
    CHECK_EQ(parents, 30, "what the parent wrote");
}

/* A child that is killed while it waits in read leaves the connection usable. */
static void forked_reader_killed_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        char byte;
        read_all(fd, &byte, 1);
        _exit(0);
    }
    until_asleep(child);
    NEED(kill(child, SIGKILL));
    CHECK_EQ(wait_exit(child), 1000 + SIGKILL, "killed while it waited");
    tell('g');
    read_pattern(fd, 100 * KIB, 0, 1);
    write_pattern(fd, 100 * KIB, 0, 2);
    CHECK(true, "the parent goes on");
}
static void forked_reader_killed_peer(int fd) {
    await('g');
    write_pattern(fd, 100 * KIB, 0, 1);
    read_pattern(fd, 100 * KIB, 0, 2);
    CHECK(true, "and so does the peer");
}

/* An epoll set crosses fork with the connection. */
static void epoll_crosses_fork_here(int fd) {
    struct epoll_event event;
    int epoll = new_epoll();
    add(epoll, fd, EPOLLIN, 99);
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        for (int i = 0; i < 200; i++) {
            char byte;
            REQUIRE(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 99);
            REQUIRE(event.events == EPOLLIN);
            REQUIRE(recv(fd, &byte, 1, MSG_DONTWAIT) == 1);
            write_all(fd, &byte, 1);
        }
        _exit(3);
    }
    CHECK_EQ(wait_exit(child), 3, "the child waited in it");
    tell('p');
    CHECK_EQ(epoll_wait(epoll, &event, 1, -1), 1, "and the parent does");
    CHECK(event.events == EPOLLIN && event.data.u64 == 99, "with the same data");
    tell('q');
}
static void epoll_crosses_fork_peer(int fd) {
    char byte;
    for (int i = 0; i < 200; i++) {
        write_all(fd, "x", 1);
        read_all(fd, &byte, 1);
    }
    await('p');
    write_all(fd, "y", 1);
    await('q');
}

/* ---- exec ---- */

/* Bytes in the kernel's queue, asked without a call that the library sees. */
static int queued_in_kernel(int fd) {
    int count = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_ioctl), "D"(fd), "S"(FIONREAD), "d"(&count)
                     : "rcx", "r11", "memory");
    return result == 0 ? count : -1;
}

/* As inetd does it: the connection becomes a program's standard input and output. */
static pid_t inetd_start(int fd, char *const command[], char *const environment[]) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        if (environment)
            execve(command[0], command, environment);
        else
            execv(command[0], command);
        _exit(127);
    }
    NEED(close(fd));
    return child;
}
static void inetd(int fd, char *const command[], char *const environment[]) {
    pid_t child = inetd_start(fd, command, environment);
    CHECK_EQ(wait_exit(child), 0, "the program ended well");
}
static void cat_client(int fd) {
    pthread_t writer;
    helper_start(&writer, fork_split_writer, &fd);
    read_pattern(fd, 3 * MIB, 0, 1);
    pthread_join(writer, NULL);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "everything came back, then the end");
}

static void inetd_cat_here(int fd) { inetd(fd, (char *[]){"/bin/cat", NULL}, NULL); }
static void inetd_cat_peer(int fd) { cat_client(fd); }

/* The program does not have the library, whatever we have. */
static void inetd_stranger_here(int fd) {
    inetd(fd, (char *[]){"/bin/cat", NULL}, (char *[]){"PATH=/bin:/usr/bin", NULL});
}
static void inetd_stranger_peer(int fd) { cat_client(fd); }

/* The same with bytes already waiting when the program starts. */
static void inetd_late_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 10000);
    read_pattern(fd, 1000, 0, 1);
    inetd(fd, (char *[]){"/bin/cat", NULL}, (char *[]){"PATH=/bin:/usr/bin", NULL});
}
static void inetd_late_peer(int fd) {
    await('s');
    write_pattern(fd, 10000, 0, 1);
    read_pattern(fd, 9000, 1000, 1);
    write_pattern(fd, 5000, 0, 2);
    read_pattern(fd, 5000, 0, 2);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "everything came back, then the end");
}

/* The same while the peer makes no call, and with more than its kernel buffers first take; then it
 * goes on sending behind that. */
static void inetd_silent_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 60 * KIB);
    read_pattern(fd, 1000, 0, 1);
    tell('x');
    inetd(fd, (char *[]){"/bin/cat", NULL}, (char *[]){"PATH=/bin:/usr/bin", NULL});
}
static void inetd_silent_peer(int fd) {
    await('s');
    write_pattern(fd, 60 * KIB, 0, 1);
    await('x');
    /* No call before the stranger has answered everything. */
    UNTIL(queued_in_kernel(fd) >= 60 * (int)KIB - 1000); /* and doorbells */
    write_pattern(fd, 30 * KIB, 60 * KIB, 1);
    read_pattern(fd, 90 * KIB - 1000, 1000, 1);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "everything came back, then the end");
}

/* The silent peer is a forked child; the process that had the connection first has closed it. */
static void inetd_silent_child_here(int fd) {
    int kept = (int)NEED(dup(fd));
    inetd_silent_here(fd);
    NEED(close(kept));
}
static void inetd_silent_child_peer(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        inetd_silent_peer(fd);
        _exit(3);
    }
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 3, "the child had everything back");
}

/* As inetd_silent, with a peer that goes on as soon as the other program runs, and not before:
 * tests/daemon_dies.rs kills the daemon at it. */
static void inetd_orphaned_here(int fd) {
    int runs[2];
    char byte;
    tell('s');
    UNTIL(readable_bytes(fd) == 60 * KIB);
    read_pattern(fd, 1000, 0, 1);
    tell('x');
    NEED(pipe2(runs, O_CLOEXEC));
    pid_t child = inetd_start(fd, (char *[]){"/bin/cat", NULL},
                              (char *[]){"PATH=/bin:/usr/bin", NULL});
    NEED(close(runs[1]));
    CHECK_EQ(read(runs[0], &byte, 1), 0, "the program runs");
    tell('e');
    CHECK_EQ(wait_exit(child), 0, "the program ended well");
}
static void inetd_orphaned_peer(int fd) {
    await('s');
    write_pattern(fd, 60 * KIB, 0, 1);
    await('x');
    /* No call before the program runs. */
    await('e');
    write_pattern(fd, 30 * KIB, 60 * KIB, 1);
    read_pattern(fd, 90 * KIB - 1000, 1000, 1);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "everything came back, then the end");
}

/* A peer that has ended its sending side dies with everything read: what the connection is left with
 * is the end, also for a program that knows nothing of us. */
static int role_last_word(int argc, char **argv) {
    char byte;
    struct iovec part = {&byte, 1};
    struct mmsghdr one = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    int fd = argc > 0 ? atoi(argv[0]) : -1;
    /* recvmmsg tells of a pending error before it tells of the end. */
    if (recvmmsg(fd, &one, 1, 0, NULL) != 1)
        return 20 + errno;
    return (int)one.msg_len;
}
static void left_by_the_dead_here(int fd) {
    char number[16], byte;
    char *arguments[] = {"semantics", "role", "last_word", number, NULL};
    char *environment[] = {"PATH=/bin:/usr/bin", NULL};
    peer_will_be_killed();
    tell('s');
    until_asleep(peer_pid());
    write_all(fd, "x", 1);
    await('k');
    CHECK_EQ(read(fd, &byte, 1), 0, "it has ended its sending side");
    NEED(kill(peer_pid(), SIGKILL));
    siginfo_t how;
    NEED(waitid(P_PID, (id_t)peer_pid(), &how, WEXITED | WNOWAIT));
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        execve("/proc/self/exe", arguments, environment);
        _exit(127);
    }
    CHECK_EQ(wait_exit(child), 0, "the other program finds the end");
}
static void left_by_the_dead_peer(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char byte;
    await('s');
    NEED(poll(&wait, 1, -1));
    read_all(fd, &byte, 1);
    NEED(shutdown(fd, SHUT_WR));
    tell('k');
    for (;;)
        pause();
}

/* The process itself becomes another program; its connection goes on in it. */
static int role_serve(int argc, char **argv) {
    int fd = argc > 0 ? atoi(argv[0]) : -1;
    for (int i = 0; i < 500; i++) {
        char byte;
        read_all(fd, &byte, 1);
        write_all(fd, &byte, 1);
    }
    return fcntl(fd, F_GETFD) == 0 ? 0 : 9;
}
static void exec_self_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        /* A word before and a word after the change. */
        write_all(fd, "a", 1);
        execl("/proc/self/exe", "semantics", "role", "serve", number, NULL);
        _exit(127);
    }
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 0, "the new program served");
}
static void exec_self_peer(int fd) {
    char byte;
    read_all(fd, &byte, 1);
    for (int i = 0; i < 500; i++) {
        char sent = (char)i;
        write_all(fd, &sent, 1);
        read_all(fd, &byte, 1);
        REQUIRE(byte == sent);
    }
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file when it has ended");
}

/* The same by a descriptor of the program. */
static void exec_at_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        write_all(fd, "a", 1);
        int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        execveat(self, "", (char *[]){"semantics", "role", "serve", number, NULL}, environ, AT_EMPTY_PATH);
        _exit(127);
    }
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 0, "the new program served");
}
static void exec_at_peer(int fd) { exec_self_peer(fd); }

/* Descriptors marked close-on-exec do not reach a child, others do. */
static int role_probe(int argc, char **argv) {
    if (argc != 2)
        return 2;
    bool first = fcntl(atoi(argv[0]), F_GETFD) >= 0, second = fcntl(atoi(argv[1]), F_GETFD) >= 0;
    return 10 + 2 * second + first;
}
static void close_on_exec_here(int fd) {
    int copy = (int)NEED(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    char one[16], two[16];
    snprintf(one, sizeof one, "%d", fd);
    snprintf(two, sizeof two, "%d", copy);
    pid_t child = spawn_role("probe", (char *[]){one, two, NULL});
    CHECK_EQ(wait_exit(child), 11, "the unmarked one, not the marked one");
    NEED(fcntl(fd, F_SETFD, FD_CLOEXEC));
    child = spawn_role("probe", (char *[]){one, two, NULL});
    CHECK_EQ(wait_exit(child), 10, "none");
    write_pattern(fd, 1000, 0, 1);
    CHECK_EQ(close(fd) + close(copy), 0, "closed");
}
static void close_on_exec_peer(int fd) {
    CHECK_EQ(drain(fd, 0, 1), 1000, "no child keeps it open");
}

static __attribute__((noinline)) pid_t vfork_true(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    return child;
}

/* Programs started on the side leave the connection alone. */
static void children_on_the_side_here(int fd) {
    for (uint32_t i = 0; i < 6; i++) {
        write_pattern(fd, 2000, 0, i);
        if (i % 3 == 0) {
            REQUIRE(system("exit 3") >> 8 == 3);
        } else if (i % 3 == 1) {
            FILE *out = popen("echo popen", "r");
            char text[32] = "";
            REQUIRE(out && fgets(text, sizeof text, out) && strcmp(text, "popen\n") == 0);
            REQUIRE(pclose(out) == 0);
        } else {
            REQUIRE(wait_exit(vfork_true()) == 0);
        }
        read_pattern(fd, 2000, 0, i + 100);
    }
    CHECK(true, "system, popen, vfork");
    NEED(close(fd));
}
static void children_on_the_side_peer(int fd) {
    for (uint32_t i = 0; i < 6; i++) {
        read_pattern(fd, 2000, 0, i);
        write_pattern(fd, 2000, 0, i + 100);
    }
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "end of file");
}

/* A daemon: two forks, the grandchild serves, its parents are gone. */
static void daemonised_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        for (int i = 0; i < 300; i++) {
            char byte;
            read_all(fd, &byte, 1);
            write_all(fd, &byte, 1);
        }
        _exit(0);
    }
    CHECK_EQ(wait_exit(child), 0, "the first child is gone");
    NEED(close(fd));
    await('d');
}
static void daemonised_peer(int fd) {
    char byte;
    for (int i = 0; i < 300; i++) {
        write_all(fd, "x", 1);
        read_all(fd, &byte, 1);
    }
    CHECK_EQ(read(fd, &byte, 1), 0, "the grandchild served");
    tell('d');
}

/* ---- descriptor passing ---- */

static int role_passed(int argc, char **argv) {
    int channel = argc > 0 ? atoi(argv[0]) : -1;
    char byte;
    if (argc > 1) /* the first of many */
        read_all(channel, &byte, 1);
    int fd = receive_fd(channel);
    for (;;) {
        char buffer[1000];
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0)
            return got == 0 ? 0 : 9;
        write_all(fd, buffer, (size_t)got);
    }
}
static void passed(int fd, bool unread, bool many) {
    int channel[2];
    char number[16];
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel));
    NEED(fcntl(channel[1], F_SETFD, 0));
    NEED(fcntl(fd, F_SETFD, FD_CLOEXEC));
    snprintf(number, sizeof number, "%d", channel[1]);
    pid_t child = spawn_role("passed", (char *[]){number, many ? "many" : NULL, NULL});
    NEED(close(channel[1]));
    tell('s');
    if (unread)
        UNTIL(readable_bytes(fd) == 5000);
    (many ? send_fd_with_many : send_fd)(channel[0], fd);
    NEED(close(fd));
    tell('g');
    CHECK_EQ(wait_exit(child), 0, "the other process served to the end");
}
static void passed_peer(int fd, bool unread) {
    char byte;
    await('s');
    if (!unread)
        await('g');
    write_pattern(fd, 5000, 0, 1);
    if (unread)
        await('g');
    read_pattern(fd, 5000, 0, 1);
    for (uint32_t i = 0; i < 300; i++) {
        write_pattern(fd, 700, 0, i);
        read_pattern(fd, 700, 0, i);
    }
    NEED(shutdown(fd, SHUT_WR));
    CHECK_EQ(read(fd, &byte, 1), 0, "all answered, then the end");
}
static void passed_on_here(int fd) { passed(fd, false, false); }
static void passed_on_peer(int fd) { passed_peer(fd, false); }
static void passed_unread_here(int fd) { passed(fd, true, false); }
static void passed_unread_peer(int fd) { passed_peer(fd, true); }
static void passed_with_many_here(int fd) { passed(fd, false, true); }
static void passed_with_many_peer(int fd) { passed_peer(fd, false); }

/* To itself, through a Unix socket: a copy like any other. */
static void passed_to_itself(void) {
    int ends[2], channel[2];
    make_pair(ends);
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    write_pattern(ends[1], 100, 0, 1);
    send_fd(channel[0], ends[0]);
    NEED(close(ends[0]));
    int fd = receive_fd(channel[1]);
    read_pattern(fd, 100, 0, 1);
    for (uint32_t i = 0; i < 100; i++) {
        write_pattern(fd, 100, 0, i);
        read_pattern(ends[1], 100, 0, i);
        write_pattern(ends[1], 100, 0, i);
        read_pattern(fd, 100, 0, i);
    }
    CHECK(true, "the stream goes on in the new descriptor");
    NEED(close(fd));
    char byte;
    CHECK_EQ(read(ends[1], &byte, 1), 0, "which is the last");
}

static const struct role roles[] = {
    {"serve", role_serve}, {"probe", role_probe}, {"passed", role_passed},
    {"last_word", role_last_word}};

static const struct test_case cases[] = {
    PAIR_OF_PROCESSES(fork_split),
    PAIR_OF_PROCESSES(fork_server),
    PAIR_OF_PROCESSES(fork_tidy),
    PAIR_OF_PROCESSES(unseen_child),
    PAIR_OF_PROCESSES(unseen_user),
    PAIR_OF_PROCESSES(answers_late),
    {"fork_early", fork_early_here, fork_early_peer, NULL, PROCESSES | COLD},
    PAIR_OF_PROCESSES(fork_both_write),
    PAIR_OF_PROCESSES(fork_both_read),
    PAIR_OF_PROCESSES(fork_often),
    PAIR_OF_PROCESSES(forked_reader_killed),
    PAIR_OF_PROCESSES(epoll_crosses_fork),
    PAIR_OF_PROCESSES(inetd_cat),
    PAIR_OF_PROCESSES(inetd_stranger),
    PAIR_OF_PROCESSES(inetd_late),
    PAIR_OF_PROCESSES(inetd_silent),
    PAIR_OF_PROCESSES(inetd_silent_child),
    PAIR_OF_PROCESSES(inetd_orphaned),
    PAIR_OF_PROCESSES(left_by_the_dead),
    PAIR_OF_PROCESSES(exec_self),
    PAIR_OF_PROCESSES(exec_at),
    PAIR_OF_PROCESSES(close_on_exec),
    PAIR_OF_PROCESSES(children_on_the_side),
    PAIR_OF_PROCESSES(daemonised),
    PAIR_OF_PROCESSES(passed_on),
    PAIR_OF_PROCESSES(passed_unread),
    PAIR_OF_PROCESSES(passed_with_many),
    LONER(passed_to_itself),
};

int main(int argc, char **argv) {
    set_roles(roles, COUNT(roles));
    return run_cases(argc, argv, cases, COUNT(cases));
}
