#include "base/utf8.h"

#include <string.h>

enum utf8_state utf8_examine(const char *data, size_t length, size_t *size)
{
    const unsigned char *at = (const unsigned char *)data;
    unsigned char lead = at[0], low = 0x80, high = 0xbf; /* bounds of the second byte */
    *size = 1;
    if (lead < 0x80)
        return UTF8_WHOLE;
    if (lead < 0xc2 || lead > 0xf4)
        return UTF8_BROKEN;
    size_t wanted = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0; /* shorter spellings exist */
    else if (lead == 0xed)
        high = 0x9f; /* surrogates */
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    for (size_t i = 1; i < wanted; i++) {
        *size = i;
        if (i == length)
            return UTF8_OPEN;
        if (at[i] < low || at[i] > high)
            return UTF8_BROKEN;
        low = 0x80;
        high = 0xbf;
    }
    *size = wanted;
    return UTF8_WHOLE;
}

size_t utf8_valid_length(const char *data, size_t length)
{
    size_t at = 0;
    while (at < length) {
        uint64_t eight;
        if (length - at >= sizeof eight) {
            memcpy(&eight, data + at, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                at += sizeof eight;
                continue;
            }
        }
        size_t size;
        if (utf8_examine(data + at, length - at, &size) != UTF8_WHOLE)
            return at;
        at += size;
    }
    return at;
}

int utf8_shown(const char *data, size_t length, size_t limit)
{
    if (length <= limit)
        return (int)length;
    while (limit > 0 && (data[limit] & 0xc0) == 0x80)
        limit--;
    return (int)limit;
}

size_t utf8_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
