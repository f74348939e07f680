/* What must hold of whole steps on every compiled-in backend (DESIGN.md, proof): however a prompt
 * is cut, whatever else is in a step, and whatever is saved and restored, a sequence goes the same
 * way. The ref backend does everything in one order, so its results are compared bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/snapshot.h"
#include "support/sanitized.h"
#include "support/tiny.h"

#if SANITIZED /* one length that fills a chunk, little else */
#define CONTEXT 80
#define SHORT 9
static const int lengths[] = {1, SHORT, 65};
#else
#define CONTEXT 160
#define SHORT 33
static const int lengths[] = {1, 2, 3, 4, 5, 31, 32, SHORT, 63, 64, 65, 127, 128, 129};
#endif
#define N_LENGTHS (sizeof lengths / sizeof lengths[0])

static struct backend *b; /* the backend under test */

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct error error_;                                                                       \
        struct error *e = &error_;                                                                 \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", e->message);                                                            \
    } while (0)

static int open_backend(void **state)
{
    b = tiny_backend(*state, CONTEXT, 4);
    return 0;
}

static int close_backend(void **state)
{
    (void)state;
    b->ops->close(b);
    return 0;
}

static struct sequence *new_sequence(void)
{
    struct sequence *sequence;
    OK(b->ops->sequence_new(b, &sequence, e));
    return sequence;
}

/* Reads n ids in chunks of at most `chunk`. */
static void prefill(struct sequence *sequence, const int32_t *ids, int n, int chunk,
                    struct ranked *ranked)
{
    for (int at = 0; at < n; at += chunk) {
        int size = n - at < chunk ? n - at : chunk;
        OK(b->ops->prefill_chunk(b, sequence, ids + at, size, PREFILL_LAST, ranked, NULL, e));
    }
}

static void decode_one(struct sequence *sequence, int32_t token, struct ranked *ranked)
{
    struct row row = {sequence, token};
    OK(b->ops->decode_step(b, &row, 1, ranked, e));
}

static void assert_same_ranked(const struct ranked *x, const struct ranked *y, const char *what,
                               int n)
{
    bool same = x->n == y->n && x->logsumexp == y->logsumexp &&
                memcmp(x->id, y->id, (size_t)x->n * sizeof *x->id) == 0 &&
                memcmp(x->logit, y->logit, (size_t)x->n * sizeof *x->logit) == 0;
    if (!same)
        fail_msg("%s, %d tokens: best %d %.9g against %d %.9g", what, n, x->id[0], x->logit[0],
                 y->id[0], y->logit[0]);
}

/* Everything a sequence holds, as bytes: snapshot, then KV rows. */
static unsigned char *contents(struct sequence *sequence, size_t *size)
{
    size_t state = b->ops->state_size(b);
    *size = state + (size_t)sequence->position * b->ops->kv_row_size(b);
    unsigned char *bytes = malloc(*size);
    assert_non_null(bytes);
    OK(b->ops->state_read(b, sequence, bytes, e));
    OK(b->ops->kv_read(b, sequence, 0, sequence->position, bytes + state, e));
    return bytes;
}

static void assert_same_contents(struct sequence *x, struct sequence *y)
{
    size_t x_size, y_size;
    unsigned char *x_bytes = contents(x, &x_size), *y_bytes = contents(y, &y_size);
    assert_int_equal(x->position, y->position);
    assert_int_equal(x_size, y_size);
    assert_memory_equal(x_bytes, y_bytes, x_size);
    free(x_bytes);
    free(y_bytes);
}

static void test_chunks_do_not_matter(void **state)
{
    (void)state;
    struct sequence *whole = new_sequence(), *cut = new_sequence();
    static const int chunks[] = {1, 7, 33};
    const size_t n_chunks = SANITIZED ? 2 : 3;
    for (size_t i = 0; i < N_LENGTHS; i++)
        for (size_t c = 0; c < n_chunks; c++) {
            struct ranked x, y;
            if (chunks[c] == 1 && lengths[i] != SHORT && (SANITIZED || lengths[i] != 65))
                continue; /* slow; the other cuts cross every border of a chunk */
            b->ops->sequence_reset(b, whole);
            b->ops->sequence_reset(b, cut);
            prefill(whole, tiny_ids(), lengths[i], b->limits.max_chunk, &x);
            if (chunks[c] == 1)
                for (int t = 0; t < lengths[i]; t++)
                    decode_one(cut, tiny_ids()[t], &y);
            else
                prefill(cut, tiny_ids(), lengths[i], chunks[c], &y);
            assert_same_ranked(&x, &y, "chunks", lengths[i]);
            assert_same_contents(whole, cut);
        }
    b->ops->sequence_free(b, whole);
    b->ops->sequence_free(b, cut);
}

