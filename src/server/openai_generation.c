/* The fields that chat and text completions share and that are more than a number. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/openai_fields.h"

static bool no_memory(struct openai_reading *reading)
{
    struct error error;
    error_no_memory(&error, "the request");
    return openai_problem_from(reading->problem, &error, NULL);
}

static bool read_stream_options_field(struct openai_reading *reading,
                                      const struct openai_field *field, const json_t *value)
{
    if (!json_is_object(value))
        return openai_refuse(reading->problem, field->name, value, "an object");
    static const char *const names[] = {"include_usage", "include_obfuscation"};
    for (int i = 0; i < 2; i++) {
        const json_t *flag = openai_get(value, names[i]);
        char place[64];
        snprintf(place, sizeof place, "%s.%s", field->name, names[i]);
        if (flag && !json_is_boolean(flag))
            return openai_refuse(reading->problem, place, flag, "true or false");
    }
    struct openai_generation *generation = reading->request;
    generation->include_usage = json_is_true(json_object_get(value, names[0]));
    return true;
}

static bool read_stop(struct openai_reading *reading, const char *place, const json_t *value)
{
    struct openai_generation *generation = reading->request;
    size_t length = json_string_length(value);
    if (!json_is_string(value) || length == 0)
        return openai_refuse(reading->problem, place, value, "a string that is not empty");
    if (strlen(json_string_value(value)) != length)
        return openai_refuse(reading->problem, place, value, "a string without U+0000");
    generation->stop[generation->n_stop++] = json_string_value(value);
    return true;
}

static bool read_stop_field(struct openai_reading *reading, const struct openai_field *field,
                            const json_t *value)
{
    if (!json_is_array(value))
        return json_is_string(value) ? read_stop(reading, field->name, value)
                                     : openai_refuse(reading->problem, field->name, value,
                                                     "a string or an array of strings");
    if (json_array_size(value) > OPENAI_STOP_MAX)
        return openai_invalid(reading->problem, field->name,
                              "%s: found %zu strings, wanted no more than %d", field->name,
                              json_array_size(value), OPENAI_STOP_MAX);
    for (size_t i = 0; i < json_array_size(value); i++) {
        char place[32];
        snprintf(place, sizeof place, "%s[%zu]", field->name, i);
        if (!read_stop(reading, place, json_array_get(value, i)))
            return false;
    }
    return true;
}

bool openai_read_ids(struct openai_reading *reading, const char *name, const json_t *array,
                     size_t most, int32_t **ids, size_t *n)
{
    size_t size = json_array_size(array);
    *ids = NULL;
    *n = 0;
    if (!json_is_array(array))
        return openai_refuse(reading->problem, name, array, "an array of token ids");
    if (size > most)
        return openai_invalid(reading->problem, name, "%s: found %zu ids, wanted no more than %zu",
                              name, size, most);
    if (size == 0)
        return true;
    int32_t *read = malloc(size * sizeof *read);
    if (!read)
        return no_memory(reading);
    for (size_t i = 0; i < size; i++) {
        int64_t id;
        const json_t *value = json_array_get(array, i);
        if (!openai_integer(value, &id) || id < 0 || id >= reading->limits->vocabulary) {
            char place[64];
            snprintf(place, sizeof place, "%s[%zu]", name, i);
            free(read);
            return openai_refuse(reading->problem, place, value, "a token id from 0 to %d",
                                 reading->limits->vocabulary - 1);
        }
        read[i] = (int32_t)id;
    }
    *ids = read;
    *n = size;
    return true;
}

static bool read_stop_ids_field(struct openai_reading *reading, const struct openai_field *field,
                                const json_t *value)
{
    struct openai_generation *generation = reading->request;
    size_t n;
    if (!openai_read_ids(reading, field->name, value, OPENAI_STOP_IDS_MAX, &generation->stop_ids,
                         &n))
        return false;
    generation->n_stop_ids = (int)n;
    return true;
}

/* A key of logit_bias: digits without a zero before them, so that no id has two spellings. */
static bool read_id_key(const char *key, int32_t vocabulary, int32_t *id)
{
    size_t length = strlen(key);
    if (length == 0 || length > 9 || strspn(key, "0123456789") != length ||
        (key[0] == '0' && length > 1))
        return false;
    *id = (int32_t)strtol(key, NULL, 10);
    return *id < vocabulary;
}

