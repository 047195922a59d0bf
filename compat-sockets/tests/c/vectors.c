/* Calls with many parts, and calls that move bytes between descriptors. */
#include "semantics.h"

enum { PARTS = 64 };

/* Cuts a buffer in parts of random lengths, some of them empty. */
static int cut(struct iovec *parts, char *buffer, size_t length, uint64_t *dice) {
    int count = 0;
    size_t at = 0;
    while (at < length && count < PARTS - 1) {
        size_t part = random_u32(dice) % 4 ? random_u32(dice) % 3000 : 0;
        if (part > length - at)
            part = length - at;
        parts[count++] = (struct iovec){part ? buffer + at : NULL, part};
        at += part;
    }
    parts[count++] = (struct iovec){buffer + at, length - at};
    return count;
}

static void many_parts_here(int fd) {
    static __thread char buffer[100 * KIB];
    uint64_t dice = 1;
    struct iovec parts[PARTS];
    size_t at = 0;
    for (int round = 0; at < 4 * MIB; round++) {
        size_t want = 1 + random_u32(&dice) % sizeof buffer;
        if (want > 4 * MIB - at)
            want = 4 * MIB - at;
        int count = cut(parts, buffer, want, &dice);
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t got = round % 2 ? readv(fd, parts, count) : recvmsg(fd, &message, 0);
        REQUIRE(got > 0 && (size_t)got <= want);
        REQUIRE(pattern_match(buffer, (size_t)got, at, 1) == (size_t)got);
        at += (size_t)got;
    }
    CHECK_EQ(at, 4 * MIB, "every byte, in every part");
    tell('q');
}
static void many_parts_peer(int fd) {
    static __thread char buffer[100 * KIB];
    uint64_t dice = 2;
    struct iovec parts[PARTS];
    size_t at = 0;
    for (int round = 0; at < 4 * MIB; round++) {
        size_t want = 1 + random_u32(&dice) % sizeof buffer;
        if (want > 4 * MIB - at)
            want = 4 * MIB - at;
        pattern(buffer, want, at, 1);
        int count = cut(parts, buffer, want, &dice);
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = round % 2 ? writev(fd, parts, count) : sendmsg(fd, &message, 0);
        REQUIRE((size_t)sent == want); /* blocking: all of it */
        at += want;
    }
    await('q');
}

static void limits_here(int fd) {
    static struct iovec parts[1025];
    static char bytes[1025];
    for (int i = 0; i < 1025; i++)
        parts[i] = (struct iovec){&bytes[i], 1};
    pattern(bytes, 1024, 0, 1);
    CHECK_EQ(writev(fd, parts, 1024), 1024, "as many parts as are allowed");
    CHECK_FAILS(writev(fd, parts, 1025), EINVAL, "one more");
    volatile int fewer = -1;
    CHECK_FAILS(readv(fd, parts, fewer), EINVAL, "fewer than none");
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
    CHECK_FAILS(sendmsg(fd, &message, 0), EMSGSIZE, "one more in a message");
    struct iovec huge[2] = {{bytes, SIZE_MAX / 2 + 1}, {bytes, 10}};
    CHECK_FAILS(writev(fd, huge, 2), EINVAL, "an absurd length");
    tell('g');
    memset(bytes, 0, sizeof bytes);
    size_t done = 0;
    while (done < 1024) {
        ssize_t got = NEED(readv(fd, parts + done, (int)(1024 - done)));
        REQUIRE(got > 0);
        done += (size_t)got;
    }
    CHECK_EQ(pattern_match(bytes, 1024, 0, 2), 1024, "read in single bytes");
}
static void limits_peer(int fd) {
    await('g');
    read_pattern(fd, 1024, 0, 1);
    char byte;
    CHECK_FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN, "what was refused was not sent");
    write_pattern(fd, 1024, 0, 2);
}

static void message_header_here(int fd) {
    char buffer[64], control[128], name[64];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {.msg_name = name,
                             .msg_namelen = sizeof name,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control,
                             .msg_flags = 0x7777};
    tell('s');
    CHECK_EQ(recvmsg(fd, &message, 0), 10, "ten bytes");
    CHECK_EQ(message.msg_namelen, 0, "from nobody");
    CHECK_EQ(message.msg_controllen, 0, "with nothing beside them");
    CHECK_EQ(message.msg_flags, 0, "and no flags");
    tell('q');
}
static void message_header_peer(int fd) {
    await('s');
    write_all(fd, "0123456789", 10);
    await('q');
}