static void test_all_outputs(void **state)
{
    (void)state;
    enum { LENGTH = SHORT };
    struct sequence *all = new_sequence(), *single = new_sequence();
    struct ranked ranked[LENGTH], one;
    float *x = malloc(4096 * sizeof *x), *y = malloc(4096 * sizeof *y);
    OK(b->ops->prefill_chunk(b, all, tiny_ids(), LENGTH, PREFILL_ALL, ranked, NULL, e));
    for (int t = 0; t < LENGTH; t += 8) {
        OK(b->ops->logits(b, t, x, e));
        assert_true(x[ranked[t].id[0]] == ranked[t].logit[0]);
    }
    OK(b->ops->logits(b, LENGTH - 1, x, e));
    for (int t = 0; t < LENGTH; t++) {
        decode_one(single, tiny_ids()[t], &one);
        assert_same_ranked(&ranked[t], &one, "all outputs", t + 1);
    }
    OK(b->ops->logits(b, 0, y, e));
    assert_memory_equal(x, y, 4096 * sizeof *x);
    assert_int_equal(b->ops->logits(b, 1, y, NULL), STATUS_INVALID);
    free(x);
    free(y);
    b->ops->sequence_free(b, all);
    b->ops->sequence_free(b, single);
}

static void test_snapshot(void **state)
{
    (void)state;
    const struct shape *shape = checkpoint_weights(tiny)->shape;
    struct sequence *sequence = new_sequence(), *other = new_sequence();
    size_t size = snapshot_size(b);
    unsigned char *bytes = malloc(size);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        int n = lengths[i];
        struct ranked first[3], again;
        if (SANITIZED && n > SHORT)
            continue;
        b->ops->sequence_reset(b, sequence);
        prefill(sequence, tiny_ids(), n, 64, &again);
        OK(snapshot_save(b, shape, sequence, bytes, e));
        for (int t = 0; t < 3; t++)
            decode_one(sequence, tiny_ids()[n + t], &first[t]);
        OK(snapshot_restore(b, shape, sequence, bytes, size, e));
        assert_int_equal(sequence->position, n);
        for (int t = 0; t < 3; t++) {
            decode_one(sequence, tiny_ids()[n + t], &again);
            assert_same_ranked(&first[t], &again, "restored", n);
        }
    }
    /* into another sequence: not without the KV rows, then with them */
    int n = SANITIZED ? SHORT : lengths[N_LENGTHS - 1];
    size_t row = b->ops->kv_row_size(b);
    unsigned char *rows = malloc((size_t)n * row);
    assert_int_equal(snapshot_restore(b, shape, other, bytes, size, NULL), STATUS_INVALID);
    assert_int_equal(other->position, 0);
    OK(b->ops->kv_read(b, sequence, 0, n, rows, e));
    OK(b->ops->kv_write(b, other, 0, 5, rows, e));
    OK(b->ops->kv_write(b, other, 5, n - 5, rows + 5 * row, e));
    OK(snapshot_restore(b, shape, other, bytes, size, e));
    struct ranked x, y;
    OK(snapshot_restore(b, shape, sequence, bytes, size, e));
    decode_one(sequence, 5, &x);
    decode_one(other, 5, &y);
    assert_same_ranked(&x, &y, "another sequence", n);
    /* a state whose rows were overwritten by a shorter past is refused */
    b->ops->sequence_reset(b, other);
    decode_one(other, 5, &y);
    assert_int_equal(snapshot_restore(b, shape, other, bytes, size, NULL), STATUS_INVALID);
    free(rows);
    free(bytes);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, other);
}

static void test_damaged_snapshot(void **state)
{
    (void)state;
    const struct shape *shape = checkpoint_weights(tiny)->shape;
    struct sequence *sequence = new_sequence();
    struct ranked before, after;
    prefill(sequence, tiny_ids(), 5, 5, &before);
    size_t size = snapshot_size(b);
    unsigned char *bytes = malloc(size);
    OK(snapshot_save(b, shape, sequence, bytes, e));
    for (size_t at = 0; at < size; at += at < 64 ? 1 : size / 50) { /* every byte of the header */
        bytes[at] ^= 0x20;
        assert_int_equal(snapshot_restore(b, shape, sequence, bytes, size, NULL), STATUS_INVALID);
        bytes[at] ^= 0x20;
    }
    assert_int_equal(snapshot_restore(b, shape, sequence, bytes, size - 1, NULL), STATUS_INVALID);
    assert_int_equal(snapshot_restore(b, shape, sequence, bytes, 10, NULL), STATUS_INVALID);
    assert_int_equal(snapshot_restore(b, &shape_35b_a3b, sequence, bytes, size, NULL),
                     STATUS_INVALID);
    assert_int_equal(sequence->position, 5);
    OK(snapshot_restore(b, shape, sequence, bytes, size, e));
    decode_one(sequence, 1, &after);
    free(bytes);
    b->ops->sequence_free(b, sequence);
}

