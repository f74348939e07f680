/* The engine around a step: contexts, memory plans that fit or do not, prefill watched from
 * outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "support/replay.h"
#include "support/sanitized.h"
#include "support/tiny.h"

static void test_context(void **state)
{
    (void)state;
    struct error error;
    int32_t context = 0;
    const struct weights *weights = checkpoint_weights(tiny);
    const struct backend_ops *ops = backends[0];
    assert_int_equal(engine_context(ops, weights, 0, 1000, &context, &error), STATUS_OK);
    assert_int_equal(context, 1000);
    assert_int_equal(engine_context(ops, weights, 5, 1000, &context, &error), STATUS_OK);
    assert_int_equal(context, 5);
    assert_int_equal(engine_context(ops, weights, 1001, 1000, &context, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "1001"));
    assert_non_null(strstr(error.message, "1000"));
    assert_int_equal(engine_context(ops, weights, -1, 1000, &context, &error), STATUS_INVALID);
}

/* Without a wish: the longest context whose plan fits, and no longer one. */
static void test_longest_context(void **state)
{
    (void)state;
    struct error error;
    int32_t context = 0;
    struct backend_options options = {
        .weights = checkpoint_weights(tiny), .n_valid_ids = TINY_N_VALID_IDS, .n_sequences = 1};
    struct memory_plan plan;
    const struct backend_ops *ops = backends[0];
    assert_int_equal(engine_context(ops, options.weights, 0, INT32_MAX, &context, &error),
                     STATUS_OK);
    assert_true(context > 65536 && context < INT32_MAX); /* tiny's KV cache is small */
    options.context = context;
    ops->plan(&options, &plan);
    assert_int_equal(memory_plan_check(&plan, context, 1, &error), STATUS_OK);
    options.context = context + context / 4; /* free memory moves a little meanwhile */
    ops->plan(&options, &plan);
    plan.total += (int64_t)1 << 30;
    assert_int_equal(memory_plan_check(&plan, context, 1, &error), STATUS_NO_MEMORY);
}

/* A plan is held against the machine before anything is allocated, and refused with its figures. */
static void test_plan_that_does_not_fit(void **state)
{
    (void)state;
    struct error error;
    const int64_t gib = (int64_t)1 << 30;
    struct memory_plan plan = {.weights = gib, .kv_cache = gib, .state = gib, .workspace = gib};
    plan.total = plan.weights + plan.workspace + plan.kv_cache + plan.state;
    assert_true(memory_physical() > 0 && memory_available() > 0);
    assert_true(memory_available() <= memory_physical());
    plan.kv_cache = memory_physical();
    plan.total += plan.kv_cache;
    assert_int_equal(memory_plan_check(&plan, 262144, 1, &error), STATUS_NO_MEMORY);
    static const char *const figures[] = {"262144",         "weights 1.00",   "KV cache",
                                          "state 1.00",     "workspace 1.00", "free",
                                          "smaller context"};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        if (!strstr(error.message, figures[i]))
            fail_msg("'%s' is not in '%s'", figures[i], error.message);
    plan = (struct memory_plan){.weights = 1 << 20, .workspace = 1 << 20, .total = 2 << 20};
    assert_int_equal(memory_plan_check(&plan, 10, 1, &error), STATUS_OK);
    /* weights alone may not be larger than the machine: they would be read from disk each token */
    plan.weights = plan.total = memory_physical() + 1;
    assert_int_equal(memory_plan_check(&plan, 10, 1, &error), STATUS_NO_MEMORY);
}

/* What the control group and the process's own limits allow counts as well. */
static void test_plan_within_limits(void **state)
{
    (void)state;
    const int64_t gib = (int64_t)1 << 30;
    const struct memory_plan plan = {.weights = 18 * gib, .workspace = 2 * gib, .total = 20 * gib};
    const struct memory_room machine = {
        .physical = 64 * gib,
        .available = 40 * gib,
        .address_space = INT64_MAX,
        .allocatable = INT64_MAX,
    };
    struct memory_room room = machine;
    struct error error;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_OK);
    room.limit = 20 * gib - 1;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "64.00 GiB, the control group allows 20.00, "));
    assert_null(strchr(error.message, '\n'));
    room.limit = 20 * gib;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_OK);
    room = machine;
    room.address_space = 19 * gib; /* weights that are not mapped yet would find no place */
    room.allocatable = 19 * gib;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_NO_MEMORY);
    room.address_space = 30 * gib;
    room.allocatable = 2 * gib;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_OK);
    room.allocatable--;
    assert_int_equal(memory_plan_check_in(&room, &plan, 10, 1, &error), STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "ulimit leaves 2.00"));
}

