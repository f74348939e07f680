#include "server/openai_print.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

void print_string(const char *text, struct bytes *out)
{
    json_print_string(text, strlen(text), out);
}

void print_string_or_null(const char *text, struct bytes *out)
{
    if (text)
        print_string(text, out);
    else
        bytes_append_text(out, "null");
}

void print_broken_string(const char *data, size_t length, struct bytes *out)
{
    bytes_append_byte(out, '"');
    while (length > 0) {
        size_t valid = utf8_valid_length(data, length), broken = 0;
        json_print_escaped(data, valid, out);
        data += valid;
        length -= valid;
        if (length == 0)
            break;
        if (utf8_examine(data, length, &broken) != UTF8_BROKEN)
            broken = length; /* the beginning of a character that does not go on */
        bytes_append_text(out, UTF8_REPLACEMENT);
        data += broken;
        length -= broken;
    }
    bytes_append_byte(out, '"');
}

/* The digits of `value`, at least `least` of them, before `end`; gives the first. */
static char *digits(uint64_t value, int least, char *end)
{
    for (; value > 0 || least > 0; value /= 10, least--)
        *--end = (char)('0' + value % 10);
    return end;
}

void print_integer(int64_t value, struct bytes *out)
{
    char text[24], *end = text + sizeof text;
    char *at = digits(value < 0 ? -(uint64_t)value : (uint64_t)value, 1, end);
    if (value < 0)
        *--at = '-';
    bytes_append(out, at, (size_t)(end - at));
}

void print_real(double value, int decimals, struct bytes *out)
{
    static const uint64_t powers[] = {1,      10,      100,      1000,      10000,
                                      100000, 1000000, 10000000, 100000000, 1000000000};
    const double limit = 9e17; /* fits 64 bits with room */
    uint64_t power = powers[decimals];
    double scaled = isnan(value) ? 0 : fmin(fabs(value) * (double)power, limit);
    uint64_t whole = (uint64_t)llround(scaled), part = whole % power;
    int n = decimals;
    for (; n > 1 && part % 10 == 0; n--)
        part /= 10;
    char text[48], *end = text + sizeof text;
    char *at = digits(part, n > 0 ? n : 1, end);
    *--at = '.';
    at = digits(whole / power, 1, at);
    if (value < 0 && whole > 0)
        *--at = '-';
    bytes_append(out, at, (size_t)(end - at));
}
