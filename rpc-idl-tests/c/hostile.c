/* Both sides of hostile.x, for peers that lie: `hostile serve NAME` until its input ends, `hostile call NAME ROUNDS` makes
 * all calls and takes any answer. Meant for sanitizers: what must never reach a program ends it. */
#include "hostile.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); abort(); } } while (0)

/* ---- values ---- */

static char *copy_text(const char *text)
{
    char *copy = strdup(text == NULL ? "" : text);
    CHECK(copy != NULL);
    return copy;
}

/* By way of the codec: both ends of it, and every byte of the value. */
static void copy_all(const struct all *from, struct all *to)
{
    shrimp_writer w = shrimp_counter();
    CHECK(shrimp_put_all(&w, from) == 0);
    void *bytes = malloc(w.len);
    CHECK(bytes != NULL);
    shrimp_reader r = shrimp_reader_at(bytes, w.len);
    w = shrimp_writer_at(bytes, w.len);
    CHECK(shrimp_put_all(&w, from) == 0 && shrimp_get_all(&r, to) == 0 && r.left == 0);
    free(bytes);
}

static struct item *copy_items(const struct item *from)
{
    struct item *first = NULL, **next = &first;
    for (; from != NULL; from = from->next) {
        struct item *item = calloc(1, sizeof *item);
        CHECK(item != NULL && strlen(from->key) <= 40);
        item->key = copy_text(from->key);
        item->size = from->size;
        *next = item;
        next = &item->next;
    }
    return first;
}

static void check_all(const struct all *a)
{
    CHECK(a->raw.raw_len <= 100 && a->names.names_len <= 20 && a->numbers.numbers_len <= 50);
    for (uint32_t i = 0; i < a->names.names_len; i++)
        CHECK(strlen(a->names.names_val[i]) <= 40);
    CHECK(a->points.points_len <= 10 && a->shapes.shapes_len <= 8 && a->forest.forest_len <= 4);
    CHECK(a->num.kind != 1 || strlen(a->num.number_u.text) <= 10);
    CHECK(a->b == 0 || a->b == 1);
}

static uint32_t trees(const struct tree *tree)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < tree->children.children_len; i++)
        n += trees(&tree->children.children_val[i]);
    return n;
}

static uint32_t nodes(const struct node *node) { return node == NULL ? 0 : 1 + nodes(node->left) + nodes(node->right); }

static uint32_t pages(const struct page *page) { return page == NULL ? 0 : 1 + pages(page->left) + pages(page->right); }

/* ---- server ---- */

static int echo(void *user, shrimp_rpc_call *call, const struct all *arg, struct all *result)
{
    (void)user, (void)call;
    check_all(arg);
    copy_all(arg, result);
    return 0;
}

static int list(void *user, shrimp_rpc_call *call, const struct item *items, const char *name, struct item **result)
{
    (void)user, (void)call;
    CHECK(strlen(name) <= 40);
    *result = copy_items(items);
    return 0;
}

static int nest(void *user, shrimp_rpc_call *call, const struct tree *tree, const struct node *node, uint32_t *result)
{
    (void)user, (void)call;
    *result = trees(tree) + nodes(node);
    return 0;
}

static int is_set(const shrimp_bulk *marks, uint32_t i, struct mark *mark)
{
    shrimp_reader r = shrimp_bulk_reader(marks, i);
    return shrimp_get_mark(&r, mark);
}

static int sum(void *user, shrimp_rpc_call *call, const shrimp_bulk *data, const shrimp_bulk *marks, uint64_t *result)
{
    (void)user, (void)call;
    CHECK(data->len <= 100000 && marks->len <= 100);
    unsigned char *copy = malloc((size_t)data->len + 1);
    CHECK(copy != NULL && shrimp_bulk_read(data, 0, copy, data->len) == 0);
    CHECK(shrimp_bulk_read(data, 1, copy, data->len) == SHRIMP_CODEC_SHORT);
    for (uint32_t i = 0; i < data->len; i++)
        *result += copy[i];
    free(copy);
    for (uint32_t i = 0; i < marks->len; i++) {
        struct mark mark;
        if (is_set(marks, i, &mark) != 0)
            return SHRIMP_RPC_SYSTEM_ERR;
        CHECK((mark.set == 0 || mark.set == 1) && (mark.c == RED || mark.c == GREEN || mark.c == BLUE));
        *result += mark.set;
    }
    return 0;
}

