/* Allocations of generations, their cache and the scheduler fail one by one: each ends with an
 * error that says so, and nothing is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/scheduler.h"
#include "support/alloc.h"
#include "support/hashed.h"
#include "support/tiny.h"

#define N 20

static struct engine engine;
static struct sequence *sequence;

static void forget(void *context, const struct generated *generated)
{
    (void)context, (void)generated;
}

/* Everything that allocates: all logits for the draw, logprobs of the prompt, a long answer. */
static struct generation_options options_for(int with)
{
    return (struct generation_options){
        .prompt = tiny_ids(),
        .n_prompt = N,
        .sampling = {.temperature = with, .repetition_penalty = 1, .top_p = 1, .seed = 1},
        .max_tokens = 80,
        .n_top = with ? 2 : -1,
        .prompt_logprobs = with,
        .emit = forget};
}

static enum status run(struct generation *generation, struct prefix_cache *cache,
                       struct error *error)
{
    struct row row;
    struct ranked ranked;
    generation_start(generation, cache, sequence);
    while (generation_phase(generation) != GENERATION_ENDED)
        if (generation_phase(generation) == GENERATION_READING)
            generation_read(generation, 64, NULL, error);
        else if (generation_row(generation, &row, error) == STATUS_OK &&
                 engine.ops->decode_step(engine.backend, &row, 1, &ranked, error) == STATUS_OK)
            generation_take(generation, &ranked, 0);
    generation_finish(generation);
    *error = *generation_error(generation);
    return generation_end(generation) == GENERATION_FAILED ? error->status : STATUS_OK;
}

static enum status generate(void *context, struct error *error)
{
    struct generation_options options = options_for(*(int *)context);
    struct prefix_cache_options of_cache = {0};
    struct prefix_cache *cache;
    struct generation *generation = NULL;
    enum status status = prefix_cache_new(&engine, &of_cache, &cache, error);
    if (status == STATUS_OK)
        status = generation_new(&engine, &options, &generation, error);
    if (status == STATUS_OK)
        status = run(generation, cache, error);
    generation_free(generation);
    prefix_cache_free(cache);
    engine.ops->sequence_reset(engine.backend, sequence);
    return status;
}

static void test_generation(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++)
        assert_true(alloc_sweep(generate, &with, 0) > 5);
}

/* Waits for a job's end; gives what ended it. */
static enum status wait_for(struct job *job, struct error *error)
{
    struct job_news news = {0};
    struct generated generated[8];
    while (news.phase != JOB_ENDED)
        job_wait(job, 1, generated, 8, &news);
    *error = news.error;
    return news.end == GENERATION_FAILED ? error->status : STATUS_OK;
}

static enum status schedule_two(struct scheduler *scheduler, int with, struct error *error)
{
    struct generation_options options[2] = {options_for(with), options_for(0)};
    struct job *jobs[2];
    enum status status = scheduler_submit(scheduler, options, 2, jobs, error);
    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < 2; i++) {
        struct error problem;
        enum status end = wait_for(jobs[i], &problem);
        if (status == STATUS_OK && end != STATUS_OK)
            *error = problem;
        status = status == STATUS_OK ? end : status;
        job_free(jobs[i]);
    }
    return status;
}

static enum status schedule(void *context, struct error *error)
{
    const struct scheduler_options options = {
        .parallel = 1, .queue = 2, .mailbox = 200, .chunk_seconds = 1e6};
    struct prefix_cache_options of_cache = {0};
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    enum status status = prefix_cache_new(&engine, &of_cache, &cache, error);
    if (status == STATUS_OK)
        status = scheduler_new(&engine, cache, &options, &scheduler, error);
    if (status == STATUS_OK) {
        status = schedule_two(scheduler, *(int *)context, error);
        scheduler_stop(scheduler, 100);
        scheduler_free(scheduler);
    }
    prefix_cache_free(cache);
    return status;
}

static void test_scheduler(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++)
        assert_true(alloc_sweep(schedule, &with, 0) > 15);
}

static int setup(void **state)
{
    struct error error;
    struct engine_options options = {.ops = &backend_hashed, .context = 128, .n_sequences = 2};
    return tiny_setup(state) != 0 ||
                   engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine,
                               &error) ||
                   engine_open(&engine, &error) ||
                   engine.ops->sequence_new(engine.backend, &sequence, &error)
               ? -1
               : 0;
}

static int teardown(void **state)
{
    engine.ops->sequence_free(engine.backend, sequence);
    engine_close(&engine);
    return tiny_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_scheduler),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
