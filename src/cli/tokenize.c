/* calla tokenize: {"text":"…","special":bool} to {"ids":[…]}, line by line. */
#include "cli/filter.h"

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
        bytes_append_text(out, "{\"ids\": ");
        filter_print_ids(ids.data, ids.length, out);
        bytes_append_byte(out, '}');
    }
    token_list_clear(&ids);
    return status;
}

static int run(int argc, char **argv)
{
    const char *model;
    struct tokenizer *tokenizer;
    int code = filter_open(&command_tokenize, argc, argv, &model, &tokenizer);
    if (code >= 0)
        return code;
    return filter_run(tokenizer, tokenize_line);
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