static int fill(void *user, shrimp_rpc_call *call, uint32_t count, shrimp_out *numbers, shrimp_out *fixed, uint32_t *result)
{
    (void)user, (void)call;
    shrimp_bulk *bulk = shrimp_out_open(numbers, count);
    if (bulk == NULL)
        return SHRIMP_RPC_SYSTEM_ERR;
    for (uint32_t i = 0; i < count; i++) {
        double x = count;
        CHECK(shrimp_bulk_write(bulk, i, &x, 1) == 0);
    }
    bulk = shrimp_out_open(fixed, 100);
    CHECK(bulk != NULL);
    for (uint32_t i = 0; i < 100; i++)
        CHECK(shrimp_bulk_write(bulk, i, &count, 1) == 0);
    *result = count;
    return 0;
}

static int scale(void *user, shrimp_rpc_call *call, double by, shrimp_bulk *m, shrimp_bulk *fixed, shrimp_bulk *marks, uint32_t *result)
{
    (void)user, (void)call;
    CHECK(m->len <= 20000 && fixed->len == 100 && marks->len <= 100);
    for (uint32_t i = 0; i < m->len; i++) {
        double x = 0;
        CHECK(shrimp_bulk_read(m, i, &x, 1) == 0);
        x *= by;
        CHECK(shrimp_bulk_write(m, i, &x, 1) == 0);
    }
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t x = 0;
        CHECK(shrimp_bulk_read(fixed, i, &x, 1) == 0);
        x++;
        CHECK(shrimp_bulk_write(fixed, i, &x, 1) == 0);
    }
    for (uint32_t i = 0; i < marks->len; i++) {
        struct mark mark;
        if (is_set(marks, i, &mark) != 0)
            return SHRIMP_RPC_SYSTEM_ERR;
        mark.set = !mark.set;
        shrimp_writer w = shrimp_bulk_writer(marks, i);
        CHECK(shrimp_put_mark(&w, &mark) == 0);
    }
    *result = m->len;
    return 0;
}

static int copy(void *user, shrimp_rpc_call *call, uint32_t data_len, const unsigned char *data, uint32_t marks_len,
                const struct mark *marks, uint32_t numbers_len, const int32_t *numbers, uint64_t *result)
{
    (void)user, (void)call;
    CHECK(data_len <= 100000 && marks_len <= 100 && numbers_len <= 5000);
    for (uint32_t i = 0; i < data_len; i++)
        *result += data[i];
    for (uint32_t i = 0; i < marks_len; i++) {
        CHECK(marks[i].set == 0 || marks[i].set == 1);
        *result += marks[i].set;
    }
    for (uint32_t i = 0; i < numbers_len; i++)
        *result += (uint32_t)numbers[i];
    return 0;
}

static int note(void *user, shrimp_rpc_call *call, const char *line, const shrimp_bulk *data)
{
    unsigned char bytes[1000];
    (void)user, (void)call;
    CHECK(strlen(line) <= 100 && data->len <= 1000 && shrimp_bulk_read(data, 0, bytes, data->len) == 0);
    return 0;
}

/* What was put off: the last one is answered when the next one comes, or by the thread. */
struct put_off {
    struct all a;
    shrimp_rpc_call *call;
    shrimp_bulk x;
    struct put_off *next;
};
static struct put_off *put_offs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int ending;

static void *answer_later(void *unused)
{
    (void)unused;
    for (;;) {
        CHECK(pthread_mutex_lock(&lock) == 0);
        while (put_offs == NULL && !ending)
            pthread_cond_wait(&more, &lock);
        struct put_off *one = put_offs;
        put_offs = one == NULL ? NULL : one->next;
        CHECK(pthread_mutex_unlock(&lock) == 0);
        if (one == NULL)
            return NULL;
        for (uint32_t i = 0; i < one->x.len / 2; i++) {
            int64_t low = 0, high = 0;
            uint32_t j = one->x.len - 1 - i;
            CHECK(shrimp_bulk_read(&one->x, i, &low, 1) == 0 && shrimp_bulk_read(&one->x, j, &high, 1) == 0);
            CHECK(shrimp_bulk_write(&one->x, i, &high, 1) == 0 && shrimp_bulk_write(&one->x, j, &low, 1) == 0);
        }
        shrimp_out d = {one->call, 1000, 0, {NULL, 0, 8}};
        double len = one->x.len;
        CHECK(shrimp_bulk_write(shrimp_out_open(&d, 1), 0, &len, 1) == 0);
        if (later_1_answer(one->call, &one->a, &d) != 0)
            CHECK(shrimp_rpc_reply_fault(one->call, SHRIMP_RPC_SYSTEM_ERR, "no answer") == 0);
        shrimp_free_all(&one->a);
        free(one);
    }
}

