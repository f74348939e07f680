/* The bookkeeping of KV pages, with a backend whose rows are single numbers: who shares a page,
 * who copies and when, and a random walk against sequences and holds that share nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/kv_pool.h"

#define PAGES 12
#define CAPACITY 1000 /* four pages */
#define SEQUENCES 4
#define HOLDS 8

static struct kv_pool pool;
static int rows_of[PAGES][KV_PAGE], copies;
static struct kv_sequence sequences[SEQUENCES], reader;

static void copy(struct backend *backend, int32_t from, int32_t to)
{
    (void)backend;
    memcpy(rows_of[to], rows_of[from], sizeof rows_of[to]);
    copies++;
}

static void reset(struct backend *backend, struct sequence *sequence)
{
    (void)backend;
    kv_sequence_reset(&pool, (struct kv_sequence *)sequence);
}

static const struct backend_ops ops = {.sequence_reset = reset};
static struct backend backend = {.ops = &ops, .kv = &pool};

static int setup(void **state)
{
    (void)state;
    const struct backend_options options = {
        .context = CAPACITY, .n_sequences = SEQUENCES, .kv_rows = PAGES * KV_PAGE - 7};
    memset(rows_of, 0, sizeof rows_of);
    memset(sequences, 0, sizeof sequences);
    memset(&reader, 0, sizeof reader);
    enum status status = kv_pool_open(&pool, &options, 100, copy, NULL);
    for (int i = 0; i < SEQUENCES && status == STATUS_OK; i++)
        status = kv_sequence_init(&sequences[i], CAPACITY, NULL);
    copies = 0;
    return status == STATUS_OK ? (int)kv_sequence_init(&reader, CAPACITY, NULL) : 1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < SEQUENCES; i++)
        kv_sequence_clear(&pool, &sequences[i]);
    kv_sequence_clear(&pool, &reader);
    int lost = pool.n_pages - pool.n_free;
    kv_pool_close(&pool);
    return lost;
}

static void set_row(const struct kv_sequence *q, int32_t position, int value)
{
    rows_of[kv_page_of(q, position)][position % KV_PAGE] = value;
}

static int row_of(const struct kv_sequence *q, int32_t position)
{
    return rows_of[kv_page_of(q, position)][position % KV_PAGE];
}

/* Reads n tokens of the given value. */
static enum status append(struct kv_sequence *q, int32_t n, int value)
{
    struct row rows[CAPACITY];
    int32_t positions[CAPACITY];
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (struct row){&q->base, 0};
        positions[i] = q->base.position + i;
    }
    enum status status = kv_step_begin(&backend, rows, n, positions, NULL);
    if (status != STATUS_OK)
        return status;
    for (int32_t i = 0; i < n; i++)
        set_row(q, positions[i], value);
    kv_step_end(&backend, rows, n, positions);
    return STATUS_OK;
}

static struct kv_hold *hold(struct kv_sequence *q, int32_t length)
{
    struct kv_hold *held = NULL;
    assert_int_equal(kv_pool_hold(&backend, &q->base, length, &held, NULL), STATUS_OK);
    return held;
}

/* As a caller goes on from a hold, or goes back. */
static void attach(struct kv_sequence *q, const struct kv_hold *held, int32_t length)
{
    assert_int_equal(kv_pool_attach(&backend, &q->base, held, length, NULL), STATUS_OK);
    assert_int_equal(q->base.kv_length, length);
    assert_int_equal(q->base.broken, length > 0);
    assert_int_equal(kv_go_to(&q->base, length, NULL), STATUS_OK);
}

static void assert_rows(const struct kv_sequence *q, int32_t from, int32_t to, int value)
{
    for (int32_t i = from; i < to; i++)
        if (row_of(q, i) != value)
            fail_msg("row %d: found %d, wanted %d", i, row_of(q, i), value);
}

static void assert_usage(int free, int held)
{
    struct kv_usage usage;
    kv_pool_usage(&backend, &usage);
    assert_int_equal(usage.pages, PAGES);
    assert_int_equal(usage.page_rows, KV_PAGE);
    assert_int_equal(usage.page_bytes, 100 * KV_PAGE);
    assert_int_equal(usage.free, free);
    assert_int_equal(usage.held, held);
}

/* ---- one situation after the other ----------------------------------------------------------- */

