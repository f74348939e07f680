/* libFuzzer: a line as `calla render` gets it. Messages go through OpenAI's checks and, as they
 * are, to the template; every prompt must keep what text/prompt.h promises. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "text/messages.h"
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void want(bool true_thing)
{
    if (!true_thing)
        abort();
}

static void check_failure(enum status status, const struct error *error)
{
    want(status == STATUS_INVALID || status == STATUS_UNSUPPORTED);
    want(error->status == status && error->message[0]);
}

static void check_prompt(const struct prompt *prompt)
{
    size_t sum = 0;
    for (size_t i = 0; i < prompt->n_stretches; i++) {
        want(prompt->stretches[i].length > 0);
        want(i == 0 || prompt->stretches[i].trusted != prompt->stretches[i - 1].trusted);
        sum += prompt->stretches[i].length;
    }
    want(sum == prompt->text.length && !prompt->text.failed);
}

static void render(const json_t *messages, const json_t *line)
{
    const json_t *thinking = json_object_get(line, "enable_thinking");
    struct template_options options = {
        .add_generation_prompt = json_is_true(json_object_get(line, "add_generation_prompt")),
        .enable_thinking = json_is_false(thinking) ? TEMPLATE_FALSE : TEMPLATE_UNDEFINED,
        .preserve_thinking = json_is_true(json_object_get(line, "preserve_thinking"))
                                 ? TEMPLATE_TRUE
                                 : TEMPLATE_UNDEFINED,
    };
    struct prompt prompt = {0};
    struct error error = {.message = ""};
    enum status status =
        template_render(messages, json_object_get(line, "tools"), &options, &prompt, &error);
    if (status == STATUS_OK)
        check_prompt(&prompt);
    else
        check_failure(status, &error);
    prompt_clear(&prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *line, *prepared;
    struct error error = {.message = ""};
    if (json_parse((const char *)data, size, "input", &line, &error) != STATUS_OK)
        return 0;
    const json_t *messages = json_object_get(line, "messages");
    enum status status = messages_check_tools(json_object_get(line, "tools"), &error);
    if (status != STATUS_OK)
        check_failure(status, &error);
    status = messages_prepare(messages, &prepared, &error);
    if (status == STATUS_OK)
        render(prepared, line);
    else
        check_failure(status, &error);
    render(messages, line);
    json_decref(prepared);
    json_decref(line);
    return 0;
}
