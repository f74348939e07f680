/* Chat requests of the OpenAI API: every field right and wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/openai_body.h"

#define HEAD "{'model':'m','messages':[{'role':'user','content':'hi'}]"

static struct openai_chat_request chat(const char *fields)
{
    char body[4096];
    struct openai_chat_request request;
    snprintf(body, sizeof body, HEAD "%s%s}", *fields ? "," : "", fields);
    body_accept(body_chat, body, &request);
    return request;
}

static void refuse_chat(const char *fields, const char *param, const char *code,
                        const char *message)
{
    char body[4096];
    snprintf(body, sizeof body, HEAD ",%s}", fields);
    body_refuse(body_chat, body, param, code, message);
}

static void refuse_messages(const char *messages, const char *param, const char *message)
{
    char body[4096];
    snprintf(body, sizeof body, "{'model':'m','messages':%s}", messages);
    body_refuse(body_chat, body, param, "invalid_value", message);
}

static void nothing_given(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "", /* what clients send by default, and nulls for everything */
        "'stream':null,'stream_options':null,'temperature':null,'top_p':null,'top_k':null,"
        "'min_p':null,'presence_penalty':null,'frequency_penalty':null,'repetition_penalty':null,"
        "'n':null,'seed':null,'stop':null,'stop_token_ids':null,'logit_bias':null,"
        "'min_tokens':null,'max_tokens':null,'max_completion_tokens':null,'ignore_eos':null,"
        "'logprobs':null,'top_logprobs':null,'thinking_budget':null,'parallel_tool_calls':null,"
        "'tools':null,'tool_choice':null,'chat_template_kwargs':null,'enable_thinking':null,"
        "'reasoning_effort':null,'functions':null,'function_call':null,'response_format':null,"
        "'modalities':null,'audio':null,'metadata':null,'unknown':null",
        "'user':'u','store':false,'metadata':{'a':'b'},'service_tier':'auto','verbosity':'low',"
        "'safety_identifier':'s','prompt_cache_key':'k','prompt_cache_retention':'24h',"
        "'prompt_cache_options':{'mode':'implicit'},'prediction':{'type':'content','content':'x'},"
        "'response_format':{'type':'text'},'modalities':['text'],'add_generation_prompt':true,"
        "'continue_final_message':false,'use_beam_search':false,'unknown':[{'x':1}]",
    };
    for (int i = 0; i < 3; i++) {
        struct openai_chat_request r = chat(forms[i]);
        const struct openai_generation *g = &r.generation;
        assert_string_equal(g->model, "m");
        assert_false(g->stream || g->include_usage || g->return_progress || g->ignore_eos);
        assert_false(g->max_tokens.given || g->min_tokens.given || g->n.given || g->seed.given);
        assert_false(g->top_k.given || g->temperature.given || g->top_p.given || g->min_p.given);
        assert_false(g->presence_penalty.given || g->frequency_penalty.given);
        assert_false(g->repetition_penalty.given || r.logprobs || r.top_logprobs.given);
        assert_int_equal(g->n_stop + g->n_stop_ids + g->n_logit_bias, 0);
        assert_false(r.thinking_budget.given);
        assert_true(r.parallel_tool_calls);
        assert_null(r.conversation.tools);
        assert_int_equal(r.conversation.tool_choice, OPENAI_TOOLS_NONE);
        assert_int_equal(r.conversation.options.enable_thinking, TEMPLATE_UNDEFINED);
        assert_int_equal(r.conversation.options.preserve_thinking, TEMPLATE_UNDEFINED);
        assert_true(r.conversation.options.add_generation_prompt);
        openai_chat_clear(&r);
    }
}

