/* Bytes arrive, all of them, once, in order: sizes, directions, many threads, many connections. */
#include "semantics.h"

/* ---- full duplex, random sizes, 64 MiB in all ---- */

enum { DUPLEX_EACH = 32 * 1024 * 1024 };

static void write_random_sizes(int fd, size_t total, uint32_t seed) {
    static __thread char buffer[48 * 1024];
    uint64_t dice = seed;
    for (size_t done = 0; done < total;) {
        size_t part = random_u32(&dice) % 8 ? 1 + random_u32(&dice) % sizeof buffer
                                            : 1 + random_u32(&dice) % 16;
        if (part > total - done)
            part = total - done;
        pattern(buffer, part, done, seed);
        write_all(fd, buffer, part);
        done += part;
    }
}

static void read_random_sizes(int fd, size_t total, uint32_t seed) {
    static __thread char buffer[48 * 1024];
    uint64_t dice = seed + 1000;
    for (size_t done = 0; done < total;) {
        size_t part = 1 + random_u32(&dice) % sizeof buffer;
        if (part > total - done)
            part = total - done;
        ssize_t got = NEED(read(fd, buffer, part));
        REQUIRE(got > 0);
        size_t good = pattern_match(buffer, (size_t)got, done, seed);
        if (good != (size_t)got)
            give_up("wrong byte at offset %zu", done + good);
        done += (size_t)got;
    }
}

struct stream {
    int fd;
    uint32_t seed;
};

static void *duplex_writer(void *argument) {
    struct stream *stream = argument;
    write_random_sizes(stream->fd, DUPLEX_EACH, stream->seed);
    return NULL;
}

static void duplex(int fd, uint32_t out, uint32_t in) {
    pthread_t writer;
    struct stream stream = {fd, out};
    helper_start(&writer, duplex_writer, &stream);
    read_random_sizes(fd, DUPLEX_EACH, in);
    pthread_join(writer, NULL);
    NEED(shutdown(fd, SHUT_WR));
    char byte;
    CHECK_EQ(read(fd, &byte, 1), 0, "all bytes right, then end of file");
}
static void full_duplex_here(int fd) { duplex(fd, 1, 2); }
static void full_duplex_peer(int fd) { duplex(fd, 2, 1); }

/* ---- requests and answers ---- */

static void ping_pong_here(int fd) {
    char buffer[256];
    uint64_t dice = 7;
    for (int round = 0; round < 3000; round++) {
        size_t length = 1 + random_u32(&dice) % sizeof buffer;
        read_pattern(fd, length, 0, (uint32_t)round);
        pattern(buffer, length, 0, (uint32_t)round + 1);
        write_all(fd, buffer, length);
    }
    CHECK(true, "all requests right");
}
static void ping_pong_peer(int fd) {
    uint64_t dice = 7;
    for (int round = 0; round < 3000; round++) {
        size_t length = 1 + random_u32(&dice) % 256;
        write_pattern(fd, length, 0, (uint32_t)round);
        read_pattern(fd, length, 0, (uint32_t)round + 1);
    }
    CHECK(true, "all answers right");
}

/* Requests and answers from 1 byte to more than any ring holds. */
static void sizes_here(int fd) {
    for (size_t length = 1; length <= 4 * MIB; length = length * 3 + 1) {
        read_pattern(fd, length, 0, 5);
        write_pattern(fd, length, 0, 6);
    }
    CHECK(true, "all requests right");
}
static void sizes_peer(int fd) {
    for (size_t length = 1; length <= 4 * MIB; length = length * 3 + 1) {
        char *buffer = malloc(length);
        pattern(buffer, length, 0, 5);
        write_all(fd, buffer, length);
        read_all(fd, buffer, length);
        REQUIRE(pattern_match(buffer, length, 0, 6) == length);
        free(buffer);
    }
    CHECK(true, "all answers right");
}

/* ---- one side's calls are large, the other's small ---- */

static void large_write_small_reads_here(int fd) {
    char buffer[512];
    uint64_t dice = 3;
    size_t done = 0;
    while (done < 2 * MIB) {
        ssize_t got = NEED(read(fd, buffer, 1 + random_u32(&dice) % sizeof buffer));
        REQUIRE(got > 0 && pattern_match(buffer, (size_t)got, done, 9) == (size_t)got);
        done += (size_t)got;
    }
    CHECK_EQ(done, 2 * MIB, "every byte");
}
static void large_write_small_reads_peer(int fd) {
    char *buffer = malloc(2 * MIB);
    pattern(buffer, 2 * MIB, 0, 9);
    CHECK_EQ(write(fd, buffer, 2 * MIB), 2 * MIB, "a blocking write takes everything");
    CHECK_EQ(send(fd, NULL, 0, 0), 0, "and nothing is a length too");
    free(buffer);
}

static void small_writes_large_reads_here(int fd) {
    CHECK_EQ(drain(fd, 0, 4), 7 * 20000, "every byte");
}
static void small_writes_large_reads_peer(int fd) {
    char buffer[7];
    for (size_t at = 0; at < 7 * 20000; at += 7) {
        pattern(buffer, 7, at, 4);
        REQUIRE(write(fd, buffer, 7) == 7);
    }
    NEED(close(fd));
}

/* ---- several threads on one socket ---- */