/* Rows of different sequences in one step, and several rows of one: as if alone. */
static void test_rows_do_not_disturb(void **state)
{
    (void)state;
    static const int starts[3] = {1, SHORT, 2 * SHORT + 4};
    struct sequence *together[3], *alone = new_sequence();
    struct ranked unused, rows_ranked[5], one;
    for (int s = 0; s < 3; s++) {
        together[s] = new_sequence();
        prefill(together[s], tiny_ids() + 100 * s, starts[s], 64, &unused);
    }
    /* sequence 1 brings three rows */
    struct row rows[5] = {
        {together[2], 7}, {together[1], 8}, {together[1], 9}, {together[1], 10}, {together[0], 11}};
    OK(b->ops->decode_step(b, rows, 5, rows_ranked, e));
    for (int r = 0; r < 5; r++) {
        int s = r == 0 ? 2 : r == 4 ? 0 : 1;
        if (r < 2 || r == 4) {
            b->ops->sequence_reset(b, alone);
            prefill(alone, tiny_ids() + 100 * s, starts[s], 64, &unused);
        }
        decode_one(alone, rows[r].token, &one);
        assert_same_ranked(&rows_ranked[r], &one, "row", r);
        if (r != 1 && r != 2)
            assert_same_contents(alone, together[s]);
    }
    for (int s = 0; s < 3; s++)
        b->ops->sequence_free(b, together[s]);
    b->ops->sequence_free(b, alone);
}

static void test_cancel(void **state)
{
    (void)state;
    struct sequence *sequence = new_sequence(), *fresh = new_sequence();
    struct ranked x, y;
    atomic_bool cancel = true;
    prefill(sequence, tiny_ids(), 5, 5, &x);
    assert_int_equal(
        b->ops->prefill_chunk(b, sequence, tiny_ids(), 3, PREFILL_LAST, &x, &cancel, NULL),
        STATUS_CANCELLED);
    struct row row = {sequence, 1};
    if (sequence->broken) { /* says that it is unusable, and is */
        void *state_bytes = malloc(b->ops->state_size(b));
        assert_int_equal(b->ops->decode_step(b, &row, 1, &x, NULL), STATUS_DEVICE);
        assert_int_equal(b->ops->state_read(b, sequence, state_bytes, NULL), STATUS_DEVICE);
        free(state_bytes);
    } else {
        assert_int_equal(sequence->position, 5);
    }
    b->ops->sequence_reset(b, sequence);
    prefill(sequence, tiny_ids(), SHORT, 5, &x);
    prefill(fresh, tiny_ids(), SHORT, SHORT, &y);
    assert_same_ranked(&x, &y, "after a cancel", SHORT);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, fresh);
}

/* A refused step changes nothing. */
static void test_refusals(void **state)
{
    (void)state;
    struct sequence *sequence = new_sequence(), *fresh = new_sequence();
    struct ranked x, y, *many = malloc(sizeof *many * (size_t)(b->limits.max_rows + 1));
    int32_t tokens[300] = {0};
    prefill(sequence, tiny_ids(), SHORT, SHORT, &x);
    prefill(fresh, tiny_ids(), SHORT, SHORT, &x);
    const int32_t wrong[3] = {1, -1, 4096};
    struct row row = {sequence, 4096};
    struct error error;
    assert_int_equal(b->ops->prefill_chunk(b, sequence, wrong, 2, PREFILL_LAST, &x, NULL, &error),
                     STATUS_INVALID);
    assert_non_null(strstr(error.message, "-1"));
    assert_int_equal(b->ops->decode_step(b, &row, 1, &x, NULL), STATUS_INVALID);
    assert_int_equal(b->ops->decode_step(b, &row, 0, &x, NULL), STATUS_INVALID);
    assert_int_equal(b->ops->prefill_chunk(b, sequence, tokens, 0, PREFILL_LAST, &x, NULL, NULL),
                     STATUS_INVALID);
    assert_int_equal(b->ops->prefill_chunk(b, sequence, tokens, b->limits.max_chunk + 1,
                                           PREFILL_LAST, &x, NULL, NULL),
                     STATUS_INVALID);
    assert_false(sequence->broken);
    assert_same_contents(sequence, fresh);
    while (sequence->position + 40 <= CONTEXT) {
        prefill(sequence, tiny_ids(), 40, 40, &x);
        prefill(fresh, tiny_ids(), 40, 40, &y);
    }
    assert_int_equal(
        b->ops->prefill_chunk(b, sequence, tiny_ids(), 40, PREFILL_LAST, &x, NULL, NULL),
        STATUS_CONTEXT);
    assert_same_contents(sequence, fresh);
    free(many);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, fresh);
}

