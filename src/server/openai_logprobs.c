#include "server/openai_logprobs.h"

#include <math.h>
#include <string.h>

#include "server/openai_print.h"

#define FLOOR (-9999.0)

static void print_logprob(double logprob, struct bytes *out)
{
    if (!(logprob >= FLOOR)) /* NaN, too */
        logprob = FLOOR;
    print_real(logprob > 0 ? 0 : logprob, 9, out); /* above 0 by rounding */
}

/* The members of an entry, without its end. */
static void print_entry(const struct openai_logprob *token, struct bytes *out)
{
    bytes_append_text(out, "{\"token\":");
    print_broken_string(token->data, token->length, out);
    bytes_append_text(out, ",\"logprob\":");
    print_logprob(token->logprob, out);
    bytes_append_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < token->length; i++) {
        if (i > 0)
            bytes_append_byte(out, ',');
        print_integer((unsigned char)token->data[i], out);
    }
    bytes_append_byte(out, ']');
}

void openai_chat_logprob(const struct openai_logprob *token, const struct openai_logprob *top,
                         int n_top, struct bytes *entries)
{
    if (entries->length > 0)
        bytes_append_byte(entries, ',');
    print_entry(token, entries);
    bytes_append_text(entries, ",\"top_logprobs\":[");
    for (int i = 0; i < n_top; i++) {
        if (i > 0)
            bytes_append_byte(entries, ',');
        print_entry(&top[i], entries);
        bytes_append_byte(entries, '}');
    }
    bytes_append_text(entries, "]}");
}

/* Appends `"token":logprob` to the object that begins at `start`, unless it has that key: tokens of
 * different bytes may look the same when they are no UTF-8. */
static void add_top(struct bytes *out, size_t start, const struct openai_logprob *token)
{
    size_t before = out->length;
    if (before > start + 1)
        bytes_append_byte(out, ',');
    size_t key = out->length;
    print_broken_string(token->data, token->length, out);
    bytes_append_byte(out, ':');
    if (out->failed)
        return;
    /* inside of a string a quote is escaped: what is found is a key */
    if (memmem(out->data + start, before - start, out->data + key, out->length - key))
        out->length = before;
    else
        print_logprob(token->logprob, out);
}

/* Characters that begin in these bytes. */
static int64_t count_characters(const char *data, size_t length)
{
    int64_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)data[i] & 0xc0) != 0x80;
    return n;
}

void openai_text_logprob(struct openai_text_logprobs *logprobs, const struct openai_logprob *token,
                         bool known, const struct openai_logprob *top, int n_top)
{
    struct bytes *const arrays[] = {&logprobs->tokens, &logprobs->token_logprobs,
                                    &logprobs->top_logprobs, &logprobs->offsets};
    bool first = logprobs->tokens.length == 0;
    for (int i = 0; i < 4 && !first; i++)
        bytes_append_byte(arrays[i], ',');
    print_broken_string(token->data, token->length, &logprobs->tokens);
    print_integer(logprobs->offset, &logprobs->offsets);
    logprobs->offset += count_characters(token->data, token->length);
    if (!known) {
        bytes_append_text(&logprobs->token_logprobs, "null");
        bytes_append_text(&logprobs->top_logprobs, "null");
        return;
    }
    print_logprob(token->logprob, &logprobs->token_logprobs);
    size_t start = logprobs->top_logprobs.length;
    bytes_append_byte(&logprobs->top_logprobs, '{');
    for (int i = 0; i < n_top; i++)
        add_top(&logprobs->top_logprobs, start, &top[i]);
    add_top(&logprobs->top_logprobs, start, token);
    bytes_append_byte(&logprobs->top_logprobs, '}');
}

void openai_text_logprobs_reset(struct openai_text_logprobs *logprobs)
{
    bytes_reset(&logprobs->tokens);
    bytes_reset(&logprobs->token_logprobs);
    bytes_reset(&logprobs->top_logprobs);
    bytes_reset(&logprobs->offsets);
}

void openai_text_logprobs_clear(struct openai_text_logprobs *logprobs)
{
    bytes_clear(&logprobs->tokens);
    bytes_clear(&logprobs->token_logprobs);
    bytes_clear(&logprobs->top_logprobs);
    bytes_clear(&logprobs->offsets);
    logprobs->offset = 0;
}

static void print_array(const char *name, const struct bytes *items, struct bytes *out)
{
    bytes_append_text(out, name);
    bytes_append(out, items->data, items->length);
    bytes_append_byte(out, ']');
    out->failed |= items->failed;
}

void openai_text_logprobs_print(const struct openai_text_logprobs *logprobs, struct bytes *out)
{
    print_array("{\"tokens\":[", &logprobs->tokens, out);
    print_array(",\"token_logprobs\":[", &logprobs->token_logprobs, out);
    print_array(",\"top_logprobs\":[", &logprobs->top_logprobs, out);
    print_array(",\"text_offset\":[", &logprobs->offsets, out);
    bytes_append_byte(out, '}');
}
