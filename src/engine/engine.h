/* A backend opened on a checkpoint with a memory plan that fits, and the loop that turns a prompt
 * into tokens. One thread drives an engine; only cancel flags are set from elsewhere. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/memory.h"

struct engine_options {
    const struct backend_ops *ops; /* from backend_find */
    int32_t context;               /* tokens per sequence, from engine_context */
    int n_sequences;
    int64_t kv_rows; /* see struct backend_options */
    int threads;     /* the same */
    const char *cpu; /* the same */
};

struct engine {
    struct backend *backend; /* NULL until opened */
    const struct backend_ops *ops;
    struct backend_options options;
    struct memory_plan plan;
    const struct shape *shape;
    int32_t n_valid_ids;
};

#define CONTEXT_STEP 1024 /* a context found by looking is a multiple of this */
#define LEAST_CONTEXT 4096

/* Whether `wanted` is 0 or within the model's own limit. */
enum status engine_check_context(int32_t wanted, int32_t max_position_embeddings,
                                 struct error *error);
/* The longest context up to `most` that fits; LEAST_CONTEXT is taken even where it does not. */
int32_t engine_longest_context(int32_t most, bool (*fits)(void *context, int32_t tokens),
                               void *context);
/* The context of one sequence: `wanted`, checked against the model's own limit, or for 0 the
 * longest that fits into this machine's free memory with some to spare. */
enum status engine_context(const struct backend_ops *ops, const struct weights *weights,
                           int32_t wanted, int32_t max_position_embeddings, int32_t *context,
                           struct error *error);
/* Plans the memory; allocates nothing. `weights` is borrowed. */
enum status engine_plan(const struct weights *weights, int32_t n_valid_ids,
                        const struct engine_options *options, struct engine *engine,
                        struct error *error);
/* Opens the backend of a planned engine, unless the plan cannot fit. */
enum status engine_open(struct engine *engine, struct error *error);
/* Reads one token into a sequence of its own, so that the first request finds everything touched.
 */
enum status engine_warm_up(struct engine *engine, struct error *error);
void engine_close(struct engine *engine);
/* The plan's figures in one line. */
void memory_plan_print(const struct memory_plan *plan, int32_t context, int n_sequences,
                       struct bytes *out);
/* Whether a plan fits the machine, its control group and the process's own limits, the weights
 * being mapped already; else STATUS_NO_MEMORY with the plan's figures. */
enum status memory_plan_check(const struct memory_plan *plan, int32_t context, int n_sequences,
                              struct error *error);
/* The same for any room. */
enum status memory_plan_check_in(const struct memory_room *room, const struct memory_plan *plan,
                                 int32_t context, int n_sequences, struct error *error);

/* Who looks at a long prefill from outside; both may be NULL. */
struct prefill_watch {
    const atomic_bool *cancel;
    void (*progress)(void *context, int32_t read,
                     int32_t total); /* before, between, after chunks */
    void *context;
};

/* Whether a prompt of n tokens can be read where `room` more tokens fit. */
enum status engine_check_prompt(int32_t n, int32_t room, struct error *error);
/* Reads a prompt in chunks as large as the backend takes them. `ranked` gets the last token's
 * candidates. */
enum status engine_prefill(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                           int32_t n, struct ranked *ranked, const struct prefill_watch *watch,
                           struct error *error);
/* Reads one generated token. */
enum status engine_decode(struct engine *engine, struct sequence *sequence, int32_t token,
                          struct ranked *ranked, struct error *error);
