/* calla render: the chat template as a JSONL filter. It gives the template what it finds, without
 * the normalisation that run and the server do, so that its output can be compared with the
 * official template's. */
#include <stdio.h>

#include "base/json.h"
#include "cli/filter.h"
#include "library/template_check.h"
#include "text/template.h"

/* Only true and false themselves count; 1, null or "false" are as good as nothing. */
static enum template_flag flag(const json_t *line, const char *field)
{
    const json_t *value = json_object_get(line, field);
    if (!json_is_boolean(value))
        return TEMPLATE_UNDEFINED;
    return json_is_true(value) ? TEMPLATE_TRUE : TEMPLATE_FALSE;
}

static enum status answer(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct bytes *out, struct error *error)
{
    struct token_list ids = {0};
    enum status status = prompt_encode(prompt, tokenizer, &ids, error);
    if (status == STATUS_OK && ids.failed)
        status = error_no_memory(error, "the prompt's ids");
    if (status == STATUS_OK) {
        bytes_append_text(out, "{\"text\": ");
        json_print_string(prompt->text.data, prompt->text.length, out);
        bytes_append_text(out, ", \"ids\": ");
        filter_print_ids(ids.data, ids.length, out);
        bytes_append_byte(out, '}');
    }
    token_list_clear(&ids);
    return status;
}

static enum status render_line(void *context, const json_t *line, struct bytes *out,
                               struct error *error)
{
    const json_t *messages = NULL, *tools = json_object_get(line, "tools");
    struct template_options options = {.enable_thinking = flag(line, "enable_thinking"),
                                       .preserve_thinking = flag(line, "preserve_thinking")};
    enum status status = jsonl_array(line, "messages", true, &messages, error);
    if (status == STATUS_OK && !json_is_object(tools)) /* the template passes over an object */
        status = jsonl_array(line, "tools", false, &tools, error);
    if (status == STATUS_OK)
        status = jsonl_bool(line, "add_generation_prompt", &options.add_generation_prompt, error);
    if (status != STATUS_OK)
        return status;
    struct prompt prompt = {0};
    status = template_render(messages, tools, &options, &prompt, error);
    if (status == STATUS_OK) {
        status = answer(&prompt, context, out, error);
    } else if (status == STATUS_INVALID) {
        jsonl_refuse(out, error);
        status = STATUS_OK;
    }
    prompt_clear(&prompt);
    return status;
}

static int run(int argc, char **argv)
{
    const char *model;
    struct tokenizer *tokenizer;
    int code = filter_open(&command_render, argc, argv, &model, &tokenizer);
    if (code >= 0)
        return code;
    struct error note;
    if (template_differs(model, &note))
        fprintf(stderr, "calla: %s\n", note.message);
    return filter_run(tokenizer, render_line);
}

const struct command command_render = {
    .name = "render",
    .arguments = "MODEL",
    .summary = "messages and tools to the prompt's text and ids (JSONL)",
    .run = run,
    .details =
        "in:  {\"messages\": […], \"tools\": […], \"add_generation_prompt\": true|false,\n"
        "      \"enable_thinking\": true|false, \"preserve_thinking\": true|false};\n"
        "     all but messages may be absent: no tools, false, undefined, undefined\n"
        "out: {\"text\": \"…\", \"ids\": […]}, or {\"error\": \"…\"} in the template's own words\n",
};
