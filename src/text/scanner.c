#include "text/scanner.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"
#include "text/unicode.h"

const char scanner_regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static inline unsigned class_at(const unsigned char *at, size_t *size)
{
    if (*at < 0x80) {
        *size = 1;
        return unicode_properties[*at] & UNICODE_CLASS; /* pages 0 and 1 are the first two */
    }
    return unicode_property(utf8_decode(at, size)) & UNICODE_CLASS;
}

static inline bool is_letter_or_mark(unsigned class)
{
    return class == UNICODE_LETTER || class == UNICODE_MARK;
}

static const unsigned char *letters_end(const unsigned char *at, const unsigned char *end)
{
    size_t size;
    for (; at < end; at += size)
        if (!is_letter_or_mark(class_at(at, &size)))
            break;
    return at;
}

/* R1: the end of the contraction at the apostrophe `at`, NULL when there is none. */
static const unsigned char *contraction_end(const unsigned char *at, const unsigned char *end)
{
    size_t left = (size_t)(end - at) - 1;
    unsigned char a = left > 0 ? at[1] : 0, b = left > 1 ? at[2] : 0;
    if (a == 0xc5 && b == 0xbf) /* U+017F, which folds to s */
        return at + 3;
    a |= 0x20; /* lower case; what else becomes a letter by this is none of those sought, or 0 */
    b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    return NULL;
}

/* R4 after the optional space: a run of what is no white space, letter, mark or number, and the
 * line ends behind it. */
static const unsigned char *symbols_end(const unsigned char *at, const unsigned char *end)
{
    size_t size;
    for (; at < end; at += size)
        if (class_at(at, &size) != UNICODE_OTHER)
            break;
    while (at < end && (*at == '\r' || *at == '\n'))
        at++;
    return at;
}

/* R5, R6, R7. */
static const unsigned char *space_end(const unsigned char *at, const unsigned char *end)
{
    const unsigned char *start = at, *last = at, *line_end = NULL;
    for (size_t size; at < end; at += size) {
        unsigned class = class_at(at, &size);
        if (class == UNICODE_NEWLINE)
            line_end = at + 1;
        else if (class != UNICODE_SPACE)
            break;
        last = at;
    }
    if (line_end)
        return line_end;
    return at == end || last == start ? at : last;
}

const unsigned char *scanner_next(const unsigned char *at, const unsigned char *end)
{
    size_t size, next_size = 1;
    unsigned class = class_at(at, &size);
    if (class == UNICODE_LETTER)
        return letters_end(at + size, end); /* R2 */
    if (*at == '\'') {
        const unsigned char *contraction = contraction_end(at, end); /* R1 */
        if (contraction)
            return contraction;
    }
    if (class == UNICODE_NUMBER)
        return at + size; /* R3 */
    const unsigned char *next = at + size;
    if (class == UNICODE_NEWLINE)
        return space_end(at, end);
    unsigned next_class = next < end ? class_at(next, &next_size) : UNICODE_SPACE;
    if (is_letter_or_mark(next_class))
        return letters_end(next + next_size, end); /* R2 */
    if (class == UNICODE_MARK)
        return next; /* R2: a run of one */
    if (class == UNICODE_OTHER)
        return symbols_end(next, end); /* R4 */
    if (*at == ' ' && next_class == UNICODE_OTHER)
        return symbols_end(next + next_size, end); /* R4 */
    return space_end(at, end);
}
