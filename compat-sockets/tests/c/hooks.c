/* Less usual ways to the same calls: syscall(2), other names, children made by other means, io_uring. */
#include "semantics.h"
#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <spawn.h>
#include <wordexp.h>

/* Every call by its number, as language runtimes make them. */
static void by_number(void) {
    int ends[2];
    make_pair(ends);
    char buffer[64] = "";
    CHECK_EQ(syscall(SYS_write, ends[0], "abcdef", 6), 6, "write");
    CHECK_EQ(syscall(SYS_read, ends[1], buffer, 3), 3, "read");
    CHECK_EQ(syscall(SYS_recvfrom, ends[1], buffer + 3, 10, 0, NULL, NULL), 3, "recvfrom");
    CHECK(strcmp(buffer, "abcdef") == 0, "in order");
    CHECK_EQ(syscall(SYS_sendto, ends[0], "ghi", 3, 0, NULL, 0), 3, "sendto");
    struct iovec parts[2] = {{buffer, 1}, {buffer + 1, 9}};
    CHECK_EQ(syscall(SYS_readv, ends[1], parts, 2), 3, "readv");
    CHECK(memcmp(buffer, "ghi", 3) == 0, "its bytes");
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    memcpy(buffer, "j", 1);
    CHECK_EQ(syscall(SYS_sendmsg, ends[1], &message, 0), 1, "sendmsg");
    CHECK_EQ(syscall(SYS_writev, ends[1], parts, 1), 1, "writev");
    UNTIL(readable_bytes(ends[0]) == 2);
    struct pollfd wait = {.fd = ends[0], .events = POLLIN};
    CHECK_EQ(syscall(SYS_ppoll, &wait, 1, NULL, NULL, 8), 1, "ppoll");
    CHECK_EQ(wait.revents, POLLIN, "readable");
    int count = 0;
    NEED(syscall(SYS_ioctl, ends[0], FIONREAD, &count));
    CHECK_EQ(count, 2, "FIONREAD");
    CHECK_EQ(syscall(SYS_recvmsg, ends[0], &message, 0), 1, "recvmsg");
    CHECK_EQ(syscall(SYS_read, ends[0], buffer, 10), 1, "the rest");
    CHECK_FAILS(syscall(SYS_recvfrom, ends[0], buffer, 1, MSG_DONTWAIT, NULL, NULL), EAGAIN,
                "empty");
    int epoll = (int)NEED(syscall(SYS_epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 5};
    NEED(syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, ends[0], &event));
    write_all(ends[1], "k", 1);
    CHECK_EQ(syscall(SYS_epoll_pwait, epoll, &event, 1, -1, NULL, 8), 1, "epoll_pwait");
    CHECK(event.data.u64 == 5 && event.events == EPOLLIN, "its event");
    int copy = (int)NEED(syscall(SYS_dup, ends[0]));
    NEED(syscall(SYS_close, ends[0]));
    CHECK_EQ(syscall(SYS_read, copy, buffer, 10), 1, "through a copy");
    exchange(copy, ends[1], 3);
    int third = (int)NEED(syscall(SYS_dup3, copy, 600, O_CLOEXEC));
    exchange(third, ends[1], 4);
    int fourth = (int)NEED(syscall(SYS_fcntl, third, F_DUPFD, 700));
    exchange(fourth, ends[1], 5);
    NEED(syscall(SYS_close_range, 600, 800, 0));
    NEED(syscall(SYS_shutdown, copy, SHUT_WR));
    CHECK_EQ(syscall(SYS_read, ends[1], buffer, 10), 0, "end after shutdown");
    NEED(syscall(SYS_close, copy));
    CHECK_FAILS(syscall(SYS_read, -1, buffer, 1), EBADF, "no such descriptor");
    CHECK_EQ(syscall(SYS_getppid), getppid(), "other numbers pass");
}

