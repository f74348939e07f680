#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/random.h"

#define SELECT_MAX 256 /* candidates that are kept in order by insertion */

struct candidate {
    float logit;
    int32_t id;
    double weight; /* probability, not normalised: 1 for the best one */
};

struct sampler {
    struct sampling sampling;
    int32_t n_valid_ids;
    uint32_t *generated;          /* [n_valid_ids] how often */
    bool *in_prompt;              /* [n_valid_ids] */
    struct candidate *candidates; /* [max(n_valid_ids, RANKED_MAX)] */
};

/* Whether an id may end with a larger logit than it came with. */
static bool may_raise(const struct sampling *s)
{
    for (int i = 0; i < s->n_logit_bias; i++)
        if (s->logit_bias[i].bias > 0)
            return true;
    return s->presence_penalty < 0 || s->frequency_penalty < 0 || s->repetition_penalty < 1;
}

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
    if (!sampler->generated || !sampler->in_prompt || !sampler->candidates) {
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

/* An id's logit after the penalties. */
static float penalised(const struct sampler *sampler, int32_t id, double logit)
{
    const struct sampling *s = &sampler->sampling;
    uint32_t count = sampler->generated[id];
    if (count > 0 || sampler->in_prompt[id])
        logit = logit > 0 ? logit / s->repetition_penalty : logit * s->repetition_penalty;
    if (count > 0)
        logit -= s->presence_penalty + s->frequency_penalty * count;
    return (float)logit;
}

static int compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* The step's candidates, best first, as far as no other id can come before or among them; gives
 * their number. An id that is not among them had at most the last one's logit. */
static int gather_ranked(struct sampler *sampler, const struct ranked *ranked)
{
    const struct sampling *s = &sampler->sampling;
    struct candidate *candidates = sampler->candidates;
    float bound = ranked->logit[ranked->n - 1];
    int sure = ranked->n;
    for (int i = 0; i < ranked->n; i++)
        candidates[i] = (struct candidate){ranked->logit[i], ranked->id[i], 0};
    if (!has_penalties(s))
        return ranked->n;
    if (may_raise(s))
        return 0;
    for (int i = 0; i < ranked->n; i++) {
        struct candidate *candidate = &candidates[i];
        for (int bias = 0; bias < s->n_logit_bias; bias++)
            if (s->logit_bias[bias].id == candidate->id)
                candidate->logit += s->logit_bias[bias].bias;
        candidate->logit = penalised(sampler, candidate->id, (double)candidate->logit);
    }
    qsort(candidates, (size_t)ranked->n, sizeof *candidates, compare_candidates);
    while (ranked->n < sampler->n_valid_ids && sure > 0 && !(candidates[sure - 1].logit > bound))
        sure--;
    return sure;
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate old = *a;
    *a = *b;
    *b = old;
}

/* Splits candidates [n > 0] in two: those before one of them, which is the middle one of three, and
 * those after it. Gives that one's place. */
static int32_t split(struct candidate *candidates, int32_t n)
{
    struct candidate *first = candidates, *middle = candidates + n / 2, *last = candidates + n - 1;
    int32_t better = 0;
    if (compare_candidates(middle, first) < 0)
        swap(middle, first);
    if (compare_candidates(last, middle) < 0)
        swap(last, middle);
    if (compare_candidates(middle, first) < 0)
        swap(middle, first);
    swap(middle, last); /* out of the way */
    for (int32_t i = 0; i < n - 1; i++)
        if (compare_candidates(&candidates[i], last) < 0)
            swap(&candidates[i], &candidates[better++]);
    swap(&candidates[better], last);
    return better;
}

/* Moves the fewest of n candidates to the front, the best ones, whose weights come to `wanted`;
 * gives their number: at least one, all where they don't come to it. In no order; about 3 n
 * steps. */
static int32_t select_weight(struct candidate *candidates, int32_t n, double wanted)
{
    int32_t from = 0; /* those before it are chosen, those from n on are not */
    double chosen = 0;
    while (from < n) {
        int32_t at = from + split(candidates + from, n - from);
        double weight = chosen;
        for (int32_t i = from; i < at; i++)
            weight += candidates[i].weight;
        if (weight >= wanted && at > from) {
            n = at;
            continue;
        }
        chosen = weight + candidates[at].weight;
        from = at + 1;
        if (chosen >= wanted)
            return from;
    }
    return n;
}

/* Moves the best k of n candidates to the front and sorts them. */
static void select_best(struct candidate *candidates, int32_t n, int32_t k)
{
    if (k > SELECT_MAX) {
        for (int32_t i = 0; i < n; i++)
            candidates[i].weight = 1;
        n = select_weight(candidates, n, k);
    }
    qsort(candidates, (size_t)k, sizeof *candidates, compare_candidates);
    for (int32_t i = k; i < n; i++) {
        struct candidate next = candidates[i];
        if (compare_candidates(&next, &candidates[k - 1]) > 0)
            continue;
        int32_t at = k - 1;
        candidates[i] = candidates[at];
        for (; at > 0 && compare_candidates(&next, &candidates[at - 1]) < 0; at--)
            candidates[at] = candidates[at - 1];
        candidates[at] = next;
    }
}

/* How many candidates the draw looks at; 0: all, in no order. */
static int32_t wanted(const struct sampler *sampler)
{
    const struct sampling *s = &sampler->sampling;
    return s->temperature <= 0 ? 1 : s->top_k > 0 && s->top_k < sampler->n_valid_ids ? s->top_k : 0;
}

/* Sets the weights of n candidates; gives their sum. */
static double weigh(const struct sampler *sampler, int32_t n, float best)
{
    double total = 0;
    for (int32_t i = 0; i < n; i++) {
        struct candidate *candidate = &sampler->candidates[i];
        candidate->weight =
            exp(((double)candidate->logit - (double)best) / sampler->sampling.temperature);
        total += candidate->weight;
    }
    return total;
}

/* One of the first n candidates, whose weights come to `total`, in the order they stand in. */
static int32_t pick(const struct sampler *sampler, int32_t n, double total, int64_t position)
{
    const struct candidate *candidates = sampler->candidates;
    double left = random_uniform(sampler->sampling.seed, (uint64_t)position) * total;
    for (int32_t i = 0; i < n - 1; i++) {
        left -= candidates[i].weight;
        if (left < 0)
            return candidates[i].id;
    }
    return candidates[n - 1].id;
}

/* Draws from the first n candidates, which are sorted. */
static int32_t draw_sorted(struct sampler *sampler, int32_t n, int64_t position)
{
    const struct sampling *s = &sampler->sampling;
    const struct candidate *candidates = sampler->candidates;
    if (s->temperature <= 0)
        return candidates[0].id;
    double total = weigh(sampler, n, candidates[0].logit), kept = candidates[0].weight;
    int32_t last = 0; /* candidates 0..last stay: at least one */
    while (last + 1 < n && kept < s->top_p * total && candidates[last + 1].weight >= s->min_p)
        kept += candidates[++last].weight;
    return pick(sampler, last + 1, kept, position);
}

/* Draws from all n candidates, which are in no order: sorting a vocabulary costs tens of ms. */
static int32_t draw_all(struct sampler *sampler, int32_t n, int64_t position)
{
    const struct sampling *s = &sampler->sampling;
    struct candidate *candidates = sampler->candidates;
    int32_t best = 0, kept = 0;
    for (int32_t i = 1; i < n; i++)
        if (compare_candidates(&candidates[i], &candidates[best]) < 0)
            best = i;
    double total = weigh(sampler, n, candidates[best].logit), sum = 0;
    swap(&candidates[0], &candidates[best]); /* is kept, whatever min_p says */
    for (int32_t i = 0; i < n; i++)
        if (i == 0 || candidates[i].weight >= s->min_p)
            swap(&candidates[i], &candidates[kept++]);
    if (s->top_p < 1)
        kept = select_weight(candidates, kept, s->top_p * total);
    for (int32_t i = 0; i < kept; i++)
        sum += candidates[i].weight;
    return pick(sampler, kept, sum, position);
}

int32_t sampler_draw_ranked(struct sampler *sampler, const struct ranked *ranked, int64_t position)
{
    int32_t n = wanted(sampler);
    if (n == 0 || gather_ranked(sampler, ranked) < n)
        return -1;
    return draw_sorted(sampler, n, position);
}

int32_t sampler_draw(struct sampler *sampler, const float *logits, int64_t position)
{
    const struct sampling *s = &sampler->sampling;
    struct candidate *candidates = sampler->candidates;
    int32_t n = wanted(sampler);
    for (int32_t id = 0; id < sampler->n_valid_ids; id++)
        candidates[id] = (struct candidate){logits[id], id, 0};
    for (int i = 0; i < s->n_logit_bias; i++)
        if (s->logit_bias[i].id >= 0 && s->logit_bias[i].id < sampler->n_valid_ids)
            candidates[s->logit_bias[i].id].logit += s->logit_bias[i].bias;
    if (has_penalties(s))
        for (int32_t id = 0; id < sampler->n_valid_ids; id++)
            candidates[id].logit = penalised(sampler, id, (double)candidates[id].logit);
    if (n == 0)
        return draw_all(sampler, sampler->n_valid_ids, position);
    select_best(candidates, sampler->n_valid_ids, n);
    return draw_sorted(sampler, n, position);
}
