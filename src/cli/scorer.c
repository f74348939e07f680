#include "cli/scorer.h"

#include <stdlib.h>

enum status scorer_open(const struct model *model, const struct device_options *device,
                        int32_t context, struct scorer *scorer, struct error *error)
{
    *scorer = (struct scorer){0};
    struct engine *engine = &scorer->engine;
    struct engine_options engine_options = {.n_sequences = 1};
    enum status status = device_choose(device, &engine_options, error);
    if (status == STATUS_OK)
        status = engine_context(engine_options.ops, checkpoint_weights(model->checkpoint), context,
                                checkpoint_config(model->checkpoint)->max_position_embeddings,
                                &engine_options.context, error);
    if (status == STATUS_OK)
        status = engine_plan(checkpoint_weights(model->checkpoint),
                             tokenizer_size(model->tokenizer), &engine_options, engine, error);
    if (status == STATUS_OK)
        status = engine_open(engine, error);
    if (status != STATUS_OK)
        return status;
    struct backend *backend = engine->backend;
    const struct backend_limits *limits = &backend->limits;
    scorer->max_step = limits->max_rows < limits->max_chunk ? limits->max_rows : limits->max_chunk;
    scorer->ranked = malloc((size_t)scorer->max_step * sizeof *scorer->ranked);
    scorer->row = malloc((size_t)engine->shape->vocab_size * sizeof *scorer->row);
    if (!scorer->ranked || !scorer->row)
        return error_no_memory(error, "logits");
    return backend->ops->sequence_new(backend, &scorer->sequence, error);
}

void scorer_close(struct scorer *scorer)
{
    if (scorer->sequence)
        scorer->engine.backend->ops->sequence_free(scorer->engine.backend, scorer->sequence);
    free(scorer->ranked);
    free(scorer->row);
    engine_close(&scorer->engine);
    *scorer = (struct scorer){0};
}

void scorer_reset(struct scorer *scorer)
{
    scorer->engine.backend->ops->sequence_reset(scorer->engine.backend, scorer->sequence);
}

enum status scorer_step(struct scorer *scorer, const int32_t *ids, int n, struct error *error)
{
    struct backend *backend = scorer->engine.backend;
    return backend->ops->prefill_chunk(backend, scorer->sequence, ids, n, PREFILL_ALL,
                                       scorer->ranked, NULL, error);
}

enum status scorer_logits(struct scorer *scorer, int i, struct error *error)
{
    return scorer->engine.backend->ops->logits(scorer->engine.backend, i, scorer->row, error);
}

enum status scorer_nll(struct scorer *scorer, int i, int32_t id, double *nll, struct error *error)
{
    const struct ranked *ranked = &scorer->ranked[i];
    for (int rank = 0; rank < ranked->n; rank++)
        if (ranked->id[rank] == id) {
            *nll = (double)ranked->logsumexp - (double)ranked->logit[rank];
            return STATUS_OK;
        }
    enum status status = scorer_logits(scorer, i, error);
    if (status == STATUS_OK)
        *nll = (double)ranked->logsumexp - (double)scorer->row[id];
    return status;
}
