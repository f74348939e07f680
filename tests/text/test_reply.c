/* The reply parser: every golden line in many splits, the rows of known faults, spelling of
 * arguments, linear time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/reply_check.h"
#include "text/json_text.h"

static const char *const finish_names[] = {"stop", "length", "tool_calls"};

/* One tool with a parameter of each kind. */
static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"t\":{\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"o\":{\"type\":\"object\"},\"a\":{},\"u\":{\"type\":[\"string\",\"array\"]},"
    "\"z\":{\"type\":[\"null\",\"integer\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

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

struct outcome {
    struct reply_check check;
    enum reply_finish finish;
};

static struct outcome parse_bytes(void **state, bool thinking, const char *output, size_t length,
                                  size_t split, enum reply_end end)
{
    struct outcome outcome = {0};
    assert_int_equal(reply_check_parse(&outcome.check, thinking, *state, output, length, split, end,
                                       &outcome.finish),
                     STATUS_OK);
    if (outcome.check.problem)
        fail_msg("%s, split %zu: %.300s", outcome.check.problem, split, output);
    return outcome;
}

static void outcome_clear(struct outcome *outcome)
{
    reply_result_clear(&outcome->check.result);
}

static void assert_bytes(const struct bytes *bytes, const char *wanted)
{
    size_t length = strlen(wanted);
    if (bytes->length != length || (length > 0 && memcmp(bytes->data, wanted, length) != 0))
        fail_msg("found '%.*s', wanted '%s'", (int)bytes->length, bytes->data ? bytes->data : "",
                 wanted);
}

/* The output in several splits; `arguments`: of each call, NULL ends them. */
static void check(void **state, bool thinking, enum reply_end end, const char *output,
                  const char *reasoning, const char *content, enum reply_finish finish,
                  const char *const *arguments)
{
    for (size_t split = 0; split <= 7; split++) {
        struct outcome outcome = parse_bytes(state, thinking, output, strlen(output), split, end);
        const struct reply_result *result = &outcome.check.result;
        assert_bytes(&result->reasoning, reasoning);
        assert_bytes(&result->content, content);
        assert_int_equal(outcome.finish, finish);
        size_t n = 0;
        for (; arguments && arguments[n]; n++) {
            assert_true(n < result->n_calls);
            assert_bytes(&result->calls[n].arguments, arguments[n]);
        }
        assert_int_equal(result->n_calls, n);
        outcome_clear(&outcome);
    }
}

#define ARGUMENTS(...)                                                                             \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define CALL(parameters) "<tool_call>\n<function=f>\n" parameters "</function>\n</tool_call>"
#define PARAMETER(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void check_arguments(void **state, const char *output, const char *arguments)
{
    check(state, false, REPLY_END_STOP, output, "", "", REPLY_FINISH_TOOL_CALLS,
          ARGUMENTS(arguments));
}

static void check_text(void **state, const char *output, const char *content)
{
    check(state, false, REPLY_END_STOP, output, "", content, REPLY_FINISH_STOP, NULL);
}

/* ---- golden lines ---- */

static void assert_field(const json_t *line, const char *field, const struct bytes *found)
{
    const json_t *wanted = json_object_get(line, field);
    if (json_string_length(wanted) != found->length ||
        (found->length > 0 && memcmp(json_string_value(wanted), found->data, found->length) != 0))
        fail_msg("%s: %s: found '%.*s', wanted '%s'",
                 json_string_value(json_object_get(line, "why")), field, (int)found->length,
                 found->data ? found->data : "", json_string_value(wanted));
}

static void assert_line(const json_t *line, const struct reply_result *result,
                        enum reply_finish finish)
{
    const char *why = json_string_value(json_object_get(line, "why"));
    assert_field(line, "reasoning", &result->reasoning);
    assert_field(line, "content", &result->content);
    assert_string_equal(json_string_value(json_object_get(line, "finish")), finish_names[finish]);
    const json_t *calls = json_object_get(line, "tool_calls");
    if (json_array_size(calls) != result->n_calls)
        fail_msg("%s: found %zu calls", why, result->n_calls);
    for (size_t i = 0; i < result->n_calls; i++) {
        const struct reply_call *found = &result->calls[i];
        const json_t *call = json_array_get(calls, i);
        assert_field(call, "name", &found->name);
        json_t *arguments = json_loadb(found->arguments.data, found->arguments.length, 0, NULL);
        if (!json_equal(arguments, json_object_get(call, "arguments")))
            fail_msg("%s: found arguments %.*s", why, (int)found->arguments.length,
                     found->arguments.data);
        json_decref(arguments);
    }
}

