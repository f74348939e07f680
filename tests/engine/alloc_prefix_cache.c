/* Allocations of the prefix cache fail one by one: opening it says so, an entry that cannot be kept
 * costs reuse and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/prefix_cache.h"
#include "support/alloc.h"
#include "support/tiny.h"

#define CONTEXT 40

static struct engine engine;
static struct sequence *sequence;
static struct ranked wanted[2];

/* Two prompts that differ from their 12th token on. */
#define N 13
static int32_t prompts[2][N];
static const struct prefix_places places = {2, {{4, PREFIX_SYSTEM}, {10, PREFIX_ASSISTANT}}};

/* Reads a prompt through the cache; gives what was spared. */
static enum status read_prompt(struct prefix_cache *cache, const int32_t *prompt,
                               struct ranked *ranked, int32_t *reused, struct error *error)
{
    enum status status = STATUS_OK;
    *reused = prefix_cache_begin(cache, sequence, prompt, N);
    for (int32_t at = *reused; at < N && status == STATUS_OK;) {
        int32_t end = prefix_cache_next_stop(cache, at, N, &places);
        status = prefix_cache_reserve(cache, sequence, end, error);
        if (status == STATUS_OK)
            status = engine.ops->prefill_chunk(engine.backend, sequence, prompt + at, end - at,
                                               PREFILL_LAST, ranked, NULL, error);
        if (status == STATUS_OK)
            prefix_cache_save_at(cache, sequence, prompt, &places);
        at = end;
    }
    return status;
}

/* Opens a cache and reads both prompts; *reused gets what the first spared the second. */
static enum status use_cache(int32_t *reused, struct error *error)
{
    struct prefix_cache_options options = {.budget = (int64_t)1 << 30};
    struct prefix_cache *cache;
    struct ranked found[2];
    memset(found, 0, sizeof found);
    enum status status = prefix_cache_new(&engine, &options, &cache, error);
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = read_prompt(cache, prompts[i], &found[i], reused, error);
    if (status == STATUS_OK && memcmp(found, wanted, sizeof found) != 0)
        status = error_set(error, STATUS_INVALID, "other results than those of a fresh sequence");
    prefix_cache_free(cache);
    engine.ops->sequence_reset(engine.backend, sequence);
    return status;
}

static void assert_nothing_held(void)
{
    struct kv_usage usage;
    engine.ops->kv_usage(engine.backend, &usage);
    assert_int_equal(usage.free, usage.pages);
    assert_int_equal(usage.held, 0);
}

static void test_allocations_fail(void **state)
{
    (void)state;
    struct error error = {0};
    int32_t reused, least = CONTEXT, most = 0;
    size_t n = 0, n_refused = 0;
    for (int all_later = 0; all_later < 2; all_later++)
        for (bool failing = true; failing;) {
            n++;
            alloc_start(n, all_later ? SIZE_MAX : n);
            enum status status = use_cache(&reused, &error);
            failing = alloc_stop() >= n;
            if (status != STATUS_OK && status != STATUS_NO_MEMORY)
                fail_msg("allocation %zu failing: %s", n, error.message);
            if (alloc_live() != 0)
                fail_msg("allocation %zu failing: %zu blocks were not freed", n, alloc_live());
            assert_nothing_held();
            n_refused += status != STATUS_OK;
            if (status == STATUS_OK) {
                least = reused < least ? reused : least;
                most = reused > most ? reused : most;
            }
            if (!failing)
                n = 0;
        }
    assert_int_equal(n_refused, 2 * 1); /* the cache itself */
    assert_int_equal(most, 10);
    assert_int_equal(least, 0); /* no entry at all */
}

static int setup(void **state)
{
    struct error error;
    struct engine_options options = {.ops = &backend_ref, .context = CONTEXT, .n_sequences = 1};
    const struct prefill_watch unwatched = {0};
    if (tiny_setup(state) != 0 ||
        engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine, &error) ||
        engine_open(&engine, &error) || engine.ops->sequence_new(engine.backend, &sequence, &error))
        return -1;
    for (int i = 0; i < 2; i++) {
        memcpy(prompts[i], tiny_ids(), sizeof prompts[i]);
        prompts[i][11] += i;
        engine.ops->sequence_reset(engine.backend, sequence);
        if (engine_prefill(&engine, sequence, prompts[i], N, &wanted[i], &unwatched, &error))
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    engine.ops->sequence_free(engine.backend, sequence);
    engine_close(&engine);
    return tiny_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocations_fail)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
