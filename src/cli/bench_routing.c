/* How many experts some tokens choose: synthetic weights must spread over them as real ones do. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

struct routing {
    struct probe probe;
    const struct shape *shape;
    bool *chosen; /* [layers][experts] */
    bool bad;     /* a tensor of another form came */
};

/* Marks the best k of a row; equal logits go to the lower expert. */
static void mark_best(const struct shape *shape, const float *logits, bool *chosen)
{
    int best[MAX_EXPERTS_PER_TOK], n = 0;
    for (int expert = 0; expert < shape->num_experts; expert++) {
        int at = n;
        while (at > 0 && logits[expert] > logits[best[at - 1]])
            at--;
        if (at == shape->num_experts_per_tok)
            continue;
        n += n < shape->num_experts_per_tok;
        memmove(best + at + 1, best + at, (size_t)(n - 1 - at) * sizeof *best);
        best[at] = expert;
    }
    for (int i = 0; i < n; i++)
        chosen[best[i]] = true;
}

static void see_tensor(void *context, const char *name, const float *values, int64_t rows,
                       int64_t columns)
{
    struct routing *routing = context;
    char *end;
    if (strncmp(name, "layer.", 6) != 0)
        return;
    long layer = strtol(name + 6, &end, 10);
    if (strcmp(end, ".router") != 0)
        return;
    if (layer < 0 || layer >= routing->shape->num_hidden_layers ||
        columns != routing->shape->num_experts) {
        routing->bad = true;
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        mark_best(routing->shape, values + row * columns, routing->chosen + layer * columns);
}

static void count(const struct routing *routing, int n_tokens, struct bench_routing *out)
{
    int layers = routing->shape->num_hidden_layers, experts = routing->shape->num_experts;
    *out = (struct bench_routing){.tokens = n_tokens, .n_experts = experts, .least = experts};
    int sum = 0;
    for (int layer = 0; layer < layers; layer++) {
        int n = 0;
        for (int i = 0; i < experts; i++)
            n += routing->chosen[layer * experts + i];
        out->least = n < out->least ? n : out->least;
        out->most = n > out->most ? n : out->most;
        sum += n;
    }
    out->mean = (double)sum / layers;
}

enum status bench_count_experts(struct bench *bench, int n_tokens, struct bench_routing *out,
                                struct error *error)
{
    struct backend *backend = bench->engine.backend;
    const struct shape *shape = bench->engine.shape;
    struct routing routing = {.shape = shape};
    *out = (struct bench_routing){0};
    bool watch = backend->ops->set_probe;
    routing.chosen =
        calloc((size_t)shape->num_hidden_layers * (size_t)shape->num_experts, sizeof(bool));
    if (!routing.chosen)
        return error_no_memory(error, "experts");
    for (int32_t i = 0; i < n_tokens; i++)
        bench->tokens[i] = bench_token(bench, 0, i);
    routing.probe = (struct probe){see_tensor, &routing};
    if (watch)
        backend->ops->set_probe(backend, &routing.probe);
    backend->ops->sequence_reset(backend, bench->sequences[0]);
    const struct prefill_watch nobody = {0};
    enum status status = engine_prefill(&bench->engine, bench->sequences[0], bench->tokens,
                                        n_tokens, bench->ranked, &nobody, error);
    if (watch)
        backend->ops->set_probe(backend, NULL);
    if (status == STATUS_OK && watch && !routing.bad)
        count(&routing, n_tokens, out);
    free(routing.chosen);
    return status;
}
