/* Calls or serves the random programs: `program call NAME FILE`, `serve` or, within one process over loopback.c, `both`.
 * FILE has the records of all calls in order: number of the procedure, length of arguments and results, both. */
#include "random.h"
#include "program.h"
#include <unistd.h>

/* A binding for each version. */
extern const uint32_t version_count;
int connect_all(const char *name, shrimp_rpc_binding **all);
int call_any(shrimp_rpc_binding **all, uint32_t index, struct bytes arguments, struct bytes *got);
int serve_all(const char *name);

static struct record *records;
static size_t record_count;
static uint32_t *seen; /* by procedure */

static struct bytes read_bytes(FILE *file, uint32_t len)
{
    struct bytes bytes = {len, malloc(len + 1)};
    CHECK(fread(bytes.at, 1, len, file) == len);
    return bytes;
}

static void read_records(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint32_t head[3], most = 0;
    CHECK(file != NULL);
    while (fread(head, sizeof head, 1, file) == 1) {
        records = realloc(records, (record_count + 1) * sizeof *records);
        struct record *record = &records[record_count++];
        record->index = head[0];
        record->arguments = read_bytes(file, head[1]);
        record->results = read_bytes(file, head[2]);
        most = head[0] > most ? head[0] : most;
    }
    fclose(file);
    seen = calloc(most + 1, sizeof *seen);
}

const struct record *next_record(uint32_t index)
{
    /* Calls of one procedure come one after the other. */
    uint32_t before = seen[index]++;
    for (size_t i = 0; i < record_count; i++)
        if (records[i].index == index && before-- == 0)
            return &records[i];
    CHECK(!"no more calls");
    return NULL;
}

void compare(const char *what, uint32_t index, struct bytes expected, struct bytes got)
{
    if (expected.len == got.len && (got.len == 0 || memcmp(expected.at, got.at, got.len) == 0))
        return;
    fprintf(stderr, "P%u: other %s than expected, %u bytes instead of %u\n", index, what, got.len, expected.len);
    exit(1);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    read_records(argv[3]);
    if (strcmp(argv[1], "serve") == 0)
        return serve_all(argv[2]) != 0 || pause();
    if (strcmp(argv[1], "both") == 0)
        CHECK(serve_all(argv[2]) == 0);
    shrimp_rpc_binding **all = calloc(version_count, sizeof *all);
    CHECK(connect_all(argv[2], all) == 0);
    for (size_t i = 0; i < record_count; i++) {
        struct record *record = &records[i];
        struct bytes got = {0, NULL};
        int rc = call_any(all, record->index, record->arguments, &got);
        if (rc != 0) {
            fprintf(stderr, "P%u: status %d\n", record->index, rc);
            return 1;
        }
        compare("results", record->index, record->results, got);
        free(got.at);
    }
    for (uint32_t i = 0; i < version_count; i++)
        shrimp_rpc_close(all[i]);
    free(all);
    for (size_t i = 0; i < record_count; i++) {
        free(records[i].arguments.at);
        free(records[i].results.at);
    }
    free(records);
    free(seen);
    puts("all calls answered");
    return 0;
}
