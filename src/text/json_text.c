#include "text/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_reader.h"

bool json_text_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

enum status json_text_check_container(const char *text, size_t length)
{
    struct json_reader reader;
    json_reader_init(&reader, text, length, "value", NULL);
    char kind = json_reader_kind(&reader);
    enum status status = STATUS_INVALID;
    if (kind == '{' || kind == '[') {
        json_reader_skip(&reader, NULL, NULL);
        json_reader_finish(&reader);
        status = reader.status;
    }
    json_reader_clear(&reader);
    return status;
}

void json_text_print_line(const char *text, size_t length, struct bytes *out)
{
    bool in_string = false, escaped = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!in_string && json_text_is_space(c))
            continue;
        bytes_append_byte(out, c);
        if (!in_string && (c == ',' || c == ':'))
            bytes_append_byte(out, ' ');
        if (c == '"' && !escaped)
            in_string = !in_string;
        escaped = in_string && c == '\\' && !escaped;
    }
}

bool json_text_is_finite(const char *text, size_t length)
{
    /* The value is 0.d1d2… * 10^magnitude, d1 not 0. Only close to the largest double do the digits
     * themselves matter; 40 of them decide. strtod sees no point, so the locale has no say. */
    enum { KEPT = 40 };
    const char *at = text, *end = text + length;
    char digits[KEPT + 16];
    int n = 0;
    long long magnitude = 0, exponent = 0;
    bool fraction = false, negative = false;
    for (; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.')
            fraction = true;
        if (!is_digit(*at))
            continue;
        bool leading_zero = n == 0 && *at == '0';
        if (!leading_zero && n < KEPT)
            digits[n++] = *at;
        if (fraction ? leading_zero : !leading_zero)
            magnitude += fraction ? -1 : 1;
    }
    for (; at < end; at++) {
        negative = negative || *at == '-';
        if (is_digit(*at) && exponent < 1000000000000)
            exponent = exponent * 10 + (*at - '0');
    }
    magnitude += negative ? -exponent : exponent;
    if (n == 0 || magnitude < 309)
        return true;
    if (magnitude > 309)
        return false;
    snprintf(digits + n, sizeof digits - (size_t)n, "e%d", 309 - n);
    return isfinite(strtod(digits, NULL));
}

struct member {
    struct bytes key; /* as JSON */
    const char *value;
    size_t length;
};

/* Puts one member into `members`, or its value over that of an earlier member with the same key;
 * `places` maps keys to members. Takes the key over. */
static bool put_member(struct bytes *members, json_t *places, struct member *member)
{
    const char *key = bytes_terminate(&member->key); /* as JSON it holds no NUL */
    const json_t *place = key ? json_object_get(places, key) : NULL;
    if (place) {
        struct member *first = (struct member *)members->data + json_integer_value(place);
        first->value = member->value;
        first->length = member->length;
        bytes_clear(&member->key);
        return true;
    }
    json_int_t n = (json_int_t)(members->length / sizeof *member);
    if (key)
        bytes_append(members, member, sizeof *member);
    if (!key || members->failed) {
        bytes_clear(&member->key);
        return false;
    }
    return json_object_set_new_nocheck(places, key, json_integer(n)) == 0;
}

/* The object's members that count, in the order of their first appearance. */
static bool read_members(const char *text, size_t length, struct bytes *members)
{
    json_t *places = json_object();
    struct json_reader reader;
    json_reader_init(&reader, text, length, "arguments", NULL);
    const char *key;
    size_t key_length;
    bool first = true, ok = places && json_reader_enter(&reader, '{');
    while (ok && json_reader_member(&reader, &first, &key, &key_length)) {
        struct member member = {.value = NULL};
        json_print_string(key, key_length, &member.key);
        ok = json_reader_skip(&reader, &member.value, &member.length);
        if (ok)
            ok = put_member(members, places, &member);
        else
            bytes_clear(&member.key);
    }
    ok = ok && reader.status == STATUS_OK;
    json_reader_clear(&reader);
    json_decref(places);
    return ok;
}

void json_text_print_unique(const char *text, size_t length, struct bytes *out)
{
    struct bytes members = {0};
    if (!read_members(text, length, &members))
        out->failed = true;
    bytes_append_byte(out, '{');
    for (size_t i = 0; i < members.length / sizeof(struct member); i++) {
        struct member *member = (struct member *)members.data + i;
        bytes_append_text(out, i ? ", " : "");
        bytes_append(out, member->key.data, member->key.length);
        bytes_append_text(out, ": ");
        bytes_append(out, member->value, member->length);
        bytes_clear(&member->key);
    }
    bytes_append_byte(out, '}');
    bytes_clear(&members);
}