/* A whole conversation by numbers, blocking. */
static void blocking_by_number_here(int fd) {
    unsigned char buffer[4000];
    for (uint32_t i = 0; i < 300; i++) {
        size_t done = 0, length = 1 + i * 13;
        pattern(buffer, length, 0, i);
        while (done < length)
            done += (size_t)NEED(syscall(SYS_write, fd, buffer + done, length - done));
        done = 0;
        while (done < length)
            done += (size_t)NEED(syscall(SYS_read, fd, buffer + done, length - done));
        REQUIRE(pattern_match(buffer, length, 0, i + 1) == length);
    }
    CHECK(true, "answered each time");
}
static void blocking_by_number_peer(int fd) {
    for (uint32_t i = 0; i < 300; i++) {
        read_pattern(fd, 1 + i * 13, 0, i);
        write_pattern(fd, 1 + i * 13, 0, i + 1);
    }
    CHECK(true, "all there");
}

/* The C library's other names, found as a linker would. */
static void other_names(void) {
    int ends[2];
    char buffer[16];
    make_pair(ends);
    ssize_t (*send_by)(int, const void *, size_t, int) = dlsym(RTLD_DEFAULT, "__send");
    ssize_t (*write_by)(int, const void *, size_t) = dlsym(RTLD_DEFAULT, "__write");
    ssize_t (*read_by)(int, void *, size_t) = dlsym(RTLD_DEFAULT, "__read");
    ssize_t (*recv_by)(int, void *, size_t, int) = dlsym(RTLD_DEFAULT, "__recv");
    int (*poll_by)(struct pollfd *, nfds_t, int) = dlsym(RTLD_DEFAULT, "__poll");
    int (*close_by)(int) = dlsym(RTLD_DEFAULT, "__close");
    REQUIRE(send_by && write_by && read_by && recv_by && poll_by && close_by);
    CHECK_EQ(send_by(ends[0], "ab", 2, 0), 2, "__send");
    CHECK_EQ(write_by(ends[0], "cd", 2), 2, "__write");
    struct pollfd wait = {.fd = ends[1], .events = POLLIN};
    CHECK_EQ(poll_by(&wait, 1, -1), 1, "__poll");
    UNTIL(readable_bytes(ends[1]) == 4);
    CHECK_EQ(read_by(ends[1], buffer, 3), 3, "__read");
    CHECK_EQ(recv_by(ends[1], buffer + 3, 9, 0), 1, "__recv");
    CHECK(memcmp(buffer, "abcd", 4) == 0, "in order");
    CHECK_EQ(close_by(ends[0]), 0, "__close");
    CHECK_EQ(read(ends[1], buffer, 1), 0, "end of file");
}

/* preadv2 and pwritev2 without an offset are readv and writev with flags. */
static void with_flags(void) {
    int ends[2];
    make_pair(ends);
    char buffer[16];
    struct iovec in = {buffer, sizeof buffer}, out[2] = {{"abc", 3}, {"def", 3}};
    CHECK_FAILS(preadv2(ends[1], &in, 1, -1, RWF_NOWAIT), EAGAIN, "nothing there");
    CHECK_EQ(pwritev2(ends[0], out, 2, -1, 0), 6, "pwritev2");
    UNTIL(readable_bytes(ends[1]) == 6);
    CHECK_EQ(preadv2(ends[1], &in, 1, -1, RWF_NOWAIT), 6, "preadv2");
    CHECK(memcmp(buffer, "abcdef", 6) == 0, "the bytes");
    CHECK_FAILS(preadv2(ends[1], &in, 1, 0, 0), ESPIPE, "an offset");
    CHECK_FAILS(pwritev2(ends[0], out, 2, 7, 0), ESPIPE, "an offset");
    exchange(ends[0], ends[1], 1);
}

