/* Calls of everything.x through the generated client and dispatcher: both here and loopback.c between
 * them, or, with the real library, `calls serve NAME` and `calls call NAME` in two processes; `calls
 * scale NAME` calls SCALE alone, in place. */
#include "everything.h"
#include <stdio.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static int logged;

static int put(void *user, shrimp_rpc_call *call, const char *key, const shrimp_bulk *value, shrimp_bool *result)
{
    unsigned char bytes[5];
    CHECK(*(int *)user == 42 && call != NULL);
    CHECK(strcmp(key, "the key") == 0);
    CHECK(value->len == 5 && shrimp_bulk_read(value, 0, bytes, 5) == 0);
    CHECK(memcmp(bytes, "bytes", 5) == 0);
    CHECK(shrimp_bulk_read(value, 1, bytes, 5) == SHRIMP_CODEC_SHORT);
    *result = 1;
    return 0;
}

static int get(void *user, shrimp_rpc_call *call, const char *key, shrimp_out *value, status *result)
{
    (void)user, (void)call;
    if (strcmp(key, "logged") == 0) {
        unsigned char bytes = (unsigned char)logged;
        *result = FULL;
        return shrimp_bulk_write(shrimp_out_open(value, 1), 0, &bytes, 1);
    }
    *result = strcmp(key, "there") == 0 ? OK : MISSING;
    if (*result == OK) {
        shrimp_bulk *bulk;
        CHECK(shrimp_out_open(value, 1048577) == NULL);
        bulk = shrimp_out_open(value, 3);
        CHECK(bulk != NULL && shrimp_bulk_write(bulk, 0, "abc", 3) == 0);
    }
    return 0;
}

static int scale(void *user, shrimp_rpc_call *call, double by, shrimp_bulk *m)
{
    (void)user, (void)call;
    for (uint32_t i = 0; i < m->len; i++) {
        double x;
        CHECK(shrimp_bulk_read(m, i, &x, 1) == 0);
        x *= by;
        CHECK(shrimp_bulk_write(m, i, &x, 1) == 0);
    }
    return 0;
}

static int divide(void *user, shrimp_rpc_call *call, int32_t a, int32_t b, int32_t *rest, int32_t *result)
{
    (void)user, (void)call;
    if (b == 0)
        return SHRIMP_RPC_SYSTEM_ERR;
    *result = a / b;
    *rest = a % b;
    return 0;
}

static int log_(void *user, shrimp_rpc_call *call, const char *line)
{
    (void)user, (void)call;
    logged += (int)strlen(line);
    return 0;
}

static int list(void *user, shrimp_rpc_call *call, const struct entry *entries, struct answer *result)
{
    int n = 0;
    (void)user, (void)call;
    for (const struct entry *e = entries; e != NULL; e = e->next)
        n++;
    if (n == 0) {
        result->s = FULL;
        result->answer_u.why = strdup("nothing");
        return 0;
    }
    result->s = OK;
    for (; n > 0; n--) { /* an answer of as many entries */
        struct entry *e = calloc(1, sizeof *e);
        e->name = strdup("copy");
        e->size = (uint64_t)n << 40;
        e->next = result->answer_u.list;
        result->answer_u.list = e;
    }
    return 0;
}

static int points(void *user, shrimp_rpc_call *call, const shrimp_bulk *p, shrimp_out *q, shrimp_bulk *fixed, shrimp_out *ofixed)
{
    shrimp_bulk *out = shrimp_out_open(q, p->len);
    (void)user, (void)call, (void)ofixed;
    CHECK(out != NULL && fixed->len == 100);
    for (uint32_t i = 0; i < p->len; i++) {
        struct point point;
        shrimp_reader r = shrimp_bulk_reader(p, i);
        shrimp_writer w = shrimp_bulk_writer(out, i);
        int32_t first = (int32_t)i;
        CHECK(shrimp_get_point(&r, &point) == 0);
        point.x += point.y;
        CHECK(shrimp_put_point(&w, &point) == 0);
        CHECK(shrimp_bulk_write(fixed, i, &first, 1) == 0);
    }
    return 0;
}

