/* Answers of the OpenAI API: each object is read back by jansson and compared with the wanted one;
 * the joined chunks of a stream with the whole answer. Wanted JSON is written with ' for ". */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/json.h"
#include "server/openai_answer.h"
#include "server/openai_print.h"
#include "server/sse.h"
#include "support/tokenizers.h"

static json_t *read_json(const char *text, size_t length)
{
    json_t *value;
    struct error error;
    if (memchr(text, '\n', length))
        fail_msg("a line break in %.*s", (int)length, text);
    if (json_parse_strict(text, length, "answer", &value, &error) != STATUS_OK)
        fail_msg("%s: %.*s", error.message, (int)length, text);
    return value;
}

/* Compares and empties the buffer. */
static void assert_json(struct bytes *found, const char *wanted)
{
    char *copy = strdup(wanted);
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    assert_false(found->failed);
    json_t *a = read_json(found->data, found->length), *b = read_json(copy, strlen(copy));
    if (!json_equal(a, b))
        fail_msg("found %.*s, wanted %s", (int)found->length, found->data, copy);
    json_decref(a);
    json_decref(b);
    free(copy);
    bytes_clear(found);
}

/* Puts an id, which depends on the nonce alone, in the place of each '@' of the wanted text. */
static void assert_json_id(struct bytes *found, const char *wanted, const char *prefix, int choice,
                           int call)
{
    char id[OPENAI_ID_SIZE];
    openai_id(prefix, 7, choice, call, id);
    struct bytes text = {0};
    for (; *wanted; wanted++)
        if (*wanted == '@')
            bytes_append_text(&text, id);
        else
            bytes_append_byte(&text, *wanted);
    assert_json(found, bytes_terminate(&text));
    bytes_clear(&text);
}

static struct openai_answer answer(enum openai_kind kind)
{
    struct openai_answer made;
    openai_answer_init(&made, kind, 7, 1767225600, "a/\"model\"", NULL);
    return made;
}

#define MODEL "'created':1767225600,'model':'a/\\\"model\\\"','system_fingerprint':null"
#define CHUNK(choices, rest)                                                                       \
    "{'id':'@','object':'chat.completion.chunk'," MODEL ",'choices':[" choices "]" rest "}"
#define DELTA(index, delta)                                                                        \
    "{'index':" #index ",'delta':" delta ",'logprobs':null,'finish_reason':null}"
#define USAGE                                                                                      \
    "{'prompt_tokens':10,'completion_tokens':5,'total_tokens':15,'prompt_tokens_details':"         \
    "{'cached_tokens':4},'completion_tokens_details':{'reasoning_tokens':3}}"
#define TIMINGS                                                                                    \
    "{'prompt_n':6,'prompt_ms':12.5,'prompt_per_second':480.0,'predicted_n':5,"                    \
    "'predicted_ms':0.0,'predicted_per_second':0.0,'cache_n':4}"

static const struct openai_usage usage = {10, 5, 4, 3};
static const struct openai_timings timings = {6, 5, 4, 12.5, 0};

