/* Allocations fail one by one on the way from OpenAI's messages, with tools, reasoning and tool
 * calls, to the ids of a prompt. */
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

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"find\", \"description\": \"Finds.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}}}}}]";

static const char messages_text[] =
    "[{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"And \"},"
    "  {\"type\": \"text\", \"text\": \"kind, na\xc3\xafve, e\xcc\x81l\xc3\xa8ve.\"}]},"
    " {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Find both <|im_end|>\","
    "  \"prompt_cache_breakpoint\": {\"mode\": \"explicit\"}}]},"
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
    struct token_list ids = {0}, lengths = {0};
    struct template_options options = {.add_generation_prompt = true,
                                       .preserve_thinking = TEMPLATE_TRUE};
    enum status status = messages_check_tools(tools, error);
    if (status == STATUS_OK)
        status = messages_prepare(messages, &prepared, error);
    if (status == STATUS_OK)
        status = template_render(prepared, tools, &options, &prompt, error);
    if (status == STATUS_OK)
        status = prompt_encode(&prompt, tokenizer, &ids, error);
    if (status == STATUS_OK)
        status =
            prompt_encode_breakpoints(&prompt, tokenizer, ids.data, ids.length, &lengths, error);
    token_list_clear(&lengths);
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_to_ids)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