static int turn(void *user, shrimp_rpc_call *call, uint32_t numbers_len, int64_t *numbers, uint32_t p_len, struct point *p,
                uint32_t fixed_len, int32_t *fixed, int64_t *result)
{
    (void)user, (void)call;
    CHECK(fixed_len == 100);
    *result = 0;
    for (uint32_t i = 0; i < numbers_len; i++)
        *result += numbers[i];
    for (uint32_t i = 0; i < numbers_len / 2; i++) {
        int64_t other = numbers[i];
        numbers[i] = numbers[numbers_len - 1 - i];
        numbers[numbers_len - 1 - i] = other;
    }
    for (uint32_t i = 0; i < p_len / 2; i++) {
        struct point other = p[i];
        p[i] = p[p_len - 1 - i];
        p[p_len - 1 - i] = other;
    }
    for (int i = 0; i < 50; i++) {
        int32_t other = fixed[i];
        fixed[i] = fixed[99 - i];
        fixed[99 - i] = other;
    }
    if (numbers_len > 0 && numbers[0] == 0)
        return SHRIMP_RPC_SYSTEM_ERR; /* and what was changed does not come back */
    return 0;
}

static int copy(void *user, shrimp_rpc_call *call, uint32_t a_len, const unsigned char *a)
{
    (void)user, (void)call;
    CHECK(a_len == 4 && memcmp(a, "copy", 4) == 0);
    return 0;
}

/* A server in C has no such procedure; one in Rust has all, and says that there is no answer. */
static int is_not_served(int rc)
{
    return rc == SHRIMP_RPC_PROC_UNAVAIL || rc == SHRIMP_RPC_FAULT;
}

/* Numbers that are made and used in the buffer. `in_place`: neither few, which are put together elsewhere,
 * nor longer than a buffer, so that they come back where they were made, and nobody copied them. */
static void scale_in_place(shrimp_rpc_binding *b, uint32_t elements, int in_place)
{
    scale_1_place place;
    CHECK(scale_1_begin(b, 2.5, elements, &place) == 0 && place.m.len == elements);
    const volatile void *made = place.m.at;
    for (uint32_t i = 0; i < elements; i++) {
        double x = i;
        CHECK(shrimp_bulk_write(&place.m, i, &x, 1) == 0);
    }
    CHECK(scale_1_call(b, &place) == 0 && place.m.len == elements);
    CHECK((place.m.at == made) == in_place);
    for (uint32_t i = 0; i < elements; i++) {
        double x = 0;
        CHECK(shrimp_bulk_read(&place.m, i, &x, 1) == 0 && x == i * 2.5);
    }
    scale_1_place other;
    CHECK(scale_1_begin(b, 1, 1, &other) == SHRIMP_RPC_BUSY);
    shrimp_rpc_end(b);
}

static int scale_alone(const char *name)
{
    shrimp_rpc_binding *b;
    CHECK(shrimp_rpc_connect(name, KV, KV_V1, &b) == 0);
    for (uint32_t elements = 16; elements <= 4096; elements *= 4)
        scale_in_place(b, elements, 1);
    shrimp_rpc_close(b);
    return 0;
}