static void chunks(void **state)
{
    (void)state;
    struct openai_answer a = answer(OPENAI_CHAT_CHUNK);
    struct bytes out = {0};
    openai_chunk_role(&a, 0, &out);
    assert_json_id(&out, CHUNK(DELTA(0, "{'role':'assistant','content':''}"), ""), "chatcmpl-", -1,
                   -1);
    openai_chunk_reasoning(&a, 1, "hm", 2, &out);
    assert_json_id(&out, CHUNK(DELTA(1, "{'reasoning_content':'hm'}"), ""), "chatcmpl-", -1, -1);
    a.include_usage = a.both_reasoning = true;
    openai_chunk_reasoning(&a, 1, "hm", 2, &out);
    assert_json_id(&out,
                   CHUNK(DELTA(1, "{'reasoning_content':'hm','reasoning':'hm'}"), ",'usage':null"),
                   "chatcmpl-", -1, -1);
    openai_chunk_content(&a, 7, "a\nb", 3, NULL, &out);
    assert_json_id(&out, CHUNK(DELTA(7, "{'content':'a\\nb'}"), ",'usage':null"), "chatcmpl-", -1,
                   -1);
    struct bytes entries = {0};
    openai_chat_logprob(&(struct openai_logprob){"a", 1, -0.5}, NULL, 0, &entries);
    openai_chunk_content(&a, 0, "a", 1, &entries, &out);
    assert_json_id(&out,
                   CHUNK("{'index':0,'delta':{'content':'a'},'logprobs':{'content':[{'token':'a',"
                         "'logprob':-0.5,'bytes':[97],'top_logprobs':[]}],'refusal':null},"
                         "'finish_reason':null}",
                         ",'usage':null"),
                   "chatcmpl-", -1, -1);
    bytes_clear(&entries);
    openai_chunk_arguments(&a, 0, 1, "{\"x", 3, &out);
    assert_json_id(&out,
                   CHUNK(DELTA(0, "{'tool_calls':[{'index':1,'function':{'arguments':'{\\\"x'}}]}"),
                         ",'usage':null"),
                   "chatcmpl-", -1, -1);
    static const char *const reasons[] = {"stop", "length", "tool_calls"};
    for (int i = 0; i < 3; i++) {
        char wanted[512];
        snprintf(wanted, sizeof wanted,
                 CHUNK("{'index':2,'delta':{},'logprobs':null,'finish_reason':'%s'}",
                       ",'usage':null,'timings':" TIMINGS),
                 reasons[i]);
        openai_chunk_finish(&a, 2, (enum reply_finish)i, &timings, &out);
        assert_json_id(&out, wanted, "chatcmpl-", -1, -1);
    }
    openai_chunk_usage(&a, &usage, &timings, &out);
    assert_json_id(&out, CHUNK("", ",'usage':" USAGE ",'timings':" TIMINGS), "chatcmpl-", -1, -1);
    openai_chunk_usage(&a, &usage, NULL, &out);
    assert_json_id(&out, CHUNK("", ",'usage':" USAGE), "chatcmpl-", -1, -1);
    openai_answer_clear(&a);
    a = answer(OPENAI_CHAT_CHUNK);
    openai_chunk_call(&a, 3, 2, "f", 1, &out);
    json_t *chunk = read_json(out.data, out.length), *call;
    int index;
    const char *id, *type, *name, *arguments;
    assert_int_equal(
        json_unpack(chunk, "{s:[{s:{s:[o]}}]}", "choices", "delta", "tool_calls", &call), 0);
    assert_int_equal(json_unpack(call, "{s:i,s:s,s:s,s:{s:s,s:s}}", "index", &index, "id", &id,
                                 "type", &type, "function", "name", &name, "arguments", &arguments),
                     0);
    char wanted_id[OPENAI_ID_SIZE];
    openai_id("call_", 7, 3, 2, wanted_id);
    assert_string_equal(id, wanted_id);
    assert_int_equal(index, 2);
    assert_string_equal(type, "function");
    assert_string_equal(name, "f");
    assert_string_equal(arguments, "");
    json_decref(chunk);
    bytes_clear(&out);
    openai_answer_clear(&a);
}

/* ---- whole answers and streams --------------------------------------------------------------- */

static void gather(void *context, const struct reply_event *event)
{
    reply_collect(context, event);
}

static struct reply_result reply(bool thinking, const char *output, enum reply_finish *finish)
{
    static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    struct reply_result result = {0};
    json_t *tools = read_json(tools_text, strlen(tools_text));
    struct reply_parser *parser = reply_new(thinking, tools, gather, &result);
    reply_push_output(parser, output, strlen(output), 0);
    assert_int_equal(reply_finish(parser, REPLY_END_STOP, finish, NULL), STATUS_OK);
    reply_free(parser);
    json_decref(tools);
    return result;
}