static void test_the_writer_appends_without_a_copy(void **state)
{
    (void)state;
    struct kv_sequence *q = &sequences[0];
    assert_int_equal(append(q, 300, 1), STATUS_OK);
    struct kv_hold *first = hold(q, 300), *second = hold(q, 10);
    assert_usage(PAGES - 2, 2);
    assert_int_equal(append(q, 10, 2), STATUS_OK);
    assert_int_equal(kv_go_to(&q->base, 300, NULL), STATUS_OK); /* to where the hold ends */
    assert_int_equal(append(q, 10, 3), STATUS_OK);
    assert_int_equal(copies, 0);
    assert_int_equal(kv_go_to(&q->base, 299, NULL), STATUS_OK); /* into it */
    assert_int_equal(q->base.kv_length, 310);
    assert_int_equal(append(q, 1, 4), STATUS_OK);
    assert_int_equal(copies, 1);
    assert_usage(PAGES - 3, 2);
    attach(&reader, first, 300);
    assert_rows(&reader, 0, 300, 1);
    assert_rows(q, 299, 300, 4);
    kv_pool_release(&backend, first);
    assert_usage(PAGES - 3, 1); /* the second one's, and what the sequences have */
    kv_pool_release(&backend, second);
    kv_pool_release(&backend, NULL);
    reset(&backend, &reader.base);
    assert_usage(PAGES - 2, 0);
    reset(&backend, &q->base);
    assert_usage(PAGES, 0);
}

static void test_sharers_copy_the_last_page(void **state)
{
    (void)state;
    struct kv_sequence *a = &sequences[0], *b = &sequences[1], *c = &sequences[2];
    assert_int_equal(append(a, 600, 1), STATUS_OK);
    struct kv_hold *held = hold(a, 600);
    attach(b, held, 600);
    attach(c, held, 512);
    assert_usage(PAGES - 3, 3);
    assert_int_equal(append(b, 1, 2), STATUS_OK);
    assert_int_equal(append(a, 1, 3), STATUS_OK);
    assert_int_equal(append(c, 1, 4), STATUS_OK); /* a page of its own: nothing to copy */
    assert_int_equal(copies, 1);
    assert_usage(PAGES - 5, 3);
    assert_rows(b, 0, 600, 1);
    assert_rows(b, 600, 601, 2);
    assert_rows(a, 600, 601, 3);
    assert_rows(c, 512, 513, 4);
    /* once the one that wrote the page has left it, the next one that appends need not copy */
    reset(&backend, &a->base);
    attach(c, held, 600);
    assert_int_equal(append(c, 1, 5), STATUS_OK);
    assert_int_equal(copies, 1);
    attach(a, held, 600);
    assert_int_equal(append(a, 1, 6), STATUS_OK);
    assert_int_equal(copies, 2);
    assert_rows(c, 600, 601, 5);
    /* rows that a sequence needs are kept without the hold, too */
    kv_pool_release(&backend, held);
    assert_usage(PAGES - 5, 0);
    assert_int_equal(kv_go_to(&c->base, 100, NULL), STATUS_OK);
    assert_int_equal(append(c, 1, 7), STATUS_OK);
    assert_rows(a, 0, 600, 1);
    assert_rows(b, 0, 600, 1);
    for (int i = 0; i < 3; i++)
        reset(&backend, &sequences[i].base);
}

static void test_no_needless_copy(void **state)
{
    (void)state;
    struct kv_sequence *a = &sequences[0], *b = &sequences[1];
    assert_int_equal(append(a, 100, 1), STATUS_OK);
    struct kv_hold *held = hold(a, 100);
    assert_int_equal(kv_go_to(&a->base, 50, NULL), STATUS_OK);
    assert_int_equal(append(a, 1, 2), STATUS_OK);
    assert_int_equal(copies, 1);
    attach(b, held, 100); /* the page that a has left */
    assert_int_equal(append(b, 1, 3), STATUS_OK);
    assert_int_equal(copies, 1);
    reset(&backend, &a->base);
    kv_pool_release(&backend, held);
    assert_int_equal(kv_go_to(&b->base, 20, NULL), STATUS_OK); /* its own, now */
    assert_int_equal(append(b, 10, 4), STATUS_OK);
    held = hold(b, 25);
    assert_int_equal(kv_go_to(&b->base, 25, NULL), STATUS_OK);
    assert_int_equal(append(b, 1, 5), STATUS_OK);
    assert_int_equal(copies, 1);
    attach(a, held, 25);
    assert_rows(a, 0, 20, 1);
    assert_rows(a, 20, 25, 4);
    reset(&backend, &a->base);
    kv_pool_release(&backend, held);
    reset(&backend, &b->base);
}

