/* Allocations of each backend: opening one, a sequence and a hold run out of memory at every place,
 * and a step allocates nothing, so that none can run out and the plan holds for prompts of any
 * length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/alloc.h"
#include "support/tiny.h"

#define CONTEXT 256
#define LONG 100 /* tokens that are read in all ways of working in chunks */
#define ROWS 17

static struct backend_options options(void)
{
    return (struct backend_options){.weights = checkpoint_weights(tiny),
                                    .n_valid_ids = TINY_N_VALID_IDS,
                                    .context = CONTEXT,
                                    .n_sequences = 2,
                                    .threads = 3};
}

/* A step, and another one from a hold on its row. */
static enum status decode(struct backend *b, struct sequence *sequence, struct error *error)
{
    struct ranked ranked;
    struct kv_hold *hold;
    struct row row = {sequence, 1};
    enum status status = b->ops->decode_step(b, &row, 1, &ranked, error);
    if (status == STATUS_OK)
        status = b->ops->kv_hold(b, sequence, 1, &hold, error);
    if (status != STATUS_OK)
        return status;
    status = b->ops->kv_attach(b, sequence, hold, 1, error);
    b->ops->kv_release(b, hold);
    return status;
}

static enum status open_and_decode(void *context, struct error *error)
{
    const struct backend_ops *ops = context;
    struct backend_options opening = options();
    struct backend *b;
    struct sequence *sequence;
    enum status status = ops->open(&opening, &b, error);
    if (status != STATUS_OK)
        return status;
    status = ops->sequence_new(b, &sequence, error);
    if (status == STATUS_OK) {
        status = decode(b, sequence, error);
        ops->sequence_free(b, sequence);
    }
    ops->close(b);
    return status;
}

static void opening_fails(void **state)
{
    (void)state;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        size_t n = alloc_sweep(open_and_decode, (void *)(uintptr_t)*ops, 0);
        print_message("%s: %zu allocations\n", (*ops)->name, n);
        assert_true(n > 10);
    }
}

/* Everything that a caller may do between opening and closing but kv_hold, snapshots too. `hold` is
 * of the second sequence's row. */
static enum status use(struct backend *b, struct sequence *const sequences[2], struct kv_hold *hold,
                       void *snapshot, float *logits, struct error *error)
{
    struct ranked ranked[ROWS];
    const struct backend_ops *ops = b->ops;
    int n = b->limits.max_chunk < LONG ? b->limits.max_chunk : LONG;
    struct sequence *first = sequences[0];
    struct row rows[3] = {{first, 1}, {sequences[1], 2}, {sequences[1], 3}};
    enum status status =
        ops->prefill_chunk(b, first, tiny_ids(), n, PREFILL_LAST, ranked, NULL, error);
    if (status == STATUS_OK)
        status = ops->prefill_chunk(b, first, tiny_ids(), ROWS, PREFILL_ALL, ranked, NULL, error);
    if (status == STATUS_OK)
        status = ops->decode_step(b, rows, 3, ranked, error);
    if (status == STATUS_OK)
        status = ops->logits(b, 2, logits, error);
    if (status == STATUS_OK)
        status = ops->kv_read(b, first, n, 1, snapshot, error);
    if (status == STATUS_OK)
        status = ops->kv_write(b, first, n, 1, snapshot, error);
    if (status == STATUS_OK)
        status = ops->state_read(b, sequences[1], snapshot, error);
    if (status == STATUS_OK)
        status = ops->state_write(b, first, n, snapshot, error);
    if (status == STATUS_OK)
        status = ops->kv_reserve(b, first, CONTEXT, error);
    if (status == STATUS_OK)
        status = ops->kv_attach(b, first, hold, 1, error);
    if (status == STATUS_OK)
        status = ops->state_write(b, first, 1, snapshot, error);
    rows[2].sequence = first; /* behind the common row: one of the two takes a page */
    if (status == STATUS_OK)
        status = ops->decode_step(b, rows + 1, 2, ranked, error);
    ops->sequence_reset(b, first);
    ops->kv_release(b, hold);
    return status;
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        struct error error;
        struct backend *b = tiny_backend(*ops, CONTEXT, 2);
        struct sequence *sequences[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal((*ops)->sequence_new(b, &sequences[i], &error), STATUS_OK);
        float *logits =
            malloc((size_t)checkpoint_weights(tiny)->shape->vocab_size * sizeof *logits);
        size_t size = (*ops)->state_size(b), row = (*ops)->kv_row_size(b);
        void *snapshot = malloc(size > row ? size : row);
        assert_true(logits && snapshot);
        struct row one = {sequences[1], 1};
        struct ranked ranked;
        struct kv_hold *hold;
        assert_int_equal((*ops)->decode_step(b, &one, 1, &ranked, &error), STATUS_OK);
        assert_int_equal((*ops)->kv_hold(b, sequences[1], 1, &hold, &error), STATUS_OK);
        alloc_start(0, 0);
        enum status status = use(b, sequences, hold, snapshot, logits, &error);
        size_t n = alloc_stop();
        if (status != STATUS_OK)
            fail_msg("%s: %s", (*ops)->name, error.message);
        if (n > 0)
            fail_msg("%s: %zu allocations in steps, wanted none", (*ops)->name, n);
        free(logits);
        free(snapshot);
        for (int i = 0; i < 2; i++)
            (*ops)->sequence_free(b, sequences[i]);
        (*ops)->close(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails),
        cmocka_unit_test(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
