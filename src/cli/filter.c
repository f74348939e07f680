#include "cli/filter.h"

#include "cli/options.h"

int filter_open(const struct command *command, int argc, char **argv, const char **model,
                struct tokenizer **tokenizer)
{
    static const struct option options[] = {{.name = NULL}};
    struct error error;
    int code = options_parse(command, argc, argv, options, model, 1, 1);
    if (code < 0 && tokenizer_open_model(*model, tokenizer, &error) != STATUS_OK)
        code = command_failed(&error);
    return code;
}

int filter_run(struct tokenizer *tokenizer, jsonl_handler *handler)
{
    int code = jsonl_run(handler, tokenizer);
    tokenizer_close(tokenizer);
    return code;
}

void filter_print_ids(const int32_t *ids, size_t n, struct bytes *out)
{
    bytes_append_byte(out, '[');
    for (size_t i = 0; i < n; i++)
        bytes_format(out, "%s%d", i ? ", " : "", ids[i]);
    bytes_append_byte(out, ']');
}
