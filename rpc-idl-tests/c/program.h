/* What the glue of the random program and program.c know of each other. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s, line %d: %s\n", __FILE__, __LINE__, #what); exit(1); } } while (0)

struct bytes { uint32_t len; unsigned char *at; };

/* One call: XDR. */
struct record { uint32_t index; struct bytes arguments, results; };

/* The next call of a procedure, as the server has it. */
const struct record *next_record(uint32_t index);
void compare(const char *what, uint32_t index, struct bytes expected, struct bytes got);

/* Encodes a value into memory of its own. */
#define PUT(bytes, put, value) do { \
        shrimp_writer count_ = shrimp_counter(); \
        CHECK(put(&count_, value) == 0); \
        (bytes)->len = (uint32_t)count_.len; \
        (bytes)->at = malloc(count_.len + 1); \
        shrimp_writer writer_ = shrimp_writer_at((bytes)->at, count_.len); \
        CHECK(put(&writer_, value) == 0); \
    } while (0)
