#include "cli/terminal.h"

#include <unistd.h>

/* The bytes of the control character at `text`: U+0000 to U+001F, U+007F to U+009F; 0: none. */
static size_t control_size(const char *text, size_t length)
{
    unsigned char c = (unsigned char)text[0];
    if (c == '\n' || c == '\t')
        return 0;
    if (c < 0x20 || c == 0x7f)
        return 1;
    return c == 0xc2 && length > 1 && (unsigned char)text[1] < 0xa0 ? 2 : 0;
}

bool terminal_write(FILE *stream, const char *text, size_t length)
{
    if (!isatty(fileno(stream)))
        return fwrite(text, 1, length, stream) == length;
    size_t from = 0, size;
    for (size_t at = 0; at < length; at += size) {
        size_t control = control_size(text + at, length - at);
        size = control ? control : 1;
        if (!control)
            continue;
        bool line_end = text[at] == '\r' && at + 1 < length && text[at + 1] == '\n';
        if (fwrite(text + from, 1, at - from, stream) != at - from ||
            (!line_end && fputc('?', stream) == EOF))
            return false;
        from = at + size;
    }
    return fwrite(text + from, 1, length - from, stream) == length - from;
}
