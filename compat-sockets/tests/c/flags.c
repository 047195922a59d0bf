/* Flags of recv and send, lengths of zero, bad addresses, urgent data. */
#include "semantics.h"

static void peek_here(int fd) {
    char buffer[32];
    tell('s');
    CHECK_EQ(recv(fd, buffer, 1, MSG_PEEK), 1, "peek waits for data");
    UNTIL(readable_bytes(fd) == 10);
    CHECK_EQ(recv(fd, buffer, 4, MSG_PEEK), 4, "four peeked at");
    CHECK(memcmp(buffer, "0123", 4) == 0, "the first four");
    CHECK_EQ(recv(fd, buffer, 32, MSG_PEEK), 10, "ten peeked at");
    CHECK(memcmp(buffer, "0123456789", 10) == 0, "the same ones");
    CHECK_EQ(readable_bytes(fd), 10, "none taken");
    CHECK_EQ(recv(fd, buffer, 3, 0), 3, "three taken");
    CHECK_EQ(recv(fd, buffer, 32, MSG_PEEK), 7, "seven peeked at");
    CHECK(memcmp(buffer, "3456789", 7) == 0, "the next ones");
    tell('s');
    UNTIL(readable_bytes(fd) == 17);
    CHECK_EQ(recv(fd, buffer, 32, MSG_PEEK | MSG_DONTWAIT), 17, "peeked across two arrivals");
    struct iovec parts[3] = {{buffer, 5}, {NULL, 0}, {buffer + 5, 20}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    CHECK_EQ(recvmsg(fd, &message, MSG_PEEK), 17, "by recvmsg too");
    CHECK(memcmp(buffer, "34567890123456789", 17) == 0, "the right ones");
    CHECK_EQ(recv(fd, buffer, 20, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT), 17, "MSG_WAITALL yields to MSG_DONTWAIT");
    CHECK_EQ(recv(fd, buffer, 32, 0), 17, "taken");
    CHECK_FAILS(recv(fd, buffer, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN, "nothing to peek at");
    tell('c');
    CHECK_EQ(recv(fd, buffer, 1, MSG_PEEK), 0, "end of file can be peeked at");
}
static void peek_peer(int fd) {
    for (int i = 0; i < 2; i++) {
        await('s');
        write_all(fd, "0123456789", 10);
    }
    await('c');
    NEED(close(fd));
}

static void waitall_here(int fd) {
    char *buffer = malloc(1 * MIB);
    tell('g');
    CHECK_EQ(recv(fd, buffer, 1000, MSG_WAITALL), 1000, "all of what comes in pieces");
    CHECK_EQ(pattern_match(buffer, 1000, 0, 1), 1000, "right");
    CHECK_EQ(recv(fd, buffer, 1 * MIB, MSG_WAITALL), 1 * MIB, "more than any ring holds");
    CHECK_EQ(pattern_match(buffer, 1 * MIB, 1000, 1), 1 * MIB, "right");
    UNTIL(readable_bytes(fd) == 100);
    CHECK_EQ(recv(fd, buffer, 500, MSG_WAITALL | MSG_DONTWAIT), 100, "what there is, with MSG_DONTWAIT");
    tell('e');
    CHECK_EQ(recv(fd, buffer, 500, MSG_WAITALL), 200, "what there is, at the end of file");
    CHECK_EQ(recv(fd, buffer, 500, MSG_WAITALL), 0, "then the end");
    free(buffer);
}
static void waitall_peer(int fd) {
    await('g');
    uint64_t dice = 1;
    size_t at = 0, total = 1000 + 1 * MIB;
    while (at < total) {
        size_t part = 1 + random_u32(&dice) % (at < 1000 ? 100 : 30000);
        if (part > total - at)
            part = total - at;
        write_pattern(fd, part, at, 1);
        at += part;
        sched_yield();
    }
    write_pattern(fd, 100, 0, 1);
    await('e');
    write_pattern(fd, 200, 0, 1);
    NEED(shutdown(fd, SHUT_WR));
}

/* On TCP, MSG_TRUNC throws bytes away instead of copying them. */
static void truncate_here(int fd) {
    char buffer[16] = "untouched";
    tell('s');
    UNTIL(readable_bytes(fd) == 1000);
    CHECK_EQ(recv(fd, buffer, 9, MSG_TRUNC), 9, "nine discarded");
    CHECK(memcmp(buffer, "untouched", 9) == 0, "not copied");
    CHECK_EQ(recv(fd, NULL, 91, MSG_TRUNC), 91, "without a buffer");
    CHECK_EQ(readable_bytes(fd), 900, "gone from the stream");
    read_pattern(fd, 800, 100, 1);
    CHECK_EQ(recv(fd, NULL, 500, MSG_TRUNC | MSG_DONTWAIT), 100, "as many as there are");
    CHECK_FAILS(recv(fd, NULL, 500, MSG_TRUNC | MSG_DONTWAIT), EAGAIN, "none");
    tell('q');
}
static void truncate_peer(int fd) {
    await('s');
    write_pattern(fd, 1000, 0, 1);
    await('q');
}

ssize_t __read_chk(int fd, void *buffer, size_t length, size_t room);

static void zero_length_here(int fd) {
    char byte = 0;
    CHECK_EQ(read(fd, &byte, 0), 0, "reading nothing does not wait");
    CHECK_EQ(__read_chk(fd, &byte, 0, 1), 0, "nor what a compiler makes of it");
    CHECK_FAILS(recv(fd, &byte, 0, MSG_DONTWAIT), EAGAIN, "receiving nothing does");
    CHECK_EQ(write(fd, &byte, 0), 0, "writing nothing");
    CHECK_EQ(send(fd, &byte, 0, 0), 0, "sending nothing");
    CHECK_EQ(send(fd, NULL, 0, MSG_DONTWAIT), 0, "from nowhere");
    CHECK_EQ(readv(fd, NULL, 0), 0, "no parts to read");
    CHECK_EQ(writev(fd, NULL, 0), 0, "no parts to write");
    struct iovec empty = {NULL, 0};
    CHECK_EQ(writev(fd, &empty, 1), 0, "an empty part");
    CHECK_EQ(readv(fd, &empty, 1), 0, "to read too");
    tell('s');
    CHECK_EQ(recv(fd, &byte, 0, 0), 0, "until there is something");
    UNTIL(readable_bytes(fd) == 5);
    CHECK_EQ(recv(fd, NULL, 0, MSG_PEEK), 0, "into nothing");
    CHECK_EQ(readable_bytes(fd), 5, "which stays");
    tell('q');
    CHECK_EQ(read(fd, &byte, 1), 1, "and comes");
}
static void zero_length_peer(int fd) {
    char byte;
    await('s');
    write_all(fd, "01234", 5);
    CHECK_FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN, "sending nothing sent nothing");
    await('q');
}

/* Two pages, of which the second cannot be touched. */
static char *two_pages(void) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    NEED(mprotect(pages + 4096, 4096, PROT_NONE));
    return pages;
}