static void whole_chat(void **state)
{
    (void)state;
    enum reply_finish finish;
    struct reply_result first = reply(false, "Hi \"you\"", &finish), second;
    struct bytes out = {0}, entries = {0};
    struct openai_answer a = answer(OPENAI_CHAT);
    openai_chat_logprob(&(struct openai_logprob){"Hi", 2, -1}, NULL, 0, &entries);
    struct openai_chat_choice choices[2] = {{&first, finish, &entries}};
#define CHAT(choices)                                                                              \
    "{'id':'@','object':'chat.completion'," MODEL ",'service_tier':null,'choices':[" choices       \
    "],'usage':" USAGE
#define FIRST(logprobs)                                                                            \
    "{'index':0,'message':{'role':'assistant','content':'Hi \\\"you\\\"','refusal':null},"         \
    "'logprobs':" logprobs ",'finish_reason':'stop'}"
    openai_chat_print(&a, choices, 1, &usage, &timings, &out);
    assert_json_id(&out,
                   CHAT(FIRST("{'content':[{'token':'Hi','logprob':-1.0,'bytes':[72,105],"
                              "'top_logprobs':[]}],'refusal':null}")) ",'timings':" TIMINGS "}",
                   "chatcmpl-", -1, -1);
    second = reply(true,
                   "why\n</think>\n\n<tool_call>\n<function=f>\n<parameter=x>\n5\n"
                   "</parameter>\n</function>\n</tool_call>",
                   &finish);
    assert_int_equal(finish, REPLY_FINISH_TOOL_CALLS);
    choices[0].logprobs = NULL;
    choices[1] = (struct openai_chat_choice){&second, finish, NULL};
    a.both_reasoning = true;
    openai_chat_print(&a, choices, 2, &usage, NULL, &out);
    json_t *found = read_json(out.data, out.length);
    const json_t *message =
        json_object_get(json_array_get(json_object_get(found, "choices"), 1), "message");
    char id[OPENAI_ID_SIZE], wanted[512];
    openai_id("call_", 7, 1, 0, id);
    snprintf(wanted, sizeof wanted,
             "{'role':'assistant','content':null,'refusal':null,'reasoning_content':'why',"
             "'reasoning':'why','tool_calls':[{'id':'%s','type':'function','function':{'name':'f',"
             "'arguments':'{\\\"x\\\": \\\"5\\\"}'}}]}",
             id);
    struct bytes printed = {0};
    json_print(message, &printed);
    assert_json(&printed, wanted);
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(found, "choices"), 1), "finish_reason")),
                        "tool_calls");
    json_decref(found);
    bytes_clear(&out);
    bytes_clear(&entries);
    reply_result_clear(&first);
    reply_result_clear(&second);
    openai_answer_clear(&a);
}

/* As clients join deltas: strings are appended, calls found by their index. */
static void join(json_t *message, const json_t *delta)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)delta, key, value)
    {
        json_t *there = json_object_get(message, key);
        if (json_is_array(value)) {
            if (!there)
                json_object_set_new(message, key, there = json_array());
            json_t *piece = json_array_get(value, 0);
            size_t index = (size_t)json_integer_value(json_object_get(piece, "index"));
            assert_true(index <= json_array_size(there));
            if (index == json_array_size(there))
                json_array_append_new(there, json_object());
            join(json_array_get(there, index), piece);
        } else if (json_is_object(value)) {
            if (!there)
                json_object_set_new(message, key, there = json_object());
            join(there, value);
        } else if (json_is_string(value) && there && strcmp(key, "type") != 0) {
            json_object_set_new(
                message, key,
                json_sprintf("%s%s", json_string_value(there), json_string_value(value)));
        } else if (!json_is_null(value)) {
            json_object_set(message, key, value);
        }
    }
}

struct stream {
    struct openai_answer answer;
    struct reply_result result;
    struct bytes out; /* the SSE stream */
    int n_events;
};

static void send(void *context, const struct reply_event *event)
{
    struct stream *stream = context;
    reply_collect(&stream->result, event);
    sse_begin(&stream->out);
    if (openai_chunk_event(&stream->answer, 0, event, &stream->out)) {
        sse_end(&stream->out);
        stream->n_events++;
    } else {
        stream->out.length -= strlen("data: ");
    }
}

