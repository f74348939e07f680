#include "engine/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct generation {
    struct engine *engine;
    struct generation_options options;
    struct generation_figures figures;
    enum generation_phase phase;
    enum generation_end end;
    struct error error;

    struct prefix_cache *cache;
    struct sequence *sequence; /* while it reads and decodes */
    struct sampler *sampler;
    int32_t *tokens; /* [room] prompt and what was generated */
    int32_t n, room;
    int32_t limit;       /* tokens to generate at most */
    int32_t known;       /* tokens of the prompt whose logprobs were given out */
    float *logits;       /* [vocab_size], scratch */
    struct ranked *rows; /* [max_rows], where the prompt's logprobs are wanted */
};

/* ---- life ------------------------------------------------------------------------------------ */

static bool append(struct generation *g, int32_t token)
{
    if (g->n == g->room) {
        int32_t room = g->room + g->room / 2 + 64;
        int32_t *tokens = realloc(g->tokens, (size_t)room * sizeof *tokens);
        if (!tokens)
            return false;
        g->tokens = tokens;
        g->room = room;
    }
    g->tokens[g->n++] = token;
    return true;
}

enum status generation_new(struct engine *engine, const struct generation_options *options,
                           struct generation **out, struct error *error)
{
    int32_t context = engine->options.context, n = options->n_prompt;
    *out = NULL;
    enum status status = engine_check_prompt(n, context, error);
    if (status != STATUS_OK)
        return status;
    if (options->n_top > TOP_MAX || (options->prompt_logprobs && options->n_top < 0))
        return error_set(error, STATUS_INVALID, "alternatives: found %d, wanted %d to %d",
                         options->n_top, options->prompt_logprobs ? 0 : -1, TOP_MAX);
    struct generation *g = calloc(1, sizeof *g);
    if (!g)
        return error_no_memory(error, "a generation");
    *g = (struct generation){.engine = engine, .options = *options, .n = n, .room = n};
    g->tokens = malloc((size_t)n * sizeof *g->tokens);
    if (!g->tokens) {
        free(g);
        return error_no_memory(error, "a generation");
    }
    memcpy(g->tokens, options->prompt, (size_t)n * sizeof *g->tokens);
    g->options.prompt = NULL;
    shared_hold(g->options.owner);
    g->figures.prompt = n;
    g->limit = context - n;
    if (options->max_tokens >= 0 && options->max_tokens < g->limit)
        g->limit = options->max_tokens;
    *out = g;
    return STATUS_OK;
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    sampler_free(g->sampler);
    free(g->tokens);
    free(g->logits);
    free(g->rows);
    shared_release(g->options.owner);
    free(g);
}

enum generation_phase generation_phase(const struct generation *g)
{
    return g->phase;
}

enum generation_end generation_end(const struct generation *g)
{
    return g->end;
}

const struct error *generation_error(const struct generation *g)
{
    return &g->error;
}