/* Pieces of `split` bytes, or, when `cut` is not 0, two pieces. */
static void run_line(const json_t *line, size_t split, size_t cut)
{
    const char *output = json_string_value(json_object_get(line, "output"));
    size_t length = json_string_length(json_object_get(line, "output"));
    bool thinking = json_is_true(json_object_get(line, "thinking"));
    bool stop = strcmp(json_string_value(json_object_get(line, "end")), "stop") == 0;
    enum reply_end end = stop ? REPLY_END_STOP : REPLY_END_LENGTH;
    struct outcome outcome = {0};
    struct reply_parser *parser =
        reply_new(thinking, json_object_get(line, "tools"), reply_check_event, &outcome.check);
    assert_non_null(parser);
    /* A cut inside a tag's letters would make text of it: then it falls before the tag. */
    for (int tag = 0; cut > 0 && tag < REPLY_N_TAGS; tag++)
        for (const char *at = output; (at = strstr(at, reply_tag_text[tag])); at++)
            if (cut > (size_t)(at - output) &&
                cut < (size_t)(at - output) + strlen(reply_tag_text[tag]))
                cut = (size_t)(at - output);
    if (cut > 0)
        reply_push_output(parser, output, cut, 0);
    reply_push_output(parser, output + cut, length - cut, split);
    assert_int_equal(reply_finish(parser, end, &outcome.finish, NULL), STATUS_OK);
    reply_free(parser);
    if (outcome.check.problem)
        fail_msg("%s: split %zu cut %zu: %s", outcome.check.problem, split, cut, output);
    assert_line(line, &outcome.check.result, outcome.finish);
    outcome_clear(&outcome);
}

static void test_golden_lines_in_all_splits(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/reply.jsonl", "r");
    assert_non_null(file);
    char *text = NULL;
    size_t capacity = 0;
    int n = 0;
    while (getline(&text, &capacity, file) >= 0) {
        json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL);
        assert_non_null(line);
        for (size_t split = 0; split <= 7; split++)
            run_line(line, split, 0);
        size_t length = json_string_length(json_object_get(line, "output"));
        for (size_t cut = 1; cut < length; cut++)
            run_line(line, 0, cut);
        json_decref(line);
        n++;
    }
    free(text);
    fclose(file);
    assert_int_equal(n, 172);
}

/* ---- rows of known faults ---- */

static void row_26_call_inside_an_unclosed_think_block(void **state)
{
    check(state, true, REPLY_END_STOP, "<think>plan " CALL(PARAMETER("s", "x")), "plan ", "",
          REPLY_FINISH_TOOL_CALLS, ARGUMENTS("{\"s\": \"x\"}"));
    check(state, false, REPLY_END_STOP, "<think>plan " CALL(PARAMETER("s", "x")) "</think>\nok",
          "plan ", "ok", REPLY_FINISH_TOOL_CALLS, ARGUMENTS("{\"s\": \"x\"}"));
}

static void row_27_streamed_arguments_behind_reasoning(void **state)
{
    const char *output =
        "why\n</think>\n\n" CALL(PARAMETER("s", "a long value") PARAMETER("i", "7"));
    check(state, true, REPLY_END_STOP, output, "why", "", REPLY_FINISH_TOOL_CALLS,
          ARGUMENTS("{\"s\": \"a long value\", \"i\": 7}"));
    /* the value is streamed, not given at its end */
    struct outcome outcome = parse_bytes(state, true, output, strlen(output), 1, REPLY_END_STOP);
    assert_true(outcome.check.n_events > 12);
    outcome_clear(&outcome);
}

static void row_28_closing_tags_inside_a_value(void **state)
{
    check_arguments(state, CALL(PARAMETER("s", "a </parameter> b </tool_call> c </function>")),
                    "{\"s\": \"a </parameter> b </tool_call> c </function>\"}");
    check_arguments(state, CALL(PARAMETER("s", "</parameter>\n</parameter>")),
                    "{\"s\": \"</parameter>\\n</parameter>\"}");
    check_arguments(state, CALL(PARAMETER("s", "<tool_call>\n</tool_call>\n<think>")),
                    "{\"s\": \"<tool_call>\\n</tool_call>\\n<think>\"}");
}

