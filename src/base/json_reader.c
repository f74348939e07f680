#include "base/json_reader.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define DEPTH_MAX 512

static bool refuse(struct json_reader *reader, const char *problem)
{
    if (reader->status != STATUS_OK)
        return false;
    size_t line = 1;
    const unsigned char *line_start = reader->start;
    for (const unsigned char *c = reader->start; c < reader->at; c++)
        if (*c == '\n') {
            line++;
            line_start = c + 1;
        }
    reader->status =
        error_set(reader->error, STATUS_INVALID, "%s: not JSON at line %zu column %zu: %s",
                  reader->name, line, (size_t)(reader->at - line_start) + 1, problem);
    reader->end = reader->at; /* nothing more to read */
    return false;
}

/* "found X, wanted Y" at the present place. */
static bool unexpected(struct json_reader *reader, const char *wanted)
{
    char problem[80], found[16] = "the end";
    if (reader->at < reader->end) {
        unsigned char c = *reader->at;
        if (c > 0x20 && c < 0x7f)
            snprintf(found, sizeof found, "'%c'", c);
        else
            snprintf(found, sizeof found, "byte 0x%02x", c);
    }
    snprintf(problem, sizeof problem, "found %s, wanted %s", found, wanted);
    return refuse(reader, problem);
}

bool json_reader_fail(struct json_reader *reader, enum status status)
{
    if (reader->status == STATUS_OK)
        reader->status = status;
    reader->end = reader->at;
    return false;
}

void json_reader_init(struct json_reader *reader, const char *data, size_t length, const char *name,
                      struct error *error)
{
    if (!data)
        data = "";
    const unsigned char *start = (const unsigned char *)data;
    *reader = (struct json_reader){
        .name = name, .start = start, .at = start, .end = start + length, .error = error};
}

void json_reader_clear(struct json_reader *reader)
{
    bytes_clear(&reader->scratch);
}

void json_reader_seek(struct json_reader *reader, const char *from, size_t length)
{
    if (reader->status != STATUS_OK)
        return;
    reader->at = (const unsigned char *)from;
    reader->end = reader->at + length;
}

static inline void skip_space(struct json_reader *reader)
{
    const unsigned char *at = reader->at, *end = reader->end;
    while (at < end && *at <= ' ') {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), eight == UINT64_C(0x2020202020202020)))
            at += 8; /* indentation */
        else if (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
            at++;
        else
            break;
    }
    reader->at = at;
}

char json_reader_kind(struct json_reader *reader)
{
    skip_space(reader);
    if (reader->at == reader->end)
        return 0;
    unsigned char c = *reader->at;
    return c == '-' || (c >= '0' && c <= '9') ? '0' : (char)c;
}

const char *json_reader_kind_name(struct json_reader *reader)
{
    switch (json_reader_kind(reader)) {
    case '{':
        return "an object";
    case '[':
        return "an array";
    case '"':
        return "a string";
    case '0':
        return "a number";
    case 't':
    case 'f':
        return "true or false";
    case 'n':
        return "null";
    default:
        return "no value";
    }
}

bool json_reader_enter(struct json_reader *reader, char open)
{
    if (json_reader_kind(reader) != open)
        return unexpected(reader, open == '{' ? "an object" : "an array");
    reader->at++;
    return true;
}

/* Before a member or an element: the comma, or the closing bracket (false). */
static bool go_on(struct json_reader *reader, bool *first, unsigned char close)
{
    skip_space(reader);
    if (reader->at < reader->end && *reader->at == close) {
        reader->at++;
        return false;
    }
    if (*first) {
        *first = false;
        return reader->status == STATUS_OK;
    }
    if (reader->at == reader->end || *reader->at != ',')
        return unexpected(reader, close == '}' ? "',' or '}'" : "',' or ']'");
    reader->at++;
    skip_space(reader);
    if (reader->at < reader->end && *reader->at == close)
        return unexpected(reader, "a value");
    return true;
}

bool json_reader_member(struct json_reader *reader, bool *first, const char **key, size_t *length)
{
    if (!go_on(reader, first, '}') || !json_reader_string(reader, key, length))
        return false;
    skip_space(reader);
    if (reader->at == reader->end || *reader->at != ':')
        return unexpected(reader, "':'");
    reader->at++;
    return true;
}

bool json_reader_element(struct json_reader *reader, bool *first)
{
    return go_on(reader, first, ']');
}

