/* What tokenising needs of Unicode: the classes of the pre-tokeniser's regex (Unicode 16.0) and NFC
 * as the reference tokenizer does it (Unicode 9.0); see tests/golden/README.md part 2. Both come
 * from a table of our own (unicode_table.c), so they do not change with the system's utf8proc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

/* The low three bits of a property: disjoint classes. */
enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER,  /* \p{L} */
    UNICODE_MARK,    /* \p{M} */
    UNICODE_NUMBER,  /* \p{N} */
    UNICODE_SPACE,   /* White_Space without the next */
    UNICODE_NEWLINE, /* CR, LF */
};
#define UNICODE_CLASS 7u
/* In NFC of Unicode 9.0 this code point may change, move, or join the one before it. Text without
 * any such code point is normalised already. */
#define UNICODE_NFC_CHANGES 8u
/* It may change with such a one behind it: it begins a composition, or has a decomposition, whose
 * marks may move. */
#define UNICODE_NFC_BASE 16u

extern const uint16_t unicode_pages[];
extern const uint8_t unicode_properties[];

static inline unsigned unicode_property(uint32_t c)
{
    return unicode_properties[unicode_pages[c >> 6] * 64u + (c & 63u)];
}

/* Whether valid UTF-8 is known to be in NFC without any work. */
bool unicode_is_nfc(const char *text, size_t length);
/* Appends the NFC of valid UTF-8 to `out`, in time linear in `length`. */
enum status unicode_nfc(const char *text, size_t length, struct bytes *out, struct error *error);