/* Padding rows of the head never rank, wherever the first of them is said to be. */
static void test_padding_mask(void **state)
{
    (void)state;
    struct backend_options options = {
        .weights = checkpoint_weights(tiny), .n_valid_ids = 40, .context = 8, .n_sequences = 1};
    struct backend *masked;
    struct sequence *sequence;
    struct ranked ranked;
    OK(b->ops->open(&options, &masked, e));
    OK(masked->ops->sequence_new(masked, &sequence, e));
    OK(masked->ops->prefill_chunk(masked, sequence, tiny_ids(), 5, PREFILL_LAST, &ranked, NULL, e));
    assert_int_equal(ranked.n, 40);
    for (int i = 0; i < ranked.n; i++)
        assert_true(ranked.id[i] < 40);
    masked->ops->sequence_free(masked, sequence);
    masked->ops->close(masked);
}

/* A_log may be float32 (spec 4.3). */
static void test_float32_a_log(void **state)
{
    (void)state;
    const struct weights *weights = checkpoint_weights(tiny);
    struct weights changed = *weights;
    float wide[MAX_LAYERS][8];
    for (int i = 0; i < weights->shape->num_hidden_layers; i++) {
        struct vector *A_log = &changed.layers[i].linear_attn.A_log;
        if (shape_is_full_attention(weights->shape, i))
            continue;
        for (int h = 0; h < 8; h++) {
            const unsigned char *at = A_log->data + 2 * h;
            uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
            memcpy(&wide[i][h], &bits, sizeof bits);
        }
        *A_log = (struct vector){(const unsigned char *)wide[i], 8, 4};
    }
    struct backend_options options = {
        .weights = &changed, .n_valid_ids = TINY_N_VALID_IDS, .context = 8, .n_sequences = 1};
    struct backend *other;
    struct sequence *sequence, *usual = new_sequence();
    struct ranked x, y;
    OK(b->ops->open(&options, &other, e));
    OK(other->ops->sequence_new(other, &sequence, e));
    OK(other->ops->prefill_chunk(other, sequence, tiny_ids(), 5, PREFILL_LAST, &x, NULL, e));
    prefill(usual, tiny_ids(), 5, 5, &y);
    assert_same_ranked(&x, &y, "float32 A_log", 5);
    other->ops->sequence_free(other, sequence);
    other->ops->close(other);
    b->ops->sequence_free(b, usual);
}

static void test_plan(void **state)
{
    (void)state;
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = 1000,
                                      .n_sequences = 3};
    struct memory_plan plan;
    b->ops->plan(&options, &plan);
    assert_int_equal(plan.kv_cache, 1000 * (int64_t)b->ops->kv_row_size(b));
    assert_int_equal(plan.state, (int64_t)b->ops->state_size(b));
    assert_int_equal(plan.total, plan.weights + plan.workspace + 3 * (plan.kv_cache + plan.state));
    assert_true(plan.weights > 23000000 && plan.weights < 23392176); /* the two trunk files */
    struct sequence *sequences[4];
    for (int i = 0; i < 4; i++)
        sequences[i] = new_sequence();
    struct sequence *fifth;
    assert_int_equal(b->ops->sequence_new(b, &fifth, NULL), STATUS_INVALID);
    for (int i = 0; i < 4; i++)
        b->ops->sequence_free(b, sequences[i]);
}

#define STEP_TEST(test, ops)                                                                       \
    {                                                                                              \
#test, test, open_backend, close_backend, (void *)(ops)                                    \
    }

int main(void)
{
    int failed = 0;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        const struct CMUnitTest tests[] = {
            STEP_TEST(test_chunks_do_not_matter, *ops),
            STEP_TEST(test_all_outputs, *ops),
            STEP_TEST(test_snapshot, *ops),
            STEP_TEST(test_damaged_snapshot, *ops),
            STEP_TEST(test_rows_do_not_disturb, *ops),
            STEP_TEST(test_cancel, *ops),
            STEP_TEST(test_refusals, *ops),
            STEP_TEST(test_padding_mask, *ops),
            STEP_TEST(test_float32_a_log, *ops),
            STEP_TEST(test_plan, *ops),
        };
        failed += cmocka_run_group_tests_name((*ops)->name, tests, tiny_setup, tiny_teardown);
    }
    return failed;
}
