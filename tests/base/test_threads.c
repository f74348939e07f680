/* The thread group: every unit exactly once, whatever the number of threads, jobs short and long,
 * awake and asleep; no time while idle; a stack of a stated size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/threads.h"
#include "support/sanitized.h"

#define MAX_UNITS 4096
#define THREADS_MOST 64 /* of these tests */

struct job {
    atomic_int calls[MAX_UNITS];
    int plain[MAX_UNITS]; /* written without locks: by one thread, and seen after the job */
    int n, spin;          /* spin: work of a unit */
    int n_threads;
    atomic_int running[THREADS_MOST]; /* units of each thread under way: none or one */
};

static void work(void *context, int unit, int thread)
{
    struct job *job = context;
    bool wrong =
        thread < 0 || thread >= job->n_threads || atomic_fetch_add(&job->running[thread], 1) != 0;
    for (volatile int i = 0; i < job->spin * (unit % 7 == 0 ? 10 : 1); i++)
        ;
    if (unit >= 0 && unit < job->n)
        job->plain[unit] += unit + 1;
    atomic_fetch_add(&job->calls[unit < 0 || unit >= job->n ? 0 : unit], wrong ? 2 : 1);
    if (!wrong)
        atomic_fetch_sub(&job->running[thread], 1);
}

static struct threads *new_group(int n)
{
    struct threads *threads;
    struct error error;
    if (threads_new(n, &threads, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    assert_int_equal(threads_count(threads), n);
    return threads;
}

static void run_and_check(struct threads *threads, struct job *job, int n, int spin)
{
    for (int i = 0; i < n; i++) {
        atomic_store(&job->calls[i], 0);
        job->plain[i] = 0;
    }
    job->n = n;
    job->spin = spin;
    job->n_threads = threads_count(threads);
    assert_in_range(job->n_threads, 1, THREADS_MOST);
    threads_run(threads, work, job, n);
    for (int i = 0; i < n; i++)
        if (atomic_load(&job->calls[i]) != 1 || job->plain[i] != i + 1)
            fail_msg("%d threads, %d units: unit %d ran %d times, or two units on a thread",
                     threads_count(threads), n, i, atomic_load(&job->calls[i]));
}

static void pause_ms(int milliseconds)
{
    struct timespec time = {0, milliseconds * 1000000L};
    nanosleep(&time, NULL);
}

/* From 1 thread to many more than any machine here has cores. */
static void test_units_exactly_once(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 33};
    static const int units[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, MAX_UNITS};
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct threads *threads = new_group(counts[c]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++)
            for (int spin = 0; spin <= 1000; spin += 500)
                run_and_check(threads, job, units[u], spin);
        threads_free(threads);
    }
    free(job);
}

/* A step is some hundred short jobs, one right after the other, of differing lengths. */
static void test_many_short_jobs(void **state)
{
    (void)state;
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    for (int n = 2; n <= 8; n += 3) {
        struct threads *threads = new_group(n);
        for (int i = 0; i < (SANITIZED ? 2000 : 20000); i++)
            run_and_check(threads, job, 1 + i % 13, 0);
        threads_free(threads);
    }
    free(job);
}

/* The job's fields change between jobs: a late worker must not mix two of them. */
static void add_context(void *context, int unit, int thread)
{
    (void)thread;
    atomic_fetch_add((atomic_llong *)context, unit + 1);
}

static void test_jobs_do_not_mix(void **state)
{
    (void)state;
    struct threads *threads = new_group(6);
    atomic_llong sums[16];
    for (int i = 0; i < (SANITIZED ? 2000 : 30000); i++) {
        atomic_llong *sum = &sums[i % 16];
        int n = 1 + i * 7 % 40;
        atomic_store(sum, 0);
        threads_run(threads, add_context, sum, n);
        if (atomic_load(sum) != (long long)n * (n + 1) / 2)
            fail_msg("job %d of %d units: the sum is %lld", i, n, (long long)atomic_load(sum));
        if (i > 0 && i % 16 == 0) /* nobody touched an earlier one since */
            for (int j = 1; j < 16; j++) {
                int m = 1 + (i - 16 + j) * 7 % 40;
                assert_true(atomic_load(&sums[j]) == (long long)m * (m + 1) / 2);
            }
    }
    threads_free(threads);
}

/* Workers that went to sleep come back. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    struct job *job = calloc(1, sizeof *job);
    struct threads *threads = new_group(4);
    assert_non_null(job);
    for (int i = 0; i < 30; i++) {
        pause_ms(i % 3 * 7);
        run_and_check(threads, job, 50, i % 2 ? 2000 : 0);
    }
    threads_free(threads);
    free(job);
}

/* While workers sleep, spin, or have not even begun. */
static void test_free_at_any_time(void **state)
{
    (void)state;
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    for (int i = 0; i < 60; i++) {
        struct threads *threads = new_group(1 + i % 8);
        if (i % 3 > 0)
            run_and_check(threads, job, 20, 0);
        if (i % 4 == 0)
            pause_ms(10);
        threads_free(threads);
    }
    threads_free(NULL);
    free(job);
}

static void test_wrong_counts(void **state)
{
    (void)state;
    static const int wrong[] = {0, -1, THREADS_MAX + 1};
    for (int i = 0; i < 3; i++) {
        struct threads *threads = (struct threads *)1;
        struct error error;
        char number[20];
        snprintf(number, sizeof number, "%d", wrong[i]);
        assert_int_equal(threads_new(wrong[i], &threads, &error), STATUS_INVALID);
        assert_null(threads);
        assert_non_null(strstr(error.message, number));
    }
}

static double cpu_seconds(void) /* of all threads of the process */
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* 8 threads that wait use no time: 0 % over 200 ms, after the moment in which they still look. */
static void test_idle_costs_nothing(void **state)
{
    (void)state;
    struct job *job = calloc(1, sizeof *job);
    struct threads *threads = new_group(8);
    assert_non_null(job);
    double spent = 0;
    for (int attempt = 0; attempt < 3; attempt++) { /* a busy machine may let them look for long */
        run_and_check(threads, job, 100, 1000);
        pause_ms(SANITIZED ? 900 : 100 + attempt * 300);
        double begin = cpu_seconds();
        pause_ms(200);
        spent = cpu_seconds() - begin;
        if (spent < 0.002)
            break;
    }
    print_message("    idle: %.3f ms of CPU in 200 ms\n", 1e3 * spent);
    assert_true(spent < 0.002);
    threads_free(threads);
    free(job);
}

/* Both threads are in a unit at once, with more stack each than their default. */
static void use_stack(void *context, int unit, int thread)
{
    (void)thread;
    volatile char deep[200 << 10];
    for (size_t i = 0; i < sizeof deep; i += 1024)
        deep[i] = (char)unit;
    pthread_barrier_wait(context);
}

static void test_stack_does_not_depend_on_limits(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_exactly_once),
        cmocka_unit_test(test_many_short_jobs),
        cmocka_unit_test(test_jobs_do_not_mix),
        cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_free_at_any_time),
        cmocka_unit_test(test_wrong_counts),
        cmocka_unit_test(test_idle_costs_nothing),
        cmocka_unit_test(test_stack_does_not_depend_on_limits), /* changes a default */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
