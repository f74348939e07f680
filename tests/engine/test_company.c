/* Crowds at the scheduler: whatever runs beside and whoever leaves, a job gets the tokens that it
 * gets alone. Of any size on the hashed backend, 16 at once on the real ones. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/sanitized.h"
#include "support/scheduling.h"
#include "support/tiny.h"

/* ---- company --------------------------------------------------------------------------------- */

#define COMPANY 16

static const struct backend_ops *ops; /* of test_company */

/* 16 at once, of different lengths, with chunks that pause after each layer where the backend can
 * do that; and each of them alone: the same tokens. */
static void test_company(void **state)
{
    (void)state;
    struct result alone[COMPANY];
    struct job *jobs[COMPANY];
    int64_t tokens = 0, generated = 0;
    const int max = SANITIZED ? 4 : 12;
    for (int with = 0; with < 2; with++) {
        open_scheduler((struct set_up){
            .ops = ops, .parallel = COMPANY, .queue = COMPANY, .seconds = with ? 1e-9 : 0});
        for (int i = 0; i < COMPANY; i++) {
            jobs[i] = submit(i, 1 + 4 * i, 1 + max - i % 4);
            if (!with)
                alone[i] = finish(jobs[i]);
        }
        for (int i = 0; i < COMPANY && with; i++) {
            struct result result = finish(jobs[i]);
            assert_int_equal(result.news.end, GENERATION_LENGTH);
            assert_int_equal(result.n, 1 + max - i % 4);
            assert_int_equal(result.n, alone[i].n);
            assert_memory_equal(result.tokens, alone[i].tokens, (size_t)result.n * 4);
            tokens += 1 + 4 * i;
            generated += result.n;
        }
        struct scheduler_figures now = figures();
        if (with) {
            assert_true(now.most_rows > 1 && now.most_rows <= COMPANY);
            assert_int_equal(now.read + now.cached, tokens);
            assert_int_equal(now.drawn, generated);
            assert_int_equal(now.rows, generated - COMPANY); /* the last one is not read */
            assert_true(now.steps < now.rows);
        } else {
            assert_int_equal(now.most_rows, 1);
            assert_int_equal(now.steps, now.rows);
        }
        assert_int_equal(now.suspended, 0);
        assert_int_equal(now.failed_steps, 0);
        close_scheduler(1);
    }
}

/* ---- many clients ---------------------------------------------------------------------------- */

struct client {
    pthread_t thread;
    uint32_t random;
    double until;
    int ended, wrong, busy;
};

static int random_below(struct client *client, int n)
{
    client->random = client->random * 1664525u + 1013904223u;
    return (int)(client->random >> 16) % n;
}

/* No cmocka asserts here: they belong to the main thread. */
static bool is_right(const struct result *result, int seed, int32_t n)
{
    int32_t tokens[CONTEXT + MOST];
    fill_prompt(tokens, seed, n);
    for (int i = 0; i < result->n; i++)
        if ((tokens[n + i] = hashed_next(tokens, n + i)) != result->tokens[i])
            return false;
    return true;
}

/* One request, to its end or to a moment at which it loses interest. */
static void make_request(struct client *client)
{
    int32_t prompt[CONTEXT];
    struct generated generated[MOST];
    struct result result = {.n = 0};
    struct job *job;
    int seed = random_below(client, 6), n = 1 + random_below(client, 400);
    int wanted = random_below(client, 40), interest = random_below(client, 60);
    fill_prompt(prompt, seed, n);
    struct generation_options options = options_for(prompt, n, wanted);
    prefix_places_add(&options.places, n / 2, PREFIX_SYSTEM);
    prefix_places_add(&options.places, n - 1, PREFIX_PROMPT);
    if (scheduler_submit(scheduler, &options, 1, &job, NULL) != STATUS_OK) {
        client->busy++;
        return;
    }
    while (result.news.phase != JOB_ENDED && result.n <= interest) {
        int taken = job_wait(job, 0.05, generated, 1 + random_below(client, 4), &result.news);
        for (int i = 0; i < taken; i++)
            result.tokens[result.n++] = generated[i].token;
    }
    bool whole = result.news.phase == JOB_ENDED;
    client->ended += whole;
    client->wrong += !is_right(&result, seed, n) ||
                     (whole && (result.news.end != GENERATION_LENGTH || result.n != wanted));
    job_free(job);
}

static void *run_client(void *context)
{
    struct client *client = context;
    while (clock_seconds() < client->until)
        make_request(client);
    return NULL;
}

static atomic_int moody_steps;

/* Now and then a step of several rows fails, and breaks its sequences. */
static enum status fail_sometimes(const struct row *rows, int n, bool prefill, bool *broken)
{
    (void)rows;
    *broken = true;
    return !prefill && n > 1 && atomic_fetch_add(&moody_steps, 1) % 50 == 49 ? STATUS_DEVICE
                                                                             : STATUS_OK;
}

static void crowd(int slices)
{
    struct client clients[8];
    int ended = 0;
    hashed.on_step = fail_sometimes;
    open_scheduler((struct set_up){
        .parallel = 4, .queue = 3, .kv_rows = 6 * 256, .budget = 1 << 14, .slices = slices});
    for (int i = 0; i < 8; i++) {
        clients[i] = (struct client){.random = (uint32_t)i, .until = clock_seconds() + 3};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].wrong, 0);
        ended += clients[i].ended;
    }
    assert_true(ended > 0);
    struct scheduler_figures now = figures();
    assert_true(now.cached > 0 && now.cache.used <= now.cache.budget);
    print_message("%d jobs ended, %lld suspensions, %lld failed steps, %lld evictions\n", ended,
                  (long long)now.suspended, (long long)now.failed_steps,
                  (long long)now.cache.evictions);
    close_scheduler(10);
}

static void test_many_clients(void **state)
{
    (void)state;
    crowd(0);
}

static void test_many_clients_and_slices(void **state)
{
    (void)state;
    crowd(5);
}

int main(void)
{
    const struct CMUnitTest crowd[] = {
        cmocka_unit_test(test_many_clients),
        cmocka_unit_test(test_many_clients_and_slices),
    };
    const struct CMUnitTest company[] = {cmocka_unit_test(test_company)};
    int failed = cmocka_run_group_tests(crowd, tiny_setup, tiny_teardown);
    for (int i = 0; backends[i]; i++) {
        ops = backends[i];
        if (!SANITIZED || ops != &backend_ref)
            failed |= cmocka_run_group_tests_name(ops->name, company, tiny_setup, tiny_teardown);
    }
    return failed;
}
