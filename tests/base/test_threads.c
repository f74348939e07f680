/* base/threads: each unit of each job once, whatever the group's size; workers have a stack of
 * their own choosing; sizes that are none are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/threads.h"

#define MAX_UNITS 300

struct counts {
    atomic_int of_unit[MAX_UNITS];
};

static void count(void *context, int unit)
{
    atomic_fetch_add(&((struct counts *)context)->of_unit[unit], 1);
}

/* Jobs of all sizes one after the other, so that late workers meet jobs that have ended. */
static void each_unit_once(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 8, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct threads *threads;
        assert_int_equal(threads_new(sizes[s], &threads, NULL), STATUS_OK);
        assert_int_equal(threads_count(threads), sizes[s]);
        for (int job = 0; job < 2000; job++) {
            struct counts counts = {0};
            int n = job * 7 % MAX_UNITS;
            threads_run(threads, count, &counts, n);
            for (int unit = 0; unit < MAX_UNITS; unit++)
                assert_int_equal(counts.of_unit[unit], unit < n);
        }
        threads_free(threads);
    }
}

/* Both threads are in a unit at once, with a megabyte of stack each. */
static void use_stack(void *context, int unit)
{
    volatile char deep[1 << 20];
    for (size_t i = 0; i < sizeof deep; i += 1024)
        deep[i] = (char)unit;
    pthread_barrier_wait(context);
}

static void stack_does_not_depend_on_limits(void **state)
{
    (void)state;
    pthread_attr_t small;
    pthread_barrier_t both;
    struct threads *threads;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 128 << 10), 0);
#ifdef __GLIBC__
    assert_int_equal(pthread_setattr_default_np(&small), 0); /* as `ulimit -s 128` does */
#endif
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    assert_int_equal(threads_new(2, &threads, NULL), STATUS_OK);
    threads_run(threads, use_stack, &both, 2);
    threads_free(threads);
    pthread_barrier_destroy(&both);
    pthread_attr_destroy(&small);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    struct threads *threads;
    struct error error;
    const int wrong[] = {0, -1, THREADS_MAX + 1};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(threads_new(wrong[i], &threads, &error), STATUS_INVALID);
        assert_null(threads);
    }
    threads_free(NULL);
}

static void unused_groups_end(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct threads *threads;
        assert_int_equal(threads_new(1 + i % 5, &threads, NULL), STATUS_OK);
        threads_free(threads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_unit_once),
        cmocka_unit_test(stack_does_not_depend_on_limits),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(unused_groups_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