static void everything_given(void **state)
{
    (void)state;
    struct openai_chat_request r =
        chat("'stream':true,'stream_options':{'include_usage':true,'include_obfuscation':false},"
             "'temperature':0,'top_p':0.5,'top_k':-1,'min_p':0.25,'presence_penalty':-2,"
             "'frequency_penalty':2,'repetition_penalty':1.5,'n':8,'seed':-9223372036854775808,"
             "'stop':['a','\\n'],'stop_token_ids':[0,248076.0],'logit_bias':{'0':-100,'248076':1.5}"
             ",'min_tokens':7,'max_tokens':7,'max_completion_tokens':10.0,'ignore_eos':true,"
             "'logprobs':true,'top_logprobs':20,'thinking_budget':0,'return_progress':true,"
             "'parallel_tool_calls':false");
    const struct openai_generation *g = &r.generation;
    assert_true(g->stream && g->include_usage && g->return_progress && g->ignore_eos);
    assert_true(g->temperature.given && g->temperature.value == 0);
    assert_true(g->top_p.given && g->top_p.value == 0.5);
    assert_true(g->min_p.given && g->min_p.value == 0.25);
    assert_true(g->presence_penalty.given && g->presence_penalty.value == -2);
    assert_true(g->frequency_penalty.given && g->frequency_penalty.value == 2);
    assert_true(g->repetition_penalty.given && g->repetition_penalty.value == 1.5);
    assert_true(g->top_k.given && g->top_k.value == -1);
    assert_true(g->n.given && g->n.value == 8);
    assert_true(g->seed.given && g->seed.value == INT64_MIN);
    assert_true(g->min_tokens.given && g->min_tokens.value == 7);
    assert_true(g->max_tokens.given && g->max_tokens.value == 10);
    assert_int_equal(g->n_stop, 2);
    assert_string_equal(g->stop[0], "a");
    assert_string_equal(g->stop[1], "\n");
    assert_int_equal(g->n_stop_ids, 2);
    assert_int_equal(g->stop_ids[1], 248076);
    assert_int_equal(g->n_logit_bias, 2);
    assert_int_equal(g->logit_bias[0].id, 0);
    assert_true(g->logit_bias[0].bias == -100);
    assert_int_equal(g->logit_bias[1].id, 248076);
    assert_true(g->logit_bias[1].bias == 1.5f);
    assert_true(r.logprobs && r.top_logprobs.given && r.top_logprobs.value == 20);
    assert_true(r.thinking_budget.given && r.thinking_budget.value == 0);
    assert_false(r.parallel_tool_calls);
    openai_chat_clear(&r);
    r = chat("'stop':'x','top_p':0,'seed':9223372036854775807,'max_tokens':3,'stop_token_ids':[]");
    assert_int_equal(r.generation.n_stop, 1);
    assert_string_equal(r.generation.stop[0], "x");
    assert_true(r.generation.top_p.value > 0 && r.generation.top_p.value < 1e-300);
    assert_true(r.generation.seed.value == INT64_MAX);
    assert_int_equal(r.generation.max_tokens.value, 3);
    openai_chat_clear(&r);
}