static void bad_address_here(int fd) {
    char *pages = two_pages(), *bad = pages + 4096, buffer[8192], byte;
    volatile uintptr_t wild = 8;
    tell('s');
    UNTIL(readable_bytes(fd) == 1000);
    CHECK_FAILS(recv(fd, bad, 100, 0), EFAULT, "recv");
    CHECK_FAILS(read(fd, bad, 100), EFAULT, "read");
    CHECK_FAILS(read(fd, (void *)wild, 100), EFAULT, "read to a wild address");
    CHECK_FAILS(recv(fd, bad, 100, MSG_PEEK), EFAULT, "peek");
    struct iovec parts[2] = {{bad, 10}, {buffer, 10}};
    CHECK_FAILS(readv(fd, parts, 2), EFAULT, "readv");
    CHECK_FAILS(readv(fd, (struct iovec *)bad, 2), EFAULT, "readv by a bad list");
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK_FAILS(recvmsg(fd, &message, 0), EFAULT, "recvmsg");
    CHECK_FAILS(recvmsg(fd, (struct msghdr *)wild, 0), EFAULT, "recvmsg by a bad header");
    CHECK_EQ(readable_bytes(fd), 1000, "nothing was taken");
    struct sockaddr_in from;
    socklen_t length = 77;
    CHECK_EQ(recvfrom(fd, buffer, 100, MSG_PEEK, NULL, &length), 100, "recvfrom without an address");
    CHECK_EQ(length, 77, "whose length is nobody's");
    CHECK_EQ(recvfrom(fd, buffer, 100, MSG_PEEK, (struct sockaddr *)&from, &length), 100, "with one");
    CHECK_EQ(length, 0, "there is none");
    CHECK_FAILS(recvfrom(fd, buffer, 100, MSG_PEEK, (struct sockaddr *)&from, (socklen_t *)bad), EFAULT, "a bad length");
    int zeros = (int)NEED(open("/dev/zero", O_RDONLY));
    CHECK_FAILS(sendfile(fd, zeros, (off_t *)bad, 10), EFAULT, "sendfile from a bad place");
    NEED(close(zeros));
    read_pattern(fd, 1000, 0, 1);
    CHECK(true, "everything is still there");

    CHECK_FAILS(send(fd, bad, 100, 0), EFAULT, "send");
    CHECK_FAILS(write(fd, bad, 100), EFAULT, "write");
    CHECK_FAILS(write(fd, (void *)wild, 100), EFAULT, "write from a wild address");
    CHECK_FAILS(writev(fd, parts, 2), EFAULT, "writev");
    CHECK_FAILS(sendmsg(fd, &message, 0), EFAULT, "sendmsg");
    struct iovec good_first[2] = {{buffer, 10}, {bad, 10}};
    CHECK_FAILS(writev(fd, good_first, 2), EFAULT, "writev of a good part and a bad one");
    write_all(fd, "mark", 4);

    /* Half good: either refused or a part taken, never a crash or a wrong byte. */
    tell('h');
    UNTIL(readable_bytes(fd) == 6000);
    ssize_t got = recv(fd, pages, 6000, 0);
    CHECK((got == -1 && errno == EFAULT) || (got > 0 && got <= 4096), "a buffer bad at its end");
    size_t done = got > 0 ? (size_t)got : 0;
    REQUIRE(pattern_match(pages, done, 0, 2) == done);
    read_pattern(fd, 6000 - done, done, 2);
    CHECK(true, "the stream goes on where the call said");
    pattern(pages, 4096, 0, 3);
    ssize_t sent = write(fd, pages, 8192);
    CHECK((sent == -1 && errno == EFAULT) || (sent > 0 && sent <= 4096), "sent from one");
    uint64_t told = sent > 0 ? (uint64_t)sent : 0;
    write_all(fd, "the end", 7);
    tell('w');
    uint64_t theirs = 0;
    read_all(fd, &theirs, sizeof theirs);
    CHECK(theirs == told, "what the call said is what went");
    CHECK_EQ(recv(fd, &byte, 1, 0), 0, "end of file");
}
static void bad_address_peer(int fd) {
    char buffer[8192];
    await('s');
    write_pattern(fd, 1000, 0, 1);
    read_all(fd, buffer, 4);
    CHECK(memcmp(buffer, "mark", 4) == 0, "calls that failed sent nothing");
    await('h');
    write_pattern(fd, 6000, 0, 2);
    await('w');
    uint64_t got = 0;
    while (got < 7 || memcmp(buffer + got - 7, "the end", 7) != 0) {
        read_all(fd, buffer + got, 1);
        got++;
    }
    got -= 7;
    CHECK_EQ(pattern_match(buffer, got, 0, 3), (long long)got, "what went is right");
    write_all(fd, &got, sizeof got);
    NEED(shutdown(fd, SHUT_WR));
}

