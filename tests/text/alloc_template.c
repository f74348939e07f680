<<<<<<< HEAD
/* Allocations fail one by one while messages become a prompt and its stretches. */
=======
/* Allocations fail one by one on the way from OpenAI's messages, with tools, reasoning and tool
 * calls, to the ids of a prompt. */
>>>>>>> ec3a8f5 (Allocation tests of library, template and reply; faults they found: a session that ran out of memory stays usable, config fields compare without memory)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "support/alloc.h"
#include "text/messages.h"
#include "text/template.h"

<<<<<<< HEAD
static const char request[] =
    "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"messages\": ["
    "{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"developer\", \"content\": \"b\"}, "
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"q\"}]}, "
    "{\"role\": \"assistant\", \"content\": \"<think>\\nt\\n</think>\\n\\nc\", \"tool_calls\": ["
    "{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [1.5]}\"}}, "
    "{\"id\": \"2\", \"function\": {\"name\": \"g\", \"arguments\": \"\"}}, "
    "{\"id\": \"3\", \"function\": {\"name\": \"h\", \"arguments\": {\"k\": \"v\"}}}]}, "
    "{\"role\": \"tool\", \"tool_call_id\": \"2\", \"content\": \"r2\"}, "
    "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"r1\"}, "
    "{\"role\": \"tool\", \"tool_call_id\": \"x\", \"content\": \"r3\"}, "
    "{\"role\": \"assistant\", \"content\": \"d\", \"reasoning\": \"u\"}, "
    "{\"role\": \"user\", \"content\": \"e\"}]}";

static enum status prepare_and_render(void *context, struct error *error)
{
    (void)context;
    json_t *object, *messages;
    enum status status = json_parse(request, strlen(request), "request", &object, error);
    if (status != STATUS_OK)
        return status;
    struct template_options options = {.add_generation_prompt = true};
    struct prompt prompt = {0};
    const json_t *tools = json_object_get(object, "tools");
    status = messages_check_tools(tools, error);
    if (status == STATUS_OK)
        status = messages_prepare(json_object_get(object, "messages"), &messages, error);
    if (status == STATUS_OK) {
        status = template_render(messages, tools, &options, &prompt, error);
        json_decref(messages);
    }
    prompt_clear(&prompt);
    json_decref(object);
    return status;
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    assert_true(alloc_sweep(prepare_and_render, NULL, 0) > 150);
=======
static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"find\", \"description\": \"Finds.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}}}}}]";

static const char messages_text[] =
    "[{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"And \"},"
    "  {\"type\": \"text\", \"text\": \"kind, na\xc3\xafve, e\xcc\x81l\xc3\xa8ve.\"}]},"
    " {\"role\": \"user\", \"content\": \"Find both <|im_end|>\"},"
    " {\"role\": \"assistant\", \"content\": \"Yes.\", \"reasoning\": \"Two calls.\","
    "  \"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"find\","
    "   \"arguments\": \"{\\\"name\\\": \\\"x\\\", \\\"n\\\": [1.5, true, null]}\"}},"
    "  {\"id\": \"b\", \"type\": \"function\", \"function\": {\"name\": \"find\","
    "   \"arguments\": \"{\\\"name\\\": {\\\"first\\\": \\\"y\\\"}}\"}}]},"
    " {\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"second\"},"
    " {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"first\"},"
    " {\"role\": \"user\", \"content\": \"Thanks\"}]";

static json_t *messages, *tools;
static struct tokenizer *tokenizer;

static enum status render(void *context, struct error *error)
{
    (void)context;
    json_t *prepared = NULL;
    struct prompt prompt = {0};
    struct token_list ids = {0};
    struct template_options options = {.add_generation_prompt = true,
                                       .preserve_thinking = TEMPLATE_TRUE};
    enum status status = messages_check_tools(tools, error);
    if (status == STATUS_OK)
        status = messages_prepare(messages, &prepared, error);
    if (status == STATUS_OK)
        status = template_render(prepared, tools, &options, &prompt, error);
    if (status == STATUS_OK)
        status = prompt_encode(&prompt, tokenizer, &ids, error);
    token_list_clear(&ids);
    prompt_clear(&prompt);
    json_decref(prepared);
    return status;
}

static void messages_to_ids(void **state)
{
    (void)state;
    size_t n = alloc_sweep(render, NULL, 0);
    print_message("%zu allocations\n", n);
    assert_true(n > 50);
}

static int setup(void **state)
{
    (void)state;
    return json_parse(tools_text, strlen(tools_text), "tools", &tools, NULL) ||
           json_parse(messages_text, strlen(messages_text), "messages", &messages, NULL) ||
           tokenizer_open_model("models/tiny", &tokenizer, NULL);
}

static int teardown(void **state)
{
    (void)state;
    json_decref(tools);
    json_decref(messages);
    tokenizer_close(tokenizer);
    return 0;
>>>>>>> ec3a8f5 (Allocation tests of library, template and reply; faults they found: a session that ran out of memory stays usable, config fields compare without memory)
}

int main(void)
{
<<<<<<< HEAD
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
=======
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_to_ids)};
    return cmocka_run_group_tests(tests, setup, teardown);
>>>>>>> ec3a8f5 (Allocation tests of library, template and reply; faults they found: a session that ran out of memory stays usable, config fields compare without memory)
}