static void many_messages_here(int fd) {
    char buffers[4][16];
    struct iovec parts[4];
    struct mmsghdr messages[4];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct iovec){buffers[i], 5};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    tell('s');
    UNTIL(readable_bytes(fd) == 20);
    CHECK_EQ(recvmmsg(fd, messages, 4, 0, NULL), 4, "recvmmsg");
    for (int i = 0; i < 4; i++)
        REQUIRE(messages[i].msg_len == 5 && memcmp(buffers[i], &"abcdefghijklmnopqrst"[5 * i], 5) == 0);
    CHECK(true, "five bytes each");
    tell('s');
    CHECK_EQ(recvmmsg(fd, messages, 4, MSG_WAITFORONE, NULL), 1, "MSG_WAITFORONE");
    CHECK_FAILS(recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL), EAGAIN, "nothing");
    tell('q');
}
static void many_messages_peer(int fd) {
    struct iovec parts[4];
    struct mmsghdr messages[4];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct iovec){&"abcdefghijklmnopqrst"[5 * i], 5};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    await('s');
    CHECK_EQ(sendmmsg(fd, messages, 4, 0), 4, "sendmmsg");
    CHECK(messages[0].msg_len == 5 && messages[3].msg_len == 5, "five bytes each");
    await('s');
    write_all(fd, "abcde", 5);
    await('q');
}

/* ---- sendfile ---- */

static int file_of_pattern(size_t length, uint32_t seed) {
    char path[] = "/tmp/semantics-XXXXXX";
    int file = (int)NEED(mkstemp(path));
    NEED(unlink(path));
    write_pattern(file, length, 0, seed);
    NEED(lseek(file, 0, SEEK_SET));
    return file;
}

static void sendfile_here(int fd) {
    int file = file_of_pattern(2 * MIB, 1);
    size_t done = 0;
    while (done < 2 * MIB) {
        ssize_t sent = NEED(sendfile(fd, file, NULL, 4 * MIB));
        REQUIRE(sent > 0);
        done += (size_t)sent;
    }
    CHECK_EQ(done, 2 * MIB, "the whole file");
    CHECK_EQ(lseek(file, 0, SEEK_CUR), 2 * MIB, "its position moved");
    CHECK_EQ(sendfile(fd, file, NULL, 100), 0, "nothing is left");
    int pipes[2];
    off_t start = 0;
    NEED(pipe(pipes));
    CHECK_FAILS(sendfile(fd, pipes[0], NULL, 10), EINVAL, "not from a pipe");
    CHECK_FAILS(sendfile(fd, pipes[0], &start, 10), ESPIPE, "nor from a place in one");
    NEED(close(pipes[0]) + close(pipes[1]));
    NEED(lseek(file, 5, SEEK_SET));
    off_t offset = 1000;
    done = 0;
    while (done < 50000) {
        ssize_t sent = NEED(sendfile(fd, file, &offset, 50000 - done));
        REQUIRE(sent > 0);
        done += (size_t)sent;
    }
    CHECK_EQ(offset, 51000, "from an offset, which moved");
    CHECK_EQ(lseek(file, 0, SEEK_CUR), 5, "its position did not");
    CHECK_EQ(sendfile(fd, file, NULL, 0), 0, "nothing");
    CHECK_FAILS(sendfile(fd, 999, NULL, 10), EBADF, "no such file");
    write_all(fd, "end", 3);
    tell('f');
    set_nonblocking(fd, true);
    offset = 0;
    uint64_t at = 0;
    int error = 0;
    while (!error) {
        ssize_t sent = sendfile(fd, file, &offset, 2 * MIB);
        if (sent < 0) {
            error = errno;
            break;
        }
        REQUIRE(sent > 0);
        at += (uint64_t)sent;
        if (offset == 2 * MIB)
            offset = 0;
    }
    CHECK_EQ(error, EAGAIN, "not blocking: until it is full");
    set_nonblocking(fd, false);
    tell('d');
    NEED(shutdown(fd, SHUT_WR));
    uint64_t told = 0;
    read_all(fd, &told, sizeof told);
    CHECK(told == at, "what the calls said is what came");
}
static void sendfile_peer(int fd) {
    static __thread char buffer[64 * KIB];
    read_pattern(fd, 2 * MIB, 0, 1);
    read_pattern(fd, 50000, 1000, 1);
    read_all(fd, buffer, 3);
    CHECK(memcmp(buffer, "end", 3) == 0, "all of it right, and what follows");
    await('f');
    await('d');
    uint64_t at = 0;
    for (;;) {
        size_t want = sizeof buffer, left = 2 * MIB - at % (2 * MIB);
        ssize_t got = NEED(read(fd, buffer, want < left ? want : left));
        if (got == 0)
            break;
        REQUIRE(pattern_match(buffer, (size_t)got, at % (2 * MIB), 1) == (size_t)got);
        at += (uint64_t)got;
    }
    write_all(fd, &at, sizeof at);
}

