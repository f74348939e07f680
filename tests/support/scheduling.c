#include "support/scheduling.h"

#include <pthread.h>

#include "base/clock.h"
#include "support/ok.h"
#include "support/tiny.h"

struct engine engine;
struct prefix_cache *cache;
struct scheduler *scheduler;

void open_engine(struct engine *opened, const struct backend_ops *ops, int n, int64_t kv_rows)
{
    struct engine_options options = {
        .ops = ops, .context = CONTEXT, .n_sequences = n, .kv_rows = kv_rows};
    OK(engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, opened, e));
    OK(engine_open(opened, e));
}

void open_scheduler(struct set_up with)
{
    int parallel = with.parallel ? with.parallel : 4;
    struct prefix_cache_options of_cache = {.budget = with.budget};
    struct scheduler_options options = {.parallel = parallel,
                                        .queue = with.queue ? with.queue : 100,
                                        .mailbox = with.mailbox ? with.mailbox : MOST,
                                        .chunk_seconds = with.seconds > 0 ? with.seconds : 1e6};
    hashed.slices = with.slices;
    open_engine(&engine, with.ops ? with.ops : &backend_hashed, parallel, with.kv_rows);
    OK(prefix_cache_new(&engine, &of_cache, &cache, e));
    OK(scheduler_new(&engine, cache, &options, &scheduler, e));
}

struct scheduler_figures figures(void)
{
    struct scheduler_figures out;
    scheduler_read_figures(scheduler, &out);
    return out;
}

void close_scheduler(double grace)
{
    struct kv_usage usage;
    scheduler_stop(scheduler, grace);
    assert_int_equal(figures().running, 0);
    assert_int_equal(figures().queued, 0);
    scheduler_free(scheduler);
    prefix_cache_free(cache);
    engine.ops->kv_usage(engine.backend, &usage);
    assert_int_equal(usage.free, usage.pages);
    engine_close(&engine);
    hashed = (struct hashed){0};
}

/* ---- the gate -------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool closed, waiting;
} gate = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum status wait_at_gate(const struct row *rows, int n, bool prefill, bool *broken)
{
    (void)rows, (void)n, (void)prefill, (void)broken;
    pthread_mutex_lock(&gate.mutex);
    while (gate.closed) {
        gate.waiting = true;
        pthread_cond_broadcast(&gate.changed);
        pthread_cond_wait(&gate.changed, &gate.mutex);
    }
    gate.waiting = false;
    pthread_mutex_unlock(&gate.mutex);
    return STATUS_OK;
}

void set_gate(bool closed)
{
    pthread_mutex_lock(&gate.mutex);
    gate.closed = closed;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
}

void wait_until_held(void)
{
    pthread_mutex_lock(&gate.mutex);
    while (!gate.waiting)
        pthread_cond_wait(&gate.changed, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

void fill_prompt(int32_t *prompt, int seed, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        prompt[i] = tiny_ids()[(seed * 31 + i) % 1000];
}

struct generation_options options_for(const int32_t *prompt, int32_t n, int32_t max_tokens)
{
    return (struct generation_options){.prompt = prompt,
                                       .n_prompt = n,
                                       .sampling = {.repetition_penalty = 1, .top_p = 1},
                                       .max_tokens = max_tokens,
                                       .n_top = -1};
}

struct job *submit(int seed, int32_t n, int32_t max_tokens)
{
    int32_t prompt[CONTEXT];
    struct job *job;
    fill_prompt(prompt, seed, n);
    struct generation_options options = options_for(prompt, n, max_tokens);
    OK(scheduler_submit(scheduler, &options, 1, &job, e));
    return job;
}

struct result finish(struct job *job)
{
    struct result result = {.n = 0};
    struct generated generated[MOST];
    double limit = clock_seconds() + 300;
    while (result.news.phase != JOB_ENDED) {
        int n = job_wait(job, 10, generated, MOST - result.n, &result.news);
        for (int i = 0; i < n; i++)
            result.tokens[result.n++] = generated[i].token;
        assert_true(clock_seconds() < limit);
    }
    job_free(job);
    return result;
}

void wait_for_phase(struct job *job, enum job_phase phase)
{
    struct job_news news = {0};
    double limit = clock_seconds() + 100;
    while (news.phase < phase) {
        job_wait(job, 0.01, NULL, 0, &news);
        assert_true(clock_seconds() < limit);
    }
}

void assert_answer(const struct result *result, int seed, int32_t n_prompt, int wanted)
{
    int32_t tokens[CONTEXT + MOST];
    fill_prompt(tokens, seed, n_prompt);
    if (result->news.end == GENERATION_FAILED)
        fail_msg("%s", result->news.error.message);
    assert_int_equal(result->news.end, GENERATION_LENGTH);
    assert_int_equal(result->n, wanted);
    for (int i = 0; i < wanted; i++) {
        tokens[n_prompt + i] = hashed_next(tokens, n_prompt + i);
        assert_int_equal(result->tokens[i], tokens[n_prompt + i]);
    }
    assert_int_equal(result->news.figures.generated, wanted);
    assert_int_equal(result->news.figures.prompt, n_prompt);
}