/* POSIX aio: other threads read and write, inside the C library. */
static void by_aio_here(int fd) {
    char buffer[10] = "";
    tell('s');
    UNTIL(readable_bytes(fd) == 5);
    struct aiocb one = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 5};
    NEED(aio_read(&one));
    UNTIL(aio_error(&one) != EINPROGRESS);
    CHECK_EQ(aio_return(&one), 5, "bytes read");
    CHECK(strcmp(buffer, "hello") == 0, "and the right ones");
    struct aiocb two = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 5};
    NEED(aio_write(&two));
    UNTIL(aio_error(&two) != EINPROGRESS);
    CHECK_EQ(aio_return(&two), 5, "bytes written");
    write_all(fd, "!", 1);
}
static void by_aio_peer(int fd) {
    char buffer[10] = "";
    await('s');
    write_all(fd, "hello", 5);
    read_all(fd, buffer, 6);
    CHECK(strcmp(buffer, "hello!") == 0, "came back");
}

/* The sender goes to the kernel, and then the receiver, with bytes unread that came before. */
static void both_by_aio_here(int fd) {
    char buffer[10] = "";
    UNTIL(readable_bytes(fd) == 5);
    tell('t');
    await('w');
    for (size_t done = 0; done < 9;) {
        struct aiocb read = {.aio_fildes = fd, .aio_buf = buffer + done, .aio_nbytes = 9 - done};
        NEED(aio_read(&read));
        UNTIL(aio_error(&read) != EINPROGRESS);
        ssize_t got = aio_return(&read);
        REQUIRE(got > 0);
        done += (size_t)got;
    }
    CHECK(strcmp(buffer, "hello you") == 0, "all of it, in order");
    write_all(fd, "!", 1);
}
static void both_by_aio_peer(int fd) {
    char byte;
    write_all(fd, "hello", 5);
    await('t');
    struct aiocb write = {.aio_fildes = fd, .aio_buf = " you", .aio_nbytes = 4};
    NEED(aio_write(&write));
    UNTIL(aio_error(&write) != EINPROGRESS);
    CHECK_EQ(aio_return(&write), 4, "bytes written");
    tell('w');
    read_all(fd, &byte, 1);
    CHECK_EQ(byte, '!', "and an answer");
}

/* _Fork runs no handlers of pthread_atfork. */
static void forked_bare_here(int fd) {
    pid_t child = (pid_t)NEED(_Fork());
    if (child == 0) {
        for (uint32_t i = 0; i < 100; i++) {
            read_pattern(fd, 100, 0, i);
            write_pattern(fd, 100, 0, i);
        }
        _exit(4);
    }
    CHECK_EQ(wait_exit(child), 4, "the child served");
    tell('p');
    read_pattern(fd, 100, 0, 1000);
    write_pattern(fd, 100, 0, 1000);
    CHECK(true, "and then the parent");
}
static void forked_bare_peer(int fd) {
    for (uint32_t i = 0; i < 100; i++) {
        write_pattern(fd, 100, 0, i);
        read_pattern(fd, 100, 0, i);
    }
    await('p');
    write_pattern(fd, 100, 0, 1000);
    read_pattern(fd, 100, 0, 1000);
}

/* The child of _Fork must not use the heap: another thread may have been in malloc. It can wait in a set. */
static atomic_bool heap_is_busy;
static void *uses_the_heap(void *unused) {
    (void)unused;
    void *volatile block = malloc(100);
    free(block);
    return NULL;
}
static void *keeps_the_heap_busy(void *unused) {
    (void)unused;
    while (atomic_load(&heap_is_busy)) {
        /* A thread that is new to the heap takes the lock that others' children meet. */
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, uses_the_heap, NULL));
        pthread_join(thread, NULL);
    }
    return NULL;
}
static void *forks_bare(void *end) {
    int fd = *(int *)end;
    pid_t child = (pid_t)NEED(_Fork());
    if (child == 0) {
        struct epoll_event event = {.events = EPOLLIN};
        int set = epoll_create1(EPOLL_CLOEXEC);
        bool right = set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 &&
                     epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN;
        close(set);
        _exit(right ? 6 : 1);
    }
    return (void *)(intptr_t)wait_exit(child);
}
static void bare_fork_beside_the_heap(void) {
    int ends[2], right = 0;
    pthread_t busy[2], thread;
    void *status;
    make_pair(ends);
    write_all(ends[1], "x", 1);
    atomic_store(&heap_is_busy, true);
    for (size_t i = 0; i < COUNT(busy); i++)
        helper_start(&busy[i], keeps_the_heap_busy, NULL);
    for (int turn = 0; turn < 100; turn++) {
        NEED(pthread_create(&thread, NULL, forks_bare, &ends[0]));
        pthread_join(thread, &status);
        right += (intptr_t)status == 6;
    }
    atomic_store(&heap_is_busy, false);
    for (size_t i = 0; i < COUNT(busy); i++)
        pthread_join(busy[i], NULL);
    CHECK_EQ(right, 100, "children that saw the byte");
}

