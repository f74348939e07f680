#include "text/reply_value.h"

#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "text/json_text.h"

enum {
    TYPE_STRING = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_CONTAINER = 16, /* object or array: either is accepted for both */
    /* No type, or one that says nothing: what parses as object or array is one, else text. */
    TYPE_OPEN = TYPE_STRING | TYPE_CONTAINER,
};

/* anyOf inside anyOf: deeper than this counts as no type. */
enum { SCHEMA_DEPTH = 16 };

/* Rule 8's type names, 0 for a name that it does not have. "null" needs no member of its own: the
 * text null is null for every type; a schema of null alone keeps other text. */
static unsigned types_of_name(const char *name)
{
    static const struct {
        const char *name;
        bool prefix;
        unsigned types;
    } names[] = {
        {"string", false, TYPE_STRING},   {"str", false, TYPE_STRING},
        {"text", false, TYPE_STRING},     {"varchar", false, TYPE_STRING},
        {"char", false, TYPE_STRING},     {"enum", false, TYPE_STRING},
        {"int", true, TYPE_INTEGER},      {"uint", true, TYPE_INTEGER},
        {"long", true, TYPE_INTEGER},     {"short", true, TYPE_INTEGER},
        {"unsigned", true, TYPE_INTEGER}, {"num", true, TYPE_NUMBER},
        {"float", true, TYPE_NUMBER},     {"double", true, TYPE_NUMBER},
        {"bool", true, TYPE_BOOLEAN},     {"object", false, TYPE_CONTAINER},
        {"dict", true, TYPE_CONTAINER},   {"array", false, TYPE_CONTAINER},
        {"arr", false, TYPE_CONTAINER},   {"list", true, TYPE_CONTAINER},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].prefix ? strncasecmp(name, names[i].name, strlen(names[i].name)) == 0
                            : strcasecmp(name, names[i].name) == 0)
            return names[i].types;
    return 0;
}

/* The types of the field "type", a name or a list of names. False when it says nothing. */
static bool types_of_type(const json_t *type, unsigned *types)
{
    *types = 0;
    if (json_is_string(type)) {
        *types = types_of_name(json_string_value(type));
        return *types || strcasecmp(json_string_value(type), "null") == 0;
    }
    for (size_t i = 0; i < json_array_size(type); i++) { /* size 0 when it is no array */
        const char *name = json_string_value(json_array_get(type, i));
        unsigned found = name ? types_of_name(name) : 0;
        *types |= found || (name && strcasecmp(name, "null") == 0) ? found : TYPE_OPEN;
    }
    return json_array_size(type) > 0;
}

static unsigned types_of_constant(const json_t *constant)
{
    switch (json_typeof(constant)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_NULL:
        return 0;
    default:
        return TYPE_CONTAINER;
    }
}

static unsigned types_of_schema(const json_t *schema, int depth)
{
    unsigned types;
    if (types_of_type(json_object_get(schema, "type"), &types))
        return types;
    types = 0;
    static const char *const unions[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *members = json_object_get(schema, unions[i]);
        if (json_array_size(members) == 0 || depth == SCHEMA_DEPTH)
            continue;
        for (size_t m = 0; m < json_array_size(members); m++)
            types |= types_of_schema(json_array_get(members, m), depth + 1);
        return types;
    }
    const json_t *constants = json_object_get(schema, "enum");
    if (json_array_size(constants) > 0) {
        for (size_t i = 0; i < json_array_size(constants); i++)
            types |= types_of_constant(json_array_get(constants, i));
        return types;
    }
    const json_t *constant = json_object_get(schema, "const");
    if (constant)
        return types_of_constant(constant);
    if (json_object_get(schema, "properties") || json_object_get(schema, "items"))
        return TYPE_CONTAINER;
    return TYPE_OPEN;
}

static bool equals_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && strncasecmp(text, word, length) == 0;
}

static size_t count_digits(const char *text, const char *end)
{
    size_t n = 0;
    while (text + n < end && text[n] >= '0' && text[n] <= '9')
        n++;
    return n;
}

/* Writes `text` as a JSON number when it is one of the types asked for. What JSON forbids is taken
 * off (a plus sign, leading zeros), and the zero fraction of an integer; all else stays as it is
 * spelled. */