static void odd_flags_here(int fd) {
    char buffer[16];
    CHECK_FAILS(recv(fd, buffer, 16, MSG_ERRQUEUE), EAGAIN, "no errors queued");
    CHECK_FAILS(recv(fd, buffer, 16, MSG_OOB), EINVAL, "no urgent data");
    CHECK_FAILS(pread(fd, buffer, 1, 0), ESPIPE, "no place to read at");
    CHECK_FAILS(pwrite(fd, buffer, 1, 0), ESPIPE, "nor to write at");
    CHECK_FAILS(lseek(fd, 0, SEEK_CUR), ESPIPE, "nor to seek to");
    tell('s');
    read_all(fd, buffer, 6);
    CHECK(memcmp(buffer, "abcdef", 6) == 0, "MSG_MORE then the rest");
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    CHECK_EQ(recvfrom(fd, buffer, 1, 0, (struct sockaddr *)&from, &length), 1, "recvfrom");
    CHECK_EQ(length, 0, "names nobody on TCP");
    tell('q');
}
static void odd_flags_peer(int fd) {
    struct sockaddr_in nowhere = {.sin_family = AF_INET};
    await('s');
    CHECK_EQ(send(fd, "abc", 3, MSG_MORE), 3, "MSG_MORE");
    CHECK_EQ(send(fd, "def", 3, MSG_EOR), 3, "MSG_EOR");
    CHECK_EQ(sendto(fd, "x", 1, 0, (struct sockaddr *)&nowhere, sizeof nowhere), 1,
             "sendto ignores the address");
    await('q');
}