/* A program started without exec of ours, that serves the connection as its standard files. */
static char *const plain_environment[] = {"PATH=/bin:/usr/bin", NULL};
static void cat_client(int fd) {
    await('s');
    write_pattern(fd, 20 * KIB, 0, 1);
    read_pattern(fd, 20 * KIB, 0, 1);
    write_pattern(fd, 5000, 0, 2);
    read_pattern(fd, 5000, 0, 2);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "everything came back, then the end");
}
static void spawned_here(int fd) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    NEED(fcntl(fd, F_SETFD, FD_CLOEXEC));
    tell('s');
    UNTIL(readable_bytes(fd) == 20 * KIB);
    NEED(posix_spawn_file_actions_init(&actions));
    NEED(posix_spawn_file_actions_adddup2(&actions, fd, 0));
    NEED(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    REQUIRE(posix_spawn(&child, "/bin/cat", &actions, NULL, (char *[]){"cat", NULL},
                        plain_environment) == 0);
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 0, "the program ended well");
}
static void spawned_peer(int fd) { cat_client(fd); }

static __attribute__((noinline)) pid_t vfork_cat(int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        execve("/bin/cat", (char *[]){"cat", NULL}, plain_environment);
        _exit(127);
    }
    return child;
}
static void vforked_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 20 * KIB);
    pid_t child = (pid_t)NEED(vfork_cat(fd));
    NEED(close(fd));
    CHECK_EQ(wait_exit(child), 0, "the program ended well");
}
static void vforked_peer(int fd) { cat_client(fd); }

/* A program that was given a connection nobody has offered yet says something much later. */
static __attribute__((noinline)) pid_t vfork_shell(int in, int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(in, 0);
        dup2(fd, 9);
        execl("/bin/sh", "sh", "-c", "read line; echo $line >&9", NULL);
        _exit(127);
    }
    return child;
}
static void vforked_early_here(int fd) {
    int ends[2];
    NEED(pipe2(ends, O_CLOEXEC));
    NEED(fcntl(fd, F_SETFD, FD_CLOEXEC));
    pid_t child = (pid_t)NEED(vfork_shell(ends[0], fd));
    for (uint32_t i = 0; i < 200; i++) {
        write_pattern(fd, 500, 0, i);
        read_pattern(fd, 500, 0, i);
    }
    write_all(ends[1], "word\n", 5);
    CHECK_EQ(wait_exit(child), 0, "the program has spoken");
    for (uint32_t i = 0; i < 50; i++) {
        write_pattern(fd, 500, 0, i);
        read_pattern(fd, 500, 0, i);
    }
    CHECK(true, "and the conversation goes on");
}
static void vforked_early_peer(int fd) {
    char word[5];
    for (uint32_t i = 0; i < 200; i++) {
        read_pattern(fd, 500, 0, i);
        write_pattern(fd, 500, 0, i);
    }
    read_all(fd, word, 5);
    CHECK(memcmp(word, "word\n", 5) == 0, "the program's word, in its place");
    for (uint32_t i = 0; i < 50; i++) {
        read_pattern(fd, 500, 0, i);
        write_pattern(fd, 500, 0, i);
    }
}

