#include "engine/engine.h"

#define SPARE ((int64_t)1 << 30) /* bytes left for the prefix cache and other programs */
#define OWN_SPARE (SPARE / 4)    /* the same of what the process's own limits leave */

enum status engine_check_context(int32_t wanted, int32_t max_position_embeddings,
                                 struct error *error)
{
    if (wanted >= 0 && wanted <= max_position_embeddings)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "max_context: found %d, wanted 0 to %d tokens, the model's "
                     "max_position_embeddings",
                     wanted, max_position_embeddings);
}

int32_t engine_longest_context(int32_t most, bool (*fits)(void *context, int32_t tokens),
                               void *context)
{
    if (most <= LEAST_CONTEXT || fits(context, most))
        return most;
    int32_t low = LEAST_CONTEXT / CONTEXT_STEP, high = most / CONTEXT_STEP; /* is too long */
    while (low + 1 < high) {
        int32_t middle = low + (high - low) / 2;
        if (fits(context, middle * CONTEXT_STEP))
            low = middle;
        else
            high = middle;
    }
    return low * CONTEXT_STEP;
}

/* One sequence's, without reuse. */
struct planner {
    const struct backend_ops *ops;
    const struct weights *weights;
};

static bool context_fits(void *context, int32_t tokens)
{
    const struct planner *planner = context;
    const struct backend_options options = {
        .weights = planner->weights,
        .n_valid_ids = planner->weights->shape->vocab_size,
        .context = tokens,
        .n_sequences = 1,
    };
    struct memory_plan plan;
    planner->ops->plan(&options, &plan);
    const struct memory_room room = memory_look();
    /* weights and all: what is free then holds them in memory */
    return memory_plan_check_in(&room, &plan, tokens, 1, NULL) == STATUS_OK &&
           (room.available == 0 || plan.total + SPARE <= room.available) &&
           plan.total - plan.weights <= room.allocatable - OWN_SPARE;
}

enum status engine_context(const struct backend_ops *ops, const struct weights *weights,
                           int32_t wanted, int32_t max_position_embeddings, int32_t *context,
                           struct error *error)
{
    struct planner planner = {ops, weights};
    enum status status = engine_check_context(wanted, max_position_embeddings, error);
    if (status == STATUS_OK)
        *context = wanted > 0
                       ? wanted
                       : engine_longest_context(max_position_embeddings, context_fits, &planner);
    return status;
}

static double gib(int64_t bytes)
{
    return (double)bytes / (1024.0 * 1024 * 1024);
}

void memory_plan_print(const struct memory_plan *plan, int32_t context, int n_sequences,
                       struct bytes *out)
{
    bytes_format(out,
                 "%.2f GiB for %d sequence%s of %d tokens: weights %.2f (mapped), KV cache %.2f, "
                 "state %.2f, workspace %.2f",
                 gib(plan->total), n_sequences, n_sequences == 1 ? "" : "s", context,
                 gib(plan->weights), gib(plan->kv_cache), gib(n_sequences * plan->state),
                 gib(plan->workspace));
}

enum status memory_plan_check_in(const struct memory_room *room, const struct memory_plan *plan,
                                 int32_t context, int n_sequences, struct error *error)
{
    int64_t allocated = plan->total - plan->weights; /* the weights stay in the mapped file */
    /* but are read for each token: from the disk, where the rest leaves no room for them */
    if ((room->physical == 0 || plan->total <= room->physical) &&
        (room->limit == 0 || plan->total <= room->limit) && plan->total <= room->address_space &&
        (room->available == 0 || allocated <= room->available) && allocated <= room->allocatable)
        return STATUS_OK;
    struct bytes figures = {0};
    memory_plan_print(plan, context, n_sequences, &figures);
    bytes_format(&figures, "; this machine has %.2f GiB", gib(room->physical));
    if (room->limit > 0)
        bytes_format(&figures, ", the control group allows %.2f", gib(room->limit));
    bytes_format(&figures, ", %.2f %s free", gib(room->available),
                 room->limit > 0 ? "are" : "of it");
    if (room->allocatable < INT64_MAX)
        bytes_format(&figures, ", ulimit leaves %.2f", gib(room->allocatable));
    const char *text = bytes_terminate(&figures);
    error_set(error, STATUS_NO_MEMORY, "memory: %s: choose a smaller context",
              text ? text : "the plan does not fit");
    bytes_clear(&figures);
    return STATUS_NO_MEMORY;
}

