/*
 * What the C stubs of shrimpc use to write and read messages. Written beside the stubs by
 * `shrimpc c`; needs nothing but a C99 compiler.
 *
 * Items are those of XDR (RFC 4506): units of four bytes, here with the least significant byte
 * first, as SHRIMP RPC has them (SHRIMP_CODEC_NETWORK: most significant first). A reader copies
 * each byte once and uses the copy (shrimp_copy_out), because the other side may write it meanwhile,
 * and trusts none: every length is checked against its limit, the input and the memory that one
 * message may take.
 */
#ifndef SHRIMP_CODEC_H
#define SHRIMP_CODEC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Names that rpcgen's users know. */
#ifndef SHRIMP_CODEC_NO_BOOL_T
typedef int shrimp_bool;
#endif
typedef struct { uint64_t high, low; } shrimp_quad;

enum {
    SHRIMP_CODEC_OK = 0,
    SHRIMP_CODEC_SHORT = -101,    /* the message ends early, or has no room */
    SHRIMP_CODEC_TOO_LONG = -102, /* a length beyond the limit of the interface */
    SHRIMP_CODEC_BAD_VALUE = -103, /* no value of its type */
    SHRIMP_CODEC_TOO_DEEP = -104, /* nested too deep */
    SHRIMP_CODEC_NO_MEMORY = -105, /* more memory than a message may take, or than there is */
    SHRIMP_CODEC_NO_SPACE = -106 /* more elements than the caller has room for */
};

/* What reading one message may take: memory for its values, in bytes, and how deep they contain each other. */
#ifndef SHRIMP_CODEC_MEMORY
#define SHRIMP_CODEC_MEMORY ((size_t)64 << 20)
#endif
#ifndef SHRIMP_CODEC_DEPTH
#define SHRIMP_CODEC_DEPTH 128
#endif

/* Writes ascending; without a place (at == NULL) only counts. */
typedef struct {
    volatile unsigned char *at;
    size_t left;
    size_t len;
} shrimp_writer;

typedef struct {
    const volatile unsigned char *at;
    size_t left;
    size_t memory;
    unsigned depth;
} shrimp_reader;

static inline shrimp_writer shrimp_counter(void)
{
    shrimp_writer w = {NULL, 0, 0};
    return w;
}

static inline shrimp_writer shrimp_writer_at(void *at, size_t len)
{
    shrimp_writer w = {(volatile unsigned char *)at, len, 0};
    return w;
}

static inline shrimp_reader shrimp_reader_at(const volatile void *at, size_t len)
{
    shrimp_reader r = {(const volatile unsigned char *)at, len, SHRIMP_CODEC_MEMORY, SHRIMP_CODEC_DEPTH};
    return r;
}

/*
 * Copies out of memory that the other side may write meanwhile. After a plain memcpy the compiler may
 * look at the memory again where the copy is used, and find something else than was checked; after
 * this it may not, since for all that it knows the memory has changed.
 */
static inline void shrimp_copy_out(void *to, const volatile unsigned char *from, size_t len)
{
#ifdef __GNUC__
    memcpy(to, (const void *)from, len);
    __asm__ volatile("" : : : "memory");
#else
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)to)[i] = from[i];
#endif
}

static inline size_t shrimp_padded8(size_t len) { return (len + 7) & ~(size_t)7; }

