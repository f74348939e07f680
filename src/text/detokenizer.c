/* Ids to text as they come: see tokenizer.h and tests/golden/README.md part 1. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      bool skip_special)
{
    *detokenizer = (struct detokenizer){.tokenizer = tokenizer, .skip_special = skip_special};
}

/* Half of a surrogate's three bytes can never become valid, and yet it is held until a third byte
 * is there: the reference decoder does (the golden line "bytes ed a0 80"), and joined the pieces
 * are the same. */
static bool is_half_surrogate(const char *text, size_t length)
{
    return length == 2 && (unsigned char)text[0] == 0xed && (text[1] & 0xe0) == 0xa0;
}

/* Appends what is complete of `text`, U+FFFD for what is invalid; gives the number of bytes used:
 * all but an open tail. */
static size_t append_complete(const char *text, size_t length, struct bytes *out)
{
    size_t at = 0;
    while (at < length) {
        size_t valid = utf8_valid_length(text + at, length - at), size;
        bytes_append(out, text + at, valid);
        at += valid;
        if (at == length)
            break;
        if (utf8_examine(text + at, length - at, &size) == UTF8_OPEN ||
            is_half_surrogate(text + at, length - at))
            break;
        bytes_append_text(out, UTF8_REPLACEMENT);
        at += size;
    }
    return at;
}

void detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct bytes *out)
{
    const struct tokenizer *tokenizer = detokenizer->tokenizer;
    if (detokenizer->skip_special && tokenizer_is_special(tokenizer, id))
        return;
    size_t length;
    const char *bytes = tokenizer_bytes(tokenizer, id, &length);
    if (!bytes)
        return;
    /* Bytes join the tail one by one until it is settled; the tail never holds a whole character,
     * so each step leaves at most three bytes. */
    while (detokenizer->tail_length > 0 && length > 0) {
        char *tail = (char *)detokenizer->tail;
        tail[detokenizer->tail_length++] = *bytes++;
        length--;
        size_t held = (size_t)detokenizer->tail_length, used = append_complete(tail, held, out);
        memmove(tail, tail + used, held - used);
        detokenizer->tail_length = (int)(held - used);
    }
    size_t used = append_complete(bytes, length, out);
    if (used < length) {
        memcpy(detokenizer->tail, bytes + used, length - used);
        detokenizer->tail_length = (int)(length - used);
    }
}

void detokenizer_finish(struct detokenizer *detokenizer, struct bytes *out)
{
    const char *tail = (const char *)detokenizer->tail;
    if (detokenizer->tail_length > 0)
        bytes_append_text(out, UTF8_REPLACEMENT);
    if (is_half_surrogate(tail, (size_t)detokenizer->tail_length)) /* two invalid parts */
        bytes_append_text(out, UTF8_REPLACEMENT);
    detokenizer->tail_length = 0;
}
