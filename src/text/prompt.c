#include "text/prompt.h"

#include <stdlib.h>

void prompt_mark(struct prompt *prompt, size_t length, bool trusted)
{
    if (length == 0 || prompt->text.failed)
        return;
    size_t n = prompt->n_stretches;
    if (n > 0 && prompt->stretches[n - 1].trusted == trusted) {
        prompt->stretches[n - 1].length += length;
        return;
    }
    if (n == prompt->capacity) {
        size_t capacity = n ? 2 * n : 16;
        struct prompt_stretch *stretches =
            realloc(prompt->stretches, capacity * sizeof *prompt->stretches);
        if (!stretches) {
            prompt->text.failed = true;
            return;
        }
        prompt->stretches = stretches;
        prompt->capacity = capacity;
    }
    prompt->stretches[prompt->n_stretches++] = (struct prompt_stretch){length, trusted};
}

void prompt_append(struct prompt *prompt, const char *text, size_t length, bool trusted)
{
    bytes_append(&prompt->text, text, length);
    prompt_mark(prompt, length, trusted);
}

void prompt_append_range(struct prompt *prompt, const struct prompt *source, size_t from, size_t to)
{
    size_t start = 0;
    for (size_t i = 0; i < source->n_stretches && start < to; i++) {
        size_t end = start + source->stretches[i].length;
        size_t low = start > from ? start : from, high = end < to ? end : to;
        if (low < high)
            prompt_append(prompt, source->text.data + low, high - low,
                          source->stretches[i].trusted);
        start = end;
    }
}

void prompt_reset(struct prompt *prompt)
{
    bytes_reset(&prompt->text);
    prompt->n_stretches = 0;
}

void prompt_clear(struct prompt *prompt)
{
    bytes_clear(&prompt->text);
    free(prompt->stretches);
    *prompt = (struct prompt){0};
}

enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct token_list *ids, struct error *error)
{
    struct text_span *spans = calloc(prompt->n_stretches + 1, sizeof *spans);
    if (!spans)
        return error_no_memory(error, "the prompt's stretches");
    const char *at = prompt->text.data;
    for (size_t i = 0; i < prompt->n_stretches; i++) {
        spans[i] =
            (struct text_span){at, prompt->stretches[i].length, prompt->stretches[i].trusted};
        at += prompt->stretches[i].length;
    }
    enum status status = tokenizer_encode(tokenizer, spans, prompt->n_stretches, ids, error);
    free(spans);
    return status;
}
