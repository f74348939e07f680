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

void prompt_break(struct prompt *prompt)
{
    size_t n = prompt->n_breakpoints, place = prompt->text.length;
    if (prompt->text.failed || (n > 0 && prompt->breakpoints[n - 1] == place))
        return;
    if (n == prompt->breakpoint_capacity) {
        size_t capacity = n ? 2 * n : 4;
        size_t *grown = realloc(prompt->breakpoints, capacity * sizeof *grown);
        if (!grown) {
            prompt->text.failed = true;
            return;
        }
        prompt->breakpoints = grown;
        prompt->breakpoint_capacity = capacity;
    }
    prompt->breakpoints[prompt->n_breakpoints++] = place;
}

/* Appends bytes of another prompt with their marks. */
static void append_stretches(struct prompt *prompt, const struct prompt *source, size_t from,
                             size_t to)
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

void prompt_append_range(struct prompt *prompt, const struct prompt *source, size_t from, size_t to)
{
    for (size_t i = 0; i < source->n_breakpoints && source->breakpoints[i] <= to; i++) {
        if (source->breakpoints[i] <= from)
            continue;
        append_stretches(prompt, source, from, source->breakpoints[i]);
        prompt_break(prompt);
        from = source->breakpoints[i];
    }
    append_stretches(prompt, source, from, to);
}

void prompt_reset(struct prompt *prompt)
{
    bytes_reset(&prompt->text);
    prompt->n_stretches = 0;
    prompt->n_breakpoints = 0;
}

void prompt_clear(struct prompt *prompt)
{
    bytes_clear(&prompt->text);
    free(prompt->stretches);
    free(prompt->breakpoints);
    *prompt = (struct prompt){0};
}

/* Appends the ids of the first `length` bytes. */
static enum status encode(const struct prompt *prompt, size_t length,
                          const struct tokenizer *tokenizer, struct token_list *ids,
                          struct error *error)
{
    struct text_span *spans = calloc(prompt->n_stretches + 1, sizeof *spans);
    if (!spans)
        return error_no_memory(error, "the prompt's stretches");
    const char *at = prompt->text.data;
    size_t n = 0;
    for (; n < prompt->n_stretches && length > 0; n++) {
        const struct prompt_stretch *stretch = &prompt->stretches[n];
        size_t part = stretch->length < length ? stretch->length : length;
        spans[n] = (struct text_span){at, part, stretch->trusted};
        at += part;
        length -= part;
    }
    enum status status = tokenizer_encode(tokenizer, spans, n, ids, error);
    free(spans);
    return status;
}

enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct token_list *ids, struct error *error)
{
    return encode(prompt, prompt->text.length, tokenizer, ids, error);
}

enum status prompt_encode_breakpoints(const struct prompt *prompt,
                                      const struct tokenizer *tokenizer, const int32_t *ids,
                                      size_t n_ids, struct token_list *lengths, struct error *error)
{
    size_t n = prompt->n_breakpoints, before = lengths->length;
    size_t first = n > PROMPT_BREAKPOINTS_MAX ? n - PROMPT_BREAKPOINTS_MAX : 0;
    struct token_list own = {0}; /* the ids of the text before a breakpoint */
    enum status status = STATUS_OK;
    for (size_t i = first; status == STATUS_OK && i < n; i++) {
        own.length = 0;
        status = encode(prompt, prompt->breakpoints[i], tokenizer, &own, error);
        size_t same = 0; /* the last word may go on beyond the breakpoint */
        while (status == STATUS_OK && same < own.length && same < n_ids &&
               own.data[same] == ids[same])
            same++;
        bool repeated =
            lengths->length > before && (size_t)lengths->data[lengths->length - 1] >= same;
        if (same > 0 && !repeated)
            token_list_append(lengths, (int32_t)same);
        if (lengths->failed)
            status = error_no_memory(error, "the prompt's breakpoints");
    }
    token_list_clear(&own);
    return status;
}
