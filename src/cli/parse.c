/* calla parse: recorded output of the model to reasoning, content and tool calls, line by line. The
 * letters of the four tags in it stand for the model's tokens. */
#include <string.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/jsonl.h"
#include "cli/options.h"
#include "text/json_text.h"
#include "text/reply_collect.h"
#include "text/tokenizer.h"

static enum status read_end(const json_t *line, enum reply_end *end, struct error *error)
{
    const char *text = "stop";
    size_t length = 4;
    enum status status = jsonl_text(line, "end", false, &text, &length, error);
    if (status != STATUS_OK)
        return status;
    bool cut = length == 6 && memcmp(text, "length", 6) == 0;
    if (!cut && (length != 4 || memcmp(text, "stop", 4) != 0))
        return error_set(error, STATUS_INVALID,
                         "end: found \"%.40s\", wanted \"stop\" or \"length\"", text);
    *end = cut ? REPLY_END_LENGTH : REPLY_END_STOP;
    return STATUS_OK;
}

static void print_field(const char *name, const struct bytes *text, struct bytes *out)
{
    bytes_append_text(out, name);
    json_print_string(text->data ? text->data : "", text->length, out);
}

static void print_result(const struct reply_result *result, enum reply_finish finish,
                         struct bytes *out)
{
    static const char *const finishes[] = {"stop", "length", "tool_calls"};
    print_field("{\"reasoning\": ", &result->reasoning, out);
    print_field(", \"content\": ", &result->content, out);
    bytes_append_text(out, ", \"tool_calls\": [");
    for (size_t i = 0; i < result->n_calls; i++) {
        const struct reply_call *call = &result->calls[i];
        print_field(i ? ", {\"name\": " : "{\"name\": ", &call->name, out);
        bytes_append_text(out, ", \"arguments\": ");
        json_text_print_unique(call->arguments.data, call->arguments.length, out);
        bytes_append_byte(out, '}');
    }
    bytes_format(out, "], \"finish\": \"%s\"}", finishes[finish]);
}

static enum status parse_line(void *context, const json_t *line, struct bytes *out,
                              struct error *error)
{
    const int64_t *split = context;
    const char *output;
    size_t length;
    bool thinking = false;
    const json_t *tools = NULL;
    enum reply_end end = REPLY_END_STOP;
    enum reply_finish finish = REPLY_FINISH_STOP;
    struct reply_result result = {0};
    enum status status = jsonl_text(line, "output", true, &output, &length, error);
    if (status == STATUS_OK)
        status = jsonl_bool(line, "thinking", &thinking, error);
    if (status == STATUS_OK)
        status = jsonl_array(line, "tools", false, &tools, error);
    if (status == STATUS_OK)
        status = read_end(line, &end, error);
    if (status == STATUS_OK)
        status = reply_parse(thinking, tools, output, length, (size_t)*split, end, &result, &finish,
                             error);
    if (status == STATUS_OK)
        print_result(&result, finish, out);
    reply_result_clear(&result);
    return status;
}

static int run(int argc, char **argv)
{
    int64_t split = 0;
    const struct option options[] = {
        {.name = "split",
         .kind = OPTION_SIZE,
         .value = &split,
         .low = 1,
         .high = 1 << 30,
         .argument = "N",
         .help = "feed N bytes at a time (the result is the same)"},
        {0},
    };
    const char *model;
    int code = options_parse(&command_parse, argc, argv, options, &model, 1, 1);
    if (code >= 0)
        return code;
    /* a tokenizer that opens has the four tags as single tokens: nothing more is asked of it */
    struct tokenizer *tokenizer;
    struct error error;
    if (tokenizer_open_model(model, &tokenizer, &error) != STATUS_OK)
        return command_failed(&error);
    tokenizer_close(tokenizer);
    return jsonl_run(parse_line, &split);
}

const struct command command_parse = {
    .name = "parse",
    .arguments = "MODEL",
    .summary = "model output to reasoning, content, tool calls (JSONL)",
    .run = run,
    .details = "in:  {\"output\": \"…\", \"thinking\": true|false, \"tools\": […], \"end\": "
               "\"stop\"|\"length\"}\n"
               "     thinking: the prompt ended inside <think> (default false); end: how "
               "generation ended\n"
               "out: {\"reasoning\": \"…\", \"content\": \"…\", \"tool_calls\": [{\"name\", "
               "\"arguments\"}], \"finish\": \"…\"}\n",
};
