#include "server/openai_fields.h"

#include <string.h>

#include "base/json.h"

#define DEPTH_DEFAULT 128
/* What a parsed value takes at most: a body of 32 MiB could ask for gigabytes. So their number has
 * a limit, four times what a prompt of ids for the longest context needs. */
#define VALUE_BYTES 250
#define VALUES_MAX (1 << 20)

const json_t *openai_get(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool openai_is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           memcmp(json_string_value(value), text, strlen(text)) == 0;
}

bool openai_integer(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    const double end = 9223372036854775808.0; /* 2^63 */
    double real = json_real_value(value);     /* 0 when it is none */
    if (!json_is_real(value) || real < -end || real >= end || (double)(int64_t)real != real)
        return false;
    *out = (int64_t)real;
    return true;
}

struct extent {
    int deepest;     /* nesting of brackets outside of strings */
    size_t n_values; /* no fewer than there are, at most one more for each bracket */
};

/* What a parser would have to hold; stops where the nesting is above `limit`. On text that is no
 * JSON it is still no less than what a parser would enter. */
static struct extent measure(const char *text, size_t length, int limit)
{
    int depth = 0, deepest = 0;
    size_t n_values = 1;
    bool in_string = false;
    for (size_t i = 0; i < length && deepest <= limit; i++) {
        char c = text[i];
        n_values += !in_string && (c == ',' || c == '{' || c == '[');
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '['))
            deepest = ++depth > deepest ? depth : deepest;
        else if (!in_string && (c == '}' || c == ']'))
            depth--;
    }
    return (struct extent){deepest, n_values};
}

/* jansson does not see all of its failed allocations, so it is not begun where one is likely. */
static bool can_be_had(size_t size)
{
    void *block = malloc(size);
    free(block);
    return block != NULL;
}

bool openai_body_parse(const char *body, size_t length, const struct openai_limits *limits,
                       json_t **out, struct openai_problem *problem)
{
    *out = NULL;
    if (length > limits->body_size)
        return openai_problem_set(problem, 413, "invalid_request_error", NULL, NULL,
                                  "request body: found %zu bytes, wanted no more than %zu", length,
                                  limits->body_size);
    int depth = limits->depth > 0 ? limits->depth : DEPTH_DEFAULT;
    const struct extent extent = measure(body, length, depth);
    if (extent.deepest > depth)
        return openai_invalid(
            problem, NULL, "request body: objects and arrays are nested more than %d deep", depth);
    if (extent.n_values > VALUES_MAX)
        return openai_invalid(problem, NULL, "request body: found more than %d values", VALUES_MAX);
    if (!can_be_had(4 * length + VALUE_BYTES * extent.n_values))
        return openai_problem_set(problem, 500, "server_error", NULL, NULL,
                                  "out of memory for the request");
    struct error error;
    if (json_parse(length ? body : "", length, "request body", out, &error) != STATUS_OK)
        return openai_problem_from(problem, &error, NULL);
    if (json_is_object(*out))
        return true;
    openai_invalid(problem, NULL, "request body: found %s, wanted an object", json_type_name(*out));
    json_decref(*out);
    *out = NULL;
    return false;
}

static bool read_table(const struct openai_field *fields, const json_t *body,
                       struct openai_reading *reading)
{
    for (const struct openai_field *field = fields; field->name; field++) {
        const json_t *value = openai_get(body, field->name);
        if (!value && field->required)
            return openai_refuse(reading->problem, field->name, NULL, "a value");
        if (value && !field->read(reading, field, value))
            return false;
    }
    return true;
}

bool openai_fields_read(const struct openai_group *groups, const json_t *body, void *request,
                        const struct openai_limits *limits, struct openai_problem *problem)
{
    for (const struct openai_group *group = groups; group->fields; group++) {
        struct openai_reading reading = {(char *)request + group->offset, limits, problem};
        if (!read_table(group->fields, body, &reading))
            return false;
    }
    return true;
}

static void *member(struct openai_reading *reading, const struct openai_field *field)
{
    return (char *)reading->request + field->offset;
}

static bool refuse(struct openai_reading *reading, const struct openai_field *field,
                   const json_t *found, const char *wanted)
{
    return openai_refuse(reading->problem, field->name, found, "%s", wanted);
}

bool openai_read_bool(struct openai_reading *reading, const struct openai_field *field,
                      const json_t *value)
{
    if (!json_is_boolean(value))
        return refuse(reading, field, value, "true or false");
    *(bool *)member(reading, field) = json_is_true(value);
    return true;
}

bool openai_read_flag(struct openai_reading *reading, const struct openai_field *field,
                      const json_t *value)
{
    if (!json_is_boolean(value))
        return refuse(reading, field, value, "true or false");
    *(enum template_flag *)member(reading, field) =
        json_is_true(value) ? TEMPLATE_TRUE : TEMPLATE_FALSE;
    return true;
}

