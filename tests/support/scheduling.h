/* For tests of the scheduler: an engine with one, jobs whose answers are known, and a gate in which
 * the engine's thread waits. */
#pragma once

#include "engine/scheduler.h"
#include "support/hashed.h"

#define CONTEXT 1024
#define MOST 64 /* tokens generated in these tests */

extern struct engine engine;
extern struct prefix_cache *cache;
extern struct scheduler *scheduler;

struct set_up {
    const struct backend_ops *ops; /* NULL: hashed */
    int parallel, queue, mailbox;  /* 0: 4, 100, MOST */
    int64_t kv_rows, budget;
    double seconds; /* of a chunk; 0: chunks are cut by length alone */
    int slices;     /* of hashed's chunks */
};

void open_engine(struct engine *opened, const struct backend_ops *ops, int n, int64_t kv_rows);
void open_scheduler(struct set_up with);
struct scheduler_figures figures(void);
/* Whatever happened, nothing may be left. */
void close_scheduler(double grace);

/* For hashed.on_step: holds the engine's thread inside a step while the gate is closed, so that
 * tests know where it is. */
enum status wait_at_gate(const struct row *rows, int n, bool prefill, bool *broken);
void set_gate(bool closed);
void wait_until_held(void);

/* A prompt of n tokens that `seed` decides. */
void fill_prompt(int32_t *prompt, int seed, int32_t n);
struct generation_options options_for(const int32_t *prompt, int32_t n, int32_t max_tokens);
struct job *submit(int seed, int32_t n, int32_t max_tokens);

struct result {
    int32_t tokens[MOST];
    int n;
    struct job_news news;
};

/* Waits for the end of a job and frees it. */
struct result finish(struct job *job);
/* Waits for a phase without taking tokens. */
void wait_for_phase(struct job *job, enum job_phase phase);
/* That it ended with `wanted` tokens, the right ones. */
void assert_answer(const struct result *result, int seed, int32_t n_prompt, int wanted);