/* sendfile among ordinary writes, as web servers do: header, file, trailer. */
static void responses_here(int fd) {
    int file = file_of_pattern(30000, 3);
    char byte;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    for (int i = 0; i < 100; i++) {
        read_all(fd, &byte, 1);
        NEED(send(fd, "head", 4, MSG_MORE));
        off_t offset = 0;
        while (offset < 30000)
            NEED(sendfile(fd, file, &offset, (size_t)(30000 - offset)));
        write_all(fd, "tail", 4);
    }
    CHECK(true, "a hundred answers");
}
static void responses_peer(int fd) {
    char text[4];
    for (int i = 0; i < 100; i++) {
        write_all(fd, "?", 1);
        read_all(fd, text, 4);
        REQUIRE(memcmp(text, "head", 4) == 0);
        read_pattern(fd, 30000, 0, 3);
        read_all(fd, text, 4);
        REQUIRE(memcmp(text, "tail", 4) == 0);
    }
    CHECK(true, "in order");
}

/* ---- splice ---- */

static void splice_here(int fd) {
    int ends[2];
    size_t done = 0;
    NEED(pipe(ends));
    /* Out of the socket, through a pipe, back into it: what a proxy does. */
    for (int round = 0; done < 1 * MIB; round++) {
        ssize_t in = NEED(splice(fd, NULL, ends[1], NULL, 32 * KIB, SPLICE_F_MOVE));
        REQUIRE(in > 0);
        for (ssize_t out = 0; out < in;)
            out += (ssize_t)NEED(splice(ends[0], NULL, fd, NULL, (size_t)(in - out), SPLICE_F_MOVE));
        done += (size_t)in;
    }
    CHECK_EQ(done, 1 * MIB, "through the pipe");
    set_nonblocking(fd, true);
    CHECK_FAILS(splice(fd, NULL, ends[1], NULL, 10, 0), EAGAIN, "nothing more");
    set_nonblocking(fd, false);
    write_all(fd, "end", 3);
    char byte;
    read_all(fd, &byte, 1);
    CHECK(byte == 'k', "and the calls go on");
    NEED(shutdown(fd, SHUT_WR));
    CHECK_EQ(splice(fd, NULL, ends[1], NULL, 10, 0), 0, "end of file");
}
static void *splice_writer(void *argument) {
    write_pattern(*(int *)argument, 1 * MIB, 0, 1);
    return NULL;
}
static void splice_peer(int fd) {
    char text[3];
    pthread_t writer;
    helper_start(&writer, splice_writer, &fd);
    read_pattern(fd, 1 * MIB, 0, 1);
    pthread_join(writer, NULL);
    read_all(fd, text, 3);
    CHECK(memcmp(text, "end", 3) == 0, "all of it right, and what follows");
    write_all(fd, "k", 1);
    NEED(close(fd));
}