/* A program that is left with the connection, and whose bytes are on their way when all who know of it have closed: that
   is not its end. */
enum { LEFT_BYTES = 8 * MIB };
static char *const leaves_a_writer[] = {"sh", "-c", "dd if=/dev/zero bs=65536 count=128 status=none &", NULL};
static void goes_once_stuck(int fd, pid_t child) {
    CHECK_EQ(wait_exit(child), 0, "the shell has left the writer behind");
    usleep(50 * 1000); /* it fills the kernel, as nobody reads */
    UNTIL(unacknowledged_bytes(fd) > 0);
    NEED(close(fd));
    usleep(100 * 1000); /* who hears of the close may act */
    tell('r');
}
static __attribute__((noreturn)) void leave_a_writer(int fd) {
    dup2(fd, 1);
    close(fd);
    execve("/bin/sh", leaves_a_writer, plain_environment);
    _exit(127);
}
static void left_by_fork_here(int fd) {
    pid_t child = (pid_t)NEED(fork());
    if (child == 0)
        leave_a_writer(fd);
    goes_once_stuck(fd, child);
}
static void left_by_vfork_here(int fd) {
    pid_t child = vfork();
    if (child == 0)
        leave_a_writer(fd);
    goes_once_stuck(fd, child);
}
static void left_by_spawn_here(int fd) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    NEED(posix_spawn_file_actions_init(&actions));
    NEED(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    NEED(posix_spawn_file_actions_addclose(&actions, fd));
    REQUIRE(posix_spawn(&child, "/bin/sh", &actions, NULL, leaves_a_writer, plain_environment) == 0);
    goes_once_stuck(fd, child);
}
static void left_peer(int fd) {
    static char bytes[LEFT_BYTES];
    char byte;
    await('r');
    read_all(fd, bytes, sizeof bytes);
    CHECK_EQ(read(fd, &byte, 1), 0, "all that the writer wrote, then the end");
}

static void by_system_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 20 * KIB);
    NEED(dup2(fd, 9)); /* the shell knows numbers of one digit */
    CHECK_EQ(system("LD_PRELOAD= exec cat <&9 >&9"), 0, "the command ended well");
    NEED(close(9));
    NEED(close(fd));
}
static void by_system_peer(int fd) { cat_client(fd); }

/* Names for what some versions of the C library have. */
int pidfd_spawn(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                char *const[]) __attribute__((weak));
FILE *_IO_fdopen(int, const char *);
int _IO_fclose(FILE *);
int io_submit(aio_context_t, long, struct iocb **) __attribute__((weak));

/* A child by pidfd_spawn has the connection as its standard files. */
static void by_pidfd_here(int fd) {
    char *arguments[] = {"cat", NULL};
    posix_spawn_file_actions_t actions;
    int pidfd = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    tell('s');
    UNTIL(readable_bytes(fd) == 20 * KIB);
    if (pidfd_spawn) {
        REQUIRE(pidfd_spawn(&pidfd, "/bin/cat", &actions, NULL, arguments, plain_environment) == 0);
    } else {
        pid_t child;
        REQUIRE(posix_spawn(&child, "/bin/cat", &actions, NULL, arguments, plain_environment) == 0);
        pidfd = (int)NEED(syscall(SYS_pidfd_open, child, 0));
    }
    NEED(close(fd));
    siginfo_t how = {0};
    NEED(waitid(P_PIDFD, (id_t)pidfd, &how, WEXITED));
    CHECK(how.si_code == CLD_EXITED && how.si_status == 0, "the child ended well");
    CHECK(fcntl(pidfd, F_GETFD) == FD_CLOEXEC, "its descriptor is close-on-exec");
    close(pidfd);
}
static void by_pidfd_peer(int fd) { cat_client(fd); }