bool openai_read_integer(struct openai_reading *reading, const struct openai_field *field,
                         const json_t *value)
{
    struct openai_integer *out = member(reading, field);
    out->given = openai_integer(value, &out->value);
    double low = field->low, high = field->high;
    if (out->given && (double)out->value >= low && (double)out->value <= high)
        return true;
    if (low == -OPENAI_ANY)
        return refuse(reading, field, value, "an integer of 64 bits");
    if (high == OPENAI_ANY)
        return openai_refuse(reading->problem, field->name, value, "an integer of at least %.0f",
                             low);
    return openai_refuse(reading->problem, field->name, value, "an integer from %.0f to %.0f", low,
                         high);
}

bool openai_read_number(struct openai_reading *reading, const struct openai_field *field,
                        const json_t *value)
{
    struct openai_number *out = member(reading, field);
    *out = (struct openai_number){json_is_number(value), json_number_value(value)};
    if (out->given && out->value >= field->low && out->value <= field->high)
        return true;
    return openai_refuse(reading->problem, field->name, value, "a number from %g to %g", field->low,
                         field->high);
}

bool openai_read_positive(struct openai_reading *reading, const struct openai_field *field,
                          const json_t *value)
{
    struct openai_number *out = member(reading, field);
    *out = (struct openai_number){json_is_number(value), json_number_value(value)};
    return out->value > 0 || refuse(reading, field, value, "a number above 0");
}

bool openai_read_string(struct openai_reading *reading, const struct openai_field *field,
                        const json_t *value)
{
    if (!json_is_string(value))
        return refuse(reading, field, value, "a string");
    if (strlen(json_string_value(value)) != json_string_length(value))
        return refuse(reading, field, value, "a string without U+0000");
    *(const char **)member(reading, field) = json_string_value(value);
    return true;
}

bool openai_read_json(struct openai_reading *reading, const struct openai_field *field,
                      const json_t *value)
{
    *(const json_t **)member(reading, field) = value;
    return true;
}

bool openai_check_bool(struct openai_reading *reading, const struct openai_field *field,
                       const json_t *value)
{
    return json_is_boolean(value) || refuse(reading, field, value, "true or false");
}

bool openai_check_string(struct openai_reading *reading, const struct openai_field *field,
                         const json_t *value)
{
    return json_is_string(value) || refuse(reading, field, value, "a string");
}

bool openai_check_object(struct openai_reading *reading, const struct openai_field *field,
                         const json_t *value)
{
    return json_is_object(value) || refuse(reading, field, value, "an object");
}

bool openai_refuse_any(struct openai_reading *reading, const struct openai_field *field,
                       const json_t *value)
{
    (void)value;
    return openai_unsupported(reading->problem, field->name, "this field is not supported");
}

bool openai_refuse_true(struct openai_reading *reading, const struct openai_field *field,
                        const json_t *value)
{
    if (!json_is_boolean(value))
        return refuse(reading, field, value, "true or false");
    return !json_is_true(value) ||
           openai_unsupported(reading->problem, field->name, "true is not supported");
}

bool openai_refuse_false(struct openai_reading *reading, const struct openai_field *field,
                         const json_t *value)
{
    if (!json_is_boolean(value))
        return refuse(reading, field, value, "true or false");
    return json_is_true(value) ||
           openai_unsupported(reading->problem, field->name, "false is not supported");
}

/* All but {type: "text"}. */
static bool refuse_format(struct openai_reading *reading, const struct openai_field *field,
                          const json_t *value)
{
    if (!json_is_object(value))
        return refuse(reading, field, value, "an object with a type");
    const json_t *type = json_object_get(value, "type");
    if (openai_is_text(type, "text"))
        return true;
    if (openai_is_text(type, "json_object") || openai_is_text(type, "json_schema"))
        return openai_unsupported(reading->problem, field->name,
                                  "only the type \"text\" is supported");
    return openai_refuse(reading->problem, "response_format.type", type, "\"text\"");
}

const struct openai_field openai_refused_fields[] = {
    REFUSED("response_format", refuse_format),     REFUSED("structured_outputs", openai_refuse_any),
    REFUSED("guided_json", openai_refuse_any),     REFUSED("guided_regex", openai_refuse_any),
    REFUSED("guided_choice", openai_refuse_any),   REFUSED("guided_grammar", openai_refuse_any),
    REFUSED("json_schema", openai_refuse_any),     REFUSED("grammar", openai_refuse_any),
    REFUSED("regex", openai_refuse_any),           REFUSED("ebnf", openai_refuse_any),
    REFUSED("bad_words", openai_refuse_any),       REFUSED("use_beam_search", openai_refuse_true),
    REFUSED("prompt_logprobs", openai_refuse_any), {.name = NULL},
};

const struct openai_field openai_ignored_fields[] = {
    IGNORED("user", openai_check_string),
    IGNORED("safety_identifier", openai_check_string),
    IGNORED("prompt_cache_key", openai_check_string),
    IGNORED("prompt_cache_retention", openai_check_string),
    IGNORED("prompt_cache_options", openai_check_object),
    IGNORED("service_tier", openai_check_string),
    IGNORED("store", openai_check_bool),
    IGNORED("metadata", openai_check_object),
    {.name = NULL},
};
