/* Descriptors: copies, numbers, limits; and standard input and output over a socket. */
#include "semantics.h"

static bool at_end(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}
static bool open_and_empty(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}
static void until_end(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
    NEED(poll(&wait, 1, -1));
}

static void copies(void) {
    int ends[2], copy;
    make_pair(ends);
    copy = (int)NEED(dup(ends[0]));
    exchange(copy, ends[1], 1);
    exchange(ends[0], ends[1], 2);
    CHECK_EQ(fcntl(copy, F_GETFD), 0, "dup: not close-on-exec");
    write_pattern(ends[0], 100, 0, 9);
    write_pattern(copy, 100, 100, 9);
    read_pattern(ends[1], 200, 0, 9);
    CHECK(true, "one stream");
    NEED(close(ends[0]));
    exchange(copy, ends[1], 3);
    CHECK(open_and_empty(ends[1]), "closing one of two is not the end");

    int second = (int)NEED(fcntl(copy, F_DUPFD_CLOEXEC, 0));
    CHECK_EQ(fcntl(second, F_GETFD), FD_CLOEXEC, "F_DUPFD_CLOEXEC: close-on-exec");
    exchange(second, ends[1], 4);
    int third = (int)NEED(fcntl(second, F_DUPFD, 500));
    CHECK(third >= 500, "F_DUPFD: at least the number asked for");
    exchange(third, ends[1], 5);
    int fourth = (int)NEED(dup2(third, 777));
    CHECK_EQ(fourth, 777, "dup2: the number asked for");
    CHECK_EQ(fcntl(fourth, F_GETFD), 0, "not close-on-exec");
    exchange(fourth, ends[1], 6);
    int fifth = (int)NEED(dup3(fourth, 778, O_CLOEXEC));
    CHECK_EQ(fcntl(fifth, F_GETFD), FD_CLOEXEC, "dup3: as asked");
    exchange(fifth, ends[1], 7);
    CHECK_EQ(dup2(fifth, fifth), fifth, "dup2 onto itself");
    CHECK_FAILS(dup3(fifth, fifth, 0), EINVAL, "dup3 onto itself");
    CHECK_FAILS(dup2(999, 5), EBADF, "dup2 of nothing");
    CHECK_FAILS(dup(-1), EBADF, "dup of nothing");
    NEED(close(copy) + close(second) + close(third) + close(fourth));
    exchange(fifth, ends[1], 8);
    CHECK(open_and_empty(ends[1]), "one is left");
    NEED(close(fifth));
    until_end(ends[1]);
    CHECK(at_end(ends[1]), "closing the last is the end");
}