static void call_in_place(shrimp_rpc_binding *b, int over_nothing)
{
    scale_in_place(b, 0, over_nothing);
    scale_in_place(b, 1, over_nothing);
    scale_in_place(b, 1000, 1);
    scale_in_place(b, 65536, over_nothing);
    scale_1_place scale_place;
    CHECK(scale_1_begin(b, 2.5, 65537, &scale_place) == SHRIMP_CODEC_TOO_LONG);
    CHECK(scale_1_begin(b, 2.5, 100, &scale_place) == 0);
    shrimp_rpc_end(b); /* given up */

    put_1_place put_place;
    shrimp_bool done = 0;
    CHECK(put_1_begin(b, "the key", 5, &put_place) == 0 && shrimp_bulk_write(&put_place.value, 0, "bytes", 5) == 0);
    CHECK(put_1_call(b, &put_place, &done) == 0 && done);
    shrimp_rpc_end(b);

    get_1_place get_place;
    status answer;
    unsigned char bytes[3];
    CHECK(get_1_begin(b, "there", &get_place) == 0 && get_1_call(b, &get_place, &answer) == 0 && answer == OK);
    CHECK(get_place.value.len == 3 && shrimp_bulk_read(&get_place.value, 0, bytes, 3) == 0);
    CHECK(memcmp(bytes, "abc", 3) == 0);
    shrimp_rpc_end(b);

    points_1_place points_place;
    CHECK(points_1_begin(b, 3, &points_place) == 0 && points_place.p.len == 3 && points_place.fixed.len == 100);
    for (uint32_t i = 0; i < 3; i++) {
        struct point point = {(double)i, 2, {3, 4, 5}};
        shrimp_writer w = shrimp_bulk_writer(&points_place.p, i);
        CHECK(shrimp_put_point(&w, &point) == 0);
    }
    int32_t number = 7;
    for (uint32_t i = 0; i < 100; i++)
        CHECK(shrimp_bulk_write(&points_place.fixed, i, &number, 1) == 0);
    CHECK(points_1_call(b, &points_place) == 0 && points_place.q.len == 3 && points_place.ofixed.len == 100);
    struct point last;
    shrimp_reader r = shrimp_bulk_reader(&points_place.q, 2);
    CHECK(shrimp_get_point(&r, &last) == 0 && last.x == 4 && last.tag[2] == 5);
    CHECK(shrimp_bulk_read(&points_place.fixed, 2, &number, 1) == 0 && number == 2);
    CHECK(shrimp_bulk_read(&points_place.fixed, 3, &number, 1) == 0 && number == 7);
    CHECK(shrimp_bulk_read(&points_place.ofixed, 99, &number, 1) == 0 && number == 0);
    shrimp_rpc_end(b);

    copy_1_place copy_place;
    CHECK(copy_1_begin(b, 4, &copy_place) == 0 && shrimp_bulk_write(&copy_place.a, 0, "copy", 4) == 0);
    CHECK(copy_1_call(b, &copy_place) == 0);
    shrimp_rpc_end(b);

    /* What fails has ended the call: the next one begins. */
    later_1_place later_place;
    struct num num = {0};
    struct maybe maybe = {0};
    struct tree tree = {0};
    struct node node = {0};
    struct big big;
    CHECK(later_1_begin(b, &num, &maybe, 9, &tree, &node, &later_place) == 0);
    CHECK(is_not_served(later_1_call(b, &later_place, &big, &maybe)));
    scale_in_place(b, 100, 1);
}