static int later(void *user, shrimp_rpc_call *call, const struct all *a, shrimp_bulk *x, shrimp_out *d, struct all *result)
{
    (void)user, (void)d, (void)result;
    check_all(a);
    CHECK(x->len <= 5000);
    struct put_off *one = calloc(1, sizeof *one);
    CHECK(one != NULL);
    copy_all(a, &one->a);
    one->x = *x;
    one->call = shrimp_rpc_defer(call);
    CHECK(one->call != NULL);
    CHECK(pthread_mutex_lock(&lock) == 0);
    one->next = put_offs;
    put_offs = one;
    CHECK(pthread_cond_signal(&more) == 0 && pthread_mutex_unlock(&lock) == 0);
    return SHRIMP_RPC_DEFERRED;
}

static int serve_large(void *user, shrimp_rpc_call *call, const struct large *arg, int32_t *result)
{
    (void)user, (void)call;
    *result = (int32_t)((uint32_t)arg->first + (uint32_t)arg->last);
    return 0;
}

static int count_pages(void *user, shrimp_rpc_call *call, const struct page *arg, uint32_t *result)
{
    (void)user, (void)call;
    *result = pages(arg);
    return 0;
}

static int turn(void *user, shrimp_rpc_call *call, const unsigned char s[5000], int32_t table[2000], sheet *result)
{
    (void)user, (void)call;
    for (int i = 0; i < 5000; i++)
        (*result)[i] = s[4999 - i];
    for (int i = 0; i < 1000; i++) {
        int32_t low = table[i];
        table[i] = table[1999 - i];
        table[1999 - i] = low;
    }
    return 0;
}

static int serve(const char *name)
{
    hostile_v1_ops ops = {.echo_1 = echo, .list_1 = list, .nest_1 = nest, .sum_1 = sum, .fill_1 = fill, .scale_1 = scale,
                          .copy_1 = copy, .note_1 = note, .later_1 = later, .large_1 = serve_large, .pages_1 = count_pages, .turn_1 = turn};
    pthread_t thread;
    shrimp_rpc_server *server;
    shrimp_rpc_builder *builder = shrimp_rpc_builder_new(name);
    CHECK(pthread_create(&thread, NULL, answer_later, NULL) == 0);
    CHECK(hostile_v1_add(builder, &ops) == 0 && shrimp_rpc_builder_start(builder, &server) == 0);
    while (getchar() != EOF)
        ;
    CHECK(pthread_mutex_lock(&lock) == 0);
    ending = 1;
    CHECK(pthread_cond_signal(&more) == 0 && pthread_mutex_unlock(&lock) == 0 && pthread_join(thread, NULL) == 0);
    shrimp_rpc_server_stop(server);
    return 0;
}

/* ---- client ---- */

static void make_all(struct all *a)
{
    /* The rest is zero, as it may be. */
    static char text[] = "text";
    static char *names[] = {text, text};
    static struct item item = {.key = text, .size = 7};
    static struct node node = {.v = 9};
    memset(a, 0, sizeof *a);
    a->c = BLUE;
    a->names.names_len = 2;
    a->names.names_val = names;
    a->num.kind = 1;
    a->num.number_u.text = text;
    a->list = &item;
    a->root = &node;
}

static unsigned taken, refused;

/* Whether there is an answer to look at. A call that failed left nothing to free. */
static int is_answered(int rc, int honest)
{
    CHECK(rc == 0 || !honest);
    CHECK(rc != SHRIMP_RPC_NO_SERVICE && rc != SHRIMP_RPC_SYSTEM_ERR && rc != SHRIMP_RPC_BUSY && rc != SHRIMP_RPC_INVALID);
    *(rc == 0 ? &taken : &refused) += 1;
    return rc == 0;
}