/* Reads an SSE stream back; the joined message of choice 0. */
static json_t *read_stream(const struct bytes *out, int *n)
{
    json_t *message = json_object();
    bool done = false;
    const char *at = out->data, *end = out->data + out->length;
    for (*n = 0; at < end;) {
        const char *line_end = memmem(at, (size_t)(end - at), "\n\n", 2);
        assert_non_null(line_end);
        assert_false(done);
        if (*at == ':') {
            at = line_end + 2;
            continue;
        }
        assert_memory_equal(at, "data: ", 6);
        at += 6;
        if ((size_t)(line_end - at) == 6 && memcmp(at, "[DONE]", 6) == 0) {
            done = true;
        } else {
            json_t *chunk = read_json(at, (size_t)(line_end - at));
            const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
            assert_non_null(choice);
            join(message, json_object_get(choice, "delta"));
            json_decref(chunk);
            ++*n;
        }
        at = line_end + 2;
    }
    assert_true(done);
    return message;
}

/* A model's output as a stream, cut into pieces of `split` bytes, and whole: the same message. */
static void check_stream(bool thinking, const char *output, size_t split)
{
    static const char tools_text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"s\":{\"type\":\"string\"}}}}}]";
    struct stream stream = {.answer = answer(OPENAI_CHAT_CHUNK)};
    struct bytes whole = {0};
    enum reply_finish finish;
    json_t *tools = read_json(tools_text, strlen(tools_text));
    struct reply_parser *parser = reply_new(thinking, tools, send, &stream);
    sse_comment("keep-alive", &stream.out);
    sse_begin(&stream.out);
    openai_chunk_role(&stream.answer, 0, &stream.out);
    sse_end(&stream.out);
    reply_push_output(parser, output, strlen(output), split);
    assert_int_equal(reply_finish(parser, REPLY_END_STOP, &finish, NULL), STATUS_OK);
    reply_free(parser);
    sse_done(&stream.out);

    int n;
    json_t *joined = read_stream(&stream.out, &n);
    assert_int_equal(n, stream.n_events + 1);
    for (size_t i = 0; i < json_array_size(json_object_get(joined, "tool_calls")); i++)
        json_object_del(json_array_get(json_object_get(joined, "tool_calls"), i), "index");
    struct openai_answer a = answer(OPENAI_CHAT);
    struct openai_chat_choice choice = {&stream.result, finish, NULL};
    openai_chat_print(&a, &choice, 1, &usage, NULL, &whole);
    json_t *object = read_json(whole.data, whole.length);
    json_t *message =
        json_object_get(json_array_get(json_object_get(object, "choices"), 0), "message");
    json_object_del(message, "refusal");
    if (json_is_null(json_object_get(message, "content")))
        json_object_set_new(message, "content", json_string(""));
    if (!json_equal(joined, message))
        fail_msg("%s: found %s, wanted %s", output, json_dumps(joined, 0), json_dumps(message, 0));
    json_decref(joined);
    json_decref(object);
    json_decref(tools);
    bytes_clear(&whole);
    bytes_clear(&stream.out);
    reply_result_clear(&stream.result);
    openai_answer_clear(&stream.answer);
    openai_answer_clear(&a);
}

static void joined_chunks_are_the_answer(void **state)
{
    (void)state;
    static const char *const outputs[] = {
        "plain",
        "",
        "thought\n</think>\n\nanswer with \xf0\x9f\x98\x80 \xe6\xbc\xa2 \"quotes\" \\ \t\x01 end",
        "a\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\nline \"1\"\nline 2 \xf0\x9f\x98"
        "\x80\n</parameter>\n<parameter=n>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
        "text <tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n"
        "<parameter=s>\n\\u0000\n</parameter>\n</function>\n</tool_call>",
    };
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        for (int thinking = 0; thinking < 2; thinking++)
            for (size_t split = 0; split < 5; split++)
                check_stream(thinking, outputs[i], split);
}

