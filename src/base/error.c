#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Names out of files may hold anything, and a cut may have gone through a character; messages go
 * to terminals and into JSON. */
static void clean(char *text)
{
    size_t length = strlen(text), size;
    for (size_t at = 0; at < length; at += size) {
        enum utf8_state state = utf8_examine(text + at, length - at, &size);
        if (state != UTF8_WHOLE)
            memset(text + at, '?', size);
        else if ((unsigned char)text[at] < 0x20 || text[at] == 0x7f)
            text[at] = '?';
        else if ((unsigned char)text[at] == 0xc2 && (unsigned char)text[at + 1] < 0xa0)
            memset(text + at, '?', size); /* U+0080 to U+009F are controls, too */
    }
}

/* Puts a message that is too long for `out` there without its middle: what is wrong stands at the
 * end, after a path or a value of any length. */
static void shorten(char *out, size_t size, const char *whole, size_t length)
{
    static const char mark[] = "…";
    size_t head = (size - sizeof mark) / 2, tail = size - sizeof mark - head;
    const char *from = whole + length - tail;
    memcpy(out, whole, head);
    while (head > 0 && ((unsigned char)whole[head] & 0xc0) == 0x80)
        head--; /* no half characters at the cuts */
    while (((unsigned char)*from & 0xc0) == 0x80)
        from++;
    snprintf(out + head, size - head, "%s%s", mark, from);
}

enum status error_vset(struct error *error, enum status status, const char *format,
                       va_list arguments)
{
    if (!error)
        return status;
    error->status = status;
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(error->message, sizeof error->message, format, arguments);
    char *whole = length >= (int)sizeof error->message ? malloc((size_t)length + 1) : NULL;
    if (whole) { /* else the beginning has to do */
        vsnprintf(whole, (size_t)length + 1, format, again);
        shorten(error->message, sizeof error->message, whole, (size_t)length);
        free(whole);
    }
    va_end(again);
    clean(error->message);
    return status;
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error_vset(error, status, format, arguments);
    va_end(arguments);
    return status;
}

enum status error_no_memory(struct error *error, const char *what)
{
    return error_set(error, STATUS_NO_MEMORY, "out of memory for %s", what);
}