static void wrong_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *values[8];
        const char *wanted;
    } cases[] = {
        {"temperature", {"'1'", "true", "-0.1", "2.1", "[]", "{}"}, "a number from 0 to 2"},
        {"top_p", {"'1'", "false", "-0.1", "1.1", "[]"}, "a number from 0 to 1"},
        {"min_p", {"'1'", "false", "-0.1", "1.1", "[]"}, "a number from 0 to 1"},
        {"presence_penalty", {"'1'", "true", "-2.1", "2.1"}, "a number from -2 to 2"},
        {"frequency_penalty", {"'1'", "true", "-2.1", "2.1"}, "a number from -2 to 2"},
        {"repetition_penalty", {"'1'", "true", "0", "-1", "0.0"}, "a number above 0"},
        {"top_k", {"'1'", "true", "1.5", "2147483648", "1e300"}, "an integer from -2147483648 to"},
        {"n", {"'1'", "true", "1.5", "0", "9", "-1"}, "an integer from 1 to 8"},
        {"seed", {"'1'", "true", "1.5", "1e19", "-1e300"}, "an integer of 64 bits"},
        {"max_tokens", {"'1'", "true", "1.5", "0", "-1"}, "an integer of at least 1"},
        {"max_completion_tokens", {"'1'", "true", "1.5", "0", "-1"}, "an integer of at least 1"},
        {"min_tokens", {"'1'", "true", "1.5", "-1"}, "an integer of at least 0"},
        {"thinking_budget", {"'1'", "true", "1.5", "-1"}, "an integer of at least 0"},
        {"top_logprobs", {"'1'", "true", "1.5", "-1", "21"}, "an integer from 0 to 20"},
        {"stream", {"'true'", "1", "0", "[]"}, "true or false"},
        {"logprobs", {"'true'", "1", "5"}, "true or false"},
        {"ignore_eos", {"'true'", "1"}, "true or false"},
        {"return_progress", {"'true'", "1"}, "true or false"},
        {"parallel_tool_calls", {"'true'", "1"}, "true or false"},
        {"enable_thinking", {"'true'", "1"}, "true or false"},
        {"preserve_thinking", {"'true'", "1"}, "true or false"},
        {"add_generation_prompt", {"'true'", "1"}, "true or false"},
        {"continue_final_message", {"'true'", "1"}, "true or false"},
        {"use_beam_search", {"'true'", "1"}, "true or false"},
        {"store", {"'true'", "1"}, "true or false"},
        {"user", {"5", "true", "{}"}, "a string"},
        {"service_tier", {"5"}, "a string"},
        {"safety_identifier", {"5"}, "a string"},
        {"prompt_cache_key", {"5"}, "a string"},
        {"prompt_cache_retention", {"5"}, "a string"},
        {"verbosity", {"5"}, "a string"},
        {"metadata", {"5", "[]", "'a'"}, "an object"},
        {"prompt_cache_options", {"5"}, "an object"},
        {"prediction", {"5"}, "an object"},
        {"stream_options", {"5", "[]", "true"}, "an object"},
        {"logit_bias", {"5", "[]", "'a'"}, "an object"},
        {"chat_template_kwargs", {"5", "[]", "'a'"}, "an object"},
        {"response_format", {"5", "[]", "'json'"}, "an object with a type"},
        {"stop", {"5", "{}", "true"}, "a string or an array of strings"},
        {"stop", {"''"}, "a string that is not empty"},
        {"stop_token_ids", {"5", "{}"}, "an array of token ids"},
        {"modalities", {"'text'"}, "an array"},
        {"model", {"5", "[]"}, "a string"},
        {"model", {"'m\\u0000n'"}, "a string without U+0000"},
        {"tools", {"{}", "'a'"}, "an array"},
        {"tool_choice", {"5", "'any'", "[]"}, "none, auto, required or an object with a type"},
        {"reasoning_effort", {"'much'", "5", "true"}, "none, minimal, low"},
        {"messages", {"5", "'hi'", "{}"}, "an array"},
        {"messages", {"[]"}, "at least one message"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 8 && cases[i].values[k]; k++) {
            char fields[256], start[64];
            snprintf(fields, sizeof fields, "'%s':%s", cases[i].name, cases[i].values[k]);
            snprintf(start, sizeof start, "%s: found ", cases[i].name);
            refuse_chat(fields, cases[i].name, "invalid_value", start);
            if (!strstr(body_problem.message, cases[i].wanted))
                fail_msg("%s: found \"%s\", wanted \"%s\" in it", fields, body_problem.message,
                         cases[i].wanted);
        }
}