static void every_character_is_escaped_right(void **state)
{
    (void)state;
    struct openai_answer a = answer(OPENAI_CHAT_CHUNK);
    struct bytes text = {0}, out = {0};
    for (int c = 1; c < 128; c++)
        bytes_append_byte(&text, (char)c);
    bytes_append(&text, "\0\xe2\x80\xa8\xe2\x80\xa9\xc2\x85\xf0\x9f\x98\x80\xef\xbf\xbf", 17);
    openai_chunk_content(&a, 0, text.data, text.length, NULL, &out);
    json_t *chunk, *content;
    for (size_t i = 0; i < out.length; i++)
        assert_true((unsigned char)out.data[i] >= 0x20);
    assert_int_equal(json_parse(out.data, out.length, "chunk", &chunk, NULL), STATUS_OK);
    assert_int_equal(json_unpack(chunk, "{s:[{s:{s:o}}]}", "choices", "delta", "content", &content),
                     0);
    assert_int_equal(json_string_length(content), text.length);
    assert_memory_equal(json_string_value(content), text.data, text.length);
    json_decref(chunk);
    bytes_clear(&text);
    bytes_clear(&out);
    openai_answer_clear(&a);
}

/* ---- text completions ------------------------------------------------------------------------ */

static void texts(void **state)
{
    (void)state;
    struct openai_answer a = answer(OPENAI_TEXT);
    struct bytes out = {0};
#define TEXT(choices, rest)                                                                        \
    "{'id':'@','object':'text_completion'," MODEL ",'choices':[" choices "]" rest "}"
    struct openai_text_choice choices[] = {{"a", 1, REPLY_FINISH_STOP, NULL},
                                           {NULL, 0, REPLY_FINISH_LENGTH, NULL}};
    openai_text_print(&a, choices, 2, &usage, &timings, &out);
    assert_json_id(&out,
                   TEXT("{'index':0,'text':'a','logprobs':null,'finish_reason':'stop'},"
                        "{'index':1,'text':'','logprobs':null,'finish_reason':'length'}",
                        ",'usage':" USAGE ",'timings':" TIMINGS),
                   "cmpl-", -1, -1);
    openai_text_chunk(&a, 3, "b", 1, NULL, &out);
    assert_json_id(&out, TEXT("{'index':3,'text':'b','logprobs':null,'finish_reason':null}", ""),
                   "cmpl-", -1, -1);
    a.include_usage = true;
    openai_text_chunk_finish(&a, 3, REPLY_FINISH_LENGTH, &timings, &out);
    assert_json_id(&out,
                   TEXT("{'index':3,'text':'','logprobs':null,'finish_reason':'length'}",
                        ",'usage':null,'timings':" TIMINGS),
                   "cmpl-", -1, -1);
    openai_answer_clear(&a);
}

static void text_logprobs(void **state)
{
    (void)state;
    struct openai_text_logprobs logprobs = {0};
    struct openai_answer a = answer(OPENAI_TEXT);
    struct bytes out = {0};
    struct openai_logprob top[] = {{"\"a", 2, -0.25}, {"\xff", 1, -2}, {"\xfe", 1, -3}};
    openai_text_logprob(&logprobs, &(struct openai_logprob){"\xc3\xa9x", 3, 0}, false, NULL, 0);
    openai_text_logprob(&logprobs, &top[0], true, top, 3);
    openai_text_logprob(&logprobs, &(struct openai_logprob){"b", 1, -INFINITY}, true, top, 1);
    openai_text_chunk(&a, 0, "\xc3\xa9x\"ab", 6, &logprobs, &out);
    assert_json_id(
        &out,
        TEXT("{'index':0,'text':'\xc3\xa9x\\\"ab','logprobs':{'tokens':['\xc3\xa9x','\\\"a','b'],"
             "'token_logprobs':[null,-0.25,-9999.0],'top_logprobs':[null,"
             "{'\\\"a':-0.25,'\xef\xbf\xbd':-2.0},{'\\\"a':-0.25,'b':-9999.0}],"
             "'text_offset':[0,2,4]},'finish_reason':null}",
             ""),
        "cmpl-", -1, -1);
    openai_text_logprobs_reset(&logprobs);
    /* an emoji in two tokens: the second begins behind the character */
    openai_text_logprob(&logprobs, &(struct openai_logprob){"\xf0\x9f", 2, -1}, true, NULL, 0);
    openai_text_logprob(&logprobs, &(struct openai_logprob){"\x98\x80", 2, -1}, true, NULL, 0);
    openai_text_logprobs_print(&logprobs, &out);
    assert_json(&out, "{'tokens':['\xef\xbf\xbd','\xef\xbf\xbd\xef\xbf\xbd'],"
                      "'token_logprobs':[-1.0,-1.0],'top_logprobs':[{'\xef\xbf\xbd':-1.0},"
                      "{'\xef\xbf\xbd\xef\xbf\xbd':-1.0}],'text_offset':[5,6]}");
    openai_text_logprobs_clear(&logprobs);
    openai_answer_clear(&a);
}

