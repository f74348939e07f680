/* What a server holds, on machines of all sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/plan.h"
#include "support/tiny.h"

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

/* About the 35B model on the cpu backend: 20 KB a token, 63 MB a state. */
static void plan_large(const struct backend_options *options, struct memory_plan *plan)
{
    int64_t rows =
        options->kv_rows > 0 ? options->kv_rows : (int64_t)options->n_sequences * options->context;
    *plan = (struct memory_plan){.weights = 18 * GIB,
                                 .kv_row = 20 << 10,
                                 .kv_cache = rows * (20 << 10),
                                 .state = 63 * MIB,
                                 .workspace = 200 * MIB};
    plan->total =
        plan->weights + plan->kv_cache + plan->workspace + options->n_sequences * plan->state;
}

static const struct backend_ops ops = {.name = "large", .plan = plan_large};
#define MOST 262144

static enum status make(struct server_wishes wishes, int64_t available, struct server_plan *plan,
                        struct error *error)
{
    const struct memory_room room = {.physical = available > 0 ? available + GIB : 0,
                                     .available = available,
                                     .address_space = INT64_MAX,
                                     .allocatable = INT64_MAX};
    return server_plan_make(&ops, checkpoint_weights(tiny), MOST, &wishes, &room, plan, error);
}

static struct server_plan made(struct server_wishes wishes, int64_t available)
{
    struct server_plan plan;
    struct error error;
    if (make(wishes, available, &plan, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    /* whatever is chosen, it holds */
    int64_t needed = plan.memory.total + plan.cache_states;
    if (available > 0 && needed > available)
        fail_msg("%lld MiB of %lld", (long long)(needed / MIB), (long long)(available / MIB));
    assert_true(plan.kv_rows >= plan.context);
    assert_true(plan.cache_states <= plan.cache_bytes || plan.cache_bytes == 0);
    return plan;
}

#define NOTHING                                                                                    \
    (struct server_wishes)                                                                         \
    {                                                                                              \
        .cache_bytes = -1                                                                          \
    }

static void test_default(void **state)
{
    (void)state;
    struct server_plan plan = made(NOTHING, 64 * GIB); /* plenty: all of everything */
    assert_int_equal(plan.context, MOST);
    assert_int_equal(plan.parallel, SERVER_PARALLEL);
    assert_int_equal(plan.cache_states, 2 * GIB);
    assert_true(plan.kv_rows > (int64_t)MOST * SERVER_PARALLEL);
    plan = made(NOTHING, 28 * GIB); /* one context, which the sequences share */
    assert_true(plan.context > 64 << 10 && plan.context <= MOST);
    assert_true(plan.kv_rows < (int64_t)plan.parallel * plan.context + (200 << 10));
    plan = made(NOTHING, 21 * GIB);
    assert_true(plan.context >= 4096 && plan.context < 64 << 10);
    assert_true(plan.cache_bytes > 4 * 63 * MIB);
    plan = made(NOTHING, 19 * GIB + 400 * MIB); /* the weights fill it: fewer at once */
    assert_true(plan.parallel < SERVER_PARALLEL);
    assert_true(plan.context >= 4096 && plan.context < 16384);
    plan = made(NOTHING, 0); /* nothing is known of the machine */
    assert_int_equal(plan.context, MOST);
}

static void test_wanted(void **state)
{
    (void)state;
    struct server_plan plan = made(
        (struct server_wishes){.context = 8192, .parallel = 16, .cache_bytes = 3 * GIB}, 64 * GIB);
    assert_int_equal(plan.context, 8192);
    assert_int_equal(plan.parallel, 16);
    assert_int_equal(plan.cache_bytes, 3 * GIB);
    assert_int_equal(plan.cache_states, 2 * GIB);
    assert_int_equal(plan.kv_rows, 16 * 8192 + GIB / (20 << 10));
    plan = made((struct server_wishes){.context = 8192, .parallel = 16}, 64 * GIB);
    assert_int_equal(plan.cache_bytes, 0);
    assert_int_equal(plan.cache_states, 0);
    assert_int_equal(plan.kv_rows, 16 * 8192);
    plan = made((struct server_wishes){.context = 65536, .parallel = 16, .cache_bytes = 0},
                24 * GIB); /* rows for all contexts do not fit */
    assert_true(plan.kv_rows >= 65536 && plan.kv_rows < 16 * 65536);
}

static void test_refused(void **state)
{
    (void)state;
    struct server_plan plan;
    struct error error;
    assert_int_equal(make((struct server_wishes){.context = MOST + 1}, 0, &plan, &error),
                     STATUS_INVALID);
    assert_non_null(strstr(error.message, "max_context: found 262145"));
    assert_int_equal(make((struct server_wishes){.parallel = 1000}, 0, &plan, &error),
                     STATUS_INVALID);
    assert_non_null(strstr(error.message, "parallel: found 1000"));
    assert_int_equal(make((struct server_wishes){.cache_bytes = 50 * GIB}, 64 * GIB, &plan, &error),
                     STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "cache_ram: found 50.00 GiB"));
    assert_int_equal(
        make((struct server_wishes){.context = MOST, .cache_bytes = 0}, 4 * GIB, &plan, &error),
        STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "choose a smaller context"));
}

static void test_printed(void **state)
{
    (void)state;
    struct bytes line = {0};
    struct server_plan plan = made(NOTHING, 24 * GIB);
    server_plan_print(&plan, &line);
    const char *text = bytes_terminate(&line);
    assert_non_null(strstr(text, "GiB for 4 sequences of "));
    assert_non_null(strstr(text, "they share "));
    assert_non_null(strstr(text, "prefix cache up to "));
    bytes_clear(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_printed),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
