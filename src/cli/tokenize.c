/* calla tokenize: {"text":"…","special":bool} to {"ids":[…]}, line by line. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/jsonl.h"
#include "cli/options.h"
#include "text/tokenizer.h"

static enum status tokenize_line(void *context, const json_t *line, struct bytes *out,
                                 struct error *error)
{
    struct text_span span = {.data = NULL};
    struct token_list ids = {0};
    enum status status = jsonl_text(line, "text", true, &span.data, &span.length, error);
    if (status == STATUS_OK)
        status = jsonl_bool(line, "special", &span.trusted, error);
    if (status == STATUS_OK)
        status = tokenizer_encode(context, &span, 1, &ids, error);
    if (status == STATUS_OK) {
        bytes_append_text(out, "{\"ids\": [");
        for (size_t i = 0; i < ids.length; i++)
            bytes_format(out, i ? ", %d" : "%d", ids.data[i]);
        bytes_append_text(out, "]}");
    }
    token_list_clear(&ids);
    return status;
}

static int run(int argc, char **argv)
{
    const struct option options[] = {{0}};
    const char *model;
    int code = options_parse(&command_tokenize, argc, argv, options, &model, 1, 1);
    if (code >= 0)
        return code;
    struct tokenizer *tokenizer;
    struct error error;
    if (tokenizer_open_model(model, &tokenizer, &error) != STATUS_OK)
        return command_failed(&error);
    code = jsonl_run(tokenize_line, tokenizer);
    tokenizer_close(tokenizer);
    return code;
}

const struct command command_tokenize = {
    .name = "tokenize",
    .arguments = "MODEL",
    .summary = "texts to token ids (JSONL)",
    .run = run,
    .details = "in:  {\"text\": \"…\", \"special\": true|false}; special: added tokens are "
               "recognised (default false)\n"
               "out: {\"ids\": […]}\n",
};