const struct generation_figures *generation_figures(const struct generation *g)
{
    return &g->figures;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void finish(struct generation *g, enum generation_end end)
{
    if (g->phase == GENERATION_ENDED)
        return;
    g->phase = GENERATION_ENDED;
    g->end = end;
    g->figures.end = clock_seconds();
}

void generation_stop(struct generation *g, const struct error *error)
{
    if (error && g->phase != GENERATION_ENDED)
        g->error = *error;
    finish(g, error ? GENERATION_FAILED : GENERATION_CANCELLED);
}

/* Ends by a failed call whose error is in `error`, if that is given. */
static enum status fail(struct generation *g, enum status status, const struct error *problem,
                        struct error *error)
{
    generation_stop(g, status == STATUS_CANCELLED ? NULL : problem);
    if (error)
        *error = *problem;
    return status;
}

struct sequence *generation_finish(struct generation *g)
{
    struct sequence *sequence = g->sequence;
    if (sequence && !sequence->broken && sequence->position > g->figures.prompt)
        prefix_cache_save(g->cache, sequence, g->tokens, PREFIX_END);
    if (sequence && !sequence->broken)
        prefix_cache_store(g->cache, g->tokens, sequence->position);
    g->sequence = NULL;
    return sequence;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static bool is_stop(const struct generation *g, int32_t token)
{
    for (int i = 0; i < g->options.n_stop_ids; i++)
        if (g->options.stop_ids[i] == token)
            return true;
    return false;
}

static enum status read_logits(struct generation *g, int i, struct error *error)
{
    struct backend *backend = g->engine->backend;
    if (!g->logits)
        g->logits = malloc((size_t)g->engine->shape->vocab_size * sizeof *g->logits);
    return g->logits ? backend->ops->logits(backend, i, g->logits, error)
                     : error_no_memory(error, "the logits");
}

/* Stop ids may be a client's: any numbers. */
static void forbid_stops(struct generation *g)
{
    for (int i = 0; i < g->options.n_stop_ids; i++)
        if (g->options.stop_ids[i] >= 0 && g->options.stop_ids[i] < g->engine->n_valid_ids)
            g->logits[g->options.stop_ids[i]] = -INFINITY;
}

/* Draws from all logits, those left out that may not come now. */
static enum status draw_masked(struct generation *g, int i, bool mask, int32_t *token,
                               struct error *error)
{
    enum status status = read_logits(g, i, error);
    if (status != STATUS_OK)
        return status;
    if (mask)
        g->options.guide->mask(g->options.guide->context, g->logits, g->engine->n_valid_ids);
    if (g->figures.generated < g->options.min_tokens)
        forbid_stops(g);
    *token = sampler_draw(g->sampler, g->logits, g->sequence->position);
    return STATUS_OK;
}

static enum status draw(struct generation *g, const struct ranked *ranked, int i, int32_t *token,
                        struct error *error)
{
    const struct guide *guide = g->options.guide;
    int32_t next = guide ? guide->next(guide->context) : GUIDE_FREE;
    *token = next;
    if (next >= 0)
        return STATUS_OK;
    if (next == GUIDE_FREE && g->figures.generated >= g->options.min_tokens) {
        *token = sampler_draw_ranked(g->sampler, ranked, g->sequence->position);
        if (*token >= 0)
            return STATUS_OK;
    }
    return draw_masked(g, i, next == GUIDE_MASK, token, error);
}

/* Fills the logprobs of a token from the step's output i. */
static enum status fill_logprobs(struct generation *g, const struct ranked *ranked, int i,
                                 struct generated *out, struct error *error)
{
    out->n_top = g->options.n_top < ranked->n ? g->options.n_top : ranked->n;
    for (int k = 0; k < out->n_top; k++) {
        out->top[k].token = ranked->id[k];
        out->top[k].logprob = ranked->logit[k] - ranked->logsumexp;
    }
    for (int k = 0; k < ranked->n; k++)
        if (ranked->id[k] == out->token) {
            out->logprob = ranked->logit[k] - ranked->logsumexp;
            return STATUS_OK;
        }
    enum status status = read_logits(g, i, error);
    if (status == STATUS_OK)
        out->logprob = g->logits[out->token] - ranked->logsumexp;
    return status;
}

static enum status draw_and_emit(struct generation *g, const struct ranked *ranked, int i,
                                 struct error *error)
{
    struct generated out = {.n_top = -1};
    enum status status = draw(g, ranked, i, &out.token, error);
    if (status == STATUS_OK && g->options.n_top >= 0)
        status = fill_logprobs(g, ranked, i, &out, error);
    if (status == STATUS_OK && !append(g, out.token))
        status = error_no_memory(error, "the answer");
    if (status != STATUS_OK)
        return status;
    const struct guide *guide = g->options.guide;
    sampler_add_generated(g->sampler, out.token);
    if (guide)
        guide->add(guide->context, out.token);
    if (g->figures.generated++ == 0)
        g->figures.first = clock_seconds();
    out.stops = is_stop(g, out.token);
    g->options.emit(g->options.context, &out);
    if (out.stops)
        finish(g, GENERATION_STOPPED);
    else if (g->figures.generated == g->limit)
        finish(g, GENERATION_LENGTH);
    else
        g->phase = GENERATION_DECODING;
    return STATUS_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum status prepare(struct generation *g, struct error *error)
{
    if (!g->sampler) {
        enum status status =
            sampler_new(&g->options.sampling, g->engine->n_valid_ids, &g->sampler, error);
        if (status != STATUS_OK)
            return status;
        sampler_add_prompt(g->sampler, g->tokens, g->figures.prompt);
    }
    if (g->options.prompt_logprobs && !g->rows)
        g->rows = malloc((size_t)g->engine->backend->limits.max_rows * sizeof *g->rows);
    return g->options.prompt_logprobs && !g->rows ? error_no_memory(error, "the logprobs")
                                                  : STATUS_OK;
}

/* Tokens to read before decoding goes on: the last generated one is read by a decode step. */
static int32_t reading_end(const struct generation *g)
{
    return g->figures.generated > 0 ? g->n - 1 : g->n;
}

void generation_start(struct generation *g, struct prefix_cache *cache, struct sequence *sequence)
{
    struct error error;
    g->cache = cache;
    g->sequence = sequence;
    if (g->phase == GENERATION_ENDED)
        return;
    g->phase = GENERATION_READING;
    if (g->figures.started == 0)
        g->figures.started = clock_seconds();
    if (prepare(g, &error) != STATUS_OK) {
        generation_stop(g, &error);
        return;
    }
    if (g->rows && g->known < g->figures.prompt) { /* each position's candidates are wanted */
        struct backend *backend = g->engine->backend;
        backend->ops->sequence_reset(backend, sequence);
        return;
    }
    int32_t cached = prefix_cache_begin(cache, sequence, g->tokens, g->n);
    if (g->figures.suspended == 0)
        g->figures.cached = cached;
    if (cached == reading_end(g)) /* another one left all that this one had read */
        g->phase = GENERATION_DECODING;
}

struct sequence *generation_suspend(struct generation *g)
{
    struct sequence *sequence = g->sequence;
    g->sequence = NULL;
    if (g->phase != GENERATION_ENDED)
        g->phase = GENERATION_WAITING;
    g->figures.suspended++;
    return sequence;
}

/* The logprobs of the prompt's tokens that the chunk before `end` foretells. */
static enum status emit_prompt(struct generation *g, int32_t from, int32_t n, struct error *error)
{
    enum status status = STATUS_OK;
    if (g->known == 0) {
        const struct generated first = {.token = g->tokens[0], .in_prompt = true, .n_top = -1};
        g->options.emit(g->options.context, &first);
        g->known = 1;
    }
    for (int32_t i = 0; i < n && status == STATUS_OK && from + i + 1 < g->figures.prompt; i++) {
        if (from + i + 1 < g->known)
            continue;
        struct generated out = {.token = g->tokens[from + i + 1], .in_prompt = true};
        status = fill_logprobs(g, &g->rows[i], i, &out, error);
        if (status == STATUS_OK) {
            g->options.emit(g->options.context, &out);
            g->known = from + i + 2;
        }
    }
    return status;
}

bool generation_has_paused(const struct generation *g)
{
    return g->sequence && g->sequence->paused > 0;
}

/* Where the next chunk ends, which is to be of n tokens at most. */
static int32_t chunk_end(const struct generation *g, int32_t n)
{
    const struct backend_limits *limits = &g->engine->backend->limits;
    int32_t at = g->sequence->position, end = reading_end(g), most = limits->max_chunk;
    if (generation_has_paused(g))
        return at + g->sequence->paused;
    if (g->rows && limits->max_rows < most)
        most = limits->max_rows;
    most = n < most ? n : most;
    return prefix_cache_next_stop(g->cache, at, end - at > most ? at + most : end,
                                  &g->options.places);
}

enum status generation_read(struct generation *g, int32_t n, const struct interrupt *interrupt,
                            struct error *error)
{
    struct backend *backend = g->engine->backend;
    struct error problem;
    struct ranked last, *ranked = &last;
    int32_t at = g->sequence->position, end = chunk_end(g, n);
    if (g->rows)
        ranked = g->rows;
    enum status status = prefix_cache_reserve(g->cache, g->sequence, end, &problem);
    if (status == STATUS_BUSY) {
        if (error)
            *error = problem;
        return status;
    }
    if (status == STATUS_OK)
        status = backend->ops->prefill_chunk(backend, g->sequence, g->tokens + at, end - at,
                                             g->rows ? PREFILL_ALL : PREFILL_LAST, ranked,
                                             interrupt, &problem);
    if (status == STATUS_OK && generation_has_paused(g))
        return status;
    if (status == STATUS_OK && g->rows)
        status = emit_prompt(g, at, end - at, &problem);
    if (status != STATUS_OK)
        return fail(g, status, &problem, error);
    g->figures.read += end - at;
    prefix_cache_save_at(g->cache, g->sequence, g->tokens, &g->options.places);
    if (end < reading_end(g))
        return STATUS_OK;
    if (g->figures.generated > 0) { /* it goes on after a break */
        g->phase = GENERATION_DECODING;
        return STATUS_OK;
    }
    if (g->limit == 0) {
        finish(g, GENERATION_LENGTH);
        return STATUS_OK;
    }
    const int output = g->rows ? end - at - 1 : 0;
    status = draw_and_emit(g, &ranked[output], output, &problem);
    return status == STATUS_OK ? status : fail(g, status, &problem, error);
}

/* ---- decoding -------------------------------------------------------------------------------- */

enum status generation_row(struct generation *g, struct row *row, struct error *error)
{
    *row = (struct row){.sequence = g->sequence, .token = g->tokens[g->n - 1]};
    struct error problem;
    enum status status =
        prefix_cache_reserve(g->cache, g->sequence, g->sequence->position + 1, &problem);
    if (status == STATUS_BUSY && error)
        *error = problem;
    return status == STATUS_OK || status == STATUS_BUSY ? status : fail(g, status, &problem, error);
}

void generation_take(struct generation *g, const struct ranked *ranked, int i)
{
    struct error problem;
    if (draw_and_emit(g, ranked, i, &problem) != STATUS_OK)
        generation_stop(g, &problem);
}