static void row_30_nothing_is_unescaped(void **state)
{
    check_arguments(state, CALL(PARAMETER("s", "a && b < c \"q\" &lt; &amp; 'x' \\n <b>")),
                    "{\"s\": \"a && b < c \\\"q\\\" &lt; &amp; 'x' \\\\n <b>\"}");
}

static void row_31_parameter_without_its_bracket_is_text(void **state)
{
    const char *output = "<tool_call>\n<function=f>\n<parameter=s\nx\n</parameter>\n</function>\n"
                         "</tool_call>";
    check_text(state, output, output);
    check_text(state, "<tool_call><function=>x", "<tool_call><function=>x");
    check_text(state, "<tool_call><function=f\n><parameter=s>",
               "<tool_call><function=f\n><parameter=s>");
    check_text(state, "<tool_call><function= ><parameter=s>",
               "<tool_call><function= ><parameter=s>");
    check_text(state, "<tool_call><function=f><parameter=<>",
               "<tool_call><function=f><parameter=<>");
}

static void row_33_parallel_calls_are_numbered(void **state)
{
    check(state, false, REPLY_END_STOP,
          CALL(PARAMETER("s", "Paris")) "\n" CALL(PARAMETER("s", "Rome")), "", "",
          REPLY_FINISH_TOOL_CALLS, ARGUMENTS("{\"s\": \"Paris\"}", "{\"s\": \"Rome\"}"));
}

static void row_37_one_newline_off_each_end(void **state)
{
    check_arguments(state, CALL(PARAMETER("s", "\n\n  def f():\n\n")),
                    "{\"s\": \"\\n\\n  def f():\\n\\n\"}");
    check_arguments(state, CALL("<parameter=s>\n\n  def f():\n\n</parameter>\n"),
                    "{\"s\": \"\\n  def f():\\n\"}");
}

static void row_39_cut_in_mid_thought(void **state)
{
    check(state, true, REPLY_END_LENGTH, "I should\n", "I should", "", REPLY_FINISH_LENGTH, NULL);
    check(state, true, REPLY_END_LENGTH, "a <tool_call>\n<function=f>\n",
          "a <tool_call>\n<function=f>", "", REPLY_FINISH_LENGTH, NULL);
}

static void row_43_all_tokens_spent_in_thought(void **state)
{
    check(state, true, REPLY_END_LENGTH, "a\n\nb\n\n", "a\n\nb", "", REPLY_FINISH_LENGTH, NULL);
    check(state, true, REPLY_END_LENGTH, "a</think>", "a", "", REPLY_FINISH_LENGTH, NULL);
}

/* ---- what the golden lines leave out ---- */