static void test_two_of_one_step(void **state)
{
    (void)state;
    struct kv_sequence *a = &sequences[0], *b = &sequences[1];
    assert_int_equal(append(a, 100, 1), STATUS_OK);
    struct kv_hold *held = hold(a, 100);
    reset(&backend, &a->base);
    attach(a, held, 100);
    attach(b, held, 100);
    struct kv_sequence *full = &sequences[2], *rest = &sequences[3];
    assert_int_equal(append(full, CAPACITY, 2), STATUS_OK);
    assert_int_equal(append(rest, CAPACITY, 2), STATUS_OK);
    assert_int_equal(append(&reader, 3 * KV_PAGE, 2), STATUS_OK);
    assert_usage(0, 1);
    const struct row rows[2] = {{&a->base, 0}, {&b->base, 0}};
    const int32_t positions[2] = {100, 100};
    struct error error;
    assert_int_equal(kv_step_begin(&backend, rows, 2, positions, &error), STATUS_BUSY);
    assert_string_equal(error.message, "KV rows: found 0 of 12 pages of 256 rows free, wanted 1");
    assert_false(a->base.broken || b->base.broken);
    assert_int_equal(copies, 0);
    reset(&backend, &reader.base);
    assert_int_equal(kv_step_begin(&backend, rows, 2, positions, &error), STATUS_OK);
    assert_int_equal(copies, 1);
    assert_int_not_equal(kv_page_of(a, 0), kv_page_of(b, 0));
    assert_true(a->base.broken && b->base.broken);
    kv_step_end(&backend, rows, 2, positions);
    assert_false(a->base.broken || b->base.broken);
    kv_pool_release(&backend, held);
    for (int i = 0; i < SEQUENCES; i++)
        reset(&backend, &sequences[i].base);
}

static void test_reserve(void **state)
{
    (void)state;
    struct kv_sequence *a = &sequences[0], *b = &sequences[1];
    assert_int_equal(kv_pool_reserve(&backend, &a->base, -1, NULL), STATUS_INVALID);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, CAPACITY + 1, NULL), STATUS_INVALID);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, CAPACITY, NULL), STATUS_OK);
    assert_usage(PAGES - 4, 0);
    assert_int_equal(append(a, 10, 1), STATUS_OK); /* steps leave it as it is */
    assert_usage(PAGES - 4, 0);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, 257, NULL), STATUS_OK);
    assert_usage(PAGES - 2, 0);
    struct kv_hold *held = hold(a, 10);
    attach(b, held, 10);
    assert_int_equal(kv_pool_reserve(&backend, &b->base, 11, NULL), STATUS_OK);
    assert_int_equal(copies, 1); /* now, not in the step */
    assert_rows(b, 0, 10, 1);
    assert_int_equal(append(b, 1, 2), STATUS_OK);
    assert_int_equal(append(a, 1, 3), STATUS_OK); /* its page is promised to it */
    assert_int_equal(copies, 1);
    assert_rows(b, 10, 11, 2);
    /* rows above a position to which one went back stay until a step */
    assert_int_equal(append(a, 300, 4), STATUS_OK);
    struct kv_hold *more = hold(a, 311);
    assert_int_equal(kv_go_to(&a->base, 5, NULL), STATUS_OK);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, 300, NULL), STATUS_OK);
    assert_int_equal(copies, 3);
    assert_rows(a, 11, 311, 4);
    assert_int_equal(kv_go_to(&a->base, 311, NULL), STATUS_OK);
    assert_int_equal(append(a, 1, 5), STATUS_OK);
    assert_rows(a, 11, 311, 4);
    kv_pool_release(&backend, held);
    kv_pool_release(&backend, more);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, CAPACITY, NULL), STATUS_OK);
    assert_int_equal(kv_go_to(&a->base, 5, NULL), STATUS_OK); /* ends the promise */
    assert_int_equal(append(a, 1, 6), STATUS_OK);
    assert_usage(PAGES - 2, 0);
    assert_int_equal(kv_pool_reserve(&backend, &a->base, CAPACITY, NULL), STATUS_OK);
    assert_int_equal(kv_write_begin(&backend, &a->base, 6, 1, NULL), STATUS_OK);
    assert_usage(PAGES - 5, 0);
    assert_int_equal(kv_write_begin(&backend, &a->base, 6, 0, NULL), STATUS_OK); /* drops a row */
    assert_usage(PAGES - 2, 0);
    reset(&backend, &a->base);
    reset(&backend, &b->base);
}