/* TCP_CORK and TCP_NODELAY only change when packets leave. */
static void cork_here(int fd) {
    for (int i = 0; i < 20; i++) {
        read_pattern(fd, 1000, 0, (uint32_t)i);
        write_all(fd, "k", 1);
    }
    CHECK(true, "everything arrives at the end of the cork");
}
static void cork_peer(int fd) {
    char byte;
    for (int i = 0; i < 20; i++) {
        set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
        for (size_t at = 0; at < 1000; at += 100)
            write_pattern(fd, 100, at, (uint32_t)i);
        set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
        read_all(fd, &byte, 1);
    }
    CHECK(true, "answered each time");
}

/* ---- urgent data ---- */

static void urgent_here(int fd) {
    char buffer[32];
    int mark = -1;
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLPRI};
    CHECK_EQ(poll(&wait, 1, -1), 1, "urgent data came");
    CHECK_EQ(wait.revents, POLLPRI, "POLLPRI");
    fd_set exceptional;
    FD_ZERO(&exceptional);
    FD_SET(fd, &exceptional);
    CHECK_EQ(select(fd + 1, NULL, NULL, &exceptional, NULL), 1, "select calls it exceptional");
    UNTIL(readable_bytes(fd) >= 3);
    CHECK_EQ(recv(fd, buffer, 1, MSG_OOB), 1, "the urgent byte");
    CHECK(buffer[0] == 'X', "is the one sent");
    NEED(ioctl(fd, SIOCATMARK, &mark));
    CHECK_EQ(mark, 0, "not at the mark");
    CHECK_EQ(sockatmark(fd), 0, "nor by the other call");
    read_all(fd, buffer, 3);
    CHECK(memcmp(buffer, "abc", 3) == 0, "what came before it");
    tell('d');
    UNTIL(recv(fd, buffer, 32, MSG_PEEK | MSG_DONTWAIT) > 0);
    read_all(fd, buffer, 3);
    CHECK(memcmp(buffer, "def", 3) == 0, "what came after it, without it");
    tell('p');
    read_pattern(fd, 100 * KIB, 0, 1);
    write_pattern(fd, 100 * KIB, 0, 2);
    CHECK(true, "the stream goes on");
}
static void urgent_peer(int fd) {
    await('s');
    CHECK_EQ(send(fd, "abc", 3, 0), 3, "before");
    CHECK_EQ(send(fd, "X", 1, MSG_OOB), 1, "urgent");
    await('d');
    CHECK_EQ(send(fd, "def", 3, 0), 3, "after");
    await('p');
    write_pattern(fd, 100 * KIB, 0, 1);
    read_pattern(fd, 100 * KIB, 0, 2);
}

