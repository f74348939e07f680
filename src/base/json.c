#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status parse(const char *text, size_t length, size_t flags, const char *name,
                         json_t **out, struct error *error)
{
    json_error_t problem;
    *out = json_loadb(text, length, flags | JSON_DECODE_ANY, &problem);
    if (*out)
        return STATUS_OK;
    /* out of memory has a code only sometimes; else it comes without any text */
    if (json_error_code(&problem) == json_error_out_of_memory || problem.text[0] == '\0')
        return error_no_memory(error, name);
    /* what jansson cannot hold, JSON itself allows */
    bool unsupported = json_error_code(&problem) == json_error_numeric_overflow ||
                       json_error_code(&problem) == json_error_null_byte_in_key;
    return error_set(error, unsupported ? STATUS_UNSUPPORTED : STATUS_INVALID,
                     "%s: %s at line %d column %d: %s", name,
                     unsupported ? "JSON that is not supported" : "not JSON", problem.line,
                     problem.column, problem.text);
}

enum status json_parse(const char *text, size_t length, const char *name, json_t **out,
                       struct error *error)
{
    return parse(text, length, JSON_ALLOW_NUL, name, out, error);
}

enum status json_parse_strict(const char *text, size_t length, const char *name, json_t **out,
                              struct error *error)
{
    return parse(text, length, JSON_REJECT_DUPLICATES, name, out, error);
}

const char *json_type_name(const json_t *value)
{
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

void json_print_escaped(const char *text, size_t length, struct bytes *out)
{
    size_t from = 0; /* start of the stretch that needs no escape */
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        bytes_append(out, text + from, i - from);
        from = i + 1;
        static const char shorts[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
        const char *found = c ? strchr(shorts, c) : NULL;
        if (found)
            bytes_append(out, (const char[]){'\\', letters[found - shorts]}, 2);
        else
            bytes_format(out, "\\u%04x", c);
    }
    bytes_append(out, text + from, length - from);
}

void json_print_string(const char *text, size_t length, struct bytes *out)
{
    bytes_append_byte(out, '"');
    json_print_escaped(text, length, out);
    bytes_append_byte(out, '"');
}

void json_print_real(double value, struct bytes *out)
{
    /* The correctly rounded decimal of the fewest digits that reads back is the shortest one. Only
     * beside a power of two, where the doubles below are twice as dense, can it miss while its
     * neighbour above reads back. */
    char digits[40];
    int unused;
    bool power_of_two = fabs(frexp(value, &unused)) == 0.5;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, value);
        if (strtod(digits, NULL) == value)
            break;
        char *last = strchr(digits, 'e') - 1;
        if (power_of_two && *last < '9') { /* after a 9 comes a shorter number, tried before */
            ++*last;
            if (strtod(digits, NULL) == value)
                break;
        }
    }
    char *exponent_at = strchr(digits, 'e');
    int exponent = atoi(exponent_at + 1);
    *exponent_at = '\0';
    const char *sign = digits[0] == '-' ? "-" : "";
    char bare[24]; /* the digits without sign and point */
    int n = 0;
    for (const char *c = digits; *c; c++)
        if (*c >= '0' && *c <= '9')
            bare[n++] = *c;
    bytes_append_text(out, sign);
    if (exponent < -4 || exponent >= 16) {
        bytes_append(out, bare, 1);
        if (n > 1) {
            bytes_append_byte(out, '.');
            bytes_append(out, bare + 1, (size_t)n - 1);
        }
        bytes_format(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        bytes_append_text(out, "0.");
        for (int i = -1; i > exponent; i--)
            bytes_append_byte(out, '0');
        bytes_append(out, bare, (size_t)n);
        return;
    }
    for (int i = 0; i < n || i <= exponent; i++) {
        bytes_append_byte(out, i < n ? bare[i] : '0');
        if (i == exponent)
            bytes_append_byte(out, '.');
    }
    if (n <= exponent + 1)
        bytes_append_byte(out, '0');
}

static void print_object(const json_t *object, struct bytes *out)
{
    const char *separator = "";
    bytes_append_byte(out, '{');
    for (void *at = json_object_iter((json_t *)object); at;
         at = json_object_iter_next((json_t *)object, at)) {
        bytes_append_text(out, separator);
        const char *key = json_object_iter_key(at);
        json_print_string(key, strlen(key), out);
        bytes_append_text(out, ": ");
        json_print(json_object_iter_value(at), out);
        separator = ", ";
    }
    bytes_append_byte(out, '}');
}

static void print_array(const json_t *array, struct bytes *out)
{
    bytes_append_byte(out, '[');
    for (size_t i = 0; i < json_array_size(array); i++) {
        bytes_append_text(out, i ? ", " : "");
        json_print(json_array_get(array, i), out);
    }
    bytes_append_byte(out, ']');
}

void json_print(const json_t *value, struct bytes *out)
{
    switch (json_typeof(value)) { /* depth is bounded by jansson's parser (2,048) */
    case JSON_OBJECT:
        print_object(value, out);
        break;
    case JSON_ARRAY:
        print_array(value, out);
        break;
    case JSON_STRING:
        json_print_string(json_string_value(value), json_string_length(value), out);
        break;
    case JSON_INTEGER:
        bytes_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        json_print_real(json_real_value(value), out);
        break;
    case JSON_TRUE:
        bytes_append_text(out, "true");
        break;
    case JSON_FALSE:
        bytes_append_text(out, "false");
        break;
    case JSON_NULL:
        bytes_append_text(out, "null");
        break;
    }
}