static bool hex4(struct json_reader *reader, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        int c = reader->at < reader->end ? *reader->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return unexpected(reader, "four hexadecimal digits after \\u");
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

/* After a backslash. */
static bool read_escape(struct json_reader *reader)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char c = reader->at < reader->end ? (char)*reader->at : 0;
    const char *found = c ? strchr(letters, c) : NULL;
    if (found) {
        reader->at++;
        bytes_append_byte(&reader->scratch, meanings[found - letters]);
        return true;
    }
    if (c != 'u')
        return unexpected(reader, "an escape (one of \"\\/bfnrtu)");
    reader->at++;
    uint32_t unit, low;
    if (!hex4(reader, &unit))
        return false;
    if (unit >= 0xd800 && unit < 0xe000) {
        bool pair = unit < 0xdc00 && reader->end - reader->at >= 2 && reader->at[0] == '\\' &&
                    reader->at[1] == 'u';
        if (!pair)
            return refuse(reader, "half of a surrogate pair");
        reader->at += 2;
        if (!hex4(reader, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse(reader, "half of a surrogate pair");
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    char utf8[4];
    bytes_append(&reader->scratch, utf8, utf8_write(unit, utf8));
    return true;
}

/* Reads on to the next quote or backslash; the bytes passed are checked. */
static bool plain_text(struct json_reader *reader)
{
    const unsigned char *at = reader->at, *end = reader->end;
    for (;;) {
        while (at < end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\')
            at++;
        if (at == end || *at < 0x80)
            break;
        if (*at >= 0xc2 && *at < 0xe0 && end - at > 1 && (at[1] & 0xc0) == 0x80) {
            at += 2;
            continue;
        }
        size_t size;
        if (utf8_examine((const char *)at, (size_t)(end - at), &size) != UTF8_WHOLE) {
            reader->at = at;
            return refuse(reader, "invalid UTF-8");
        }
        at += size;
    }
    reader->at = at;
    if (at == end)
        return refuse(reader, "the end inside a string");
    if (*at < 0x20)
        return refuse(reader, "a control character inside a string");
    return true;
}

bool json_reader_string(struct json_reader *reader, const char **text, size_t *length)
{
    if (json_reader_kind(reader) != '"')
        return unexpected(reader, "a string");
    const unsigned char *from = ++reader->at;
    if (!plain_text(reader))
        return false;
    if (*reader->at == '"') { /* no escape: the text as it stands */
        *text = (const char *)from;
        *length = (size_t)(reader->at - from);
        reader->at++;
        return true;
    }
    bytes_reset(&reader->scratch);
    for (;;) {
        bytes_append(&reader->scratch, from, (size_t)(reader->at - from));
        if (*reader->at++ == '"')
            break;
        if (!read_escape(reader))
            return false;
        from = reader->at;
        if (!plain_text(reader))
            return false;
    }
    *length = reader->scratch.length;
    *text = bytes_terminate(&reader->scratch);
    if (!*text)
        return json_reader_fail(reader, error_no_memory(reader->error, "a JSON string"));
    return true;
}

static bool digits(struct json_reader *reader)
{
    const unsigned char *from = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9')
        reader->at++;
    return reader->at > from || unexpected(reader, "a digit");
}

/* Passes over a number; *whole tells whether it has neither fraction nor exponent. */
static bool number(struct json_reader *reader, bool *whole)
{
    *whole = true;
    if (*reader->at == '-')
        reader->at++;
    if (reader->at < reader->end && *reader->at == '0')
        reader->at++;
    else if (!digits(reader))
        return false;
    if (reader->at < reader->end && *reader->at == '.') {
        *whole = false;
        reader->at++;
        if (!digits(reader))
            return false;
    }
    if (reader->at < reader->end && (*reader->at == 'e' || *reader->at == 'E')) {
        *whole = false;
        reader->at++;
        if (reader->at < reader->end && (*reader->at == '+' || *reader->at == '-'))
            reader->at++;
        return digits(reader);
    }
    return true;
}

bool json_reader_integer(struct json_reader *reader, int64_t *value)
{
    if (json_reader_kind(reader) != '0')
        return unexpected(reader, "an integer");
    const unsigned char *from = reader->at;
    bool whole;
    if (!number(reader, &whole))
        return false;
    bool negative = *from == '-';
    uint64_t sum = 0, limit = (uint64_t)INT64_MAX + negative;
    const unsigned char *end = reader->at;
    if (!whole) {
        reader->at = from;
        return refuse(reader, "found a number with fraction or exponent, wanted an integer");
    }
    for (const unsigned char *c = from + negative; c < end; c++) {
        uint64_t digit = *c - '0';
        if (sum > (limit - digit) / 10) {
            reader->at = from;
            return refuse(reader, "found an integer beyond 64 bits");
        }
        sum = sum * 10 + digit;
    }
    *value = negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return true;
}

static bool word(struct json_reader *reader, const char *wanted)
{
    size_t length = strlen(wanted);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, wanted, length) != 0)
        return unexpected(reader, wanted);
    reader->at += length;
    return true;
}

/* One value that is no container. */
static bool skip_scalar(struct json_reader *reader)
{
    const char *text;
    size_t length;
    bool whole;
    switch (json_reader_kind(reader)) {
    case '"':
        return json_reader_string(reader, &text, &length);
    case '0':
        return number(reader, &whole);
    case 't':
        return word(reader, "true");
    case 'f':
        return word(reader, "false");
    case 'n':
        return word(reader, "null");
    default:
        return unexpected(reader, "a value");
    }
}

bool json_reader_skip(struct json_reader *reader, const char **from, size_t *length)
{
    bool object[DEPTH_MAX]; /* what each open container is */
    int depth = 0;
    skip_space(reader);
    const unsigned char *begin = reader->at;
    do {
        char kind = json_reader_kind(reader);
        bool first = false;
        if (kind == '{' || kind == '[') {
            if (depth == DEPTH_MAX)
                return refuse(reader, "nested too deep");
            object[depth++] = kind == '{';
            reader->at++;
            first = true;
        } else if (!skip_scalar(reader)) {
            return false;
        }
        /* on to the next value, out of every container that ends here */
        while (depth > 0) {
            const char *key;
            size_t key_length;
            bool more = object[depth - 1] ? json_reader_member(reader, &first, &key, &key_length)
                                          : json_reader_element(reader, &first);
            if (reader->status != STATUS_OK)
                return false;
            if (more)
                break;
            depth--;
            first = false;
        }
    } while (depth > 0);
    if (from) {
        *from = (const char *)begin;
        *length = (size_t)(reader->at - begin);
    }
    return true;
}

bool json_reader_finish(struct json_reader *reader)
{
    skip_space(reader);
    if (reader->status == STATUS_OK && reader->at < reader->end)
        return unexpected(reader, "the end");
    return reader->status == STATUS_OK;
}
