/* One prompt read and continued, a bounded step at a time, so that a scheduler can run many side by
 * side and the library one in a loop:
 *
 *   generation_new, generation_start; while generation_phase is
 *     GENERATION_READING:  generation_read, one chunk of the prompt
 *     GENERATION_DECODING: a decode step for generation_row, then generation_take
 *
 * It reads through the prefix cache: what an earlier prompt left there is not read again, and the
 * places of this one are kept. generation_suspend gives the sequence back in between; after the
 * next generation_start everything is read again as far as the cache does not know it.
 *
 * A token is drawn from the candidates of the step before it, at the sequence's position; so seed,
 * prompt and options decide the tokens, not what runs beside. */
#pragma once

#include "base/shared.h"
#include "engine/guide.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"

#define TOP_MAX 20 /* alternatives shown with a token */

/* One token that was generated, or one of the prompt where its logprobs are wanted. */
struct generated {
    int32_t token;
    bool in_prompt;
    bool stops;    /* one of the stop ids: the last token */
    float logprob; /* natural logarithm, of the model's own distribution; with n_top >= 0 */
    int n_top;     /* -1: no logprobs wanted; in_prompt: -1 for the first token, which has none */
    struct {
        int32_t token;
        float logprob;
    } top[TOP_MAX]; /* best first */
};

enum generation_end {
    GENERATION_STOPPED, /* by one of the stop ids, which was given out */
    GENERATION_LENGTH,  /* max_tokens, or the end of the context */
    GENERATION_FAILED,  /* see generation_error */
    GENERATION_CANCELLED,
};

struct generation_options {
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;      /* 1..context */
    struct prefix_places places;
    struct sampling sampling; /* its logit_bias is borrowed for the generation's life */
    int32_t max_tokens;       /* -1: to the end of the context */
    int32_t min_tokens;       /* no stop id before as many */
    const int32_t *stop_ids;  /* [n_stop_ids], borrowed likewise */
    int n_stop_ids;
    int n_top;                 /* -1: no logprobs; else 0..TOP_MAX alternatives */
    bool prompt_logprobs;      /* also of the prompt, which is read whole then; wants n_top >= 0 */
    const struct guide *guide; /* borrowed; NULL: none */
    struct shared *owner;      /* of what is borrowed, held as long; NULL: it stays anyway */
    /* Gets each token as soon as it is known. */
    void (*emit)(void *context, const struct generated *generated);
    void *context;
};

enum generation_phase {
    GENERATION_WAITING,
    GENERATION_READING,
    GENERATION_DECODING,
    GENERATION_ENDED
};

/* What was done so far; times are of the clock of base/clock. */
struct generation_figures {
    int32_t prompt, cached, read; /* tokens of the prompt: all, from the cache, read since then */
    int32_t generated;
    int32_t suspended;          /* times that it lost its place */
    double started, first, end; /* reading began, the first token was drawn, the last was */
};

struct generation;

/* Checks the options and copies them; touches no backend. STATUS_CONTEXT for a prompt that is
 * longer than the context. */
enum status generation_new(struct engine *engine, const struct generation_options *options,
                           struct generation **out, struct error *error);
/* Needs no sequence any more: one that still has it must be suspended or ended before. */
void generation_free(struct generation *generation);

enum generation_phase generation_phase(const struct generation *generation);
enum generation_end generation_end(const struct generation *generation);
const struct error *generation_error(const struct generation *generation);
const struct generation_figures *generation_figures(const struct generation *generation);

/* Takes a sequence, in whatever condition, which is borrowed until the generation is suspended or
 * ended. */
void generation_start(struct generation *generation, struct prefix_cache *cache,
                      struct sequence *sequence);
/* Gives the sequence back; the generation waits. */
struct sequence *generation_suspend(struct generation *generation);
/* Reads at most n tokens, fewer up to the next place, and draws the first token when the prompt is
 * whole. `interrupt` may be NULL; a chunk that paused goes on in the next call, whatever its n.
 * STATUS_BUSY: the pool lacks rows, nothing has changed. Any other failure ends the generation;
 * STATUS_OK does not mean that it has not ended. */
enum status generation_read(struct generation *generation, int32_t n,
                            const struct interrupt *interrupt, struct error *error);
bool generation_has_paused(const struct generation *generation);
/* The row of the next decode step. STATUS_BUSY as above. */
enum status generation_row(struct generation *generation, struct row *row, struct error *error);
/* After that step: draws from its output i. */
void generation_take(struct generation *generation, const struct ranked *ranked, int i);
/* Ends it by force: GENERATION_CANCELLED, or GENERATION_FAILED with an error. */
void generation_stop(struct generation *generation, const struct error *error);
/* After the end: keeps what was read in the cache and gives the sequence back, if it has one. */
struct sequence *generation_finish(struct generation *generation);