/* shutdown through one copy is seen through all; SHUT_WR is the connection's, not the number's. */
static void shutdown_through_a_copy(void) {
    int ends[2];
    make_pair(ends);
    int copy = (int)NEED(dup(ends[0]));
    NEED(shutdown(copy, SHUT_WR));
    until_end(ends[1]);
    CHECK(at_end(ends[1]), "the end");
    CHECK_FAILS(send(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE, "for every copy");
    write_pattern(ends[1], 1000, 0, 1);
    read_pattern(ends[0], 500, 0, 1);
    read_pattern(copy, 500, 500, 1);
    CHECK(true, "the other direction is shared");
}

/* A socket is closed by putting something else in its place. */
static void replaced(void) {
    int one[2], two[2], ends[2];
    make_pair(one);
    make_pair(two);
    NEED(dup2(one[0], two[0]));
    until_end(two[1]);
    CHECK(at_end(two[1]), "dup2 over a socket closes it");
    exchange(two[0], one[1], 1);
    CHECK(true, "and the number is the other one now");
    NEED(pipe(ends));
    NEED(dup2(ends[0], two[0]));
    NEED(dup3(ends[1], one[0], O_CLOEXEC));
    until_end(one[1]);
    CHECK(at_end(one[1]), "a pipe over both copies closes it");
    write_pattern(one[0], 1000, 0, 2);
    read_pattern(two[0], 1000, 0, 2);
    CHECK(true, "and the numbers are the pipe's");
}

/* The number of a closed socket, used again for other things. */
static void number_used_again(void) {
    for (int round = 0; round < 50; round++) {
        int ends[2], data[2];
        NEED(pipe(data));
        make_cold_pair(ends);
        for (uint32_t i = 0; i < 20; i++)
            exchange(ends[0], ends[1], i);
        int number = ends[0];
        if (round % 3 == 0)
            NEED(close(number));
        else if (round % 3 == 1)
            NEED(syscall(SYS_close, number)); /* unseen by a library, as libuv does it */
        else
            NEED(close_range((unsigned)number, (unsigned)number, 0));
        NEED(dup2(data[0], number));
        write_pattern(data[1], 100, 0, 7);
        read_pattern(number, 100, 0, 7);
        REQUIRE(fcntl(number, F_GETFL) >= 0);
        NEED(close(number));
        NEED(close(data[0]) + close(data[1]) + close(ends[1]));
        int again[2];
        make_cold_pair(again);
        for (uint32_t i = 0; i < 20; i++)
            exchange(again[0], again[1], i);
        NEED(close(again[0]) + close(again[1]));
    }
    CHECK(true, "is what it is now");
}

/* The lowest free number is given, whatever else lives in the process. */
static void lowest_number(void) {
    int before = (int)NEED(dup(2));
    NEED(close(before));
    int ends[2];
    make_pair(ends);
    int after = (int)NEED(dup(2));
    NEED(close(after));
    CHECK(ends[0] < before + 3 && ends[1] < before + 3, "the connection's");
    CHECK(after <= before + 3, "and the next");
    int fds = count_fds();
    NEED(close(ends[0]) + close(ends[1]));
    CHECK_EQ(fds - count_fds(), 2, "two less after closing two");
}

/* Daemons close everything when they start. */
static void everything_closed(void) {
    for (int round = 0; round < 4; round++) {
        int ends[2];
        make_pair(ends);
        exchange(ends[0], ends[1], 1);
        if (round == 0) {
            NEED(close_range(3, ~0u, 0));
        } else if (round == 1) {
            closefrom(3);
        } else if (round == 2) {
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
        } else {
            NEED(syscall(SYS_close_range, 3, ~0u, 0));
        }
        REQUIRE(fcntl(ends[0], F_GETFD) == -1 && errno == EBADF);
        int null = (int)NEED(open("/dev/null", O_RDWR));
        REQUIRE(null == 3);
        /* Ordinary files over every number a library might think its own. */
        for (int fd = 4; fd < 1024; fd += 7)
            NEED(dup2(null, fd));
        int again[2];
        make_cold_pair(again);
        for (uint32_t i = 0; i < 40; i++)
            exchange(again[0], again[1], i);
        for (int fd = 4; fd < 1024; fd += 7)
            REQUIRE(fd == again[0] || fd == again[1] || write(fd, "x", 1) == 1);
        NEED(close_range(3, ~0u, 0));
    }
    CHECK(true, "connections made afterwards work");
}

/* close_range with CLOSE_RANGE_CLOEXEC closes nothing yet. */
static void close_on_exec_by_range(void) {
    int ends[2];
    make_pair(ends);
    NEED(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
    CHECK_EQ(fcntl(ends[0], F_GETFD), FD_CLOEXEC, "marked");
    exchange(ends[0], ends[1], 1);
    CHECK(true, "and open");
}

static void high_numbers(void) {
    uint64_t dice = 5;
    int ends[2];
    make_pair(ends);
    for (uint32_t i = 0; i < 100; i++) {
        int high = 600 + (int)(random_u32(&dice) % 300);
        NEED(dup2(ends[0], high));
        exchange(high, ends[1], i);
        if (i % 2)
            NEED(close(high));
    }
    CHECK(true, "any number will do");
}

static void few_descriptors(void) {
    struct rlimit limit = {64, 64};
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    int ends[20][2];
    for (int i = 0; i < 20; i++)
        make_cold_pair(ends[i]);
    for (uint32_t round = 0; round < 20; round++)
        for (uint32_t i = 0; i < 20; i++)
            exchange(ends[i][0], ends[i][1], i + round);
    CHECK(true, "twenty connections of two descriptors each in sixty-four");
    int fd, opened = 0;
    while ((fd = dup(ends[0][0])) >= 0)
        opened++;
    CHECK(fd == -1 && errno == EMFILE, "then the limit");
    CHECK(opened >= 8, "near the sixty-fourth");
    exchange(ends[3][0], ends[3][1], 99);
    CHECK(true, "which hurts no connection");
}

static void limit_lowered_later(void) {
    int ends[2];
    make_pair(ends);
    struct rlimit limit = {16, 16};
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    for (uint32_t i = 0; i < 50; i++)
        exchange(ends[0], ends[1], i);
    int again[2];
    make_cold_pair(again);
    for (uint32_t i = 0; i < 50; i++)
        exchange(again[0], again[1], i);
    CHECK(true, "old and new connections work under a limit of sixteen");
}

/* ---- stdio ---- */

static void stdio_here(int fd) {
    FILE *file = fdopen(fd, "r+");
    REQUIRE(file != NULL);
    char text[200];
    int rounds = 0;
    while (fgets(text, sizeof text, file)) {
        REQUIRE(strlen(text) > 0 && text[strlen(text) - 1] == '\n');
        fseek(file, 0, SEEK_CUR);
        if (fprintf(file, "answer to %s", text) < 0 || fflush(file) != 0)
            give_up("fprintf");
        rounds++;
    }
    CHECK_EQ(rounds, 500, "lines");
    CHECK(feof(file) && !ferror(file), "end of file and no error");
    CHECK_EQ(fclose(file), 0, "fclose");
    CHECK_FAILS(fcntl(fd, F_GETFD), EBADF, "closed the descriptor");
}
static void stdio_peer(int fd) {
    FILE *in = fdopen(fd, "r"), *out = fdopen((int)NEED(dup(fd)), "w");
    REQUIRE(in && out);
    char *line = NULL, want[100];
    size_t room = 0;
    for (int i = 0; i < 500; i++) {
        fprintf(out, "line %d\n", i);
        fflush(out);
        REQUIRE(getline(&line, &room, in) > 0);
        snprintf(want, sizeof want, "answer to line %d\n", i);
        REQUIRE(strcmp(line, want) == 0);
    }
    free(line);
    CHECK(true, "every answer");
    CHECK_EQ(fclose(out), 0, "fclose of the writer");
    NEED(shutdown(fd, SHUT_WR));
    CHECK_EQ(fgetc(in), EOF, "end of file");
    CHECK_EQ(fclose(in), 0, "fclose of the reader");
}

/* A stream without a descriptor, closed: no error, and none is left behind. */
static void stdio_in_memory(void) {
    int ends[2];
    char text[8] = "";
    make_pair(ends);
    FILE *file = fmemopen(text, sizeof text, "w");
    REQUIRE(file != NULL && fputs("abc", file) >= 0);
    errno = ENOTTY;
    int result = fclose(file), error = errno;
    CHECK_EQ(result, 0, "fclose");
    CHECK_EQ(error, ENOTTY, "errno is what it was");
    CHECK(strcmp(text, "abc") == 0, "what was written is there");
}

/* stdio starts when bytes are already waiting, and while the peer goes on writing. */
static void stdio_late_here(int fd) {
    tell('s');
    UNTIL(readable_bytes(fd) == 10000);
    read_pattern(fd, 100, 0, 1);
    FILE *file = fdopen(fd, "rb");
    REQUIRE(file != NULL);
    tell('g');
    char *buffer = malloc(1 * MIB);
    CHECK_EQ((long long)fread(buffer, 1, 1 * MIB - 100, file), 1 * MIB - 100, "fread");
    CHECK_EQ(pattern_match(buffer, 1 * MIB - 100, 100, 1), 1 * MIB - 100, "the right bytes");
    CHECK_EQ(fgetc(file), EOF, "end of file");
    CHECK_EQ(dprintf(fd, "%s %d\n", "bye", 42), 7, "dprintf");
    CHECK_EQ(fclose(file), 0, "fclose");
    free(buffer);
}
static void stdio_late_peer(int fd) {
    char text[16] = "";
    await('s');
    write_pattern(fd, 10000, 0, 1);
    await('g');
    write_pattern(fd, 1 * MIB - 10000, 10000, 1);
    NEED(shutdown(fd, SHUT_WR));
    read_all(fd, text, 7);
    CHECK(strcmp(text, "bye 42\n") == 0, "and its answer");
    until_end(fd);
    CHECK(at_end(fd), "no more");
}

/* Both styles in turn on one socket. */
static void stdio_mixed_here(int fd) {
    FILE *file = fdopen((int)NEED(dup(fd)), "w");
    REQUIRE(file != NULL);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* three small writes in a row */
    for (int i = 0; i < 200; i++) {
        char byte;
        fprintf(file, "%03d", i);
        fflush(file);
        write_all(fd, "w", 1);
        dprintf(fd, "d");
        read_all(fd, &byte, 1);
    }
    NEED(fclose(file));
    CHECK(true, "answered each time");
    tell('q');
}
static void stdio_mixed_peer(int fd) {
    for (int i = 0; i < 200; i++) {
        char text[8] = "", want[16];
        read_all(fd, text, 5);
        snprintf(want, sizeof want, "%03dwd", i);
        REQUIRE(strcmp(text, want) == 0);
        write_all(fd, "k", 1);
    }
    CHECK(true, "in order");
    await('q');
}

/* A number that stdio has closed means what it is given next, also when the connection has ended in a
 * way that TCP could not take back. */
static void closed_by_stdio_here(int fd) {
    char buffer[8];
    int ends[2];
    peer_will_be_killed();
    tell('s');
    write_all(fd, "x", 1);
    await('k');
    NEED(kill(peer_pid(), SIGKILL));
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    UNTIL(poll(&wait, 1, -1) == 1 && wait.revents & POLLERR);
    int copy = (int)NEED(dup(fd));
    FILE *file = fdopen(copy, "r+");
    REQUIRE(file != NULL);
    CHECK_EQ(fclose(file), 0, "fclose");
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    CHECK(ends[0] == copy, "its number is given to another socket");
    CHECK_EQ(send(ends[0], "there", 5, 0), 5, "sent by it");
    CHECK_EQ(recv(ends[1], buffer, sizeof buffer, MSG_DONTWAIT), 5, "and received");
    CHECK_EQ(send(ends[1], "back", 4, 0), 4, "sent to it");
    CHECK_EQ(recv(ends[0], buffer, sizeof buffer, MSG_DONTWAIT), 4, "and received");
    CHECK_EQ(close(ends[0]), 0, "closed");
    REQUIRE(dup2(ends[1], copy) == copy);
    copy = (int)NEED(dup(fd));
    file = fdopen(copy, "r+");
    REQUIRE(file && freopen("/dev/null", "w", file));
    CHECK_EQ(fileno(file), copy, "freopen keeps the number");
    CHECK_EQ(write(copy, "nothing", 7), 7, "written to another file");
    CHECK_EQ(fclose(file), 0, "closed");
}
static void closed_by_stdio_peer(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    await('s');
    NEED(poll(&wait, 1, -1));
    tell('k');
    for (;;)
        pause();
}

/* A copy gets the lowest number that is free, and that is standard output's. */
static void standard_by_copy(void) {
    for (int by_fcntl = 0; by_fcntl < 2; by_fcntl++) {
        int ends[2];
        char text[6];
        make_pair(ends);
        NEED(fflush(stdout));
        int kept = (int)NEED(dup(STDOUT_FILENO));
        NEED(close(STDOUT_FILENO));
        int copy = by_fcntl ? fcntl(ends[0], F_DUPFD, 0) : dup(ends[0]);
        bool written = copy == STDOUT_FILENO && printf("hello\n") == 6 && fflush(stdout) == 0;
        NEED(dup2(kept, STDOUT_FILENO));
        NEED(close(kept));
        REQUIRE(written);
        read_all(ends[1], text, 6);
        CHECK(memcmp(text, "hello\n", 6) == 0, by_fcntl ? "printf, by F_DUPFD" : "printf, by dup");
        exchange(ends[0], ends[1], 1);
        CHECK(true, "and the stream goes on");
    }
}

static const struct test_case cases[] = {
    LONER(copies),
    LONER(standard_by_copy),
    LONER(shutdown_through_a_copy),
    LONER(replaced),
    LONER(number_used_again),
    LONER(lowest_number),
    LONER(everything_closed),
    LONER(close_on_exec_by_range),
    LONER(high_numbers),
    LONER(few_descriptors),
    LONER(limit_lowered_later),
    PAIR(stdio),
    PAIR(stdio_late),
    LONER(stdio_in_memory),
    PAIR(stdio_mixed),
    PAIR_OF_PROCESSES(closed_by_stdio),
};
MAIN(cases)