static void test_numbers_keep_their_spelling(void **state)
{
    static const char *const pairs[][2] = {
        {PARAMETER("i", "123456789012345678901234567890"),
         "{\"i\": 123456789012345678901234567890}"},
        {PARAMETER("i", " -0042.000 "), "{\"i\": -42}"},
        {PARAMETER("i", "-0"), "{\"i\": 0}"},
        {PARAMETER("i", "5."), "{\"i\": \"5.\"}"},
        {PARAMETER("i", "+"), "{\"i\": \"+\"}"},
        {PARAMETER("n", "+1.50"), "{\"n\": 1.50}"},
        {PARAMETER("n", "001.50E+07"), "{\"n\": 1.50E+07}"},
        {PARAMETER("n", "1e"), "{\"n\": \"1e\"}"},
        {PARAMETER("n", "1.7976931348623157e308"), "{\"n\": 1.7976931348623157e308}"},
        {PARAMETER("n", "1.7976931348623159e308"), "{\"n\": \"1.7976931348623159e308\"}"},
        {PARAMETER("n", "0.0000001e315"), "{\"n\": 0.0000001e315}"},
        {PARAMETER("n", "0.000001e315"), "{\"n\": \"0.000001e315\"}"},
        {PARAMETER("n", "1e-99999999999999999999"), "{\"n\": 1e-99999999999999999999}"},
        {PARAMETER("n", "0e99999999999999999999"), "{\"n\": 0e99999999999999999999}"},
        {PARAMETER("n", "nUll"), "{\"n\": null}"},
        {PARAMETER("b", "FALSE"), "{\"b\": false}"},
        {PARAMETER("z", "7"), "{\"z\": 7}"},
        {PARAMETER("z", "x"), "{\"z\": \"x\"}"},
        {PARAMETER("u", " null"), "{\"u\": \" null\"}"},
        {PARAMETER("u", "[1,  2\n]"), "{\"u\": [1, 2]}"},
        {PARAMETER("a", "{\"k\" :1.50, \"s\":\"a,\\\"b: \"}"),
         "{\"a\": {\"k\": 1.50, \"s\": \"a,\\\"b: \"}}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char output[300];
        snprintf(output, sizeof output, CALL("%s"), pairs[i][0]);
        check_arguments(state, output, pairs[i][1]);
    }
}

static void test_null_is_held_until_it_is_certain(void **state)
{
    check_arguments(state, CALL(PARAMETER("s", "nul")), "{\"s\": \"nul\"}");
    check_arguments(state, CALL(PARAMETER("s", "NuLL")), "{\"s\": null}");
    check_arguments(state, CALL(PARAMETER("s", "null\n")), "{\"s\": \"null\\n\"}");
    check_arguments(state, CALL(PARAMETER("s", "nullx")), "{\"s\": \"nullx\"}");
    check_arguments(state, CALL(PARAMETER("s", "null</parameter>")),
                    "{\"s\": \"null</parameter>\"}");
}

static void test_repeated_keys(void **state)
{
    check_arguments(state, CALL(PARAMETER("s", "a") PARAMETER("i", "1") PARAMETER("s", "b")),
                    "{\"s\": \"a\", \"i\": 1, \"s\": \"b\"}");
    const char *text =
        " {\"a\" : {\"b\":1, \"b\":[2]} , \"c}\\\"\":\"x,y\",\"a\":[1, {\"q\":\"]\"}]} ";
    struct bytes out = {0};
    json_text_print_unique(text, strlen(text), &out);
    assert_bytes(&out, "{\"a\": [1, {\"q\":\"]\"}], \"c}\\\"\": \"x,y\"}");
    bytes_reset(&out);
    json_text_print_unique("{}", 2, &out);
    assert_bytes(&out, "{}");
    bytes_clear(&out);
}

static void test_control_characters_are_escaped(void **state)
{
    const char output[] = CALL(PARAMETER("s", "a\0b\x01\x1f\x7f"));
    for (size_t split = 0; split < 4; split++) {
        struct outcome outcome =
            parse_bytes(state, false, output, sizeof output - 1, split, REPLY_END_STOP);
        assert_int_equal(outcome.check.result.n_calls, 1);
        assert_bytes(&outcome.check.result.calls[0].arguments,
                     "{\"s\": \"a\\u0000b\\u0001\\u001f\x7f\"}");
        outcome_clear(&outcome);
    }
}

static void test_json_text(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        " [ ] ",
        "[[],{}]",
        "[1,-0,0.5,1E5,1e-7]",
        "{\"a\":{\"b\":[true,false,null]}}",
        "[\"\\u00e9\\ud83d\\ude00\\n\\/\"]",
        "[123456789012345678901234567890]",
    };
    static const char *const bad[] = {
        "",
        "1",
        "\"x\"",
        "{",
        "[",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":1,}",
        "{a:1}",
        "[01]",
        "[+1]",
        "[.5]",
        "[1.]",
        "[1e]",
        "[NaN]",
        "[tru]",
        "[\"\\x\"]",
        "[\"\\u12\"]",
        "[\"\n\"]",
        "[\"\\ud800\"]",
        "[\"\\udc00\"]",
        "[1]]",
        "[1}",
        "{\"a\":1]",
        "[] x",
        "['a']",
        "[\"a]",
        "[1 2]",
        "[\"\\",
        "[\"\\ud800\\u0041\"]",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (json_text_check_container(good[i], strlen(good[i])) != STATUS_OK)
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (json_text_check_container(bad[i], strlen(bad[i])) != STATUS_INVALID)
            fail_msg("accepted: %s", bad[i]);
}

static void test_tags_by_letters_are_text(void **state)
{
    /* pushed as text, not as tags */
    const char *output = "a <think>b</think><tool_call><function=now></function></tool_call>";
    struct reply_check found = {0};
    struct reply_parser *parser = reply_new(false, *state, reply_check_event, &found);
    enum reply_finish finish;
    reply_push_text(parser, output, strlen(output));
    assert_int_equal(reply_finish(parser, REPLY_END_STOP, &finish, NULL), STATUS_OK);
    reply_free(parser);
    assert_null(found.problem);
    assert_bytes(&found.result.content, output);
    assert_int_equal(finish, REPLY_FINISH_STOP);
    reply_result_clear(&found.result);
}

static void test_a_cut_call_has_no_end(void **state)
{
    static const struct {
        const char *tail;
        size_t n_calls; /* complete */
        int begun;
    } cases[] = {
        {"<parameter=s>\nRo", 1, 2},
        {"<parameter=s>\nRo\n</parameter>", 1, 2},
        {"<parameter=s>\nRo\n</parameter>\n</func", 1, 2},
        {"<parameter=s>\nRo\n</parameter>\n</function>", 2, 2},
        {"<parameter=s>\nRo\n</function>\n</to", 2, 2},
        {"<parameter=s>\nRo\n</tool_call>\n", 2, 2},
        {"", 1, 1},
        {"</funct", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t split = 0; split <= 3; split++) {
            char output[200];
            int n = snprintf(output, sizeof output, "x " CALL("") " <tool_call><function=f>\n%s",
                             cases[i].tail);
            struct outcome outcome =
                parse_bytes(state, false, output, (size_t)n, split, REPLY_END_LENGTH);
            assert_bytes(&outcome.check.result.content, "x");
            assert_int_equal(outcome.check.result.n_calls, cases[i].n_calls);
            assert_int_equal(outcome.check.n_calls, cases[i].begun);
            assert_int_equal(outcome.finish, REPLY_FINISH_LENGTH);
            outcome_clear(&outcome);
        }
}

/* What can be told is told at once. */
static void test_nothing_is_held_without_need(void **state)
{
    struct reply_check found = {0};
    struct reply_parser *parser = reply_new(true, *state, reply_check_event, &found);
    reply_push_text(parser, "I think ", 8);
    assert_bytes(&found.result.reasoning, "I think ");
    reply_push_text(parser, "\n", 1);
    reply_push_tag(parser, REPLY_THINK_CLOSE);
    reply_push_text(parser, "\n\nHi \xc3", 6);
    assert_bytes(&found.result.content, "Hi");
    reply_push_text(parser, "\xa9", 1);
    assert_bytes(&found.result.content, "Hi \xc3\xa9");
    reply_push_tag(parser, REPLY_TOOL_CALL_OPEN);
    reply_push_text(parser, "\n<function=f>\n<parameter=", 25);
    assert_int_equal(found.n_calls, 0);
    reply_push_text(parser, "s>", 2);
    assert_int_equal(found.n_calls, 1);
    const struct bytes *arguments = &found.result.calls[0].arguments;
    assert_bytes(arguments, "{\"s\": ");
    reply_push_text(parser, "\nno", 3);
    assert_bytes(arguments, "{\"s\": \"no");
    reply_push_text(parser, "te </p", 6);
    assert_bytes(arguments, "{\"s\": \"note ");
    reply_push_text(parser, ">\n", 2);
    assert_bytes(arguments, "{\"s\": \"note </p>");
    reply_push_text(parser, "</parameter>\n<", 14);
    assert_bytes(arguments, "{\"s\": \"note </p>");
    reply_push_text(parser, "/function>", 10);
    assert_bytes(arguments, "{\"s\": \"note </p>\"}");
    assert_int_equal(found.result.n_calls, 1);
    reply_free(parser);
    assert_null(found.problem);
    reply_result_clear(&found.result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_lines_in_all_splits),
        cmocka_unit_test(row_26_call_inside_an_unclosed_think_block),
        cmocka_unit_test(row_27_streamed_arguments_behind_reasoning),
        cmocka_unit_test(row_28_closing_tags_inside_a_value),
        cmocka_unit_test(row_30_nothing_is_unescaped),
        cmocka_unit_test(row_31_parameter_without_its_bracket_is_text),
        cmocka_unit_test(row_33_parallel_calls_are_numbered),
        cmocka_unit_test(row_37_one_newline_off_each_end),
        cmocka_unit_test(row_39_cut_in_mid_thought),
        cmocka_unit_test(row_43_all_tokens_spent_in_thought),
        cmocka_unit_test(test_numbers_keep_their_spelling),
        cmocka_unit_test(test_null_is_held_until_it_is_certain),
        cmocka_unit_test(test_repeated_keys),
        cmocka_unit_test(test_control_characters_are_escaped),
        cmocka_unit_test(test_json_text),
        cmocka_unit_test(test_tags_by_letters_are_text),
        cmocka_unit_test(test_a_cut_call_has_no_end),
        cmocka_unit_test(test_nothing_is_held_without_need),
    };
    return cmocka_run_group_tests_name("reply", tests, load_tools, free_tools);
}