/* Without a wish: not more than the process's own limits leave. */
static void test_context_within_limits(void **state)
{
    (void)state;
    if (SANITIZED) /* it takes terabytes of address space for itself */
        skip();
    static const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};
    const struct backend_ops *ops = backends[0];
    for (int i = 0; i < 2; i++) {
        struct rlimit before, small;
        struct memory_room room;
        assert_int_equal(getrlimit((unsigned)kinds[i], &before), 0);
        small = before;
        small.rlim_cur = 1; /* to learn what is used: nothing is left */
        setrlimit((unsigned)kinds[i], &small);
        room = memory_look();
        setrlimit((unsigned)kinds[i], &before);
        assert_int_equal(room.allocatable, 0);
        struct error error;
        int32_t long_one = 0, short_one = 0;
        assert_int_equal(
            engine_context(ops, checkpoint_weights(tiny), 0, 1 << 20, &long_one, &error),
            STATUS_OK);
        small.rlim_cur = (rlim_t)3 << 29;
        setrlimit((unsigned)kinds[i], &small);
        room = memory_look();
        enum status status =
            engine_context(ops, checkpoint_weights(tiny), 0, 1 << 20, &short_one, &error);
        setrlimit((unsigned)kinds[i], &before);
        assert_int_equal(status, STATUS_OK);
        assert_true(room.allocatable > 0 && room.allocatable < (int64_t)3 << 29);
        assert_true(short_one > 4096 && short_one < long_one);
    }
}

struct watcher {
    int calls;
    int32_t seen[8];
    int32_t cancel_at; /* 0: never */
    atomic_bool cancel;
};

static void note_progress(void *context, int32_t read, int32_t total)
{
    struct watcher *watcher = context;
    assert_int_equal(total, 40);
    watcher->seen[watcher->calls++] = read;
    if (watcher->cancel_at > 0 && read == watcher->cancel_at)
        atomic_store(&watcher->cancel, true);
}

static void test_prefill_is_watched(void **state)
{
    (void)state;
    struct engine engine;
    struct engine_options options = {.ops = &backend_replay, .context = 50, .n_sequences = 1};
    struct error error;
    struct sequence *sequence;
    struct ranked ranked;
    const struct weights *weights = checkpoint_weights(tiny);
    assert_int_equal(engine_plan(weights, 5000, &options, &engine, &error), STATUS_INVALID);
    assert_int_equal(engine_plan(weights, TINY_N_VALID_IDS, &options, &engine, &error), STATUS_OK);
    assert_int_equal(engine_open(&engine, &error), STATUS_OK);
    assert_int_equal(backend_replay.sequence_new(engine.backend, &sequence, &error), STATUS_OK);
    struct watcher watcher = {.cancel_at = 0};
    struct prefill_watch watch = {&watcher.cancel, note_progress, &watcher};
    assert_int_equal(engine_prefill(&engine, sequence, tiny_ids(), 40, &ranked, &watch, &error),
                     STATUS_OK);
    const int32_t wanted[] = {0, 16, 32, 40}; /* the replay backend takes 16 at a time */
    assert_int_equal(watcher.calls, 4);
    assert_memory_equal(watcher.seen, wanted, sizeof wanted);
    assert_int_equal(engine_prefill(&engine, sequence, tiny_ids(), 11, &ranked, &watch, &error),
                     STATUS_CONTEXT);
    assert_int_equal(engine_prefill(&engine, sequence, tiny_ids(), 0, &ranked, &watch, &error),
                     STATUS_INVALID);
    backend_replay.sequence_reset(engine.backend, sequence);
    watcher = (struct watcher){.cancel_at = 32}; /* seen before the third chunk */
    assert_int_equal(engine_prefill(&engine, sequence, tiny_ids(), 40, &ranked, &watch, &error),
                     STATUS_CANCELLED);
    assert_int_equal(sequence->position, 32);
    backend_replay.sequence_free(engine.backend, sequence);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_longest_context),
        cmocka_unit_test(test_plan_that_does_not_fit),
        cmocka_unit_test(test_plan_within_limits),
        cmocka_unit_test(test_context_within_limits),
        cmocka_unit_test(test_prefill_is_watched),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
