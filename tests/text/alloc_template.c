/* Allocations fail one by one while messages become a prompt and its stretches. */
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
