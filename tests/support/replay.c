#include "support/replay.h"

#include <stdlib.h>
#include <string.h>

#include "backend/kv_pool.h"
#include "backend/rank.h"

struct replay replay;

#define ROW_BYTES 8 /* of a KV row, which nobody reads */

struct replay_backend {
    struct backend base;
    struct kv_pool kv;
    const struct shape *shape;
    int32_t context;
    int32_t next[REPLAY_ROWS]; /* the ids that the last step answered with */
};

struct replay_sequence {
    struct kv_sequence kv;
    int32_t steps; /* decode steps since the last prompt */
};

static void replay_plan(const struct backend_options *options, struct memory_plan *plan)
{
    *plan = (struct memory_plan){.state = (int64_t)sizeof(int32_t)};
    kv_pool_plan(options, ROW_BYTES, plan);
    plan->total = plan->kv_cache;
}

static void copy_page(struct backend *backend, int32_t from, int32_t to)
{
    (void)backend, (void)from, (void)to;
}

static void replay_close(struct backend *backend)
{
    kv_pool_close(&((struct replay_backend *)backend)->kv);
    free(backend);
}

static enum status replay_open(const struct backend_options *options, struct backend **out,
                               struct error *error)
{
    struct replay_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "replay");
    b->base = (struct backend){
        &backend_replay,
        {.max_rows = REPLAY_ROWS, .max_chunk = replay.max_chunk ? replay.max_chunk : REPLAY_ROWS},
        &b->kv};
    b->shape = options->weights->shape;
    b->context = options->context;
    enum status status = kv_pool_open(&b->kv, options, ROW_BYTES, copy_page, error);
    if (status == STATUS_OK)
        *out = &b->base;
    else
        replay_close(&b->base);
    return status;
}

static void replay_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct replay_sequence *q = (struct replay_sequence *)sequence;
    if (q)
        kv_sequence_clear(&((struct replay_backend *)backend)->kv, &q->kv);
    free(q);
}

static enum status replay_sequence_new(struct backend *backend, struct sequence **out,
                                       struct error *error)
{
    struct replay_backend *b = (struct replay_backend *)backend;
    struct replay_sequence *q = calloc(1, sizeof *q);
    if (!q)
        return error_no_memory(error, "replay");
    *out = &q->kv.base;
    enum status status = kv_sequence_init(&q->kv, b->context, error);
    if (status != STATUS_OK)
        replay_sequence_free(backend, &q->kv.base);
    return status;
}

static void replay_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    struct replay_sequence *q = (struct replay_sequence *)sequence;
    kv_sequence_reset(&((struct replay_backend *)backend)->kv, &q->kv);
    q->steps = 0;
}

static size_t replay_state_size(struct backend *backend)
{
    (void)backend;
    return sizeof(int32_t);
}

static enum status replay_state_read(struct backend *backend, struct sequence *sequence, void *out,
                                     struct error *error)
{
    (void)backend, (void)error;
    memcpy(out, &((struct replay_sequence *)sequence)->steps, sizeof(int32_t));
    return STATUS_OK;
}

static enum status replay_state_write(struct backend *backend, struct sequence *sequence,
                                      int32_t position, const void *state, struct error *error)
{
    (void)backend;
    memcpy(&((struct replay_sequence *)sequence)->steps, state, sizeof(int32_t));
    return kv_go_to(sequence, position, error);
}

static size_t replay_kv_row_size(struct backend *backend)
{
    (void)backend;
    return ROW_BYTES;
}

/* The next id is by far the best; the others follow in order. */
static void answer(struct replay_backend *b, int row, const struct sequence *sequence,
                   struct ranked *ranked)
{
    int32_t steps = ((const struct replay_sequence *)sequence)->steps;
    int32_t next = b->next[row] = steps < replay.n ? replay.ids[steps] : replay.end;
    ranked->n = 0;
    ranked->logsumexp = 100;
    ranked->id[ranked->n] = next;
    ranked->logit[ranked->n++] = 100;
    for (int32_t id = 0; ranked->n < RANKED_MAX; id++)
        if (id != next) {
            ranked->id[ranked->n] = id;
            ranked->logit[ranked->n++] = 0;
        }
}

static enum status replay_prefill_chunk(struct backend *backend, struct sequence *sequence,
                                        const int32_t *tokens, int n, enum prefill_output output,
                                        struct ranked *ranked, const struct interrupt *interrupt,
                                        struct error *error)
{
    struct replay_sequence *q = (struct replay_sequence *)sequence;
    (void)output;
    if (interrupt && interrupt->cancel && atomic_load(interrupt->cancel))
        return error_set(error, STATUS_CANCELLED, "cancelled");
    for (int i = 0; i < n; i++) {
        struct row row = {sequence, tokens[i]};
        int32_t position = sequence->position;
        enum status status = kv_step_begin(backend, &row, 1, &position, error);
        if (status != STATUS_OK)
            return status;
        kv_step_end(backend, &row, 1, &position);
    }
    q->steps = replay.steps = 0;
    answer((struct replay_backend *)backend, 0, sequence, ranked);
    return STATUS_OK;
}

static enum status replay_decode_step(struct backend *backend, const struct row *rows, int n,
                                      struct ranked *ranked, struct error *error)
{
    struct replay_backend *b = (struct replay_backend *)backend;
    int32_t positions[REPLAY_ROWS];
    enum status status = step_check(b->shape, rows, n, backend->limits.max_rows, positions, error);
    if (status == STATUS_OK)
        status = kv_step_begin(backend, rows, n, positions, error);
    if (status != STATUS_OK)
        return status;
    replay.steps++;
    if (replay.on_step)
        replay.on_step(replay.steps);
    if (replay.fail_at == replay.steps) /* the sequences stay broken */
        return error_set(error, STATUS_DEVICE, "replay: the device failed");
    kv_step_end(backend, rows, n, positions);
    for (int i = 0; i < n; i++) {
        ((struct replay_sequence *)rows[i].sequence)->steps++;
        answer(b, i, rows[i].sequence, &ranked[i]);
    }
    return STATUS_OK;
}

static enum status replay_logits(struct backend *backend, int i, float *out, struct error *error)
{
    (void)error;
    struct replay_backend *b = (struct replay_backend *)backend;
    memset(out, 0, (size_t)b->shape->vocab_size * sizeof *out);
    out[b->next[i]] = 100;
    return STATUS_OK;
}

const struct backend_ops backend_replay = {
    .name = "replay",
    .plan = replay_plan,
    .open = replay_open,
    .close = replay_close,
    .sequence_new = replay_sequence_new,
    .sequence_free = replay_sequence_free,
    .sequence_reset = replay_sequence_reset,
    .prefill_chunk = replay_prefill_chunk,
    .decode_step = replay_decode_step,
    .logits = replay_logits,
    .state_size = replay_state_size,
    .state_read = replay_state_read,
    .state_write = replay_state_write,
    .kv_row_size = replay_kv_row_size,
    KV_POOL_OPS,
};
