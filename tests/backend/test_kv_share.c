/* Sequences that share KV rows, on every compiled-in backend: each goes on as if it had read them
 * alone, bit for bit, whatever the others do and however short of pages the pool is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/ok.h"
#include "support/sanitized.h"
#include "support/tiny.h"

static const int lengths[] = {1, 255, 256, 257, 300};
#define N_LENGTHS 5
#define LAST (N_LENGTHS - 1)
#define LENGTH 300
#define CONTEXT 600
#define WAYS 2    /* to go on from a length, with other tokens each */
#define AHEAD 3   /* tokens of a way that are read as a chunk */
#define OUTPUTS 4 /* the chunk's, and those of single steps */
#define VOCABULARY 4096

/* How it goes alone: the KV rows, the state at each length, the logits of each way from there. */
static struct {
    void *rows;
    void *states[N_LENGTHS];
    float logits[N_LENGTHS][WAYS][OUTPUTS][VOCABULARY];
} alone;

static const struct backend_ops *subject;
static struct backend *b;
static struct ranked ranked[4];

static const int32_t *way_ids(int way)
{
    return tiny_ids() + 400 + 100 * way;
}

static struct sequence *new_sequence(void)
{
    struct sequence *sequence;
    OK(b->ops->sequence_new(b, &sequence, e));
    return sequence;
}

static void read_chunk(struct sequence *sequence, const int32_t *ids, int n)
{
    for (int at = 0; at < n; at += b->limits.max_chunk) {
        int size = n - at < b->limits.max_chunk ? n - at : b->limits.max_chunk;
        OK(b->ops->prefill_chunk(b, sequence, ids + at, size, PREFILL_LAST, ranked, NULL, e));
    }
}

/* The chunks end at all lengths: the cpu backend's bits depend on how a prompt is cut. */
static void read_to(struct sequence *sequence, int i)
{
    int from = sequence->position;
    read_chunk(sequence, tiny_ids() + from, lengths[i] - from);
}

static void go_alone(struct sequence *sequence, int i)
{
    alone.states[i] = malloc(b->ops->state_size(b));
    assert_non_null(alone.states[i]);
    OK(b->ops->state_read(b, sequence, alone.states[i], e));
    for (int way = 0; way < WAYS; way++) {
        read_chunk(sequence, way_ids(way), AHEAD);
        OK(b->ops->logits(b, 0, alone.logits[i][way][0], e));
        for (int t = 1; t < OUTPUTS; t++) {
            struct row row = {sequence, way_ids(way)[AHEAD + t]};
            OK(b->ops->decode_step(b, &row, 1, ranked, e));
            OK(b->ops->logits(b, 0, alone.logits[i][way][t], e));
        }
        OK(b->ops->state_write(b, sequence, lengths[i], alone.states[i], e));
    }
}

static struct backend *open_pool(int64_t kv_rows)
{
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = CONTEXT,
                                      .n_sequences = 4,
                                      .kv_rows = kv_rows};
    struct backend *opened;
    OK(subject->open(&options, &opened, e));
    return opened;
}

static int setup(void **state)
{
    if (tiny_setup(state) != 0 || checkpoint_weights(tiny)->shape->vocab_size != VOCABULARY)
        return -1;
    b = open_pool(0);
    struct sequence *sequence = new_sequence();
    for (int i = 0; i < N_LENGTHS; i++) {
        read_to(sequence, i);
        go_alone(sequence, i);
    }
    alone.rows = malloc(LENGTH * b->ops->kv_row_size(b));
    assert_non_null(alone.rows);
    OK(b->ops->kv_read(b, sequence, 0, LENGTH, alone.rows, e));
    b->ops->sequence_free(b, sequence);
    b->ops->close(b);
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < N_LENGTHS; i++)
        free(alone.states[i]);
    free(alone.rows);
    return tiny_teardown(state);
}

static void assert_as_alone(int output, int i, int way, int t)
{
    static float logits[VOCABULARY];
    OK(b->ops->logits(b, output, logits, e));
    if (memcmp(logits, alone.logits[i][way][t], sizeof logits) != 0)
        fail_msg("%s, %d shared rows, way %d, output %d: other logits than alone", b->ops->name,
                 lengths[i], way, t);
}