static void wrong_parts(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *param, *message;
    } cases[] = {
        {"'stop':['a','b','c','d','e']", "stop", "stop: found 5 strings, wanted no more than 4"},
        {"'stop':['a','']", "stop[1]", "stop[1]: found an empty string, wanted"},
        {"'stop':['a',5]", "stop[1]", "stop[1]: found 5, wanted"},
        {"'stop':['a\\u0000']", "stop[0]", "stop[0]: found \"a\", wanted a string without"},
        {"'stop_token_ids':[1,248077]", "stop_token_ids[1]",
         "stop_token_ids[1]: found 248077, wanted a token id from 0 to 248076"},
        {"'stop_token_ids':[-1]", "stop_token_ids[0]", "stop_token_ids[0]: found -1"},
        {"'stop_token_ids':[true]", "stop_token_ids[0]", "stop_token_ids[0]: found true"},
        {"'stop_token_ids':[null]", "stop_token_ids[0]", "stop_token_ids[0]: found null"},
        {"'logit_bias':{'248077':1}", "logit_bias", "logit_bias: found \"248077\" as a key"},
        {"'logit_bias':{'-1':1}", "logit_bias", "logit_bias: found \"-1\" as a key"},
        {"'logit_bias':{'01':1}", "logit_bias", "logit_bias: found \"01\" as a key"},
        {"'logit_bias':{'':1}", "logit_bias", "logit_bias: found \"\" as a key"},
        {"'logit_bias':{'99999999999999999999':1}", "logit_bias", "logit_bias: found \"9999"},
        {"'logit_bias':{'5':100.5}", "logit_bias.5", "logit_bias.5: found 100.5, wanted a number"},
        {"'logit_bias':{'5':-101}", "logit_bias.5", "logit_bias.5: found -101"},
        {"'logit_bias':{'5':'1'}", "logit_bias.5", "logit_bias.5: found \"1\""},
        {"'logit_bias':{'5':null}", "logit_bias.5", "logit_bias.5: found null"},
        {"'stream_options':{}", "stream_options", "stream_options: wanted only together with str"},
        {"'stream':true,'stream_options':{'include_usage':1}", "stream_options.include_usage",
         "stream_options.include_usage: found 1"},
        {"'stream':true,'stream_options':{'include_obfuscation':'x'}",
         "stream_options.include_obfuscation", "stream_options.include_obfuscation: found \"x\""},
        {"'top_logprobs':5", "top_logprobs", "top_logprobs: wanted only together with logprobs"},
        {"'top_logprobs':5,'logprobs':false", "top_logprobs", "top_logprobs: wanted only"},
        {"'min_tokens':8,'max_tokens':7", "min_tokens", "min_tokens: found 8, wanted no more than"},
        {"'min_tokens':8,'max_tokens':9,'max_completion_tokens':7", "min_tokens",
         "min_tokens: found 8"},
        {"'chat_template_kwargs':{'enable_thinking':1}", "chat_template_kwargs.enable_thinking",
         "chat_template_kwargs.enable_thinking: found 1, wanted true or false"},
        {"'chat_template_kwargs':{'preserve_thinking':'x'}",
         "chat_template_kwargs.preserve_thinking",
         "chat_template_kwargs.preserve_thinking: found \"x\""},
        {"'response_format':{}", "response_format.type", "response_format.type: found nothing"},
        {"'response_format':{'type':'xml'}", "response_format.type",
         "response_format.type: found \"xml\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_chat(cases[i].fields, cases[i].param, "invalid_value", cases[i].message);
    struct bytes many = {0};
    bytes_append_text(&many, "'stop_token_ids':[0");
    for (int i = 0; i < 256; i++)
        bytes_append_text(&many, ",1");
    bytes_append_text(&many, "]");
    refuse_chat(bytes_terminate(&many), "stop_token_ids", "invalid_value",
                "stop_token_ids: found 257 ids, wanted no more than 256");
    bytes_clear(&many);
    body_refuse(body_chat, "{'messages':[{'role':'user','content':'a'}]}", "model", "invalid_value",
                "model: found nothing");
    body_refuse(body_chat, "{'model':'m'}", "messages", "invalid_value", "messages: found nothing");
    body_refuse(body_chat, "{'model':'m','messages':null}", "messages", "invalid_value",
                "messages: f");
}

static void refused_fields(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "'functions':[]",
        "'function_call':'auto'",
        "'chat_template':'x'",
        "'continue_final_message':true",
        "'add_generation_prompt':false",
        "'response_format':{'type':'json_object'}",
        "'response_format':{'type':'json_schema','json_schema':{'name':'a','schema':{}}}",
        "'structured_outputs':{}",
        "'guided_json':{}",
        "'guided_regex':'x'",
        "'guided_choice':[]",
        "'guided_grammar':'x'",
        "'json_schema':{}",
        "'grammar':''",
        "'regex':'x'",
        "'ebnf':'x'",
        "'bad_words':['x']",
        "'use_beam_search':true",
        "'prompt_logprobs':1",
        "'modalities':['text','audio']",
        "'audio':{'voice':'x'}",
        "'web_search_options':{}"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(fields[i] + 1, "'"), fields[i] + 1);
        refuse_chat(fields[i], name, "unsupported_value", name);
    }
}

