/* The size of chunks: whatever a token costs, chunks come to take about the time they may. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/chunk.h"

/* Lets chunks cost a + b * n; gives the size after so many of them. */
static int32_t settle(struct chunk_size *size, double a, double b, int chunks)
{
    for (int i = 0; i < chunks; i++) {
        int32_t n = chunk_size_next(size);
        chunk_size_learn(size, n, a + b * n);
    }
    return chunk_size_next(size);
}

static void test_converges(void **state)
{
    (void)state;
    const double wanted = 0.5;
    const double fixed[] = {0, 0.1, 0.3, 0.45};
    const int32_t sizes[] = {32, 64, 100, 500, 1000}; /* of a chunk that takes the wanted time */
    for (int f = 0; f < 4; f++)
        for (int s = 0; s < 5; s++) {
            struct chunk_size size;
            chunk_size_init(&size, wanted, 1024);
            double a = fixed[f], b = (wanted - a) / sizes[s];
            int32_t n = settle(&size, a, b, 100);
            if (n > sizes[s] + CHUNK_LEAST || n < sizes[s] - 2 * CHUNK_LEAST)
                fail_msg("%g + %g n: found chunks of %d, wanted about %d", a, b, n, sizes[s]);
        }
}

static void test_bounds(void **state)
{
    (void)state;
    struct chunk_size size;
    chunk_size_init(&size, 0.5, 1024);
    assert_int_equal(chunk_size_next(&size), 128);
    assert_int_equal(settle(&size, 0, 1e-9, 20), 1024); /* as fast as can be */
    assert_int_equal(settle(&size, 0, 10, 20), CHUNK_LEAST);
    chunk_size_init(&size, 0.5, 16); /* a backend that takes few */
    assert_int_equal(chunk_size_next(&size), 16);
    assert_int_equal(settle(&size, 0, 1e-9, 20), 16);
    assert_int_equal(settle(&size, 0, 10, 20), 16);
    assert_int_equal(settle(&size, 0, 1e-9, 20), 16);
}

/* A guess holds until something is learned; few tokens are no ground for one. */
static void test_guess(void **state)
{
    (void)state;
    struct chunk_size size;
    chunk_size_init(&size, 0.5, 1024);
    chunk_size_guess(&size, 4, 10);
    assert_int_equal(chunk_size_next(&size), 128);
    chunk_size_guess(&size, 640, 2);
    assert_int_equal(chunk_size_next(&size), 160);
    chunk_size_guess(&size, 640, 100);
    assert_int_equal(chunk_size_next(&size), CHUNK_LEAST);
    chunk_size_guess(&size, 640, 0.001);
    assert_int_equal(chunk_size_next(&size), 1024);
    chunk_size_learn(&size, 1024, 1);
    assert_int_equal(chunk_size_next(&size), 512);
    chunk_size_guess(&size, 640, 2);
    assert_int_equal(chunk_size_next(&size), 512);
}

/* A chunk that a place has cut short says nothing, unless even it took too long. */
static void test_cut_short(void **state)
{
    (void)state;
    struct chunk_size size;
    chunk_size_init(&size, 0.5, 1024);
    chunk_size_learn(&size, 5, 0.4);
    chunk_size_learn(&size, 0, 0.4);
    chunk_size_learn(&size, 128, 0); /* a clock that stood still */
    assert_int_equal(chunk_size_next(&size), 128);
    chunk_size_learn(&size, 64, 1);
    assert_int_equal(chunk_size_next(&size), CHUNK_LEAST);
}

/* One step of a machine that was asleep does not throw everything away. */
static void test_outlier(void **state)
{
    (void)state;
    struct chunk_size size;
    chunk_size_init(&size, 0.5, 1024);
    assert_int_equal(settle(&size, 0, 0.5 / 512, 20), 512);
    chunk_size_learn(&size, 512, 100);
    assert_int_equal(chunk_size_next(&size), 128);
    assert_int_equal(settle(&size, 0, 0.5 / 512, 3), 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_converges), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_guess),     cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_outlier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
