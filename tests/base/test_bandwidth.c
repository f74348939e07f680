/* base/bandwidth: figures that can be, sizes that are odd, and what is refused. How fast a machine
 * is no test can know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bandwidth.h"
#include "base/clock.h"

static void measures(void **state)
{
    (void)state;
    struct bandwidth bandwidth;
    struct error error;
    double begun = clock_seconds();
    assert_int_equal(bandwidth_measure(2, 32 << 20, 5, &bandwidth, &error), STATUS_OK);
    double seconds = clock_seconds() - begun;
    assert_int_equal(bandwidth.threads, 2);
    assert_int_equal(bandwidth.rounds, 5);
    assert_int_equal(bandwidth.bytes, 32 << 20);
    assert_true(bandwidth.median > 1e7 && bandwidth.best >= bandwidth.median);
    /* three rounds of five were no faster than the median: they fit into the time that passed */
    assert_true(3 * (double)bandwidth.bytes / bandwidth.median <= seconds);
}

static void odd_sizes(void **state)
{
    (void)state;
    struct bandwidth bandwidth;
    struct error error;
    assert_int_equal(bandwidth_measure(3, 1000001, 2, &bandwidth, &error), STATUS_OK);
    assert_int_equal(bandwidth.bytes, 1000001 / 3 / 256 * 256 * 3);
    assert_true(bandwidth.median > 0);
    assert_int_equal(bandwidth_measure(5, 1, 1, &bandwidth, &error), STATUS_OK);
    assert_int_equal(bandwidth.bytes, 5 * 256);
    assert_true(bandwidth.median == bandwidth.best);
}

static void refuses(void **state)
{
    (void)state;
    struct bandwidth bandwidth;
    struct error error;
    assert_int_equal(bandwidth_measure(0, 1, 1, &bandwidth, &error), STATUS_INVALID);
    assert_int_equal(bandwidth_measure(1, -1, 1, &bandwidth, &error), STATUS_INVALID);
    assert_int_equal(bandwidth_measure(1, 1, -1, &bandwidth, NULL), STATUS_INVALID);
    assert_int_equal(bandwidth_measure(1, INT64_MAX, 1, &bandwidth, &error), STATUS_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