/* What splice(2) does not do moves nothing. */
static void splice_refused_here(int fd) {
    int ends[2], file = (int)NEED(memfd_create("spliced", 0)), other[2];
    loff_t place = 0;
    NEED(pipe(ends));
    make_pair(other);
    NEED(write(ends[1], "0123456789", 10));
    NEED(pwrite(file, "0123456789", 10, 0));
    tell('s');
    UNTIL(readable_bytes(fd) == 5);
    CHECK_FAILS(splice(file, NULL, fd, NULL, 5, 0), EINVAL, "from a file");
    CHECK_FAILS(splice(fd, NULL, file, NULL, 5, 0), EINVAL, "to a file");
    CHECK_FAILS(splice(fd, NULL, other[0], NULL, 5, 0), EINVAL, "to a socket");
    CHECK_FAILS(splice(ends[0], NULL, fd, &place, 5, 0), EINVAL, "to a place of a socket");
    CHECK_FAILS(splice(fd, &place, ends[1], NULL, 5, 0), EINVAL, "from a place of a socket");
    CHECK_FAILS(splice(ends[0], &place, fd, NULL, 5, 0), ESPIPE, "from a place of a pipe");
    CHECK_FAILS(splice(fd, NULL, ends[1], &place, 5, 0), ESPIPE, "to a place of a pipe");
    CHECK_FAILS(splice(ends[0], NULL, fd, NULL, 5, 128), EINVAL, "with a flag that there is not");
    CHECK_FAILS(splice(ends[0], NULL, 999, NULL, 5, 0), EBADF, "to nothing");
    CHECK_EQ(splice(ends[0], NULL, fd, NULL, 0, 0), 0, "none");
    char buffer[10];
    read_all(ends[0], buffer, 10);
    CHECK(memcmp(buffer, "0123456789", 10) == 0, "the pipe has all that it had");
    read_all(fd, buffer, 5);
    CHECK(memcmp(buffer, "abcde", 5) == 0, "and so has the socket");
    CHECK_EQ(lseek(file, 0, SEEK_CUR), 0, "the file is where it was");
    write_all(fd, "end", 3);
    NEED(close(other[0]));
    NEED(close(other[1]));
}
static void splice_refused_peer(int fd) {
    char text[3];
    await('s');
    write_all(fd, "abcde", 5);
    read_all(fd, text, 3);
    CHECK(memcmp(text, "end", 3) == 0, "nothing came");
}

/* Who splices from an empty pipe waits for that, and holds up nobody who sends. */
static void *splice_from_pipe(void *argument) {
    int *both = argument;
    CHECK_EQ(splice(both[0], NULL, both[1], NULL, 100, 0), 5, "what came at last");
    return NULL;
}
static void splice_waits_here(int fd) {
    int ends[2], none[2];
    pthread_t splicer;
    NEED(pipe(none));
    CHECK_FAILS(splice(none[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK), EAGAIN, "an empty pipe");
    NEED(fcntl(none[0], F_SETFL, O_NONBLOCK));
    CHECK_FAILS(splice(none[0], NULL, fd, NULL, 10, 0), EAGAIN, "and one that is not waited for");
    NEED(close(none[1]));
    CHECK_EQ(splice(none[0], NULL, fd, NULL, 10, 0), 0, "end of the pipe");
    NEED(pipe(ends));
    helper_start(&splicer, splice_from_pipe, (int[]){ends[0], fd});
    for (uint32_t i = 0; i < 50; i++) {
        write_pattern(fd, 1000, 0, i);
        read_pattern(fd, 1000, 0, i);
        usleep(100); /* it has begun to wait somewhere here */
    }
    CHECK(true, "sent and received meanwhile");
    write_all(ends[1], "later", 5);
    pthread_join(splicer, NULL);
    await('q');
    UNTIL(readable_bytes(fd) == 10000);
    /* A pipe with one free page takes no more than that without waiting. */
    NEED(pipe(ends));
    char page[4096] = "";
    set_nonblocking(ends[1], true);
    while (write(ends[1], page, sizeof page) > 0) {
    }
    set_nonblocking(ends[1], false);
    CHECK_FAILS(splice(fd, NULL, ends[1], NULL, 10000, SPLICE_F_NONBLOCK), EAGAIN, "a full pipe");
    read_all(ends[0], page, sizeof page);
    ssize_t into = splice(fd, NULL, ends[1], NULL, 10000, SPLICE_F_NONBLOCK);
    CHECK(into > 0 && into <= 4096, "as much as there is room for");
}
static void splice_waits_peer(int fd) {
    char text[5];
    for (uint32_t i = 0; i < 50; i++) {
        read_pattern(fd, 1000, 0, i);
        write_pattern(fd, 1000, 0, i);
    }
    read_all(fd, text, 5);
    CHECK(memcmp(text, "later", 5) == 0, "in its place");
    write_pattern(fd, 10000, 0, 3);
    tell('q');
}

static const struct test_case cases[] = {
    PAIR(many_parts), PAIR(limits),   PAIR(message_header), PAIR(many_messages),
    PAIR(sendfile),   PAIR(responses), PAIR(splice), PAIR(splice_refused), PAIR(splice_waits),
};
MAIN(cases)