static bool print_number(unsigned types, const char *text, size_t length, struct bytes *out)
{
    const char *end = text + length, *at = text;
    bool negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    const char *whole = at;
    size_t n_whole = count_digits(at, end), n_fraction = 0;
    at += n_whole;
    const char *whole_end = at;
    if (n_whole == 0)
        return false;
    bool zero_fraction = true;
    if (at < end && *at == '.') {
        n_fraction = count_digits(at + 1, end);
        if (n_fraction == 0)
            return false;
        for (size_t i = 1; i <= n_fraction; i++)
            zero_fraction = zero_fraction && at[i] == '0';
        at += 1 + n_fraction;
    }
    bool plain = at == end; /* no exponent */
    if (!plain && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '-' || *at == '+');
        size_t n = count_digits(at, end);
        at += n;
        if (n == 0)
            return false;
    }
    if (at != end)
        return false;
    bool integer = (types & TYPE_INTEGER) && plain && zero_fraction;
    bool bare = plain && n_fraction == 0; /* an integer of any size, for type number as well */
    if (!integer && !(types & TYPE_NUMBER))
        return false;
    if (!integer && !bare && !json_text_is_finite(text, length))
        return false;
    while (whole + 1 < whole_end && *whole == '0')
        whole++;
    if (negative && !(integer && *whole == '0'))
        bytes_append_byte(out, '-');
    bytes_append(out, whole, (size_t)((integer ? whole_end : end) - whole));
    return true;
}

static void print_container_or_text(unsigned types, const char *text, size_t length,
                                    struct bytes *out)
{
    enum status status = STATUS_INVALID;
    if (types & TYPE_CONTAINER)
        status = json_text_check_container(text, length);
    if (status == STATUS_NO_MEMORY)
        out->failed = true;
    if (status != STATUS_OK) {
        json_print_string(text, length, out);
        return;
    }
    json_text_print_line(text, length, out);
}

/* Rule 8 for a whole value. What does not fit keeps its text, as a string. */
static void print_typed(unsigned types, const char *text, size_t length, struct bytes *out)
{
    bool string = types & TYPE_STRING;
    const char *from = text, *end = text + length;
    while (from < end && json_text_is_space(*from))
        from++;
    while (end > from && json_text_is_space(end[-1]))
        end--;
    size_t n = (size_t)(end - from);
    if (string ? equals_word(text, length, "null") : equals_word(from, n, "null"))
        bytes_append_text(out, "null");
    else if (!string && (types & TYPE_BOOLEAN) && equals_word(from, n, "true"))
        bytes_append_text(out, "true");
    else if (!string && (types & TYPE_BOOLEAN) && equals_word(from, n, "false"))
        bytes_append_text(out, "false");
    else if (string || !print_number(types, from, n, out))
        print_container_or_text(types, text, length, out);
}

void reply_value_begin(struct reply_value *value, const json_t *schema)
{
    struct bytes text = value->text;
    *value = (struct reply_value){
        .types = schema ? types_of_schema(schema, 0) : TYPE_STRING, .front = true, .text = text};
    value->text.length = 0;
}

/* One byte that certainly belongs to the value. */
static void put(struct reply_value *value, char c, struct bytes *json)
{
    if (value->opened) {
        json_print_escaped(&c, 1, json);
        return;
    }
    bytes_append_byte(&value->text, c);
    if (value->types != TYPE_STRING || value->text.failed)
        return;
    size_t length = value->text.length;
    if (length <= 4 && strncasecmp(value->text.data, "null", length) == 0)
        return;
    value->opened = true;
    bytes_append_byte(json, '"');
    json_print_escaped(value->text.data, length, json);
}

void reply_value_push(struct reply_value *value, const char *text, size_t length,
                      struct bytes *json)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        value->line_start = c == '\n';
        bool dropped = value->front && c == '\n';
        value->front = false;
        if (dropped)
            continue;
        if (value->newline)
            put(value, '\n', json);
        value->newline = c == '\n';
        if (!value->newline)
            put(value, c, json);
    }
}

void reply_value_end(struct reply_value *value, struct bytes *json)
{
    if (value->opened)
        bytes_append_byte(json, '"');
    else
        print_typed(value->types, value->text.data ? value->text.data : "", value->text.length,
                    json);
}

void reply_value_clear(struct reply_value *value)
{
    bytes_clear(&value->text);
}