/* A command among words that are expanded reads the connection. */
static void by_wordexp_here(int fd) {
    wordexp_t words = {0};
    tell('s');
    UNTIL(readable_bytes(fd) == 5);
    NEED(dup2(fd, 9));
    REQUIRE(wordexp("$(LD_PRELOAD= exec head -c 5 <&9)", &words, 0) == 0);
    CHECK(words.we_wordc == 1 && strcmp(words.we_wordv[0], "hello") == 0, "the command saw what had come");
    NEED(close(9));
    write_all(fd, "w", 1);
}
static void by_wordexp_peer(int fd) {
    char byte;
    await('s');
    write_all(fd, "hello", 5);
    read_all(fd, &byte, 1);
    CHECK_EQ(byte, 'w', "and the connection goes on");
}

/* stdio by the C library's other names. */
static void by_io_names_here(int fd) {
    char line[16];
    tell('s');
    UNTIL(readable_bytes(fd) == 6);
    FILE *file = _IO_fdopen((int)NEED(dup(fd)), "r+");
    REQUIRE(file != NULL && fgets(line, sizeof line, file) != NULL);
    CHECK(strcmp(line, "hello\n") == 0, "a line");
    CHECK(fputs("answer", file) >= 0 && _IO_fclose(file) == 0, "an answer, and the close");
    write_all(fd, "!", 1);
}
static void by_io_names_peer(int fd) {
    char text[8] = "";
    await('s');
    write_all(fd, "hello\n", 6);
    read_all(fd, text, 7);
    CHECK(strcmp(text, "answer!") == 0, "both, in order");
}

/* The kernel's own aio: by libaio's name if it is there, and by number. */
static void by_kernel_aio(int fd, bool by_name) {
    char text[8] = "";
    aio_context_t context = 0;
    NEED(syscall(SYS_io_setup, 4, &context));
    struct iocb requests[2] = {
        {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)text, .aio_nbytes = 5},
        {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (uintptr_t)"world", .aio_nbytes = 5}};
    struct iocb *list[] = {&requests[0], &requests[1]};
    tell('s');
    UNTIL(readable_bytes(fd) == 5);
    CHECK_EQ(by_name ? io_submit(context, 2, list) : syscall(SYS_io_submit, context, 2, list), 2, "both are taken");
    struct io_event events[2];
    CHECK_EQ(syscall(SYS_io_getevents, context, 2, 2, events, NULL), 2, "and done");
    CHECK(events[0].res == 5 && events[1].res == 5 && strcmp(text, "hello") == 0, "with what had come");
    NEED(syscall(SYS_io_destroy, context));
    write_all(fd, "!", 1);
}
static void by_kernel_aio_here(int fd) { by_kernel_aio(fd, false); }
static void by_libaio_here(int fd) { by_kernel_aio(fd, io_submit != NULL); }
static void by_kernel_aio_peer(int fd) {
    char text[8] = "";
    await('s');
    write_all(fd, "hello", 5);
    read_all(fd, text, 6);
    CHECK(strcmp(text, "world!") == 0, "both, in order");
}

/* Standard output becomes the connection, and stdio writes to it. */
static void standard_output_here(int fd) {
    int kept = (int)NEED(fcntl(1, F_DUPFD_CLOEXEC, 0));
    fflush(stdout);
    NEED(dup2(fd, 1));
    for (int i = 0; i < 100; i++) {
        printf("%03d", i);
        fflush(stdout);
        write_all(fd, "w", 1);
    }
    NEED(dup2(kept, 1));
    CHECK(true, "written");
    tell('q');
}
static void standard_output_peer(int fd) {
    for (int i = 0; i < 100; i++) {
        char text[8] = "", want[16];
        read_all(fd, text, 4);
        snprintf(want, sizeof want, "%03dw", i);
        REQUIRE(strcmp(text, want) == 0);
    }
    CHECK(true, "in order");
    await('q');
}

/* io_uring, as small as it can be: one request at a time. `inline_call`: set up by an instruction
 * of our own, which no library sees. */
struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};
static bool ring_setup(struct ring *ring) {
    struct io_uring_params params = {0};
    ring->fd = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring->fd < 0)
        return false;
    size_t sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int rights = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_POPULATE;
    char *s = mmap(NULL, sq, rights, how, ring->fd, IORING_OFF_SQ_RING);
    char *c = mmap(NULL, cq, rights, how, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), rights, how, ring->fd,
                      IORING_OFF_SQES);
    REQUIRE(s != MAP_FAILED && c != MAP_FAILED && ring->sqes != MAP_FAILED);
    ring->sq_tail = (unsigned *)(s + params.sq_off.tail);
    ring->sq_mask = (unsigned *)(s + params.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(s + params.sq_off.array);
    ring->cq_head = (unsigned *)(c + params.cq_off.head);
    ring->cq_tail = (unsigned *)(c + params.cq_off.tail);
    ring->cq_mask = (unsigned *)(c + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(c + params.cq_off.cqes);
    return true;
}
static int ring_do(struct ring *ring, int operation, int fd, void *buffer, unsigned length) {
    unsigned tail = *ring->sq_tail, at = tail & *ring->sq_mask;
    ring->sqes[at] = (struct io_uring_sqe){.opcode = (uint8_t)operation,
                                           .fd = fd,
                                           .addr = (uintptr_t)buffer,
                                           .len = length};
    ring->sq_array[at] = at;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    NEED(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    unsigned head = *ring->cq_head;
    REQUIRE(head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE));
    int result = ring->cqes[head & *ring->cq_mask].res;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static void by_io_uring_here(int fd) {
    struct ring ring;
    unsigned char buffer[1000];
    tell('s');
    UNTIL(readable_bytes(fd) == 1000);
    bool there = ring_setup(&ring);
    for (uint32_t i = 0; i < 50; i++) {
        size_t done = 0;
        while (done < sizeof buffer)
            done += there ? (size_t)NEED(ring_do(&ring, IORING_OP_RECV, fd, buffer + done,
                                                 (unsigned)(sizeof buffer - done)))
                          : (size_t)NEED(read(fd, buffer + done, sizeof buffer - done));
        REQUIRE(pattern_match(buffer, sizeof buffer, 0, i) == sizeof buffer);
        done = 0;
        while (done < sizeof buffer)
            done += there ? (size_t)NEED(ring_do(&ring, IORING_OP_SEND, fd, buffer + done,
                                                 (unsigned)(sizeof buffer - done)))
                          : (size_t)NEED(write(fd, buffer + done, sizeof buffer - done));
    }
    CHECK(true, "whole conversation");
    tell('q');
}
static void by_io_uring_peer(int fd) {
    await('s');
    for (uint32_t i = 0; i < 50; i++) {
        write_pattern(fd, 1000, 0, i);
        read_pattern(fd, 1000, 0, i);
    }
    CHECK(true, "all came back");
    await('q');
}

static const struct test_case cases[] = {
    LONER(by_number),
    PAIR(blocking_by_number),
    LONER(other_names),
    LONER(with_flags),
    PAIR(by_aio),
    PAIR(both_by_aio),
    PAIR_OF_PROCESSES(forked_bare),
    LONER(bare_fork_beside_the_heap),
    PAIR_OF_PROCESSES(spawned),
    PAIR_OF_PROCESSES(vforked),
    COLD_PAIR_OF_PROCESSES(vforked_early),
    {"left_by_fork", left_by_fork_here, left_peer, NULL, PROCESSES},
    {"left_by_vfork", left_by_vfork_here, left_peer, NULL, PROCESSES},
    {"left_by_spawn", left_by_spawn_here, left_peer, NULL, PROCESSES},
    PAIR_OF_PROCESSES(by_system),
    PAIR_OF_PROCESSES(by_pidfd),
    PAIR_OF_PROCESSES(by_wordexp),
    PAIR(by_io_names),
    PAIR(by_kernel_aio),
    {"by_libaio", by_libaio_here, by_kernel_aio_peer, NULL, PROCESSES | THREADS},
    PAIR_OF_PROCESSES(standard_output),
    PAIR(by_io_uring),
};
MAIN(cases)
