#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/random.h"

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampling sampling;
    int32_t n_valid_ids;
    uint32_t *generated;          /* [n_valid_ids] how often */
    bool *in_prompt;              /* [n_valid_ids] */
    struct candidate *candidates; /* [max(n_valid_ids, RANKED_MAX)] */
    double *probabilities;        /* of the candidates, not normalised */
};

static bool has_penalties(const struct sampling *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || s->repetition_penalty != 1 ||
           s->n_logit_bias > 0;
}

enum status sampler_new(const struct sampling *sampling, int32_t n_valid_ids, struct sampler **out,
                        struct error *error)
{
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return error_no_memory(error, "the sampler");
    sampler->sampling = *sampling;
    sampler->n_valid_ids = n_valid_ids;
    size_t n = (size_t)(n_valid_ids > RANKED_MAX ? n_valid_ids : RANKED_MAX);
    sampler->generated = calloc(n, sizeof *sampler->generated);
    sampler->in_prompt = calloc(n, sizeof *sampler->in_prompt);
    sampler->candidates = malloc(n * sizeof *sampler->candidates);
    sampler->probabilities = malloc(n * sizeof *sampler->probabilities);
    if (!sampler->generated || !sampler->in_prompt || !sampler->candidates ||
        !sampler->probabilities) {
        sampler_free(sampler);
        return error_no_memory(error, "the sampler");
    }
    *out = sampler;
    return STATUS_OK;
}

void sampler_free(struct sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->generated);
    free(sampler->in_prompt);
    free(sampler->candidates);
    free(sampler->probabilities);
    free(sampler);
}

void sampler_add_prompt(struct sampler *sampler, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < sampler->n_valid_ids)
            sampler->in_prompt[ids[i]] = true;
}

void sampler_add_generated(struct sampler *sampler, int32_t id)
{
    if (id >= 0 && id < sampler->n_valid_ids)
        sampler->generated[id]++;
}

bool sampler_needs_logits(const struct sampler *sampler)
{
    const struct sampling *s = &sampler->sampling;
    if (has_penalties(s))
        return true;
    return s->temperature > 0 && (s->top_k <= 0 || s->top_k > RANKED_MAX);
}

static void apply_penalties(const struct sampler *sampler, float *logits)
{
    const struct sampling *s = &sampler->sampling;
    for (int i = 0; i < s->n_logit_bias; i++)
        if (s->logit_bias[i].id >= 0 && s->logit_bias[i].id < sampler->n_valid_ids)
            logits[s->logit_bias[i].id] += s->logit_bias[i].bias;
    for (int32_t id = 0; id < sampler->n_valid_ids; id++) {
        uint32_t count = sampler->generated[id];
        double logit = logits[id];
        if (count > 0 || sampler->in_prompt[id])
            logit = logit > 0 ? logit / s->repetition_penalty : logit * s->repetition_penalty;
        if (count > 0)
            logit -= s->presence_penalty + s->frequency_penalty * count;
        logits[id] = (float)logit;
    }
}

static int compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Fills candidates, best first; returns how many. */
static int gather(struct sampler *sampler, const struct ranked *ranked, float *logits)
{
    struct candidate *candidates = sampler->candidates;
    if (!logits) {
        for (int i = 0; i < ranked->n; i++)
            candidates[i] = (struct candidate){ranked->logit[i], ranked->id[i]};
        return ranked->n;
    }
    apply_penalties(sampler, logits);
    for (int32_t id = 0; id < sampler->n_valid_ids; id++)
        candidates[id] = (struct candidate){logits[id], id};
    if (sampler->sampling.temperature > 0) {
        qsort(candidates, (size_t)sampler->n_valid_ids, sizeof *candidates, compare_candidates);
        return sampler->n_valid_ids;
    }
    for (int32_t id = 1; id < sampler->n_valid_ids; id++)
        if (candidates[id].logit > candidates[0].logit)
            candidates[0] = candidates[id];
    return 1;
}

int32_t sampler_draw(struct sampler *sampler, const struct ranked *ranked, float *logits,
                     int64_t position)
{
    const struct sampling *s = &sampler->sampling;
    const struct candidate *candidates = sampler->candidates;
    double *p = sampler->probabilities, total = 0, kept = 0;
    int n = gather(sampler, ranked, logits);
    if (s->temperature <= 0)
        return candidates[0].id;
    if (s->top_k > 0 && n > s->top_k)
        n = s->top_k;
    for (int i = 0; i < n; i++) {
        p[i] = exp(((double)candidates[i].logit - (double)candidates[0].logit) / s->temperature);
        total += p[i];
    }
    int last = 0; /* candidates 0..last stay: at least one */
    kept = p[0];
    while (last + 1 < n && kept < s->top_p * total && p[last + 1] >= s->min_p)
        kept += p[++last];
    double left = random_uniform(s->seed, (uint64_t)position) * kept;
    for (int i = 0; i < last; i++) {
        left -= p[i];
        if (left < 0)
            return candidates[i].id;
    }
    return candidates[last].id;
}
