#include "text/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    const char *at, *end;
};

bool json_text_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && json_text_is_space(*scan->at))
        scan->at++;
}

/* The next byte without taking it; NUL at the end (a NUL is never valid where this is asked). */
static char peek(const struct scan *scan)
{
    return scan->at < scan->end ? *scan->at : '\0';
}

static bool take(struct scan *scan, char wanted)
{
    if (peek(scan) != wanted || scan->at == scan->end)
        return false;
    scan->at++;
    return true;
}

static size_t skip_digits(struct scan *scan)
{
    const char *from = scan->at;
    while (is_digit(peek(scan)))
        scan->at++;
    return (size_t)(scan->at - from);
}

bool json_text_is_finite(const char *text, size_t length)
{
    /* The value is 0.d1d2… * 10^magnitude, d1 not 0. Only close to the largest double do the digits
     * themselves matter; 40 of them decide. strtod sees no point, so the locale has no say. */
    enum { KEPT = 40 };
    struct scan scan = {text, text + length};
    char digits[KEPT + 16];
    int n = 0;
    long long magnitude = 0, exponent = 0;
    bool fraction = false, negative = false;
    for (; scan.at < scan.end && *scan.at != 'e' && *scan.at != 'E'; scan.at++) {
        if (*scan.at == '.')
            fraction = true;
        if (!is_digit(*scan.at))
            continue;
        bool leading_zero = n == 0 && *scan.at == '0';
        if (!leading_zero && n < KEPT)
            digits[n++] = *scan.at;
        if (fraction ? leading_zero : !leading_zero)
            magnitude += fraction ? -1 : 1;
    }
    for (; scan.at < scan.end; scan.at++) {
        negative = negative || *scan.at == '-';
        if (is_digit(*scan.at) && exponent < 1000000000000)
            exponent = exponent * 10 + (*scan.at - '0');
    }
    magnitude += negative ? -exponent : exponent;
    if (n == 0 || magnitude < 309)
        return true;
    if (magnitude > 309)
        return false;
    snprintf(digits + n, sizeof digits - (size_t)n, "e%d", 309 - n);
    return isfinite(strtod(digits, NULL));
}

static bool scan_number(struct scan *scan)
{
    const char *from = scan->at;
    take(scan, '-');
    char first = peek(scan);
    size_t n = skip_digits(scan);
    if (n == 0 || (first == '0' && n > 1))
        return false;
    bool real = false;
    if (take(scan, '.')) {
        real = true;
        if (skip_digits(scan) == 0)
            return false;
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        real = true;
        scan->at++;
        if (peek(scan) == '+' || peek(scan) == '-')
            scan->at++;
        if (skip_digits(scan) == 0)
            return false;
    }
    return !real || json_text_is_finite(from, (size_t)(scan->at - from));
}