static void chat_logprobs(void **state)
{
    (void)state;
    struct bytes entries = {0}, list = {0};
    struct openai_logprob top[] = {{"a", 1, -0.5}, {"\xe6\xbc", 2, NAN}, {"", 0, -INFINITY}};
    openai_chat_logprob(&top[0], top, 3, &entries);
    openai_chat_logprob(&(struct openai_logprob){"\n\x80", 2, 1e-9}, NULL, 0, &entries);
    bytes_format(&list, "[%.*s]", (int)entries.length, entries.data);
    assert_json(&list, "[{'token':'a','logprob':-0.5,'bytes':[97],'top_logprobs':["
                       "{'token':'a','logprob':-0.5,'bytes':[97]},"
                       "{'token':'\xef\xbf\xbd','logprob':-9999.0,'bytes':[230,188]},"
                       "{'token':'','logprob':-9999.0,'bytes':[]}]},"
                       "{'token':'\\n\xef\xbf\xbd','logprob':0.0,'bytes':[10,128],"
                       "'top_logprobs':[]}]");
    bytes_clear(&entries);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void check_real(double value, int decimals, const char *wanted)
{
    struct bytes out = {0};
    print_real(value, decimals, &out);
    assert_string_equal(bytes_terminate(&out), wanted);
    bytes_clear(&out);
}

static void numbers(void **state)
{
    (void)state;
    check_real(0, 3, "0.0");
    check_real(-0.0, 3, "0.0");
    check_real(-0.0004, 3, "0.0");
    check_real(0.0005, 3, "0.001");
    check_real(1.25, 3, "1.25");
    check_real(-1.25, 1, "-1.3");
    check_real(99.9996, 3, "100.0");
    check_real(1.05, 9, "1.05");
    check_real(-0.000000125, 9, "-0.000000125");
    check_real(7, 0, "7.0");
    check_real(NAN, 3, "0.0");
    check_real(INFINITY, 9, "900000000.0");
    check_real(-INFINITY, 9, "-900000000.0");
    struct bytes out = {0};
    print_integer(INT64_MIN, &out);
    bytes_append_byte(&out, ' ');
    print_integer(0, &out);
    bytes_append_byte(&out, ' ');
    print_integer(INT64_MAX, &out);
    assert_string_equal(bytes_terminate(&out), "-9223372036854775808 0 9223372036854775807");
    bytes_clear(&out);
}

static void ids(void **state)
{
    (void)state;
    char a[OPENAI_ID_SIZE], b[OPENAI_ID_SIZE];
    openai_id("chatcmpl-", 1, -1, -1, a);
    openai_id("chatcmpl-", 1, -1, -1, b);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), strlen("chatcmpl-") + 24);
    assert_int_equal(
        strspn(a + 9, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), 24);
    enum { NONCES = 200, CHOICES = 4, CALLS = 4, N = NONCES * CHOICES * CALLS };
    static char all[N][OPENAI_ID_SIZE];
    for (int i = 0; i < N; i++)
        openai_id("call_", (uint64_t)(i / CHOICES / CALLS), i / CALLS % CHOICES, i % CALLS, all[i]);
    qsort(all, N, sizeof *all, (int (*)(const void *, const void *))strcmp);
    for (int i = 1; i < N; i++)
        assert_string_not_equal(all[i - 1], all[i]);
}

