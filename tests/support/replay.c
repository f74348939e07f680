#include "support/replay.h"

#include <stdlib.h>
#include <string.h>

#include "backend/rank.h"

struct replay replay;

struct replay_backend {
    struct backend base;
    const struct shape *shape;
    int32_t n_valid_ids, context;
    int32_t next; /* the id that the last step answered with */
};

static void replay_plan(const struct backend_options *options, struct memory_plan *plan)
{
    (void)options;
    *plan = (struct memory_plan){0};
}

static enum status replay_open(const struct backend_options *options, struct backend **out,
                               struct error *error)
{
    struct replay_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "replay");
    int chunk = replay.max_chunk ? replay.max_chunk : 16;
    b->base =
        (struct backend){.ops = &backend_replay, .limits = {.max_rows = chunk, .max_chunk = chunk}};
    b->shape = options->weights->shape;
    b->n_valid_ids = options->n_valid_ids;
    b->context = options->context;
    *out = &b->base;
    return STATUS_OK;
}

static void replay_close(struct backend *backend)
{
    free(backend);
}

static enum status replay_sequence_new(struct backend *backend, struct sequence **out,
                                       struct error *error)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_no_memory(error, "replay");
    (*out)->capacity = ((struct replay_backend *)backend)->context;
    return STATUS_OK;
}

static void replay_sequence_free(struct backend *backend, struct sequence *sequence)
{
    (void)backend;
    free(sequence);
}

static void replay_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    (void)backend;
    sequence->position = 0;
    sequence->broken = false;
    replay.steps = 0;
}

/* The next id is by far the best; the others follow in order. */
static void answer(struct replay_backend *b, struct ranked *ranked)
{
    b->next = replay.steps < replay.n ? replay.ids[replay.steps] : replay.end;
    ranked->n = 0;
    ranked->logsumexp = 100;
    ranked->id[ranked->n] = b->next;
    ranked->logit[ranked->n++] = 100;
    for (int32_t id = 0; ranked->n < RANKED_MAX; id++)
        if (id != b->next) {
            ranked->id[ranked->n] = id;
            ranked->logit[ranked->n++] = 0;
        }
}

static enum status replay_prefill_chunk(struct backend *backend, struct sequence *sequence,
                                        const int32_t *tokens, int n, enum prefill_output output,
                                        struct ranked *ranked, const atomic_bool *cancel,
                                        struct error *error)
{
    (void)tokens;
    (void)output;
    if (cancel && atomic_load(cancel))
        return error_set(error, STATUS_CANCELLED, "cancelled");
    sequence->position += n;
    answer((struct replay_backend *)backend, ranked);
    return STATUS_OK;
}

static enum status replay_decode_step(struct backend *backend, const struct row *rows, int n,
                                      struct ranked *ranked, struct error *error)
{
    struct replay_backend *b = (struct replay_backend *)backend;
    int32_t position;
    enum status status = step_check(b->shape, rows, n, backend->limits.max_rows, &position, error);
    if (status != STATUS_OK)
        return status;
    replay.steps++;
    if (replay.on_step)
        replay.on_step(replay.steps);
    if (replay.fail_at == replay.steps) {
        rows[0].sequence->broken = true;
        return error_set(error, STATUS_DEVICE, "replay: the device failed");
    }
    rows[0].sequence->position++;
    answer(b, ranked);
    return STATUS_OK;
}

static enum status replay_logits(struct backend *backend, int i, float *out, struct error *error)
{
    (void)i;
    (void)error;
    struct replay_backend *b = (struct replay_backend *)backend;
    memset(out, 0, (size_t)b->shape->vocab_size * sizeof *out);
    out[b->next] = 100;
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
};
