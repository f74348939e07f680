/* What must hold of whole steps on every compiled-in backend (DESIGN.md, "The seam"): however a
 * prompt is cut, whatever else is in a step, and whatever is saved and restored, a sequence goes
 * the same way. The ref backend does everything in one order, so its results are compared bit by
 * bit; what another backend's ways may differ by is in support/alike.c. The same way is the same
 * bits always: a restored state, neighbours in the step, another number of threads change nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef BACKEND_CPU
#include "backend/cpu/kernels.h"
#endif
#include "support/alike.h"
#include "support/ok.h"
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

/* What is tested: a backend, and a level of the cpu backend's instructions. */
struct subject {
    const struct backend_ops *ops;
    const char *cpu;
    char name[40];
};

static struct backend *b; /* the backend under test */

static struct backend *open_subject(const struct subject *subject, int context, int n_sequences,
                                    int threads)
{
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = context,
                                      .n_sequences = n_sequences,
                                      .threads = threads,
                                      .cpu = subject->cpu};
    struct backend *opened;
    OK(subject->ops->open(&options, &opened, e));
    return opened;
}

static int open_backend(void **state)
{
    b = open_subject(*state, CONTEXT, 4, 0);
    return 0;
}

static int close_backend(void **state)
{
    (void)state;
    alike_report(b);
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

static void assert_alike(struct sequence *x, struct sequence *y)
{
    assert_alike_contents(checkpoint_weights(tiny)->shape, b, x, y);
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
            assert_alike_ranked(b, &x, &y, "chunks", lengths[i]);
            assert_alike(whole, cut);
        }
    b->ops->sequence_free(b, whole);
    b->ops->sequence_free(b, cut);
}

/* Prompts about as long as the largest chunk, and over several of them. */
static void test_long_chunks(void **state)
{
    struct backend *usual = b;
    int longest = b->limits.max_chunk;
    const int cuts[] = {longest - 1, longest, longest + 1, 2 * longest + 1};
    int32_t *ids = malloc((size_t)(2 * longest + 1) * sizeof *ids);
    for (int i = 0; i < 2 * longest + 1; i++) /* there are 1,025: over and over */
        ids[i] = tiny_ids()[i % 1025];
    b = open_subject(*state, 2 * longest + 1, 2, 0);
    struct sequence *whole = new_sequence(), *cut = new_sequence();
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof cuts / sizeof cuts[0]); i++) {
        struct ranked x, y;
        b->ops->sequence_reset(b, whole);
        b->ops->sequence_reset(b, cut);
        prefill(whole, ids, cuts[i], longest, &x);
        prefill(cut, ids, cuts[i], 61, &y);
        assert_alike_ranked(b, &x, &y, "long chunks", cuts[i]);
        assert_alike(whole, cut);
    }
    b->ops->sequence_free(b, whole);
    b->ops->sequence_free(b, cut);
    b->ops->close(b);
    b = usual;
    free(ids);
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
        assert_alike_ranked(b, &ranked[t], &one, "all outputs", t + 1);
    }
    OK(b->ops->logits(b, 0, y, e));
    if (alike_exact(b))
        assert_memory_equal(x, y, 4096 * sizeof *x);
    assert_int_equal(b->ops->logits(b, 1, y, NULL), STATUS_INVALID);
    free(x);
    free(y);
    b->ops->sequence_free(b, all);
    b->ops->sequence_free(b, single);
}

static void test_state(void **state)
{
    (void)state;
    struct sequence *sequence = new_sequence(), *other = new_sequence();
    size_t size = b->ops->state_size(b);
    unsigned char *bytes = malloc(size);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        int n = lengths[i];
        struct ranked first[3], again;
        if (SANITIZED && n > SHORT)
            continue;
        b->ops->sequence_reset(b, sequence);
        prefill(sequence, tiny_ids(), n, 64, &again);
        OK(b->ops->state_read(b, sequence, bytes, e));
        for (int t = 0; t < 3; t++)
            decode_one(sequence, tiny_ids()[n + t], &first[t]);
        OK(b->ops->state_write(b, sequence, n, bytes, e));
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
    assert_int_equal(b->ops->state_write(b, other, n, bytes, NULL), STATUS_INVALID);
    assert_int_equal(other->position, 0);
    OK(b->ops->kv_read(b, sequence, 0, n, rows, e));
    OK(b->ops->kv_write(b, other, 0, 5, rows, e));
    OK(b->ops->kv_write(b, other, 5, n - 5, rows + 5 * row, e));
    OK(b->ops->state_write(b, other, n, bytes, e));
    struct ranked x, y;
    OK(b->ops->state_write(b, sequence, n, bytes, e));
    decode_one(sequence, 5, &x);
    decode_one(other, 5, &y);
    assert_same_ranked(&x, &y, "another sequence", n);
    /* a state whose rows were overwritten by a shorter past is refused */
    b->ops->sequence_reset(b, other);
    decode_one(other, 5, &y);
    assert_int_equal(b->ops->state_write(b, other, n, bytes, NULL), STATUS_INVALID);
    free(rows);
    free(bytes);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, other);
}

