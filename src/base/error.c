#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
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
    }
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (!error)
        return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    clean(error->message);
    return status;
}

enum status error_no_memory(struct error *error, const char *what)
{
    return error_set(error, STATUS_NO_MEMORY, "out of memory for %s", what);
}
