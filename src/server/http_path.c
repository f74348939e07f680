#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "server/http_parts.h"

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* Where the path begins: proxies may send the whole URL. */
static const char *skip_authority(const char *target)
{
    const char *colon = strstr(target, "://");
    if (target[0] == '/' || !colon || memchr(target, '?', (size_t)(colon - target)))
        return target;
    return colon + 3 + strcspn(colon + 3, "/?");
}

/* U+0080 to U+009F: terminals obey them. */
static bool has_controls(const char *text)
{
    for (; *text; text++)
        if (text[0] == '\xc2' && (unsigned char)text[1] < 0xa0)
            return true;
    return false;
}

char *http_path_decode(const char *target, bool *valid)
{
    const char *at = skip_authority(target);
    size_t length = strcspn(at, "?#"), n = 0;
    char *path = malloc(length + 2);
    *valid = true;
    if (!path)
        return NULL;
    if (length == 0 && at != target) /* "http://host" */
        path[n++] = '/';
    for (size_t i = 0; i < length && *valid; i++) {
        unsigned char c = (unsigned char)at[i];
        if (c == '%') {
            int high = hex_digit(at[i + 1]), low = high < 0 ? -1 : hex_digit(at[i + 2]);
            *valid = low >= 0;
            c = *valid ? (unsigned char)(high << 4 | low) : 0;
            i += 2;
        }
        *valid = *valid && c >= 0x20 && c != 0x7f;
        path[n++] = (char)c;
    }
    path[n] = '\0';
    *valid = *valid && (path[0] == '/' || strcmp(path, "*") == 0) &&
             utf8_valid_length(path, n) == n && !has_controls(path);
    if (*valid)
        return path;
    free(path);
    return NULL;
}