/* Four hex digits; -1 when they are not there. */
static int scan_hex(struct scan *scan)
{
    int value = 0;
    for (int i = 0; i < 4; i++, scan->at++) {
        char c = peek(scan), lower = (char)(c | 0x20);
        if (is_digit(c))
            value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + (lower - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* What follows a backslash. */
static bool scan_escape(struct scan *scan)
{
    char c = peek(scan);
    if (c == '\0' || !strchr("\"\\/bfnrtu", c))
        return false;
    scan->at++;
    if (c != 'u')
        return true;
    int unit = scan_hex(scan);
    if (unit >= 0xd800 && unit < 0xdc00) {
        if (!take(scan, '\\') || !take(scan, 'u'))
            return false;
        unit = scan_hex(scan);
        return unit >= 0xdc00 && unit < 0xe000;
    }
    return unit >= 0 && !(unit >= 0xdc00 && unit < 0xe000);
}

static bool scan_string(struct scan *scan)
{
    if (!take(scan, '"'))
        return false;
    while (scan->at < scan->end) {
        unsigned char c = (unsigned char)*scan->at++;
        if (c == '"')
            return true;
        if (c < 0x20 || (c == '\\' && !scan_escape(scan)))
            return false;
    }
    return false;
}

static bool scan_word(struct scan *scan, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0)
        return false;
    scan->at += length;
    return true;
}

static bool scan_scalar(struct scan *scan)
{
    switch (peek(scan)) {
    case '"':
        return scan_string(scan);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    default:
        return scan_number(scan);
    }
}

static bool scan_key(struct scan *scan)
{
    skip_space(scan);
    if (!scan_string(scan))
        return false;
    skip_space(scan);
    return take(scan, ':');
}

bool json_text_is_container(const char *text, size_t length)
{
    struct scan scan = {text, text + length};
    char closing[JSON_TEXT_DEPTH]; /* the bracket that each open container waits for */
    int depth = 0;
    skip_space(&scan);
    if (peek(&scan) != '{' && peek(&scan) != '[')
        return false;
    do { /* one value each time round, then the closing brackets behind it */
        skip_space(&scan);
        char c = peek(&scan);
        if (c == '{' || c == '[') {
            if (depth == JSON_TEXT_DEPTH)
                return false;
            closing[depth++] = c == '{' ? '}' : ']';
            scan.at++;
            skip_space(&scan);
            if (peek(&scan) != closing[depth - 1]) {
                if (c == '{' && !scan_key(&scan))
                    return false;
                continue;
            }
        } else if (!scan_scalar(&scan)) {
            return false;
        }
        skip_space(&scan);
        while (depth > 0 && take(&scan, closing[depth - 1])) {
            depth--;
            skip_space(&scan);
        }
        if (depth > 0 && (!take(&scan, ',') || (closing[depth - 1] == '}' && !scan_key(&scan))))
            return false;
    } while (depth > 0);
    return scan.at == scan.end;
}

/* Moves over one value of valid JSON, up to the comma or bracket behind it. */
static void skip_value(struct scan *scan)
{
    int depth = 0;
    for (; scan->at < scan->end; scan->at++) {
        char c = *scan->at;
        if (depth == 0 && (c == ',' || c == '}'))
            return;
        if (c == '"') {
            scan_string(scan);
            scan->at--; /* the loop steps over the closing quote */
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
}

struct member {
    const char *key, *key_end; /* with its quotes */
    const char *value, *value_end;
};

/* The next member of the object, false behind the last one. */
static bool scan_member(struct scan *scan, struct member *member)
{
    skip_space(scan);
    take(scan, ',');
    skip_space(scan);
    member->key = scan->at;
    if (!scan_string(scan))
        return false;
    member->key_end = scan->at;
    skip_space(scan);
    take(scan, ':');
    skip_space(scan);
    member->value = scan->at;
    skip_value(scan);
    member->value_end = scan->at;
    return true;
}

/* Fills `members` with the members that count, in the order of their first appearance. */
static bool collect_members(struct scan *scan, struct bytes *members)
{
    json_t *seen = json_object(); /* key to its place in members */
    struct bytes key = {0};
    struct member member;
    json_int_t n = 0;
    bool ok = seen != NULL;
    while (ok && scan_member(scan, &member)) {
        bytes_reset(&key);
        bytes_append(&key, member.key, (size_t)(member.key_end - member.key));
        const char *name = bytes_terminate(&key);
        const json_t *place = name ? json_object_get(seen, name) : NULL;
        if (place) {
            struct member *first = (struct member *)members->data + json_integer_value(place);
            first->value = member.value;
            first->value_end = member.value_end;
            continue;
        }
        bytes_append(members, &member, sizeof member);
        ok = name && !members->failed &&
             json_object_set_new_nocheck(seen, name, json_integer(n++)) == 0;
    }
    json_decref(seen);
    bytes_clear(&key);
    return ok;
}

void json_text_print_unique(const char *text, size_t length, struct bytes *out)
{
    struct scan scan = {text, text + length};
    struct bytes members = {0};
    skip_space(&scan);
    take(&scan, '{');
    if (!collect_members(&scan, &members))
        out->failed = true;
    bytes_append_byte(out, '{');
    for (size_t i = 0; i < members.length / sizeof(struct member); i++) {
        const struct member *member = (const struct member *)members.data + i;
        bytes_append_text(out, i ? ", " : "");
        bytes_append(out, member->key, (size_t)(member->key_end - member->key));
        bytes_append_text(out, ": ");
        bytes_append(out, member->value, (size_t)(member->value_end - member->value));
    }
    bytes_append_byte(out, '}');
    bytes_clear(&members);
}