static void bad_bodies(void **state)
{
    (void)state;
    body_refuse(body_chat, "", "", "invalid_value", "request body: not JSON at line 1 column 0");
    body_refuse(body_chat, "{'model':\n 'm',}", "", "invalid_value",
                "request body: not JSON at line 2 column 6");
    body_refuse(body_chat, "[]", "", "invalid_value",
                "request body: found an array, wanted an object");
    body_refuse(body_chat, "null", "", "invalid_value", "request body: found null");
    body_refuse(body_chat, "{'a':NaN}", "", "invalid_value", "request body: not JSON at line 1");
    body_refuse(body_chat, "{'a':Infinity}", "", "invalid_value",
                "request body: not JSON at line 1");
    body_refuse(body_chat, "{'a':1e999}", "", "unsupported_value",
                "request body: JSON that is not");
    body_refuse(body_chat, "{'tools':[{'minimum':18446744073709551616}]}", "", "unsupported_value",
                "request body: JSON that is not supported at line 1 column 41: too big integer");
    body_refuse(body_chat, "{'a':'\xff'}", "", "invalid_value", "request body: not JSON at line 1");
    body_refuse(body_chat, "{'a':'\\ud800'}", "", "invalid_value",
                "request body: not JSON at line 1");
    body_refuse(body_chat, "{} {}", "", "invalid_value",
                "request body: not JSON at line 1 column 4");
    struct openai_chat_request request;
    struct openai_limits small = body_limits;
    small.body_size = 10;
    assert_false(openai_chat_parse("{\"a\":\"bcd\"}", 11, &small, &request, &body_problem));
    assert_int_equal(body_problem.status, 413);
    assert_string_equal(body_problem.message,
                        "request body: found 11 bytes, wanted no more than 10");
    assert_null(body_problem.code);
}

static bool parse_nested(int depth, int limit)
{
    struct bytes body = {0};
    struct openai_limits deep = body_limits;
    struct openai_chat_request request;
    deep.depth = limit;
    bytes_append_text(&body, "{\"model\":\"[[[[{{{\\\"[[\",\"messages\":[{\"role\":\"user\","
                             "\"content\":\"\\\\\"}],\"x\":");
    for (int i = 1; i < depth; i++)
        bytes_append_byte(&body, '[');
    for (int i = 1; i < depth; i++)
        bytes_append_byte(&body, ']');
    bytes_append_text(&body, "}");
    bool parsed = openai_chat_parse(body.data, body.length, &deep, &request, &body_problem);
    if (parsed)
        openai_chat_clear(&request);
    bytes_clear(&body);
    return parsed;
}

static void nesting_is_limited(void **state)
{
    (void)state;
    assert_true(parse_nested(128, 0));
    assert_false(parse_nested(129, 0));
    assert_string_equal(body_problem.message,
                        "request body: objects and arrays are nested more than 128 deep");
    assert_string_equal(body_problem.code, "invalid_value");
    assert_true(parse_nested(8, 8));
    assert_false(parse_nested(9, 8));
    char *deep = malloc(100000);
    memset(deep, '[', 100000);
    struct openai_chat_request request;
    assert_false(openai_chat_parse(deep, 100000, &body_limits, &request, &body_problem));
    assert_int_equal(body_problem.status, 400);
    free(deep);
}