/* Each of n sequences, which stand at length i, goes its way; single steps are common ones. */
static void go_together(struct sequence *const *sequences, const int *ways, int n, int i)
{
    for (int s = 0; s < n; s++) {
        read_chunk(sequences[s], way_ids(ways[s]), AHEAD);
        assert_as_alone(0, i, ways[s], 0);
    }
    for (int t = 1; t < OUTPUTS; t++) {
        struct row rows[4];
        for (int s = 0; s < n; s++)
            rows[s] = (struct row){sequences[s], way_ids(ways[s])[AHEAD + t]};
        OK(b->ops->decode_step(b, rows, n, ranked, e));
        for (int s = 0; s < n; s++)
            assert_as_alone(s, i, ways[s], t);
    }
}

static void attach(struct sequence *sequence, const struct kv_hold *hold, int i)
{
    OK(b->ops->kv_attach(b, sequence, hold, lengths[i], e));
    assert_int_equal(b->ops->decode_step(b, &(struct row){sequence, 1}, 1, ranked, NULL),
                     STATUS_DEVICE); /* its state is missing */
    OK(b->ops->state_write(b, sequence, lengths[i], alone.states[i], e));
    assert_int_equal(sequence->position, lengths[i]);
    assert_int_equal(sequence->kv_length, lengths[i]);
}

static void assert_usage(int pages, int free, int held)
{
    struct kv_usage usage;
    b->ops->kv_usage(b, &usage);
    assert_int_equal(usage.page_rows, 256);
    assert_int_equal(usage.pages, pages);
    assert_int_equal(usage.free, free);
    assert_int_equal(usage.held, held);
}

/* Four sequences, the first of which has read all, with a hold on that. */
static struct kv_hold *start(int64_t kv_rows, struct sequence *sequences[4])
{
    struct kv_hold *hold;
    b = open_pool(kv_rows);
    for (int s = 0; s < 4; s++)
        sequences[s] = new_sequence();
    for (int i = 0; i < N_LENGTHS && !SANITIZED; i++)
        read_to(sequences[0], i);
    if (SANITIZED) { /* reading takes its time */
        OK(b->ops->kv_write(b, sequences[0], 0, LENGTH, alone.rows, e));
        OK(b->ops->state_write(b, sequences[0], LENGTH, alone.states[LAST], e));
    }
    OK(b->ops->kv_hold(b, sequences[0], LENGTH, &hold, e));
    return hold;
}

static void finish(struct sequence *sequences[4], int pages)
{
    for (int s = 0; s < 4; s++)
        b->ops->sequence_free(b, sequences[s]);
    assert_usage(pages, pages, 0);
    b->ops->close(b);
}

static const int all_ways[] = {0, 1, 0, 1};

static void test_shared_is_as_alone(void **state)
{
    (void)state;
    struct sequence *sequences[4];
    struct kv_hold *hold = start(0, sequences);
    for (int i = 0; i < N_LENGTHS; i++) {
        attach(sequences[1], hold, i);
        attach(sequences[2], hold, i);
        go_together(sequences + 1, all_ways, 2, i);
    }
    /* the one that has read them goes on, back into them, and on another way; then it leaves */
    go_together(sequences, all_ways, 1, LAST);
    OK(b->ops->state_write(b, sequences[0], lengths[1], alone.states[1], e));
    go_together(sequences, all_ways + 1, 1, 1);
    OK(b->ops->state_write(b, sequences[0], 0, alone.states[0], e));
    read_chunk(sequences[0], way_ids(1), SANITIZED ? 20 : 300);
    attach(sequences[1], hold, LAST);
    b->ops->sequence_reset(b, sequences[0]);
    attach(sequences[2], hold, LAST);
    b->ops->kv_release(b, hold);
    go_together(sequences + 1, all_ways, 2, LAST);
    finish(sequences, 12);
}

/* What is written anew by kv_write is nobody else's, nor is what a cancelled chunk has left. */
static void test_rows_written_and_cancelled(void **state)
{
    (void)state;
    struct sequence *sequences[4];
    struct kv_hold *hold = start(0, sequences);
    size_t row = b->ops->kv_row_size(b);
    unsigned char *rows = calloc(LENGTH, row), *found = malloc(LENGTH * row);
    assert_true(rows && found);
    attach(sequences[1], hold, LAST);
    OK(b->ops->kv_write(b, sequences[1], 10, LENGTH, rows, e));
    OK(b->ops->kv_write(b, sequences[0], 290, 100, rows, e));
    OK(b->ops->kv_read(b, sequences[1], 10, LENGTH, found, e));
    assert_memory_equal(found, rows, LENGTH * row);
    attach(sequences[2], hold, LAST);
    atomic_bool cancel = true;
    assert_int_equal(b->ops->prefill_chunk(b, sequences[2], tiny_ids(), 60, PREFILL_LAST, ranked,
                                           &(struct interrupt){.cancel = &cancel}, NULL),
                     STATUS_CANCELLED);
    assert_true(sequences[2]->broken);
    assert_int_equal(sequences[2]->kv_length, LENGTH);
    OK(b->ops->kv_read(b, sequences[2], 0, LENGTH, found, e));
    OK(b->ops->state_write(b, sequences[2], LENGTH, alone.states[LAST], e));
    attach(sequences[3], hold, LAST);
    go_together(sequences + 2, all_ways, 2, LAST);
    /* rows that came as bytes can be held, too */
    struct kv_hold *copied;
    b->ops->sequence_reset(b, sequences[1]);
    OK(b->ops->kv_write(b, sequences[1], 0, LENGTH, found, e));
    OK(b->ops->kv_hold(b, sequences[1], LENGTH, &copied, e));
    b->ops->kv_release(b, hold);
    attach(sequences[0], copied, LAST);
    OK(b->ops->state_write(b, sequences[1], LENGTH, alone.states[LAST], e));
    go_together(sequences, all_ways, 2, LAST);
    b->ops->kv_release(b, copied);
    free(rows);
    free(found);
    finish(sequences, 12);
}

