/* The cpu backend at contexts that no test has the time to read: up to the 262,144 tokens of the
 * real model, with tiny. The KV rows of a prompt are written again and again up to near the end;
 * logits there must be finite, the same on every way, level and backend but for noise, and a row
 * that stands out must be found wherever it lies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined BACKEND_CPU && defined BACKEND_REF
#include "backend/cpu/kernels.h"
#include "support/ok.h"
#include "support/sanitized.h"
#include "support/tiny.h"

#if SANITIZED
static const int lengths[] = {4096, 12288};
#else
static const int lengths[] = {61440, 81920, 131072, 262144};
#endif
#define N_LENGTHS (sizeof lengths / sizeof lengths[0])
#define PERIOD 1000 /* rows that are written again: no multiple of any block or split */
#define ROWS 17     /* of a chunk at the end: one more than those whose attention is split */
#define STEPS 3     /* of them also one by one */
#define LIMIT 5e-3  /* of logits, in nats: see support/alike.c */

/* ---- a past that comes again ----------------------------------------------------------------- */

/* One head's key or value: cpu's KV rows are [layer][head][key, value] of these, ref's are [layer]
 * [key, value][head] of floats. */
struct head_codes {
    int16_t codes[HEAD_DIM];
    float scale;
};

/* PERIOD tokens: the state behind them, and their KV rows as both backends have them. */
static struct {
    void *state;
    struct head_codes *rows;
    float *ref_rows;
    size_t heads;     /* of a row, keys and values */
    float *all;       /* [vocab_size] scratch */
    const char *best; /* level */
} past;

static struct backend *open_backend(const struct backend_ops *ops, const char *level, int context)
{
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = context,
                                      .n_sequences = 1,
                                      .cpu = level};
    struct backend *b;
    OK(ops->open(&options, &b, e));
    return b;
}

static struct sequence *new_sequence(struct backend *b)
{
    struct sequence *sequence;
    OK(b->ops->sequence_new(b, &sequence, e));
    return sequence;
}

static void close_both(struct backend *b, struct sequence *sequence)
{
    b->ops->sequence_free(b, sequence);
    b->ops->close(b);
}

static void decode_rows(const struct shape *shape)
{
    int layers = shape_n_full_attention(shape), heads = shape->num_key_value_heads;
    const struct head_codes *head = past.rows;
    for (int i = 0; i < PERIOD; i++)
        for (int layer = 0; layer < layers; layer++)
            for (int h = 0; h < heads; h++)
                for (int kind = 0; kind < 2; kind++, head++)
                    for (int d = 0; d < HEAD_DIM; d++)
                        past.ref_rows[(((i * layers + layer) * 2 + kind) * heads + h) * HEAD_DIM +
                                      d] = (float)head->codes[d] * head->scale;
}

static int past_free(void **state)
{
    free(past.state);
    free(past.rows);
    free(past.ref_rows);
    free(past.all);
    return tiny_teardown(state);
}

static int past_new(void **state)
{
    if (tiny_setup(state) != 0)
        return -1;
    const struct shape *shape = checkpoint_weights(tiny)->shape;
    struct backend *b = open_backend(&backend_cpu, NULL, PERIOD);
    struct sequence *sequence = new_sequence(b);
    struct ranked ranked;
    OK(b->ops->prefill_chunk(b, sequence, tiny_ids(), PERIOD, PREFILL_LAST, &ranked, NULL, e));
    past.heads = (size_t)shape_n_full_attention(shape) * 2 * (size_t)shape->num_key_value_heads;
    past.state = malloc(b->ops->state_size(b));
    past.rows = malloc(PERIOD * past.heads * sizeof *past.rows);
    past.ref_rows = malloc(PERIOD * past.heads * HEAD_DIM * sizeof *past.ref_rows);
    past.all = malloc((size_t)shape->vocab_size * sizeof *past.all);
    if (!past.state || !past.rows || !past.ref_rows || !past.all)
        return -1;
    assert_int_equal(b->ops->kv_row_size(b), past.heads * sizeof *past.rows);
    OK(b->ops->state_read(b, sequence, past.state, e));
    OK(b->ops->kv_read(b, sequence, 0, PERIOD, past.rows, e));
    decode_rows(shape);
    for (const struct kernels *const *table = kernels_tables; *table && !past.best; table++)
        if (kernels_usable(*table))
            past.best = (*table)->name;
    close_both(b, sequence);
    return 0;
}

static void write_rows(struct backend *b, struct sequence *sequence, int at, int n)
{
    int from = at % PERIOD;
    const void *rows = b->ops == &backend_ref
                           ? (const void *)(past.ref_rows + (size_t)from * past.heads * HEAD_DIM)
                           : (const void *)(past.rows + (size_t)from * past.heads);
    OK(b->ops->kv_write(b, sequence, at, n, rows, e));
}

/* Writes the rows from `at` on, so that the sequence's next position is `position`. */
static void fill(struct backend *b, struct sequence *sequence, int at, int position)
{
    while (at < position) {
        int n = PERIOD - at % PERIOD;
        n = n < position - at ? n : position - at;
        write_rows(b, sequence, at, n);
        at += n;
    }
    OK(b->ops->state_write(b, sequence, position, past.state, e));
}

/* ---- steps at the end ------------------------------------------------------------------------ */

static void check_finite(struct backend *b, int outputs, int position)
{
    for (int i = 0; i < outputs; i++) {
        OK(b->ops->logits(b, i, past.all, e));
        for (int id = 0; id < TINY_N_VALID_IDS; id++)
            if (!isfinite(past.all[id]))
                fail_msg("position %d: logit %d is not finite", position + i, id);
    }
}