/* Makes each call once. An honest server answers them, and rightly. */
static void call_all(shrimp_rpc_binding *b, int honest)
{
    struct all a, back;
    make_all(&a);
    if (is_answered(echo_1(b, &a, &back), honest)) {
        check_all(&back);
        CHECK(!honest || (back.list->size == 7 && back.root->v == 9 && back.c == BLUE));
        shrimp_free_all(&back);
    }
    items list = NULL;
    if (is_answered(list_1(b, a.list, "name", &list), honest)) {
        int n = 0;
        for (const struct item *item = list; item != NULL; item = item->next, n++)
            CHECK(strlen(item->key) <= 40);
        CHECK(!honest || n == 1);
        if (list != NULL)
            shrimp_free_item(list);
        free(list);
    }
    struct tree leaf = {.v = 1};
    uint32_t count = 0;
    uint64_t total = 0;
    if (is_answered(nest_1(b, &leaf, a.root, &count), honest))
        CHECK(!honest || count == 2);
    struct mark marks[3] = {{1, RED, 1}, {0, GREEN, 2}, {1, BLUE, 3}};
    unsigned char data[500];
    memset(data, 2, sizeof data);
    if (is_answered(sum_1(b, sizeof data, data, 3, marks, &total), honest))
        CHECK(!honest || total == 1002);
    int32_t *table = malloc(2000 * sizeof *table), fixed[100] = {7};
    double *numbers = malloc(1500 * sizeof *numbers);
    CHECK(table != NULL && numbers != NULL);
    uint32_t numbers_len = 1500, fixed_len = 100;
    if (is_answered(fill_1(b, 1000, &numbers_len, numbers, &fixed_len, fixed, &count), honest)) {
        CHECK(numbers_len <= 1500 && fixed_len == 100);
        CHECK(!honest || (numbers_len == 1000 && numbers[999] == 1000 && fixed[99] == 1000));
    }
    for (int i = 0; i < 1500; i++)
        numbers[i] = 3;
    if (is_answered(scale_1(b, 2, 1500, numbers, 100, fixed, 3, marks, &count), honest)) {
        for (int i = 0; i < 3; i++)
            CHECK(marks[i].set == 0 || marks[i].set == 1);
        CHECK(!honest || (numbers[1499] == 6 && marks[0].set == 0 && marks[1].set == 1));
    }
    if (is_answered(copy_1(b, sizeof data, data, 0, NULL, 100, fixed, &total), honest))
        CHECK(!honest || total >= 1000);
    (void)is_answered(note_1(b, "line", sizeof data, data), honest);
    int64_t x[3] = {1, 2, 3};
    uint32_t d_len = 1500;
    if (is_answered(later_1(b, &a, 3, x, &d_len, numbers, &back), honest)) {
        CHECK(d_len <= 1000);
        check_all(&back);
        CHECK(!honest || (x[0] == 3 && d_len == 1 && numbers[0] == 3));
        shrimp_free_all(&back);
    }
    struct page *page = calloc(1, sizeof *page);
    CHECK(page != NULL);
    if (is_answered(pages_1(b, page, &count), honest))
        CHECK(!honest || count == 1);
    free(page);
    sheet s = {1}, turned;
    memset(table, 3, 2000 * sizeof *table);
    if (is_answered(turn_1(b, s, table, &turned), honest))
        CHECK(!honest || turned[4999] == 1);

    /* Where it lies. */
    fill_1_place filled;
    if (is_answered(fill_1_begin(b, 100, &filled), honest) && is_answered(fill_1_call(b, &filled, &count), honest)) {
        CHECK(filled.numbers.len <= 20000 && filled.fixed.len == 100);
        for (uint32_t i = 0; i < filled.numbers.len; i++)
            CHECK(shrimp_bulk_read(&filled.numbers, i, numbers, 1) == 0);
        CHECK(shrimp_bulk_read(&filled.fixed, 0, fixed, 100) == 0 && (!honest || fixed[99] == 100));
        shrimp_rpc_end(b);
    }
    scale_1_place scaled;
    if (is_answered(scale_1_begin(b, 2, 1000, 3, &scaled), honest)) {
        CHECK(scaled.m.len == 1000 && scaled.fixed.len == 100 && scaled.marks.len == 3);
        CHECK(shrimp_bulk_write(&scaled.m, 0, numbers, 1000) == 0);
        CHECK(shrimp_bulk_write(&scaled.fixed, 0, fixed, 100) == 0);
        for (uint32_t i = 0; i < 3; i++) {
            shrimp_writer w = shrimp_bulk_writer(&scaled.marks, i);
            CHECK(shrimp_put_mark(&w, &marks[i]) == 0);
        }
        if (is_answered(scale_1_call(b, &scaled, &count), honest)) {
            CHECK(shrimp_bulk_read(&scaled.m, 0, numbers, 1000) == 0);
            struct mark mark;
            (void)is_set(&scaled.marks, 2, &mark);
            shrimp_rpc_end(b);
        }
    }
    free(numbers);
    free(table);
}

static int call(const char *name, int rounds)
{
    shrimp_rpc_binding *b;
    CHECK(shrimp_rpc_connect(name, HOSTILE, HOSTILE_V1, &b) == 0);
    shrimp_rpc_set_timeout(b, 20);
    while (rounds-- > 0)
        call_all(b, 0);
    printf("%u taken, %u refused\n", taken, refused);
    CHECK(taken > 20 && refused > 20 && fflush(stdout) == 0);
    /* An honest server has taken its place. */
    CHECK(getchar() != EOF);
    shrimp_rpc_set_timeout(b, 0);
    while (note_1(b, "line", 0, NULL) != 0)
        ;
    call_all(b, 1);
    shrimp_rpc_close(b);
    puts("served");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2]);
    if (argc == 4 && strcmp(argv[1], "call") == 0)
        return call(argv[2], atoi(argv[3]));
    return 2;
}