static int call_all(const char *name, int over_nothing)
{
    shrimp_rpc_binding *b;
    CHECK(shrimp_rpc_connect(name, KV, KV_V1, &b) == 0);

    shrimp_bool done = 0;
    CHECK(put_1(b, "the key", 5, (const unsigned char *)"bytes", &done) == 0 && done);
    char longest[70];
    memset(longest, 'x', sizeof longest);
    longest[69] = 0;
    CHECK(put_1(b, longest, 0, NULL, &done) == SHRIMP_CODEC_TOO_LONG);

    unsigned char room[8];
    uint32_t len = 2;
    status answer;
    CHECK(get_1(b, "there", &len, room, &answer) == SHRIMP_CODEC_NO_SPACE && len == 3);
    len = sizeof room;
    CHECK(get_1(b, "there", &len, room, &answer) == 0 && answer == OK && len == 3 && memcmp(room, "abc", 3) == 0);
    CHECK(get_1(b, "gone", &len, room, &answer) == 0 && answer == MISSING && len == 0);

    static double m[65536]; /* the longest is longer than a buffer */
    for (uint32_t elements = 1; elements <= 65536; elements *= 4) {
        for (uint32_t i = 0; i < elements; i++)
            m[i] = i;
        CHECK(scale_1(b, 2.5, elements, m) == 0);
        for (uint32_t i = 0; i < elements; i++)
            CHECK(m[i] == i * 2.5);
    }
    CHECK(scale_1(b, 2.5, 65537, m) == SHRIMP_CODEC_TOO_LONG);

    int32_t rest = 0, quotient = 0;
    CHECK(divide_1(b, 17, -5, &rest, &quotient) == 0 && rest == 2 && quotient == -3);
    CHECK(divide_1(b, 17, 0, &rest, &quotient) == SHRIMP_RPC_FAULT);
    unsigned char before;
    len = sizeof room;
    CHECK(get_1(b, "logged", &len, room, &answer) == 0 && answer == FULL && len == 1);
    before = room[0];
    CHECK(log_1(b, "a line") == 0);
    CHECK(get_1(b, "logged", &len, room, &answer) == 0 && room[0] == before + 6);

    struct answer got;
    CHECK(list_1(b, NULL, &got) == 0 && got.s == FULL && strcmp(got.answer_u.why, "nothing") == 0);
    shrimp_free_answer(&got);
    struct entry *chain = calloc(100000, sizeof *chain); /* too long for recursion */
    for (int i = 0; i < 100000; i++) {
        chain[i].name = (char *)"n";
        chain[i].next = i < 99999 ? &chain[i + 1] : NULL;
    }
    CHECK(list_1(b, chain, &got) == 0 && got.s == OK && got.answer_u.list->size == (uint64_t)1 << 40);
    int n = 0;
    for (struct entry *e = got.answer_u.list; e != NULL; e = e->next)
        n++;
    CHECK(n == 100000);
    shrimp_free_answer(&got);
    free(chain);

    struct point in[3] = {{1, 2, {3, 4, 5}}, {6, 7, {8, 9, 10}}, {0, 0, {0, 0, 0}}}, out[3];
    int32_t fixed[100] = {7, 7, 7, 7}, ofixed[100];
    uint32_t out_len = 3, ofixed_len = 100;
    CHECK(points_1(b, 3, in, &out_len, out, 100, fixed, &ofixed_len, ofixed) == 0);
    CHECK(out_len == 3 && out[1].x == 13 && out[1].tag[2] == 10 && fixed[2] == 2 && fixed[3] == 7 && ofixed[99] == 0);
    CHECK(points_1(b, 3, in, &out_len, out, 99, fixed, &ofixed_len, ofixed) == SHRIMP_CODEC_TOO_LONG);
    CHECK(copy_1(b, 4, (const unsigned char *)"copy") == 0);
    static int64_t numbers[5000];
    int64_t sum = 0;
    for (int i = 0; i < 5000; i++)
        numbers[i] = i + 1;
    for (int i = 0; i < 100; i++)
        fixed[i] = i;
    CHECK(turn_1(b, 5000, numbers, 2, in, 100, fixed, &sum) == 0 && sum == 12502500);
    CHECK(numbers[0] == 5000 && numbers[4999] == 1 && in[0].x == 6 && in[1].tag[2] == 5 && fixed[0] == 99);
    numbers[0] = 7, numbers[1] = 0;
    CHECK(turn_1(b, 2, numbers, 1, in, 100, fixed, &sum) == SHRIMP_RPC_FAULT);
    CHECK(numbers[0] == 7 && numbers[1] == 0 && in[0].x == 6 && fixed[0] == 99);
    CHECK(is_not_served(type_1(b, 1, "not served")));
    call_in_place(b, over_nothing);
    shrimp_rpc_close(b);
    puts("all calls answered");
    return 0;
}

int main(int argc, char **argv)
{
    int user = 42;
    kv_v1_ops ops = {.put_1 = put, .get_1 = get, .scale_1 = scale, .divide_1 = divide, .log_1 = log_,
                     .list_1 = list, .points_1 = points, .copy_1 = copy, .turn_1 = turn, .user = &user};
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return kv_v1_serve(argv[2], &ops);
    if (argc == 3 && strcmp(argv[1], "call") == 0)
        return call_all(argv[2], 0);
    if (argc == 3 && strcmp(argv[1], "scale") == 0)
        return scale_alone(argv[2]);
    CHECK(argc == 1 && kv_v1_serve("kv", &ops) == 0);
    return call_all("kv", 1);
}