static void decode(struct backend *b, struct sequence *sequence, int n, struct ranked *ranked)
{
    for (int i = 0; i < n; i++) {
        struct row row = {sequence, tiny_ids()[i]};
        OK(b->ops->decode_step(b, &row, 1, &ranked[i], e));
        check_finite(b, 1, sequence->position - 1);
    }
}

static double apart(const struct ranked *x, const struct ranked *y)
{
    double largest = fabs((double)x->logsumexp - (double)y->logsumexp);
    for (int i = 0; i < x->n; i++) { /* sorted, so the lists lie no further apart than logits */
        double difference = fabs((double)x->logit[i] - (double)y->logit[i]);
        if (!(difference <= largest)) /* NaN stays */
            largest = difference;
    }
    return largest;
}

static void compare(const struct ranked *found, const struct ranked *wanted, int n,
                    const char *what, int length)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(found[i].n, wanted[i].n);
        double difference = apart(&found[i], &wanted[i]);
        if (!(difference <= LIMIT))
            fail_msg("%s, context %d, row %d: logits differ by %.2e, limit %.0e", what, length, i,
                     difference, LIMIT);
        worst = fmax(worst, difference);
    }
    print_message("    %s, context %d: logits differ by %.1e at most, limit %.0e\n", what, length,
                  worst, LIMIT);
}

static void test_row_66_finite_logits_to_the_last_position(void **state)
{
    (void)state;
    int longest = lengths[N_LENGTHS - 1];
    struct backend *b = open_backend(&backend_cpu, NULL, longest);
    struct sequence *sequence = new_sequence(b);
    struct ranked steps[STEPS], chunk[ROWS];
    for (size_t i = 0; i < N_LENGTHS; i++) {
        int position = lengths[i] - ROWS;
        fill(b, sequence, sequence->kv_length, position);
        decode(b, sequence, STEPS, steps);
        OK(b->ops->state_write(b, sequence, position, past.state, e));
        OK(b->ops->prefill_chunk(b, sequence, tiny_ids(), ROWS, PREFILL_ALL, chunk, NULL, e));
        check_finite(b, ROWS, position);
        compare(chunk, steps, STEPS, "chunk against steps", lengths[i]);
    }
    assert_int_equal(sequence->position, longest);
    struct row row = {sequence, 0};
    assert_int_equal(b->ops->decode_step(b, &row, 1, chunk, NULL), STATUS_CONTEXT);
    close_both(b, sequence);
}

/* The length from which on others broke; all levels and ref against the best level. */
static void test_row_66_levels_agree(void **state)
{
    (void)state;
    const int length = lengths[SANITIZED ? 0 : 1];
    struct ranked wanted[STEPS], found[STEPS];
    bool ref = false;
    for (const struct kernels *const *table = kernels_tables; !ref; table += *table != NULL) {
        ref = !*table; /* the last one */
        const char *name = ref ? "ref" : (*table)->name;
        if (!ref && !kernels_usable(*table)) {
            print_message("    %s: not run, this CPU lacks it\n", name);
            continue;
        }
        struct backend *b = open_backend(ref ? &backend_ref : &backend_cpu, name, length);
        struct sequence *sequence = new_sequence(b);
        fill(b, sequence, 0, length - STEPS);
        int n = ref ? 1 : STEPS;
        bool best = name == past.best;
        decode(b, sequence, n, best ? wanted : found);
        if (!best)
            compare(found, wanted, n, name, length);
        close_both(b, sequence);
    }
}

/* ---- a needle -------------------------------------------------------------------------------- */

#define NEEDLE 7 /* the row of the past that becomes one */

/* Keys several times as long draw most of a head's attention, or none where they point away. */
static void scale_keys(float factor)
{
    for (size_t i = 0; i < past.heads; i += 2)
        past.rows[NEEDLE * past.heads + i].scale *= factor;
}

/* Keys are kept turned by their position, so the needle's score and the sum over all rows are the
 * same wherever it lies; where it is not seen the logits are those without it. */
static void test_row_66_needle_is_found_anywhere(void **state)
{
    (void)state;
    const int length = lengths[SANITIZED ? 1 : 2], position = length - 1, last = position / PERIOD;
    struct backend *b = open_backend(&backend_cpu, NULL, length);
    struct sequence *sequence = new_sequence(b);
    struct ranked without, wanted, found;
    fill(b, sequence, 0, position);
    decode(b, sequence, 1, &without);
    const int places[] = {last - 1, last * 9 / 10, last / 2, last / 3, 0};
    for (int i = 0; i < 5; i++) {
        int at = places[i] * PERIOD + NEEDLE;
        scale_keys(4);
        write_rows(b, sequence, at, 1);
        scale_keys(0.25f);
        fill(b, sequence, at + 1, position); /* and none of the needles before */
        decode(b, sequence, 1, i == 0 ? &wanted : &found);
        double seen = apart(&without, i == 0 ? &wanted : &found);
        if (!(seen > 20 * LIMIT))
            fail_msg("a needle at %d of %d moves logits by %.2e only", at, length, seen);
        if (i > 0)
            compare(&found, &wanted, 1, "needle elsewhere", length);
        else
            print_message("    the needle moves logits by %.2f\n", seen);
    }
    close_both(b, sequence);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_66_finite_logits_to_the_last_position),
        cmocka_unit_test(test_row_66_levels_agree),
        cmocka_unit_test(test_row_66_needle_is_found_anywhere),
    };
    return cmocka_run_group_tests(tests, past_new, past_free);
}
#else
static void test_both_backends(void **state)
{
    (void)state;
    print_message("the backends cpu and ref are not both compiled in\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_backends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