enum { WRITERS = 4, RECORDS = 400 };
struct record {
    uint32_t writer, number;
    char filler[40];
};
struct writer {
    int fd;
    uint32_t number;
};

static void *record_writer(void *argument) {
    struct writer *writer = argument;
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct record record = {writer->number, i, {0}};
        pattern(record.filler, sizeof record.filler, i, writer->number);
        REQUIRE(write(writer->fd, &record, sizeof record) == sizeof record);
    }
    return NULL;
}

static void writers_here(int fd) {
    uint32_t next[WRITERS] = {0};
    for (int i = 0; i < WRITERS * RECORDS; i++) {
        struct record record;
        read_all(fd, &record, sizeof record);
        REQUIRE(record.writer < WRITERS);
        REQUIRE(record.number == next[record.writer]);
        next[record.writer]++;
        REQUIRE(pattern_match(record.filler, sizeof record.filler, record.number, record.writer) ==
                sizeof record.filler);
    }
    CHECK(true, "records whole and in each writer's order");
}
static void writers_peer(int fd) {
    pthread_t threads[WRITERS];
    struct writer writers[WRITERS];
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){fd, i};
        helper_start(&threads[i], record_writer, &writers[i]);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
}

static _Atomic uint64_t readers_sum, readers_count;

static void *summing_reader(void *argument) {
    int fd = *(int *)argument;
    unsigned char buffer[777];
    ssize_t got;
    while ((got = NEED(read(fd, buffer, sizeof buffer))) > 0) {
        uint64_t sum = 0;
        for (ssize_t i = 0; i < got; i++)
            sum += buffer[i];
        readers_sum += sum;
        readers_count += (uint64_t)got;
    }
    return NULL;
}

enum { SUMMED = 3 * 1024 * 1024 };
static void readers_here(int fd) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        helper_start(&threads[i], summing_reader, &fd);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    unsigned char *all = malloc(SUMMED);
    uint64_t sum = 0;
    pattern(all, SUMMED, 0, 11);
    for (size_t i = 0; i < SUMMED; i++)
        sum += all[i];
    CHECK_EQ(readers_count, SUMMED, "each byte went to one reader, and each reader saw the end");
    CHECK_EQ(readers_sum, sum, "and their sum is right");
}
static void readers_peer(int fd) {
    write_pattern(fd, SUMMED, 0, 11);
    NEED(shutdown(fd, SHUT_WR));
}

/* ---- connections too short to be worth anything ---- */

static void short_connection_here(int fd) {
    char buffer[64];
    CHECK_EQ(read(fd, buffer, sizeof buffer), 5, "the request");
    CHECK_EQ(write(fd, "answer", 6), 6, "the answer");
    CHECK_EQ(read(fd, buffer, sizeof buffer), 0, "end of file");
    CHECK_EQ(close(fd), 0, "close");
}
static void short_connection_peer(int fd) {
    char buffer[64];
    CHECK_EQ(write(fd, "hello", 5), 5, "the request");
    read_all(fd, buffer, 6);
    CHECK(memcmp(buffer, "answer", 6) == 0, "the answer");
    CHECK_EQ(close(fd), 0, "close");
}

/* A connection that grows up while bytes are under way in both directions. */
static void upgraded_under_load_here(int fd) { duplex(fd, 21, 22); }
static void upgraded_under_load_peer(int fd) { duplex(fd, 22, 21); }

static void thousand_connections(void) {
    uint16_t port = 0;
    int listener = listen_loopback(&port);
    int before = 0;
    for (int i = 0; i < 1000; i++) {
        char byte = 0;
        int a = connect_loopback(port);
        int b = (int)NEED(accept(listener, NULL, NULL));
        for (int round = 0; round < i % 40; round++) {
            write_all(a, "x", 1);
            read_all(b, &byte, 1);
            REQUIRE(byte == 'x');
            write_all(b, "y", 1);
            read_all(a, &byte, 1);
            REQUIRE(byte == 'y');
        }
        NEED(shutdown(a, SHUT_WR));
        REQUIRE(read(b, &byte, 1) == 0);
        NEED(close(i % 2 ? a : b));
        NEED(close(i % 2 ? b : a));
        if (i == 99)
            before = count_fds();
    }
    CHECK_EQ(count_fds(), before, "no descriptor is left behind");
}

/* The whole table at once: many live connections, each with its own bytes. */
static void hundred_at_once(void) {
    enum { MANY = 100 };
    int ends[MANY][2];
    for (int i = 0; i < MANY; i++)
        make_cold_pair(ends[i]);
    for (size_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < MANY; i++)
            write_pattern(ends[i][round % 2], 100, round / 2 * 100, i * 2 + round % 2);
        for (uint32_t i = 0; i < MANY; i++)
            read_pattern(ends[i][1 - round % 2], 100, round / 2 * 100, i * 2 + round % 2);
    }
    CHECK(true, "each connection carries its own bytes");
}

static const struct test_case cases[] = {
    PAIR(full_duplex),
    PAIR(ping_pong),
    PAIR(sizes),
    PAIR(large_write_small_reads),
    PAIR(small_writes_large_reads),
    PAIR(writers),
    PAIR(readers),
    COLD_PAIR(short_connection),
    COLD_PAIR(upgraded_under_load),
    LONER(thousand_connections),
    LONER(hundred_at_once),
};
MAIN(cases)