static void test_refusals(void **state)
{
    (void)state;
    struct kv_sequence *a = &sequences[0];
    struct kv_hold *held = NULL, *none = hold(a, 0);
    assert_int_equal(append(a, 10, 1), STATUS_OK);
    assert_int_equal(kv_pool_hold(&backend, &a->base, 11, &held, NULL), STATUS_INVALID);
    assert_int_equal(kv_pool_hold(&backend, &a->base, -1, &held, NULL), STATUS_INVALID);
    held = hold(a, 10);
    assert_int_equal(kv_pool_attach(&backend, &a->base, held, 11, NULL), STATUS_INVALID);
    assert_int_equal(kv_pool_attach(&backend, &a->base, held, -1, NULL), STATUS_INVALID);
    assert_rows(a, 0, 10, 1);
    assert_int_equal(kv_pool_attach(&backend, &a->base, held, 7, NULL), STATUS_OK);
    struct kv_hold *broken;
    assert_int_equal(kv_pool_hold(&backend, &a->base, 7, &broken, NULL), STATUS_DEVICE);
    assert_int_equal(kv_go_to(&a->base, 8, NULL), STATUS_INVALID);
    attach(a, none, 0);
    assert_int_equal(a->n_pages, 0);
    kv_pool_release(&backend, none);
    kv_pool_release(&backend, held);
    struct kv_pool other;
    struct backend_options options = {.context = 1, .n_sequences = 1, .kv_rows = -1};
    assert_int_equal(kv_pool_open(&other, &options, 1, copy, NULL), STATUS_INVALID);
    options.kv_rows = (int64_t)1 << 40;
    assert_int_equal(kv_pool_open(&other, &options, 1, copy, NULL), STATUS_INVALID);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* What a sequence or a hold has to contain. */
struct model {
    int32_t length;
    int values[CAPACITY];
};

static struct model models[SEQUENCES], held_models[HOLDS];
static struct kv_hold *held[HOLDS];
static int32_t promised[SEQUENCES]; /* rows that steps can write for certain */
static uint64_t source = 88172645463325252u;
static int next_value, busy;

static int32_t below(int32_t n)
{
    source ^= source << 13; /* Marsaglia's xorshift */
    source ^= source >> 7;
    source ^= source << 17;
    return (int32_t)(source % (uint64_t)n);
}

static void check_model(const struct kv_sequence *q, const struct model *model, const char *what,
                        int i)
{
    assert_int_equal(q->base.kv_length, model->length);
    for (int32_t at = 0; at < model->length; at++)
        if (row_of(q, at) != model->values[at])
            fail_msg("%s %d, row %d: found %d, wanted %d", what, i, at, row_of(q, at),
                     model->values[at]);
}

static void check_all(void)
{
    int references[PAGES] = {0}, free = PAGES, n_held = 0;
    bool is_held[PAGES] = {false};
    for (int i = 0; i < SEQUENCES; i++) {
        check_model(&sequences[i], &models[i], "sequence", i);
        for (int32_t p = 0; p < sequences[i].n_pages; p++)
            free -= references[sequences[i].pages[p]]++ == 0;
    }
    for (int i = 0; i < HOLDS; i++) {
        if (!held[i])
            continue;
        attach(&reader, held[i], held_models[i].length);
        check_model(&reader, &held_models[i], "hold", i);
        for (int32_t p = 0; p < reader.n_pages; p++) {
            free -= references[reader.pages[p]]++ == 0;
            n_held += !is_held[reader.pages[p]];
            is_held[reader.pages[p]] = true;
        }
        reset(&backend, &reader.base);
    }
    assert_usage(free, n_held);
}

/* STATUS_BUSY is right only where fewer pages are free than all that are written to. */
static void count_busy(int32_t free, int32_t pages)
{
    busy++;
    assert_int_equal(pool.n_free, free);
    assert_true(pages > free);
}

static int32_t pages_between(int32_t from, int32_t to)
{
    return from < to ? (to + KV_PAGE - 1) / KV_PAGE - from / KV_PAGE : 0;
}

/* A step for one or two sequences, their rows mixed, which fails now and then. */
static void walk_step(void)
{
    struct row rows[2 * CAPACITY];
    int32_t positions[2 * CAPACITY], ends[SEQUENCES], free = pool.n_free, pages = 0;
    int n = 0, first = below(SEQUENCES), second = below(SEQUENCES);
    bool certain = true;
    for (int i = 0; i < SEQUENCES; i++)
        ends[i] = sequences[i].base.position;
    for (int left = 1 + below(below(4) ? 20 : 600); left > 0; left--) {
        int i = below(2) ? first : second;
        if (sequences[i].base.broken || ends[i] == CAPACITY)
            continue;
        rows[n] = (struct row){&sequences[i].base, 0};
        positions[n++] = ends[i]++;
    }
    for (int i = 0; i < SEQUENCES; i++) {
        pages += pages_between(sequences[i].base.position, ends[i]);
        certain &= ends[i] == sequences[i].base.position || ends[i] <= promised[i];
    }
    if (kv_step_begin(&backend, rows, n, positions, NULL) != STATUS_OK) {
        count_busy(free, pages);
        assert_false(certain);
        return;
    }
    bool fails = below(10) == 0;
    for (int r = 0; r < n; r++) {
        struct kv_sequence *q = (struct kv_sequence *)rows[r].sequence;
        struct model *model = &models[q - sequences];
        set_row(q, positions[r], ++next_value);
        model->values[positions[r]] = next_value;
        model->length = fails ? q->base.position : positions[r] + 1;
    }
    if (!fails)
        kv_step_end(&backend, rows, n, positions);
}

static void walk_write(int i)
{
    struct kv_sequence *q = &sequences[i];
    int32_t from = below(q->base.kv_length + 1), n = below(CAPACITY - from + 1), free = pool.n_free;
    if (kv_write_begin(&backend, &q->base, from, n, NULL) != STATUS_OK) {
        count_busy(free, pages_between(from, from + n));
        return;
    }
    for (int32_t at = from; at < from + n; at++)
        set_row(q, at, models[i].values[at] = ++next_value);
    promised[i] = from < models[i].length ? 0 : promised[i];
    models[i].length = from + n;
}

static void walk_reserve(int i)
{
    struct kv_sequence *q = &sequences[i];
    int32_t rows = below(CAPACITY + 1), free = pool.n_free;
    if (kv_pool_reserve(&backend, &q->base, rows, NULL) == STATUS_OK)
        promised[i] = rows;
    else
        count_busy(free, pages_between(0, rows));
}

static void walk_hold(int i, int h)
{
    struct kv_sequence *q = &sequences[i];
    kv_pool_release(&backend, held[h]);
    held[h] = NULL;
    if (q->base.broken || below(3) == 0)
        return;
    int32_t length = below(3) ? q->base.position : below(q->base.kv_length + 1);
    promised[i] = length > q->base.position ? 0 : promised[i];
    held[h] = hold(q, length);
    held_models[h] = models[i];
    held_models[h].length = length;
}

static void walk_attach(int i, int h)
{
    if (!held[h])
        return;
    int32_t length = below(3) ? held_models[h].length : below(held_models[h].length + 1);
    attach(&sequences[i], held[h], length);
    models[i] = held_models[h];
    models[i].length = length;
    promised[i] = 0;
}

static void walk_once(void)
{
    int i = below(SEQUENCES), h = below(HOLDS);
    struct sequence *sequence = &sequences[i].base;
    int32_t position;
    switch (below(16)) {
    case 0:
        reset(&backend, sequence);
        models[i].length = promised[i] = 0;
        break;
    case 1:
    case 10:
        position = below(3) ? sequence->kv_length : below(sequence->kv_length + 1);
        promised[i] = position < sequence->kv_length ? 0 : promised[i];
        assert_int_equal(kv_go_to(sequence, position, NULL), STATUS_OK);
        break;
    case 2:
        walk_write(i);
        break;
    case 3:
    case 4:
        walk_reserve(i);
        break;
    case 5:
    case 6:
        walk_attach(i, h);
        break;
    case 7:
    case 8:
    case 9:
        walk_hold(i, h);
        break;
    default:
        walk_step();
    }
}

static void test_walk(void **state)
{
    (void)state;
    for (int step = 0; step < 20000; step++) {
        walk_once();
        check_all();
    }
    print_message("%d calls were refused, %d copies\n", busy, copies);
    assert_in_range(busy, 500, 5000);
    assert_in_range(copies, 500, 5000);
    for (int h = 0; h < HOLDS; h++)
        kv_pool_release(&backend, held[h]);
}

#define POOL_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        POOL_TEST(test_the_writer_appends_without_a_copy),
        POOL_TEST(test_sharers_copy_the_last_page),
        POOL_TEST(test_no_needless_copy),
        POOL_TEST(test_two_of_one_step),
        POOL_TEST(test_reserve),
        POOL_TEST(test_refusals),
        POOL_TEST(test_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