/* Rows of different sequences in one step, and several rows of one: as if alone. */
static void test_rows_do_not_disturb(void **state)
{
    (void)state;
    static const int starts[3] = {1, SHORT, 2 * SHORT + 4};
    struct sequence *together[3], *alone = new_sequence();
    struct ranked unused, rows_ranked[4], one;
    for (int s = 0; s < 3; s++) {
        together[s] = new_sequence();
        prefill(together[s], tiny_ids() + 100 * s, starts[s], 64, &unused);
    }
    /* sequence 1 brings two rows */
    struct row rows[4] = {{together[2], 7}, {together[1], 8}, {together[1], 9}, {together[0], 11}};
    OK(b->ops->decode_step(b, rows, 4, rows_ranked, e));
    for (int r = 0; r < 4; r++) {
        int s = r == 0 ? 2 : r == 3 ? 0 : 1;
        if (r < 2 || r == 3) {
            b->ops->sequence_reset(b, alone);
            prefill(alone, tiny_ids() + 100 * s, starts[s], 64, &unused);
        }
        decode_one(alone, rows[r].token, &one);
        assert_same_ranked(&rows_ranked[r], &one, "row", r);
        if (r != 1)
            assert_same_contents(b, alone, together[s]);
    }
    for (int s = 0; s < 3; s++)
        b->ops->sequence_free(b, together[s]);
    b->ops->sequence_free(b, alone);
}

/* A sequence's logits are the same bits in any company: 17 sequences (6 where sanitizers are slow),
 * a few steps, each row against itself alone. (A step of more rows takes another route through the
 * cpu backend's products and its attention, where a long context counts.) */
static void test_company(void **state)
{
    enum {
        COMPANY = SANITIZED ? 6 : 17,
        LONGEST = SANITIZED ? 40 : 640,
        STEPS = SANITIZED ? 1 : 3
    };
    struct backend *usual = b;
    b = open_subject(*state, LONGEST + STEPS, COMPANY + 1, 0);
    struct sequence *together[COMPANY], *alone = new_sequence();
    struct row rows[COMPANY];
    struct ranked ranked[STEPS][COMPANY], one;
    int32_t tokens[STEPS][COMPANY];
    for (int s = 0; s < COMPANY; s++) {
        together[s] = new_sequence();
        prefill(together[s], tiny_ids() + 20 * s, s == 5 ? LONGEST : 1 + s, 64, &one);
        tokens[0][s] = one.id[0];
    }
    for (int i = 0; i < STEPS; i++) {
        for (int s = 0; s < COMPANY; s++)
            rows[s] = (struct row){together[s], tokens[i][s]};
        OK(b->ops->decode_step(b, rows, COMPANY, ranked[i], e));
        for (int s = 0; i + 1 < STEPS && s < COMPANY; s++)
            tokens[i + 1][s] = ranked[i][s].id[0];
    }
    for (int s = 0; s < COMPANY; s++) {
        b->ops->sequence_reset(b, alone);
        prefill(alone, tiny_ids() + 20 * s, s == 5 ? LONGEST : 1 + s, 64, &one);
        for (int i = 0; i < STEPS; i++) {
            decode_one(alone, tokens[i][s], &one);
            assert_same_ranked(&ranked[i][s], &one, "company", s);
        }
        assert_same_contents(b, alone, together[s]);
        b->ops->sequence_free(b, together[s]);
    }
    b->ops->sequence_free(b, alone);
    b->ops->close(b);
    b = usual;
}

