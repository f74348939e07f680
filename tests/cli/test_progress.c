/* cli/progress: when a line is due, and what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/progress.h"

static void test_lines(void **state)
{
    (void)state;
    struct progress progress = {.what = "verifying", .total = 1000, .started = 100, .drawn = -1};
    char line[80];
    assert_false(progress_line(&progress, 0, 100, line, sizeof line));
    assert_false(progress_line(&progress, 999, 100.9, line, sizeof line)); /* not for a second */
    assert_true(progress_line(&progress, 250, 102, line, sizeof line));
    assert_string_equal(line, "verifying: 25 %, 6 s left");
    assert_false(progress_line(&progress, 260, 102.1, line, sizeof line)); /* not so often */
    assert_true(progress_line(&progress, 500, 104, line, sizeof line));
    assert_string_equal(line, "verifying: 50 %, 4 s left");
    assert_true(progress_line(&progress, 1000, 108, line, sizeof line));
    assert_string_equal(line, "verifying: 100 %, 0 s left");
    assert_true(progress_line(&progress, 2000, 109, line, sizeof line)); /* more than foretold */
    assert_string_equal(line, "verifying: 100 %, 0 s left");
}

static void test_slow(void **state)
{
    (void)state;
    struct progress progress = {.what = "v", .total = INT64_MAX, .started = 0, .drawn = -1};
    char line[80];
    assert_true(progress_line(&progress, 0, 5, line, sizeof line));
    assert_string_equal(line, "v: 0 %");
    assert_true(progress_line(&progress, 1, 6, line, sizeof line)); /* ages left: no overflow */
    progress.total = 100;
    assert_true(progress_line(&progress, 1, 10, line, sizeof line));
    assert_string_equal(line, "v: 1 %, 17 min left"); /* 990 s */
    progress.total = 0;
    assert_true(progress_line(&progress, 5, 20, line, sizeof line));
    assert_string_equal(line, "v: 0 %");
}

static void test_no_terminal(void **state)
{
    (void)state;
    struct progress progress; /* nothing may be written when stderr is no terminal */
    progress_begin(&progress, "v", 10);
    progress.terminal = false;
    progress.started -= 10;
    progress_update(&progress, 5);
    assert_true(progress.drawn < 0);
    progress_end(&progress);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_no_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
