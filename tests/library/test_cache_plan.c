/* The budget for reuse on machines of all sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "library/cache_plan.h"

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

static const struct memory_plan plan = {.weights = 18 * GIB,
                                        .kv_cache = GIB,
                                        .state = 64 * MIB,
                                        .workspace = 448 * MIB,
                                        .total = 19 * GIB + 512 * MIB};

static int64_t planned_in(int64_t wanted, int64_t available, int64_t allocatable)
{
    int64_t bytes = -1;
    struct error error;
    const struct memory_room room = {.available = available, .allocatable = allocatable};
    assert_int_equal(cache_plan(wanted, &plan, &room, &bytes, &error), STATUS_OK);
    return bytes;
}

static int64_t planned(int64_t wanted, int64_t available)
{
    return planned_in(wanted, available, INT64_MAX);
}

static void test_default(void **state)
{
    (void)state;
    assert_int_equal(planned(0, 0), GIB); /* nothing is known of the machine */
    assert_int_equal(planned(0, 64 * GIB), GIB);
    assert_int_equal(planned(0, 20 * GIB), 256 * MIB); /* half of what the plan leaves */
    assert_int_equal(planned(0, 16 * GIB), 256 * MIB); /* weights do not fit: four snapshots */
    assert_int_equal(planned(0, GIB + 712 * MIB), 100 * MIB);
    assert_int_equal(planned(0, GIB), 0);
}

static void test_wanted(void **state)
{
    (void)state;
    int64_t bytes;
    struct error error;
    assert_int_equal(planned(-1, 64 * GIB), 0);
    assert_int_equal(planned(5, 64 * GIB), 5);
    assert_int_equal(planned(62 * GIB, 64 * GIB), 62 * GIB);
    assert_int_equal(planned(500 * GIB, 0), 500 * GIB);
    struct memory_room room = {.available = 64 * GIB, .allocatable = INT64_MAX};
    assert_int_equal(cache_plan(63 * GIB, &plan, &room, &bytes, &error), STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "63.00"));
    assert_non_null(strstr(error.message, "62.50"));
    room.allocatable = 2 * GIB;
    assert_int_equal(cache_plan(GIB, &plan, &room, &bytes, &error), STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "0.50"));
}

/* What the process's own limits leave, beside what the machine has; the weights are mapped. */
static void test_own_limits(void **state)
{
    (void)state;
    assert_int_equal(planned_in(0, 64 * GIB, 2 * GIB), 256 * MIB);
    assert_int_equal(planned_in(0, 0, 2 * GIB), 256 * MIB);
    assert_int_equal(planned_in(0, 64 * GIB, 20 * GIB), GIB);
    assert_int_equal(planned_in(0, 64 * GIB, GIB), 0);
    assert_int_equal(planned_in(400 * MIB, 64 * GIB, 2 * GIB), 400 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_own_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