static bool read_logit_bias_field(struct openai_reading *reading, const struct openai_field *field,
                                  const json_t *value)
{
    struct openai_generation *generation = reading->request;
    if (!json_is_object(value))
        return openai_refuse(reading->problem, field->name, value, "an object");
    size_t size = json_object_size(value);
    if (size == 0)
        return true;
    generation->logit_bias = malloc(size * sizeof *generation->logit_bias);
    if (!generation->logit_bias)
        return no_memory(reading);
    const char *key;
    json_t *bias;
    json_object_foreach((json_t *)value, key, bias)
    {
        int32_t id;
        double number = json_number_value(bias);
        if (!read_id_key(key, reading->limits->vocabulary, &id))
            return openai_invalid(reading->problem, field->name,
                                  "%s: found \"%.40s\" as a key, wanted a token id from 0 to %d",
                                  field->name, key, reading->limits->vocabulary - 1);
        if (!json_is_number(bias) || number < -100 || number > 100) {
            char place[32];
            snprintf(place, sizeof place, "%s.%d", field->name, id);
            return openai_refuse(reading->problem, place, bias, "a number from -100 to 100");
        }
        generation->logit_bias[generation->n_logit_bias++] = (struct logit_bias){id, (float)number};
    }
    return true;
}

#define AT(member) offsetof(struct openai_generation, member)

const struct openai_field openai_generation_fields[] = {
    REQUIRED("model", openai_read_string, AT(model)),
    OBEYED("stream", openai_read_bool, AT(stream)),
    OBEYED("stream_options", read_stream_options_field, 0),
    BOUNDED("temperature", openai_read_number, AT(temperature), 0, 2),
    BOUNDED("top_p", openai_read_number, AT(top_p), 0, 1),
    BOUNDED("top_k", openai_read_integer, AT(top_k), INT32_MIN, INT32_MAX),
    BOUNDED("min_p", openai_read_number, AT(min_p), 0, 1),
    BOUNDED("presence_penalty", openai_read_number, AT(presence_penalty), -2, 2),
    BOUNDED("frequency_penalty", openai_read_number, AT(frequency_penalty), -2, 2),
    OBEYED("repetition_penalty", openai_read_positive, AT(repetition_penalty)),
    BOUNDED("n", openai_read_integer, AT(n), 1, OPENAI_N_MAX),
    BOUNDED("seed", openai_read_integer, AT(seed), -OPENAI_ANY, OPENAI_ANY),
    OBEYED("stop", read_stop_field, 0),
    OBEYED("stop_token_ids", read_stop_ids_field, 0),
    OBEYED("logit_bias", read_logit_bias_field, 0),
    BOUNDED("min_tokens", openai_read_integer, AT(min_tokens), 0, OPENAI_ANY),
    OBEYED("ignore_eos", openai_read_bool, AT(ignore_eos)),
    OBEYED("return_progress", openai_read_bool, AT(return_progress)),
    {.name = NULL},
};

bool openai_generation_finish(struct openai_generation *generation, const json_t *body,
                              struct openai_problem *problem)
{
    if (openai_get(body, "stream_options") && !generation->stream)
        return openai_invalid(problem, "stream_options",
                              "stream_options: wanted only together with stream true");
    if (generation->min_tokens.given && generation->max_tokens.given &&
        generation->min_tokens.value > generation->max_tokens.value)
        return openai_invalid(
            problem, "min_tokens",
            "min_tokens: found %lld, wanted no more than the limit of %lld tokens",
            (long long)generation->min_tokens.value, (long long)generation->max_tokens.value);
    if (generation->top_p.given && generation->top_p.value == 0)
        generation->top_p.value = DBL_MIN;
    return true;
}

void openai_generation_clear(struct openai_generation *generation)
{
    free(generation->stop_ids);
    free(generation->logit_bias);
    *generation = (struct openai_generation){0};
}
