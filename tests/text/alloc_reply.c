/* Allocations fail one by one while the reply parser reads an output with reasoning, content and
 * two calls, and the collector gathers what it gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "support/alloc.h"
#include "text/reply_collect.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"find\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"n\": {\"type\": "
    "\"integer\"}, \"where\": {\"type\": \"array\"}, \"any\": {\"anyOf\": [{\"type\": \"number\"}, "
    "{\"type\": \"object\"}]}}}}}]";

static const char output[] =
    "The user wants two things, so both are looked for.\n</think>\n\nI look for both.\n\n"
    "<tool_call>\n<function=find>\n<parameter=name>\nA long name with \"quotes\" and\nlines\n"
    "</parameter>\n<parameter=n>\n42\n</parameter>\n<parameter=where>\n[1, {\"a\": [2]}, \"b\"]\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=find>\n<parameter=any>\n"
    "{\"x\": 1.5, \"x\": \"\\u00e9\"}\n</parameter>\n<parameter=unknown>\nnull\n</parameter>\n"
    "</function>\n</tool_call>";

struct reading {
    json_t *tools;
    size_t split;
};

static enum status read_output(void *context, struct error *error)
{
    const struct reading *reading = context;
    struct reply_result result = {0};
    enum reply_finish finish;
    enum status status = reply_parse(true, reading->tools, output, strlen(output), reading->split,
                                     REPLY_END_STOP, &result, &finish, error);
    if (status == STATUS_OK && result.n_calls != 2)
        status = error_set(error, STATUS_INVALID, "found %zu calls", result.n_calls);
    reply_result_clear(&result);
    return status;
}

static void sweep(size_t split)
{
    struct reading reading = {.split = split};
    assert_int_equal(json_parse(tools_text, strlen(tools_text), "tools", &reading.tools, NULL),
                     STATUS_OK);
    size_t n = alloc_sweep(read_output, &reading, 0);
    print_message("%zu allocations\n", n);
    assert_true(n > 10);
    json_decref(reading.tools);
}

static void output_in_one_piece(void **state)
{
    (void)state;
    sweep(0);
}

static void output_byte_by_byte(void **state)
{
    (void)state;
    sweep(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_in_one_piece),
        cmocka_unit_test(output_byte_by_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