static inline int shrimp_codec_put_raw(shrimp_writer *w, const void *from, size_t len, size_t padding)
{
    const unsigned char *bytes = (const unsigned char *)from;
    w->len += len + padding;
    if (w->at == NULL)
        return SHRIMP_CODEC_OK;
    if (len > w->left || padding > w->left - len)
        return SHRIMP_CODEC_SHORT;
    if (len > 0)
        memcpy((void *)w->at, bytes, len);
    w->at += len;
    for (size_t i = 0; i < padding; i++)
        *w->at++ = 0;
    w->left -= len + padding;
    return SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_put_u32(shrimp_writer *w, uint32_t value)
{
    unsigned char bytes[4];
    for (unsigned i = 0; i < 4; i++)
#ifdef SHRIMP_CODEC_NETWORK
        bytes[3 - i] = (unsigned char)(value >> (8 * i));
#else
        bytes[i] = (unsigned char)(value >> (8 * i));
#endif
    return shrimp_codec_put_raw(w, bytes, 4, 0);
}

static inline int shrimp_codec_put_u64(shrimp_writer *w, uint64_t value)
{
    unsigned char bytes[8];
    for (unsigned i = 0; i < 8; i++)
#ifdef SHRIMP_CODEC_NETWORK
        bytes[7 - i] = (unsigned char)(value >> (8 * i));
#else
        bytes[i] = (unsigned char)(value >> (8 * i));
#endif
    return shrimp_codec_put_raw(w, bytes, 8, 0);
}

static inline int shrimp_codec_put_float(shrimp_writer *w, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return shrimp_codec_put_u32(w, bits);
}

static inline int shrimp_codec_put_double(shrimp_writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return shrimp_codec_put_u64(w, bits);
}

static inline int shrimp_codec_put_quad(shrimp_writer *w, const shrimp_quad *value)
{
    int status = shrimp_codec_put_u64(w, value->high);
    return status != SHRIMP_CODEC_OK ? status : shrimp_codec_put_u64(w, value->low);
}

static inline int shrimp_codec_put_bytes(shrimp_writer *w, const void *bytes, size_t len)
{
    return shrimp_codec_put_raw(w, bytes, len, (0 - len) & 3);
}

static inline int shrimp_codec_put_count(shrimp_writer *w, uint32_t count, uint32_t max)
{
    return count > max ? SHRIMP_CODEC_TOO_LONG : shrimp_codec_put_u32(w, count);
}

static inline int shrimp_codec_put_opaque(shrimp_writer *w, const void *bytes, uint32_t len, uint32_t max)
{
    int status = shrimp_codec_put_count(w, len, max);
    return status != SHRIMP_CODEC_OK ? status : shrimp_codec_put_bytes(w, bytes, len);
}

/* A string; none at all is sent as the empty one. */
static inline int shrimp_codec_put_string(shrimp_writer *w, const char *string, uint32_t max)
{
    size_t len = string == NULL ? 0 : strlen(string);
    if (len > max)
        return SHRIMP_CODEC_TOO_LONG;
    return shrimp_codec_put_opaque(w, string == NULL ? "" : string, (uint32_t)len, max);
}

static inline int shrimp_codec_get_raw(shrimp_reader *r, void *to, size_t len, size_t padding)
{
    if (len > r->left || padding > r->left - len)
        return SHRIMP_CODEC_SHORT;
    if (len > 0)
        shrimp_copy_out(to, r->at, len);
    r->at += len + padding;
    r->left -= len + padding;
    return SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_get_u32(shrimp_reader *r, uint32_t *value)
{
    unsigned char bytes[4];
    int status = shrimp_codec_get_raw(r, bytes, 4, 0);
    if (status != SHRIMP_CODEC_OK)
        return status;
    *value = 0;
    for (unsigned i = 0; i < 4; i++)
#ifdef SHRIMP_CODEC_NETWORK
        *value |= (uint32_t)bytes[3 - i] << (8 * i);
#else
        *value |= (uint32_t)bytes[i] << (8 * i);
#endif
    return SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_get_u64(shrimp_reader *r, uint64_t *value)
{
    unsigned char bytes[8];
    int status = shrimp_codec_get_raw(r, bytes, 8, 0);
    if (status != SHRIMP_CODEC_OK)
        return status;
    *value = 0;
    for (unsigned i = 0; i < 8; i++)
#ifdef SHRIMP_CODEC_NETWORK
        *value |= (uint64_t)bytes[7 - i] << (8 * i);
#else
        *value |= (uint64_t)bytes[i] << (8 * i);
#endif
    return SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_get_float(shrimp_reader *r, float *value)
{
    uint32_t bits = 0;
    int status = shrimp_codec_get_u32(r, &bits);
    memcpy(value, &bits, sizeof bits);
    return status;
}

static inline int shrimp_codec_get_double(shrimp_reader *r, double *value)
{
    uint64_t bits = 0;
    int status = shrimp_codec_get_u64(r, &bits);
    memcpy(value, &bits, sizeof bits);
    return status;
}

static inline int shrimp_codec_get_quad(shrimp_reader *r, shrimp_quad *value)
{
    int status = shrimp_codec_get_u64(r, &value->high);
    return status != SHRIMP_CODEC_OK ? status : shrimp_codec_get_u64(r, &value->low);
}

/* An integer of 8 or 16 bits, sent in 32: as two's complement, or without a sign. */
static inline int shrimp_codec_get_small(shrimp_reader *r, int32_t *value, int32_t low, int32_t high)
{
    uint32_t bits = 0;
    int status = shrimp_codec_get_u32(r, &bits);
    if (status != SHRIMP_CODEC_OK)
        return status;
    *value = (int32_t)bits;
    return *value < low || *value > high ? SHRIMP_CODEC_BAD_VALUE : SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_get_bool(shrimp_reader *r, shrimp_bool *value)
{
    uint32_t bits = 0;
    int status = shrimp_codec_get_u32(r, &bits);
    *value = bits == 1;
    return status != SHRIMP_CODEC_OK ? status : bits > 1 ? SHRIMP_CODEC_BAD_VALUE : SHRIMP_CODEC_OK;
}

static inline int shrimp_codec_get_bytes(shrimp_reader *r, void *to, size_t len)
{
    return shrimp_codec_get_raw(r, to, len, (0 - len) & 3);
}

/* A number of elements that take at least `each` bytes each. */
static inline int shrimp_codec_get_count(shrimp_reader *r, uint32_t *count, uint32_t max, size_t each)
{
    int status = shrimp_codec_get_u32(r, count);
    if (status == SHRIMP_CODEC_OK && *count > max)
        status = SHRIMP_CODEC_TOO_LONG;
    if (status == SHRIMP_CODEC_OK && each > 0 && *count > r->left / each)
        status = SHRIMP_CODEC_SHORT;
    if (status != SHRIMP_CODEC_OK)
        *count = 0;
    return status;
}

/* Zeroed memory for `count` elements; NULL if there is none, or `count` is zero. */
static inline void *shrimp_alloc(shrimp_reader *r, size_t count, size_t size, int *status)
{
    void *memory;
    *status = SHRIMP_CODEC_OK;
    if (count == 0)
        return NULL;
    if (size > 0 && count > r->memory / size) {
        *status = SHRIMP_CODEC_NO_MEMORY;
        return NULL;
    }
    memory = calloc(count, size);
    if (memory == NULL)
        *status = SHRIMP_CODEC_NO_MEMORY;
    else
        r->memory -= count * size;
    return memory;
}

static inline int shrimp_codec_get_opaque(shrimp_reader *r, void *val, uint32_t *len, uint32_t max)
{
    void *memory;
    int status = shrimp_codec_get_count(r, len, max, 1);
    if (status != SHRIMP_CODEC_OK)
        return status;
    memory = shrimp_alloc(r, *len, 1, &status);
    if (status != SHRIMP_CODEC_OK) {
        *len = 0;
        return status;
    }
    memcpy(val, &memory, sizeof memory); /* val is the address of any kind of pointer */
    return shrimp_codec_get_bytes(r, memory, *len);
}

static inline int shrimp_codec_get_string(shrimp_reader *r, char **string, uint32_t max)
{
    uint32_t len = 0;
    int status = shrimp_codec_get_count(r, &len, max, 1);
    if (status != SHRIMP_CODEC_OK)
        return status;
    *string = (char *)shrimp_alloc(r, (size_t)len + 1, 1, &status);
    if (status != SHRIMP_CODEC_OK)
        return status;
    status = shrimp_codec_get_bytes(r, *string, len);
    /* A zero within would hide what follows it. */
    if (status == SHRIMP_CODEC_OK && memchr(*string, 0, len) != NULL)
        status = SHRIMP_CODEC_BAD_VALUE;
    return status;
}

static inline int shrimp_enter(shrimp_reader *r)
{
    if (r->depth == 0)
        return SHRIMP_CODEC_TOO_DEEP;
    r->depth--;
    return SHRIMP_CODEC_OK;
}

static inline void shrimp_leave(shrimp_reader *r) { r->depth++; }

/*
 * Bulk data. The other side can write it at any time: read it once, with these functions, and
 * check the copy.
 */
typedef struct {
    volatile unsigned char *at;
    uint32_t len;  /* elements */
    uint32_t size; /* bytes of each */
} shrimp_bulk;

/* Copies elements first to first + count - 1 out; 0, or SHRIMP_CODEC_SHORT beyond the end. */
static inline int shrimp_bulk_read(const shrimp_bulk *bulk, uint32_t first, void *to, uint32_t count)
{
    if (first > bulk->len || count > bulk->len - first)
        return SHRIMP_CODEC_SHORT;
    if (count > 0)
        shrimp_copy_out(to, bulk->at + (size_t)first * bulk->size, (size_t)count * bulk->size);
    return SHRIMP_CODEC_OK;
}

/* Copies elements in. */
static inline int shrimp_bulk_write(shrimp_bulk *bulk, uint32_t first, const void *from, uint32_t count)
{
    if (first > bulk->len || count > bulk->len - first)
        return SHRIMP_CODEC_SHORT;
    if (count > 0)
        memcpy((void *)(bulk->at + (size_t)first * bulk->size), from, (size_t)count * bulk->size);
    return SHRIMP_CODEC_OK;
}

/* For elements that are structs: a reader or a writer at one of them. */
static inline shrimp_reader shrimp_bulk_reader(const shrimp_bulk *bulk, uint32_t first)
{
    size_t at = first > bulk->len ? bulk->len : first;
    return shrimp_reader_at(bulk->at + at * bulk->size, (bulk->len - at) * bulk->size);
}

static inline shrimp_writer shrimp_bulk_writer(shrimp_bulk *bulk, uint32_t first)
{
    size_t at = first > bulk->len ? bulk->len : first;
    return shrimp_writer_at((void *)(bulk->at + at * bulk->size), (bulk->len - at) * bulk->size);
}

#endif