static void small_objects(void **state)
{
    (void)state;
    struct bytes out = {0};
    struct openai_model models[] = {{"m", 5, 4096}, {"\"n", 6, 8}};
#define M                                                                                          \
    "{'id':'m','object':'model','created':5,'owned_by':'calla','max_model_len':4096,"              \
    "'context_length':4096}"
    openai_model_print(&models[0], &out);
    assert_json(&out, M);
    openai_models_print(models, 2, &out);
    assert_json(&out, "{'object':'list','data':[" M ",{'id':'\\\"n','object':'model','created':6,"
                      "'owned_by':'calla','max_model_len':8,'context_length':8}]}");
    openai_models_print(models, 0, &out);
    assert_json(&out, "{'object':'list','data':[]}");
    openai_prompt_print("a\n", 2, &out);
    assert_json(&out, "{'prompt':'a\\n'}");
    struct openai_problem problem;
    openai_refuse(&problem, "n", NULL, "a \"number\"");
    openai_problem_print(&problem, &out);
    assert_json(&out, "{'error':{'message':'n: found nothing, wanted a \\\"number\\\"',"
                      "'type':'invalid_request_error','param':'n','code':'invalid_value'}}");
    openai_problem_set(&problem, 503, "server_error", NULL, NULL, "loading\n%s", "\xff");
    openai_problem_print(&problem, &out);
    assert_json(&out, "{'error':{'message':'loading?\?','type':'server_error','param':null,"
                      "'code':null}}");
}

static void tokens(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    struct token_list list = encode_text(tokenizer, "<|im_end|>", 10, true);
    struct bytes out = {0};
    char wanted[160];
    int32_t id = list.data[0];
    token_list_append(&list, id);
    openai_tokens_print(&list, 4096, NULL, &out);
    snprintf(wanted, sizeof wanted,
             "{'count':2,'max_model_len':4096,'tokens':[%d,%d],'token_strs':null}", id, id);
    assert_json(&out, wanted);
    openai_tokens_print(&list, 4096, tokenizer, &out);
    snprintf(wanted, sizeof wanted,
             "{'count':2,'max_model_len':4096,'tokens':[%d,%d],"
             "'token_strs':['<|im_end|>','<|im_end|>']}",
             id, id);
    assert_json(&out, wanted);
    token_list_clear(&list);
    openai_tokens_print(&list, 4096, tokenizer, &out);
    assert_json(&out, "{'count':0,'max_model_len':4096,'tokens':[],'token_strs':[]}");
    tokenizer_close(tokenizer);
}

static void frames(void **state)
{
    (void)state;
    struct bytes out = {0};
    sse_begin(&out);
    bytes_append_text(&out, "{}");
    sse_end(&out);
    sse_comment("a\nb\r", &out);
    sse_progress(100, 40, 30, &out);
    sse_done(&out);
    assert_string_equal(bytes_terminate(&out),
                        "data: {}\n\n: a b \n\n"
                        ": {\"progress\":{\"total\":100,\"read\":40,\"cached\":30}}\n\n"
                        "data: [DONE]\n\n");
    bytes_clear(&out);
}

/* A chunk is made for each token; printed, not judged: machines differ. */
static void a_chunk_is_fast(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct openai_answer a = answer(OPENAI_CHAT_CHUNK);
    struct bytes out = {0};
    double start = clock_seconds();
    for (int i = 0; i < N; i++) {
        bytes_reset(&out);
        sse_begin(&out);
        openai_chunk_content(&a, 0, " word\n", 6, NULL, &out);
        sse_end(&out);
    }
    print_message("%.3f us a chunk\n", (clock_seconds() - start) / N * 1e6);
    assert_true(out.length > 100);
    bytes_clear(&out);
    openai_answer_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks),
        cmocka_unit_test(whole_chat),
        cmocka_unit_test(joined_chunks_are_the_answer),
        cmocka_unit_test(every_character_is_escaped_right),
        cmocka_unit_test(texts),
        cmocka_unit_test(text_logprobs),
        cmocka_unit_test(chat_logprobs),
        cmocka_unit_test(numbers),
        cmocka_unit_test(ids),
        cmocka_unit_test(small_objects),
        cmocka_unit_test(tokens),
        cmocka_unit_test(frames),
        cmocka_unit_test(a_chunk_is_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
