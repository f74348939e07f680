/* NFC in small stretches. A code point without UNICODE_NFC_CHANGES never joins what stands before
 * it, so only runs of code points with that bit, together with the one before them when it has
 * UNICODE_NFC_BASE, need utf8proc; all else is copied. Code points newer than Unicode 9.0 have
 * neither bit and never reach utf8proc, nor does U+11A7, which utf8proc 2.8 loses after a syllable.
 */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"

/* Canonical decompositions have at most four code points. */
#define EXPANSION_MAX 4

struct stretch {
    utf8proc_int32_t *points;
    size_t length, capacity;
    utf8proc_int32_t *sorted; /* scratch of sort_marks, as large as points */
};

/* The first code point at or after `at` that may change; `end` when there is none. */
static const unsigned char *find_change(const unsigned char *at, const unsigned char *end)
{
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & UINT64_C(0x8080808080808080)))) {
            at += 8;
            continue;
        }
        size_t size;
        if (unicode_property(utf8_decode(at, &size)) & UNICODE_NFC_CHANGES)
            return at;
        at += size;
    }
    return end;
}

bool unicode_is_nfc(const char *text, size_t length)
{
    const unsigned char *end = (const unsigned char *)text + length;
    return find_change((const unsigned char *)text, end) == end;
}

static bool stretch_reserve(struct stretch *stretch, size_t more)
{
    if (stretch->capacity - stretch->length >= more)
        return true;
    size_t capacity = stretch->capacity ? stretch->capacity * 2 : 64;
    utf8proc_int32_t *points = realloc(stretch->points, capacity * sizeof *points);
    if (!points)
        return false;
    stretch->points = points;
    utf8proc_int32_t *sorted = realloc(stretch->sorted, capacity * sizeof *sorted);
    if (!sorted)
        return false;
    stretch->sorted = sorted;
    stretch->capacity = capacity;
    return true;
}

static int combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class & 0xff;
}

/* Sorts marks by combining class, equal ones in their order. Counting, because an exchange sort
 * takes hours on a hostile megabyte of marks. */
static void sort_marks(utf8proc_int32_t *points, size_t length, utf8proc_int32_t *sorted)
{
    size_t places[257] = {0};
    for (size_t i = 0; i < length; i++)
        places[combining_class(points[i]) + 1]++;
    for (int class = 1; class < 257; class ++)
        places[class] += places[class - 1];
    for (size_t i = 0; i < length; i++)
        sorted[places[combining_class(points[i])]++] = points[i];
    memcpy(points, sorted, length * sizeof *points);
}

static void order_marks(struct stretch *stretch)
{
    for (size_t from = 0, to; from < stretch->length; from = to + 1) {
        bool ordered = true;
        int last = 0, class;
        for (to = from; to < stretch->length; to++, last = class) {
            class = combining_class(stretch->points[to]);
            if (class == 0)
                break;
            ordered = ordered && class >= last;
        }
        if (!ordered)
            sort_marks(stretch->points + from, to - from, stretch->sorted);
    }
}

/* Appends the NFC of [at, end) by decomposing, ordering and composing all of it. */
static enum status compose(struct stretch *stretch, const unsigned char *at,
                           const unsigned char *end, struct bytes *out, struct error *error)
{
    stretch->length = 0;
    for (size_t size; at < end; at += size) {
        if (!stretch_reserve(stretch, EXPANSION_MAX))
            return error_no_memory(error, "the text's normal form");
        utf8proc_int32_t c = (utf8proc_int32_t)utf8_decode(at, &size);
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(c, stretch->points + stretch->length,
                                                     EXPANSION_MAX, UTF8PROC_DECOMPOSE, &boundary);
        if (n < 0 || n > EXPANSION_MAX)
            return error_set(error, STATUS_INVALID, "text: utf8proc cannot decompose U+%04X",
                             (unsigned)c);
        stretch->length += (size_t)n;
    }
    order_marks(stretch);
    utf8proc_ssize_t n = utf8proc_normalize_utf32(
        stretch->points, (utf8proc_ssize_t)stretch->length, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n < 0)
        return error_set(error, STATUS_INVALID, "text: utf8proc: %s", utf8proc_errmsg(n));
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char utf8[4];
        bytes_append(out, utf8, utf8_write((uint32_t)stretch->points[i], utf8));
    }
    return STATUS_OK;
}

enum status unicode_nfc(const char *text, size_t length, struct bytes *out, struct error *error)
{
    const unsigned char *copied = (const unsigned char *)text, *end = copied + length;
    struct stretch stretch = {0};
    enum status status = STATUS_OK;
    for (;;) {
        const unsigned char *from = find_change(copied, end), *to = from;
        if (from == end)
            break;
        for (size_t size; to < end; to += size)
            if (!(unicode_property(utf8_decode(to, &size)) & UNICODE_NFC_CHANGES))
                break;
        if (from > copied) { /* the character before */
            const unsigned char *before = from - 1;
            while ((*before & 0xc0) == 0x80)
                before--;
            size_t size;
            if (unicode_property(utf8_decode(before, &size)) & UNICODE_NFC_BASE)
                from = before;
        }
        bytes_append(out, copied, (size_t)(from - copied));
        status = compose(&stretch, from, to, out, error);
        if (status != STATUS_OK)
            break;
        copied = to;
    }
    free(stretch.points);
    free(stretch.sorted);
    if (status != STATUS_OK)
        return status;
    bytes_append(out, copied, (size_t)(end - copied));
    return out->failed ? error_no_memory(error, "the text's normal form") : STATUS_OK;
}