/* Chunks, single steps and steps of several rows, chosen greedily; all logits of the last one. */
static void walk(const struct subject *subject, int threads, float *logits, struct ranked *ranked)
{
    enum { STEPS = SANITIZED ? 2 : 8 };
    struct backend *usual = b;
    b = open_subject(subject, CONTEXT, 3, threads);
    struct sequence *sequences[3];
    struct row rows[3];
    for (int s = 0; s < 3; s++) {
        sequences[s] = new_sequence();
        prefill(sequences[s], tiny_ids() + 50 * s, lengths[N_LENGTHS - 1] - 20 * s, 60, ranked);
        for (int i = 0; i < STEPS; i++)
            decode_one(sequences[s], ranked->id[0], ranked);
        rows[s] = (struct row){sequences[s], ranked->id[0]};
    }
    OK(b->ops->decode_step(b, rows, 3, ranked, e));
    for (int r = 0; r < 3; r++)
        OK(b->ops->logits(b, r, logits + r * 4096, e));
    for (int s = 0; s < 3; s++)
        b->ops->sequence_free(b, sequences[s]);
    b->ops->close(b);
    b = usual;
}

/* The number of threads changes no bit; twice the same is the same. */
static void test_threads(void **state)
{
    static const int counts[] = {1, 1, 2, 3, 8};
    struct ranked first[3], ranked[3];
    float *logits = malloc(2 * 3 * 4096 * sizeof *logits), *others = logits + 3 * 4096;
    assert_non_null(logits);
    walk(*state, counts[0], logits, first);
    size_t n = alike_exact(b) ? 2 : sizeof counts / sizeof counts[0]; /* ref has one thread */
    for (size_t i = 1; i < n; i++) {
        walk(*state, counts[i], others, ranked);
        for (int r = 0; r < 3; r++)
            assert_same_ranked(&first[r], &ranked[r], "threads", counts[i]);
        assert_memory_equal(logits, others, 3 * 4096 * sizeof *logits);
    }
    free(logits);
}

static void test_cancel(void **state)
{
    (void)state;
    struct sequence *sequence = new_sequence(), *fresh = new_sequence();
    struct ranked x, y;
    atomic_bool cancel = true;
    prefill(sequence, tiny_ids(), 5, 5, &x);
    assert_int_equal(b->ops->prefill_chunk(b, sequence, tiny_ids(), 3, PREFILL_LAST, &x,
                                           &(struct interrupt){.cancel = &cancel}, NULL),
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
    assert_alike_ranked(b, &x, &y, "after a cancel", SHORT);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, fresh);
}

/* A refused step changes nothing. */
static void test_refusals(void **state)
{
    (void)state;
    struct sequence *sequence = new_sequence(), *fresh = new_sequence();
    struct ranked x, y, *many = malloc(sizeof *many * (size_t)(b->limits.max_rows + 1));
    int32_t *tokens = calloc((size_t)b->limits.max_chunk + 1, sizeof *tokens);
    assert_non_null(tokens);
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
    assert_same_contents(b, sequence, fresh);
    while (sequence->position + 40 <= CONTEXT) {
        prefill(sequence, tiny_ids(), 40, 40, &x);
        prefill(fresh, tiny_ids(), 40, 40, &y);
    }
    assert_int_equal(
        b->ops->prefill_chunk(b, sequence, tiny_ids(), 40, PREFILL_LAST, &x, NULL, NULL),
        STATUS_CONTEXT);
    assert_same_contents(b, sequence, fresh);
    free(many);
    free(tokens);
    b->ops->sequence_free(b, sequence);
    b->ops->sequence_free(b, fresh);
}

/* One slice of a chunk that is to pause as soon as it can. */
static enum status slice(struct sequence *sequence, int n, enum prefill_output output,
                         struct ranked *ranked, const atomic_bool *cancel)
{
    const struct interrupt soon = {.cancel = cancel, .pause_at = 1e-9};
    return b->ops->prefill_chunk(b, sequence, tiny_ids(), n, output, ranked, &soon, NULL);
}