static void thinking(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        enum template_flag enable, preserve;
    } cases[] = {
        {"'reasoning_effort':'none'", TEMPLATE_FALSE, TEMPLATE_UNDEFINED},
        {"'reasoning_effort':'minimal'", TEMPLATE_TRUE, TEMPLATE_UNDEFINED},
        {"'reasoning_effort':'max'", TEMPLATE_TRUE, TEMPLATE_UNDEFINED},
        {"'reasoning_effort':'none','enable_thinking':true", TEMPLATE_TRUE, TEMPLATE_UNDEFINED},
        {"'reasoning_effort':'high','enable_thinking':false", TEMPLATE_FALSE, TEMPLATE_UNDEFINED},
        {"'enable_thinking':true,'chat_template_kwargs':{'enable_thinking':false}", TEMPLATE_FALSE,
         TEMPLATE_UNDEFINED},
        {"'enable_thinking':false,'chat_template_kwargs':{'enable_thinking':null,'x':1}",
         TEMPLATE_FALSE, TEMPLATE_UNDEFINED},
        {"'preserve_thinking':true", TEMPLATE_UNDEFINED, TEMPLATE_TRUE},
        {"'preserve_thinking':true,'chat_template_kwargs':{'preserve_thinking':false}",
         TEMPLATE_UNDEFINED, TEMPLATE_FALSE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct openai_chat_request r = chat(cases[i].fields);
        if (r.conversation.options.enable_thinking != cases[i].enable ||
            r.conversation.options.preserve_thinking != cases[i].preserve)
            fail_msg("%s: found %d %d", cases[i].fields, r.conversation.options.enable_thinking,
                     r.conversation.options.preserve_thinking);
        openai_chat_clear(&r);
    }
}

#define TOOL(name) "{'type':'function','function':{'name':'" name "'}}"
#define TOOLS "'tools':[" TOOL("f") "," TOOL("g") "," TOOL("h") "]"
#define ALLOWED(mode, tools)                                                                       \
    "'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'" mode "','tools':[" tools "]" \
    "}"                                                                                            \
    "}"