enum status memory_plan_check(const struct memory_plan *plan, int32_t context, int n_sequences,
                              struct error *error)
{
    const struct memory_room room = memory_look();
    return memory_plan_check_in(&room, plan, context, n_sequences, error);
}

enum status engine_plan(const struct weights *weights, int32_t n_valid_ids,
                        const struct engine_options *options, struct engine *engine,
                        struct error *error)
{
    if (n_valid_ids < 1 || n_valid_ids > weights->shape->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "tokenizer.json: found %d ids, wanted 1 to %d, the rows of the head",
                         n_valid_ids, weights->shape->vocab_size);
    *engine = (struct engine){
        .ops = options->ops,
        .options = {.weights = weights,
                    .n_valid_ids = n_valid_ids,
                    .context = options->context,
                    .n_sequences = options->n_sequences,
                    .kv_rows = options->kv_rows,
                    .threads = options->threads,
                    .cpu = options->cpu},
        .shape = weights->shape,
        .n_valid_ids = n_valid_ids,
    };
    engine->ops->plan(&engine->options, &engine->plan);
    return backend_check(options->ops, options->threads, options->cpu, error);
}

enum status engine_open(struct engine *engine, struct error *error)
{
    enum status status = memory_plan_check(&engine->plan, engine->options.context,
                                           engine->options.n_sequences, error);
    if (status != STATUS_OK)
        return status;
    return engine->ops->open(&engine->options, &engine->backend, error);
}

enum status engine_warm_up(struct engine *engine, struct error *error)
{
    struct backend *backend = engine->backend;
    struct sequence *sequence;
    struct ranked ranked;
    enum status status = backend->ops->sequence_new(backend, &sequence, error);
    if (status != STATUS_OK)
        return status;
    status = engine_decode(engine, sequence, 0, &ranked, error);
    backend->ops->sequence_free(backend, sequence);
    return status;
}

void engine_close(struct engine *engine)
{
    if (engine->backend)
        engine->backend->ops->close(engine->backend);
    engine->backend = NULL;
}

enum status engine_check_prompt(int32_t n, int32_t room, struct error *error)
{
    if (n < 1)
        return error_set(error, STATUS_INVALID, "the prompt is empty: wanted at least one token");
    if (n > room)
        return error_set(error, STATUS_CONTEXT,
                         "the prompt has %d tokens, the context has room for %d", n, room);
    return STATUS_OK;
}

enum status engine_prefill(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                           int32_t n, struct ranked *ranked, const struct prefill_watch *watch,
                           struct error *error)
{
    struct backend *backend = engine->backend;
    const struct interrupt interrupt = {.cancel = watch->cancel};
    enum status status = engine_check_prompt(n, sequence->capacity - sequence->position, error);
    for (int32_t read = 0; status == STATUS_OK && read < n;) {
        if (watch->progress)
            watch->progress(watch->context, read, n);
        int chunk = n - read < backend->limits.max_chunk ? n - read : backend->limits.max_chunk;
        status = backend->ops->prefill_chunk(backend, sequence, tokens + read, chunk, PREFILL_LAST,
                                             ranked, &interrupt, error);
        read += chunk;
    }
    if (status == STATUS_OK && watch->progress)
        watch->progress(watch->context, n, n);
    return status;
}

enum status engine_decode(struct engine *engine, struct sequence *sequence, int32_t token,
                          struct ranked *ranked, struct error *error)
{
    struct row row = {.sequence = sequence, .token = token};
    return engine->backend->ops->decode_step(engine->backend, &row, 1, ranked, error);
}
