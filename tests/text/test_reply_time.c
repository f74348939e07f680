/* The reply parser's time and memory grow with the output and nothing else, whatever its shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "support/reply_check.h"

static const char tools_text[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"t\":{\"type\":\"string\"},\"a\":{}}}}}]";

static int load_tools(void **state)
{
    *state = json_loads(tools_text, 0, NULL);
    return *state ? 0 : -1;
}

static int free_tools(void **state)
{
    json_decref(*state);
    return 0;
}

/* Parses `size` bytes of `unit` between the two texts, whole and byte by byte. Gives the longer
 * time, in seconds. */
static double time_parse(void **state, size_t size, const char *before, const char *unit,
                         const char *after)
{
    struct bytes output = {0};
    bool thinking = strcmp(before, "thinking ") == 0;
    bytes_append_text(&output, before);
    while (output.length < size)
        bytes_append_text(&output, unit);
    bytes_append_text(&output, after);
    struct reply_result results[2] = {0};
    double longest = 0;
    for (size_t split = 0; split < 2; split++) {
        enum reply_finish finish;
        clock_t from = clock();
        struct reply_result *result = &results[split];
        assert_int_equal(reply_parse(thinking, *state, output.data, output.length, split,
                                     REPLY_END_STOP, result, &finish, NULL),
                         STATUS_OK);
        double seconds = (double)(clock() - from) / CLOCKS_PER_SEC;
        longest = seconds > longest ? seconds : longest;
    }
    assert_true(reply_result_equal(&results[0], &results[1]));
    reply_result_clear(&results[0]);
    reply_result_clear(&results[1]);
    bytes_clear(&output);
    return longest;
}

static const char *const places[] = {
    "",
    "thinking ",
    "x<tool_call>",
    "<tool_call><function=",
    "<tool_call><function=f><parameter=",
    "<tool_call><function=f><parameter=s>",
    "<tool_call><function=f><parameter=a>",
    "<tool_call><function=f><parameter=s></parameter>",
    "<tool_call><function=f></function>",
};

static const char *const units[] = {
    "<",
    " ",
    "\n",
    "x",
    "null",
    "1",
    "[",
    "</parameter>",
    "</function>\n",
    "<function=",
    "<function=f>",
    "\n<parameter=",
    "\n<parameter=t>",
    "<parameter=k>\n",
    "\n<parameter=t> <",
    "</parameter>\n<parameter=k>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>  <function=f",
    "</tool_call>  <",
    "<think>",
    "</think> ",
    "\xc3\xa9",
};

/* Limits leave room for sanitizers; quadratic work would take many times as long. */
static void test_time_is_linear(void **state)
{
    double longest = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t j = 0; j < sizeof units / sizeof *units; j++) {
            double seconds = time_parse(state, 1 << 17, places[i], units[j], "");
            longest = seconds > longest ? seconds : longest;
            if (seconds > 0.4)
                fail_msg("%.2f s for 128 KiB of '%s' behind '%s'", seconds, units[j], places[i]);
        }
    print_message("128 KiB of any shape: at most %.3f s\n", longest);
}

static void test_time_of_a_mebibyte(void **state)
{
    static const size_t pairs[][2] = {{0, 0}, {0, 1}, {1, 2}, {2, 1}, {3, 3}, {4, 1},
                                      {5, 0}, {5, 2}, {5, 7}, {6, 6}, {7, 1}, {8, 9}};
    double longest = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *after = i % 2 ? "" : "x</parameter></function></tool_call>";
        double seconds = time_parse(state, 1 << 20, places[pairs[i][0]], units[pairs[i][1]], after);
        longest = seconds > longest ? seconds : longest;
        if (seconds > 3)
            fail_msg("%.2f s for 1 MiB of '%s' behind '%s'", seconds, units[pairs[i][1]],
                     places[pairs[i][0]]);
    }
    print_message("1 MiB: at most %.3f s\n", longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_is_linear),
        cmocka_unit_test(test_time_of_a_mebibyte),
    };
    return cmocka_run_group_tests_name("reply_time", tests, load_tools, free_tools);
}
