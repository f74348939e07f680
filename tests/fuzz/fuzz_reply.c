/* libFuzzer: one byte of switches, one of piece size, the rest is output with the tags' letters for
 * tags. Every split must give the same result, calls must parse, and events of valid UTF-8 must be
 * whole code points. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "support/reply_check.h"
#include "text/json_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"t\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},"
    "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{},"
    "\"u\":{\"anyOf\":[{\"type\":\"string\"},{\"items\":{}}]},\"e\":{\"enum\":[1,2.5,null,true]}}}}"
    "},"
    "{\"function\":{\"name\":\"now\"}}]";

/* The same object with repeated keys resolved must parse, too. */
static void check_unique(const struct reply_result *result)
{
    for (size_t i = 0; i < result->n_calls; i++) {
        struct bytes once = {0}, twice = {0};
        const struct bytes *arguments = &result->calls[i].arguments;
        json_text_print_unique(arguments->data, arguments->length, &once);
        json_text_print_unique(once.data, once.length, &twice);
        assert(!once.failed && json_text_check_container(once.data, once.length) == STATUS_OK);
        assert(once.length == twice.length && once.length <= arguments->length);
        bytes_clear(&once);
        bytes_clear(&twice);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools; /* kept for the process: it is the same for all inputs */
    if (!tools)
        tools = json_loads(tools_text, 0, NULL);
    if (size < 2)
        return 0;
    bool thinking = data[0] & 1;
    enum reply_end end = data[0] & 2 ? REPLY_END_LENGTH : REPLY_END_STOP;
    const json_t *given = data[0] & 4 ? NULL : tools;
    size_t split = 1 + data[1] % 16, length = size - 2;
    const char *output = (const char *)data + 2;
    bool valid = utf8_valid_length(output, length) == length;
    struct reply_check whole = {.problem = NULL}, split_up = {.problem = NULL};
    enum reply_finish finish[2];
    enum status status =
        reply_check_parse(&whole, thinking, given, output, length, 0, end, &finish[0]);
    assert(status == STATUS_OK);
    status = reply_check_parse(&split_up, thinking, given, output, length, split, end, &finish[1]);
    assert(status == STATUS_OK && finish[0] == finish[1]);
    assert(reply_result_equal(&whole.result, &split_up.result));
    const char *problem = whole.problem ? whole.problem : split_up.problem;
    if (valid && problem) {
        fprintf(stderr, "%s\n", problem);
        abort();
    }
    if (valid)
        check_unique(&whole.result);
    reply_result_clear(&whole.result);
    reply_result_clear(&split_up.result);
    return 0;
}
