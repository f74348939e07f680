/* calla detokenize: {"ids":[…],"skip_special":bool,"stream":bool} to {"text":"…"}, or to
 * {"pieces":[…]} with what each id and the end give. */
#include "base/json.h"
#include "cli/filter.h"

/* The id as the tokenizer numbers them; -1, which no token has, for all that are out of range. */
static enum status read_id(const json_t *ids, size_t index, int32_t *id, struct error *error)
{
    const json_t *value = json_array_get(ids, index);
    if (!json_is_integer(value))
        return error_set(error, STATUS_INVALID, "ids[%zu]: found no integer, wanted one", index);
    json_int_t number = json_integer_value(value);
    *id = number >= 0 && number <= INT32_MAX ? (int32_t)number : -1;
    return STATUS_OK;
}

static enum status detokenize_ids(struct detokenizer *detokenizer, const json_t *ids, bool stream,
                                  struct bytes *out, struct error *error)
{
    struct bytes text = {0};
    enum status status = STATUS_OK;
    size_t n = json_array_size(ids);
    bytes_append_text(out, stream ? "{\"pieces\": [" : "{\"text\": ");
    for (size_t i = 0; i <= n && status == STATUS_OK; i++) {
        int32_t id = -1;
        if (i == n)
            detokenizer_finish(detokenizer, &text);
        else if ((status = read_id(ids, i, &id, error)) == STATUS_OK)
            detokenizer_push(detokenizer, id, &text);
        if (stream) {
            bytes_append_text(out, i ? ", " : "");
            json_print_string(text.data, text.length, out);
            out->failed |= text.failed;
            bytes_reset(&text);
        }
    }
    if (!stream)
        json_print_string(text.data, text.length, out);
    out->failed |= text.failed;
    bytes_append_text(out, stream ? "]}" : "}");
    bytes_clear(&text);
    return status;
}

static enum status detokenize_line(void *context, const json_t *line, struct bytes *out,
                                   struct error *error)
{
    bool skip_special = true, stream = false;
    const json_t *ids;
    enum status status = jsonl_array(line, "ids", true, &ids, error);
    if (status == STATUS_OK)
        status = jsonl_bool(line, "skip_special", &skip_special, error);
    if (status == STATUS_OK)
        status = jsonl_bool(line, "stream", &stream, error);
    if (status != STATUS_OK)
        return status;
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, context, skip_special);
    return detokenize_ids(&detokenizer, ids, stream, out, error);
}

static int run(int argc, char **argv)
{
    const char *model;
    struct tokenizer *tokenizer;
    int code = filter_open(&command_detokenize, argc, argv, &model, &tokenizer);
    if (code >= 0)
        return code;
    return filter_run(tokenizer, detokenize_line);
}

const struct command command_detokenize = {
    .name = "detokenize",
    .arguments = "MODEL",
    .summary = "token ids to text, whole or as it streams (JSONL)",
    .run = run,
    .details = "in:  {\"ids\": […], \"skip_special\": true|false, \"stream\": true|false}; "
               "defaults true and false\n"
               "out: {\"text\": \"…\"}, or with stream {\"pieces\": […]}, one for each id and one "
               "for the end\n",
};
