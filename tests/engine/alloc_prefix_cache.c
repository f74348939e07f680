/* Allocations of the prefix cache fail one by one: opening it says so, a snapshot that cannot be
 * kept costs reuse and nothing else. */
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

/* Opens a cache and reads both prompts; *reused gets what the first spared the second. */
static enum status use_cache(int32_t *reused, struct error *error)
{
    const struct prefix_place places[] = {{4, PREFIX_SYSTEM}, {10, PREFIX_ASSISTANT}};
    const struct prefill_watch unwatched = {0};
    struct prefix_cache_options options = {.budget = (int64_t)1 << 30};
    struct prefix_cache *cache = NULL;
    struct cached_sequence *cached = NULL;
    struct ranked found[2];
    memset(found, 0, sizeof found);
    engine.ops->sequence_reset(engine.backend, sequence);
    enum status status = prefix_cache_new(&engine, &options, &cache, error);
    if (status == STATUS_OK)
        status = prefix_cache_add(cache, sequence, &cached, error);
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = prefix_cache_prefill(cache, cached, prompts[i], N, places, 2, &found[i],
                                      &unwatched, reused, error);
    if (status == STATUS_OK && memcmp(found, wanted, sizeof found) != 0)
        status = error_set(error, STATUS_INVALID, "other results than those of a fresh sequence");
    prefix_cache_remove(cache, cached);
    prefix_cache_free(cache);
    return status;
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
            n_refused += status != STATUS_OK;
            if (status == STATUS_OK) {
                least = reused < least ? reused : least;
                most = reused > most ? reused : most;
            }
            if (!failing)
                n = 0;
        }
    assert_int_equal(n_refused, 2 * 3); /* the cache, the sequence's part, the ids */
    assert_int_equal(most, 10);
    assert_int_equal(least, 0); /* no snapshot at all */
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
