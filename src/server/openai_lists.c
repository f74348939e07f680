/* The small objects beside answers: models, tokens, prompts. */
#include "base/json.h"
#include "server/openai_answer.h"
#include "server/openai_print.h"

void openai_model_print(const struct openai_model *model, struct bytes *out)
{
    bytes_append_text(out, "{\"id\":");
    print_string(model->id, out);
    bytes_append_text(out, ",\"object\":\"model\",\"created\":");
    print_integer(model->created, out);
    bytes_append_text(out, ",\"owned_by\":\"calla\",\"max_model_len\":");
    print_integer(model->max_model_len, out);
    bytes_append_text(out, ",\"context_length\":");
    print_integer(model->max_model_len, out);
    bytes_append_byte(out, '}');
}

void openai_models_print(const struct openai_model *models, int n, struct bytes *out)
{
    bytes_append_text(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < n; i++) {
        if (i > 0)
            bytes_append_byte(out, ',');
        openai_model_print(&models[i], out);
    }
    bytes_append_text(out, "]}");
}

void openai_tokens_print(const struct token_list *ids, int64_t max_model_len,
                         const struct tokenizer *tokenizer, struct bytes *out)
{
    bytes_append_text(out, "{\"count\":");
    print_integer((int64_t)ids->length, out);
    bytes_append_text(out, ",\"max_model_len\":");
    print_integer(max_model_len, out);
    bytes_append_text(out, ",\"tokens\":[");
    for (size_t i = 0; i < ids->length; i++) {
        if (i > 0)
            bytes_append_byte(out, ',');
        print_integer(ids->data[i], out);
    }
    bytes_append_text(out, tokenizer ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; tokenizer && i < ids->length; i++) {
        size_t length;
        const char *data = tokenizer_bytes(tokenizer, ids->data[i], &length);
        if (i > 0)
            bytes_append_byte(out, ',');
        print_broken_string(data, length, out);
    }
    if (tokenizer)
        bytes_append_text(out, "]}");
    out->failed |= ids->failed;
}

void openai_prompt_print(const char *text, size_t length, struct bytes *out)
{
    bytes_append_text(out, "{\"prompt\":");
    json_print_string(text, length, out);
    bytes_append_byte(out, '}');
}