static void urgent_inline_here(int fd) {
    char buffer[32];
    int mark = -1;
    set_option(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLPRI};
    CHECK_EQ(poll(&wait, 1, -1), 1, "urgent data came");
    await('w');
    UNTIL(readable_bytes(fd) == 7);
    CHECK_EQ(recv(fd, buffer, 32, 0), 3, "a read stops at the mark");
    NEED(ioctl(fd, SIOCATMARK, &mark));
    CHECK_EQ(mark, 1, "which it is at now");
    CHECK_EQ(sockatmark(fd), 1, "by the other call too");
    read_all(fd, buffer, 4);
    CHECK(memcmp(buffer, "Xdef", 4) == 0, "the urgent byte in its place");
    tell('q');
}
static void urgent_between(int fd) {
    await('s');
    write_all(fd, "abc", 3);
    REQUIRE(send(fd, "X", 1, MSG_OOB) == 1);
    write_all(fd, "def", 3);
    tell('w');
    await('q');
}
#define urgent_inline_peer urgent_between

/* Its place ends a read also where nobody takes it, and where more was asked for. */
static void urgent_untaken_here(int fd) {
    char buffer[32];
    tell('s');
    struct pollfd wait = {.fd = fd, .events = POLLPRI};
    CHECK_EQ(poll(&wait, 1, -1), 1, "urgent data came");
    await('w');
    UNTIL(readable_bytes(fd) == 3);
    CHECK_EQ(recv(fd, buffer, 32, MSG_PEEK), 3, "a look stops at the mark");
    CHECK_EQ(recv(fd, buffer, 6, MSG_WAITALL), 3, "a read does, though it is to wait for all");
    CHECK_EQ(sockatmark(fd), 1, "which it is at now");
    read_all(fd, buffer, 3);
    CHECK(memcmp(buffer, "def", 3) == 0, "what came after it, without it");
    tell('q');
}
#define urgent_untaken_peer urgent_between

/* The same where what came before it is more than the sender's buffer takes, and so stays where it is. */
#define BEFORE (40 * KIB)
static void urgent_behind_here(int fd) {
    static char buffer[BEFORE + 3];
    tell('s');
    await('w');
    UNTIL(readable_bytes(fd) == BEFORE);
    CHECK_EQ(recv(fd, buffer, sizeof buffer, MSG_PEEK), BEFORE, "a look stops at the mark");
    CHECK_EQ(recv(fd, buffer, sizeof buffer, MSG_WAITALL), BEFORE, "and so does a read");
    CHECK_EQ(sockatmark(fd), 1, "which it is at now");
    read_all(fd, buffer, 3);
    CHECK(memcmp(buffer, "def", 3) == 0, "what came after it, without it");
    tell('q');
}
static void urgent_behind_peer(int fd) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 4 * KIB);
    await('s');
    write_pattern(fd, BEFORE, 0, 1);
    REQUIRE(send(fd, "X", 1, MSG_OOB) == 1);
    write_all(fd, "def", 3);
    tell('w');
    await('q');
}

/* SO_PEEK_OFF, where the kernel has it for TCP. */
static void peek_offset_here(int fd) {
    char buffer[8];
    int offset = 2;
    bool has = setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) == 0;
    tell('s');
    UNTIL(readable_bytes(fd) == 6);
    const char *want[] = {has ? "23" : "01", has ? "45" : "01"};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(recv(fd, buffer, 2, MSG_PEEK), 2, "two peeked at");
        CHECK(memcmp(buffer, want[i], 2) == 0, "from where it is");
    }
    read_all(fd, buffer, 6);
    CHECK(memcmp(buffer, "012345", 6) == 0, "all of them read");
    tell('q');
}
static void peek_offset_peer(int fd) {
    await('s');
    write_all(fd, "012345", 6);
    await('q');
}

static const struct test_case cases[] = {
    PAIR(peek_offset),
    PAIR(peek),      PAIR(waitall),     PAIR(truncate), PAIR(zero_length),
    PAIR(bad_address), PAIR(odd_flags), PAIR(cork),     PAIR(urgent),
    PAIR(urgent_inline), PAIR(urgent_untaken), PAIR(urgent_behind),
};
MAIN(cases)