/* A chunk that pauses gives the same bits, whatever other sequences do meanwhile. */
static void test_pauses(void **state)
{
    (void)state;
    struct sequence *whole = new_sequence(), *cut = new_sequence(), *other = new_sequence();
    struct ranked x[SHORT], y, z;
    prefill(whole, tiny_ids(), SHORT, SHORT, x);
    prefill(other, tiny_ids() + 5, 3, 3, &z);
    int slices = 0, layers = checkpoint_weights(tiny)->shape->num_hidden_layers;
    do {
        assert_int_equal(slice(cut, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
        decode_one(other, tiny_ids()[slices], &z);
        slices++;
    } while (cut->paused > 0);
    assert_int_equal(slices, b->limits.pauses ? layers : 1);
    assert_same_ranked(x, &y, "pauses", SHORT);
    assert_alike(whole, cut);

    const struct interrupt later = {.pause_at = 1e30};
    b->ops->sequence_reset(b, cut);
    OK(b->ops->prefill_chunk(b, cut, tiny_ids(), SHORT, PREFILL_LAST, &y, &later, e));
    assert_int_equal(cut->paused, 0);
    b->ops->sequence_reset(b, cut);
    assert_int_equal(slice(cut, SHORT, PREFILL_ALL, x, NULL), STATUS_OK); /* never pauses */
    assert_int_equal(cut->paused, 0);
    assert_same_ranked(&x[SHORT - 1], &y, "all", SHORT);
    b->ops->sequence_free(b, whole);
    b->ops->sequence_free(b, cut);
    b->ops->sequence_free(b, other);
}

/* What a paused sequence refuses, what drops its chunk, and that one chunk is paused at a time. */
static void test_paused(void **state)
{
    (void)state;
    struct sequence *first = new_sequence(), *second = new_sequence();
    struct ranked x, y, all[SHORT];
    if (!b->limits.pauses) { /* then nobody waits for it to go on */
        assert_int_equal(slice(first, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
        assert_int_equal(first->paused, 0);
        assert_int_equal(first->position, SHORT);
        b->ops->sequence_free(b, first);
        b->ops->sequence_free(b, second);
        return;
    }
    struct row row = {first, 1};
    struct kv_hold *hold;
    atomic_bool cancel = true;
    void *bytes = malloc(b->ops->state_size(b));
    prefill(second, tiny_ids(), SHORT, SHORT, &x);
    OK(b->ops->state_read(b, second, bytes, e));
    OK(b->ops->kv_hold(b, second, SHORT, &hold, e));

    assert_int_equal(slice(first, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
    assert_int_equal(first->paused, SHORT);
    assert_int_equal(b->ops->decode_step(b, &row, 1, &y, NULL), STATUS_DEVICE);
    assert_int_equal(b->ops->state_read(b, first, bytes, NULL), STATUS_DEVICE);
    assert_int_equal(slice(first, SHORT - 1, PREFILL_LAST, &y, NULL), STATUS_INVALID);
    assert_int_equal(slice(first, SHORT, PREFILL_ALL, all, NULL), STATUS_INVALID);
    struct kv_usage before, after;
    b->ops->kv_usage(b, &before);
    OK(b->ops->kv_reserve(b, first, 0, e)); /* takes nothing that it needs */
    b->ops->kv_usage(b, &after);
    assert_int_equal(after.free, before.free);
    b->ops->sequence_reset(b, second);
    assert_int_equal(slice(second, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
    assert_int_equal(second->paused, 0); /* the place was taken */
    assert_same_ranked(&x, &y, "beside a paused one", SHORT);
    memset(&y, 0, sizeof y);
    do
        assert_int_equal(slice(first, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
    while (first->paused > 0);
    assert_same_ranked(&x, &y, "after refusals", SHORT);

    for (int way = 0; way < 4; way++) { /* that drop it */
        b->ops->sequence_reset(b, first);
        assert_int_equal(slice(first, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
        assert_int_equal(first->paused, SHORT);
        if (way == 0) {
            b->ops->sequence_reset(b, first);
        } else if (way == 1) {
            OK(b->ops->kv_attach(b, first, hold, SHORT, e));
            OK(b->ops->state_write(b, first, SHORT, bytes, e));
            decode_one(first, 7, &y);
        } else if (way == 2) {
            assert_int_equal(slice(first, SHORT, PREFILL_LAST, &y, &cancel), STATUS_CANCELLED);
            assert_true(first->broken);
        } else {
            b->ops->sequence_free(b, first);
            first = new_sequence();
        }
        assert_int_equal(first->paused, 0);
        b->ops->sequence_reset(b, second);
        assert_int_equal(slice(second, SHORT, PREFILL_LAST, &y, NULL), STATUS_OK);
        assert_int_equal(second->paused, SHORT); /* the place is free */
        b->ops->sequence_reset(b, second);
    }
    b->ops->kv_release(b, hold);
    free(bytes);
    b->ops->sequence_free(b, first);
    b->ops->sequence_free(b, second);
}

/* Padding rows of the head never rank, wherever the first of them is said to be. */
static void test_padding_mask(void **state)
{
    const struct subject *subject = *state;
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = 40,
                                      .context = 8,
                                      .n_sequences = 1,
                                      .cpu = subject->cpu};
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
    const struct subject *subject = *state;
    struct backend_options options = {.weights = &changed,
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = 8,
                                      .n_sequences = 1,
                                      .cpu = subject->cpu};
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
    struct kv_usage usage;
    b->ops->kv_usage(b, &usage);
    int64_t row = (int64_t)b->ops->kv_row_size(b), whole = 1000 + usage.page_rows - 1;
    whole -= whole % usage.page_rows;
    assert_int_equal(plan.kv_row, row);
    assert_int_equal(usage.page_bytes, row * usage.page_rows);
    assert_int_equal(plan.kv_cache, 3 * whole * row);
    assert_int_equal(plan.state, (int64_t)b->ops->state_size(b));
    assert_int_equal(plan.total, plan.weights + plan.workspace + plan.kv_cache + 3 * plan.state);
    int64_t total = plan.total, cache = plan.kv_cache;
    options.kv_rows = 1001; /* pooled */
    b->ops->plan(&options, &plan);
    assert_int_equal(plan.kv_cache, whole * row);
    assert_in_range(total - plan.total, cache - plan.kv_cache, cache - plan.kv_cache + 1000);
    assert_true(plan.weights > 23000000 && plan.weights < 23392176); /* the two trunk files */
    struct sequence *sequences[4];
    for (int i = 0; i < 4; i++)
        sequences[i] = new_sequence();
    struct sequence *fifth;
    assert_int_equal(b->ops->sequence_new(b, &fifth, NULL), STATUS_INVALID);
    for (int i = 0; i < 4; i++)
        b->ops->sequence_free(b, sequences[i]);
}

#define STEP_TEST(test, subject)                                                                   \
    {                                                                                              \
#test, test, open_backend, close_backend, (subject)                                        \
    }

static int run(struct subject *subject, bool all)
{
    const struct CMUnitTest tests[] = {
        STEP_TEST(test_all_outputs, subject),
        STEP_TEST(test_rows_do_not_disturb, subject),
        STEP_TEST(test_company, subject),
        STEP_TEST(test_refusals, subject), /* and what does not depend on the level: */
        STEP_TEST(test_chunks_do_not_matter, subject),
        STEP_TEST(test_long_chunks, subject),
        STEP_TEST(test_state, subject),
        STEP_TEST(test_threads, subject),
        STEP_TEST(test_cancel, subject),
        STEP_TEST(test_pauses, subject),
        STEP_TEST(test_paused, subject),
        STEP_TEST(test_padding_mask, subject),
        STEP_TEST(test_float32_a_log, subject),
        STEP_TEST(test_plan, subject),
    };
    const struct CMUnitTest some[] = {tests[0], tests[1], tests[2], tests[3]};
    print_message("%s\n", subject->name);
    return all ? cmocka_run_group_tests_name(subject->name, tests, tiny_setup, tiny_teardown)
               : cmocka_run_group_tests_name(subject->name, some, tiny_setup, tiny_teardown);
}

int main(void)
{
    int failed = 0;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        struct subject subject = {.ops = *ops};
        if (THREAD_SANITIZED && strcmp((*ops)->name, "ref") == 0)
            continue; /* it has one thread */
#ifdef BACKEND_CPU
        if (*ops == &backend_cpu) { /* every level that this CPU can run, the best one first */
            for (const struct kernels *const *table = kernels_tables; *table; table++) {
                if (!kernels_usable(*table) || (THREAD_SANITIZED && subject.cpu))
                    continue;
                bool best = !subject.cpu;
                subject.cpu = (*table)->name;
                snprintf(subject.name, sizeof subject.name, "cpu %s", subject.cpu);
                failed += run(&subject, best);
            }
            continue;
        }
#endif
        snprintf(subject.name, sizeof subject.name, "%s", (*ops)->name);
        failed += run(&subject, true);
    }
    return failed;
}