static void tool_choices(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *seen;
        enum openai_tool_choice choice;
        const char *name;
    } cases[] = {
        {TOOLS, "fgh", OPENAI_TOOLS_AUTO, NULL},
        {TOOLS ",'tool_choice':'auto'", "fgh", OPENAI_TOOLS_AUTO, NULL},
        {TOOLS ",'tool_choice':'none'", "", OPENAI_TOOLS_NONE, NULL},
        {TOOLS ",'tool_choice':'required'", "fgh", OPENAI_TOOLS_REQUIRED, NULL},
        {TOOLS ",'tool_choice':" TOOL("g"), "fgh", OPENAI_TOOLS_NAMED, "g"},
        {TOOLS "," ALLOWED("auto", TOOL("h") "," TOOL("f")), "fh", OPENAI_TOOLS_AUTO, NULL},
        {TOOLS "," ALLOWED("required", TOOL("g")), "g", OPENAI_TOOLS_REQUIRED, NULL},
        {"'tools':[]", "", OPENAI_TOOLS_NONE, NULL},
        {"'tools':[],'tool_choice':'auto'", "", OPENAI_TOOLS_NONE, NULL},
        {"'tool_choice':'none'", "", OPENAI_TOOLS_NONE, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct openai_chat_request r = chat(cases[i].fields);
        char seen[8] = "";
        for (size_t k = 0; k < json_array_size(r.conversation.tools); k++) {
            const json_t *tool = json_array_get(r.conversation.tools, k);
            strcat(seen,
                   json_string_value(json_object_get(json_object_get(tool, "function"), "name")));
        }
        assert_string_equal(seen, cases[i].seen);
        assert_true((r.conversation.tools != NULL) == (*seen != '\0'));
        assert_int_equal(r.conversation.tool_choice, cases[i].choice);
        assert_true(cases[i].name == NULL || strcmp(r.conversation.tool_name, cases[i].name) == 0);
        openai_chat_clear(&r);
    }
    static const struct {
        const char *fields, *param;
    } wrong[] = {
        {"'tool_choice':'required'", "tool_choice"},
        {"'tools':[],'tool_choice':'required'", "tool_choice"},
        {"'tool_choice':" TOOL("g"), "tool_choice"},
        {ALLOWED("auto", TOOL("g")), "tool_choice"},
        {TOOLS ",'tool_choice':" TOOL("x"), "tool_choice.function.name"},
        {TOOLS ",'tool_choice':{'type':'function','name':'f'}", "tool_choice.function.name"},
        {TOOLS ",'tool_choice':{'type':'custom'}", "tool_choice.type"},
        {TOOLS ",'tool_choice':{}", "tool_choice.type"},
        {TOOLS ",'tool_choice':{'type':'allowed_tools'}", "tool_choice.allowed_tools"},
        {TOOLS "," ALLOWED("none", TOOL("g")), "tool_choice.allowed_tools.mode"},
        {TOOLS "," ALLOWED("auto", ""), "tool_choice.allowed_tools.tools"},
        {TOOLS "," ALLOWED("auto", TOOL("f") "," TOOL("x")),
         "tool_choice.allowed_tools.tools[1].function.name"},
        {TOOLS "," ALLOWED("auto", "'f'"), "tool_choice.allowed_tools.tools[0]"},
        {TOOLS "," ALLOWED("auto", "{'type':'x'}"), "tool_choice.allowed_tools.tools[0].type"},
        {"'tools':[{'type':'custom'}]", "tools[0].type"},
        {"'tools':[" TOOL("f") "," TOOL("a b") "]", "tools[1].function.name"},
        {"'tools':[5]", "tools[0]"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse_chat(wrong[i].fields, wrong[i].param, "invalid_value", wrong[i].param);
}

#define USER "{'role':'user','content':'a'}"
#define CALLS(arguments)                                                                           \
    "{'role':'assistant','content':null,'tool_calls':[{'id':'c1','type':'function','function':"    \
    "{'name':'f','arguments':" arguments "}},{'id':'c2','type':'function','function':{'name':'g'," \
    "'arguments':''}}]}"

static void wrong_messages(void **state)
{
    (void)state;
    refuse_messages("[5]", "messages[0]", "messages[0]: found an integer");
    refuse_messages("[{'role':'robot','content':'a'}]", "messages[0].role",
                    "messages[0].role: found \"robot\"");
    refuse_messages("[{'role':'function','name':'f','content':'a'}]", "messages[0].role", "mess");
    refuse_messages("[" USER ",{'role':'user','content':[{'type':'image_url'}]}]",
                    "messages[1].content[0].type",
                    "messages[1].content[0].type: found \"image_url\"");
    refuse_messages("[{'role':'user'}]", "messages[0].content", "messages[0].content: found noth");
    refuse_messages("[" USER "," CALLS("'{'") "]", "messages[1].tool_calls[0].function.arguments",
                    "messages[1].tool_calls[0].function.arguments: not JSON at line 1");
    refuse_messages("[" USER "," CALLS("'[1]'") "]", "messages[1].tool_calls[0].function.arguments",
                    "messages[1].tool_calls[0].function.arguments: found JSON of an array");
    refuse_messages("[" USER ",{'role':'tool','tool_call_id':'x','content':'a'}]", "messages[1]",
                    "messages[1]: found a tool result");
    refuse_messages("[{'role':'user','content':[{'type':'text','text':'a',"
                    "'prompt_cache_breakpoint':{'mode':'implicit'}}]}]",
                    "messages[0].content[0].prompt_cache_breakpoint.mode",
                    "messages[0].content[0].prompt_cache_breakpoint.mode: found \"implicit\"");
    refuse_messages("[{'role':'user','content':[{'type':'text','text':'a',"
                    "'prompt_cache_breakpoint':true}]}]",
                    "messages[0].content[0].prompt_cache_breakpoint",
                    "messages[0].content[0].prompt_cache_breakpoint: found true, wanted an object");
    refuse_messages("[" USER ",{'role':'assistant','audio':{'id':'a'}}]", "messages[1].audio",
                    "messages[1].audio: found an object");
    refuse_messages("[" USER ",{'role':'assistant','refusal':5}]", "messages[1].refusal",
                    "messages[1].refusal: found an integer, wanted a string");
    body_refuse(body_chat,
                "{'model':'m','messages':[" USER
                "," CALLS("'{\\\"n\\\":99999999999999999999}'") "]}",
                "messages[1].tool_calls[0].function.arguments", "unsupported_value",
                "messages[1].tool_calls[0].function.arguments: JSON that is not supported");
}

static void renders(void **state)
{
    (void)state;
    struct openai_chat_request r;
    body_accept(
        body_chat,
        "{'model':'m','enable_thinking':false,'messages':[{'role':'developer','content':'s'}," USER
        "," CALLS("'{\\\"x\\\":5}'") ",{'role':'tool','tool_call_id':'c2','content':'two'},"
                                     "{'role':'tool','tool_call_id':'c1','content':'one'},"
                                     "{'role':'assistant','content':null,'refusal':'no','reasoning'"
                                     ":'why','audio':null}," USER "]}",
        &r);
    struct prompt prompt = {0};
    assert_true(openai_conversation_render(&r.conversation, &prompt, &body_problem));
    assert_string_equal(
        bytes_terminate(&prompt.text),
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "<tool_call>\n<function=f>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nno<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    prompt_clear(&prompt);
    openai_chat_clear(&r);
    body_accept(body_chat, "{'model':'m','messages':[" USER ",{'role':'system','content':'s'}]}",
                &r);
    assert_false(openai_conversation_render(&r.conversation, &prompt, &body_problem));
    assert_int_equal(body_problem.status, 400);
    assert_string_equal(body_problem.param, "messages");
    assert_string_equal(body_problem.message, "System message must be at the beginning.");
    prompt_clear(&prompt);
    openai_chat_clear(&r);
}

static void lower_errors(void **state)
{
    (void)state;
    struct openai_problem problem;
    static const struct {
        enum status status;
        int http;
        const char *type, *code;
    } cases[] = {
        {STATUS_INVALID, 400, "invalid_request_error", "invalid_value"},
        {STATUS_UNSUPPORTED, 400, "invalid_request_error", "unsupported_value"},
        {STATUS_CONTEXT, 400, "invalid_request_error", "context_length_exceeded"},
        {STATUS_NO_MEMORY, 500, "server_error", ""},
        {STATUS_DEVICE, 500, "server_error", ""},
        {STATUS_CANCELLED, 500, "server_error", ""},
        {STATUS_IO, 500, "server_error", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error;
        error_set(&error, cases[i].status, "messages: too much");
        assert_false(openai_problem_from(&problem, &error, "messages"));
        assert_int_equal(problem.status, cases[i].http);
        assert_string_equal(problem.type, cases[i].type);
        assert_string_equal(problem.code ? problem.code : "", cases[i].code);
        assert_string_equal(problem.param, cases[i].http == 400 ? "messages" : "");
        assert_string_equal(problem.message, "messages: too much");
    }
    struct error error;
    error_set(&error, STATUS_INVALID, "text: bad");
    openai_problem_from(&problem, &error, "prompt");
    assert_string_equal(problem.param, "prompt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_given),
        cmocka_unit_test(everything_given),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(wrong_parts),
        cmocka_unit_test(refused_fields),
        cmocka_unit_test(bad_bodies),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(thinking),
        cmocka_unit_test(tool_choices),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(renders),
        cmocka_unit_test(lower_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
