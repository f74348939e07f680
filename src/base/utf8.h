/* UTF-8, byte by byte: what is a whole character, what may still become one, what never can. "Part"
 * is the maximal invalid part of WHATWG's decoder (also Python's errors="replace"). */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum utf8_state {
    UTF8_WHOLE,  /* the first *size bytes are a character */
    UTF8_OPEN,   /* all `length` bytes begin a character that is not complete */
    UTF8_BROKEN, /* the first *size bytes are an invalid part: one U+FFFD */
};

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

/* Examines the beginning of `data`; length must not be 0. */
enum utf8_state utf8_examine(const char *data, size_t length, size_t *size);
/* The number of bytes before the first that is no valid UTF-8; `length` when all are. */
size_t utf8_valid_length(const char *data, size_t length);
/* At most `limit` of `length` bytes, cut between characters: for text shown in a message. */
int utf8_shown(const char *data, size_t length, size_t limit);
/* Writes a code point that is no surrogate; gives its length. */
size_t utf8_write(uint32_t c, char out[4]);

/* The character at `at`, which must lie in text known to be valid. */
static inline uint32_t utf8_decode(const unsigned char *at, size_t *size)
{
    uint32_t c = at[0];
    if (c < 0x80) {
        *size = 1;
        return c;
    }
    if (c < 0xe0) {
        *size = 2;
        return (c & 0x1f) << 6 | (at[1] & 0x3f);
    }
    if (c < 0xf0) {
        *size = 3;
        return (c & 0x0f) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3f);
    }
    *size = 4;
    return (c & 0x07) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 | (at[3] & 0x3f);
}