static void test_no_free_page(void **state)
{
    (void)state;
    struct sequence *sequences[4];
    struct kv_hold *hold = start(1000, sequences); /* four pages */
    struct error error;
    static unsigned char rows[8 << 20];
    for (int s = 0; s < 4; s++)
        attach(sequences[s], hold, LAST);
    assert_usage(4, 2, 2);
    /* one of them may append to the common page, two copy it, one cannot */
    struct row step[4];
    for (int s = 0; s < 4; s++)
        step[s] = (struct row){sequences[s], 1};
    assert_int_equal(b->ops->decode_step(b, step, 4, ranked, &error), STATUS_BUSY);
    assert_non_null(strstr(error.message, "found 2 of 4 pages"));
    assert_usage(4, 2, 2);
    go_together(sequences, all_ways, 3, LAST);
    assert_usage(4, 0, 2);
    assert_int_equal(b->ops->decode_step(b, &step[3], 1, ranked, NULL), STATUS_BUSY);
    assert_int_equal(
        b->ops->prefill_chunk(b, sequences[3], tiny_ids(), 9, PREFILL_LAST, ranked, NULL, NULL),
        STATUS_BUSY);
    assert_int_equal(b->ops->kv_reserve(b, sequences[3], LENGTH + 1, NULL), STATUS_BUSY);
    assert_int_equal(b->ops->kv_reserve(b, sequences[0], 513, NULL), STATUS_BUSY);
    assert_true(256 * b->ops->kv_row_size(b) <= sizeof rows);
    assert_int_equal(b->ops->kv_write(b, sequences[3], 257, 255, rows, NULL), STATUS_BUSY);
    assert_int_equal(b->ops->kv_write(b, sequences[0], 257, 256, rows, NULL), STATUS_BUSY);
    for (int s = 0; s < 4; s++)
        assert_int_equal(sequences[s]->kv_length, LENGTH + (s < 3 ? AHEAD + OUTPUTS - 1 : 0));
    /* the ones that have pages stay as they were; the last one goes on as soon as there is one */
    for (int s = 0; s < 3; s++) {
        OK(b->ops->state_write(b, sequences[s], LENGTH, alone.states[LAST], e));
        go_together(sequences + s, all_ways + s, 1, LAST);
    }
    b->ops->sequence_reset(b, sequences[1]);
    go_together(sequences + 3, all_ways + 3, 1, LAST);
    OK(b->ops->state_write(b, sequences[0], LENGTH, alone.states[LAST], e));
    go_together(sequences, all_ways, 1, LAST);
    /* a promise is kept whatever others want */
    b->ops->sequence_reset(b, sequences[2]);
    OK(b->ops->kv_reserve(b, sequences[3], 513, e));
    assert_int_equal(b->ops->decode_step(b, &step[1], 1, ranked, NULL), STATUS_BUSY);
    read_chunk(sequences[3], tiny_ids(), 512 - sequences[3]->position);
    OK(b->ops->decode_step(b, &step[3], 1, ranked, e));
    b->ops->kv_release(b, hold);
    finish(sequences, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_is_as_alone),
        cmocka_unit_test(test_rows_written_and_cancelled),
        cmocka_unit_test(test_no_free_page),
    };
    int failed = 0;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        if (THREAD_SANITIZED && strcmp((*ops)->name, "ref") == 0)
            continue; /* it has one thread */
        subject = *ops;
        failed += cmocka_run_group_tests_name(subject->name, tests, setup, teardown);
    }
    return failed;
}
