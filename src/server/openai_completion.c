/* POST /v1/completions: the request. */
#include <stdio.h>
#include <stdlib.h>

#include "server/openai_fields.h"

enum { MAX_TOKENS_DEFAULT = 16, LOGPROBS_MAX = 5 };

/* The request while it is read. */
struct completion {
    struct openai_completion_request request;
    struct openai_integer best_of;
    const json_t *prompt;
};

static bool read_suffix(struct openai_reading *reading, const struct openai_field *field,
                        const json_t *value)
{
    struct openai_completion_request *request = reading->request;
    if (!json_is_string(value))
        return openai_refuse(reading->problem, field->name, value, "a string");
    if (json_string_length(value) == 0) /* as clients send it for none */
        return true;
    request->suffix = json_string_value(value);
    request->suffix_length = json_string_length(value);
    return true;
}

#define AT(member) offsetof(struct completion, member)

static const struct openai_field completion_fields[] = {
    REQUIRED("prompt", openai_read_json, AT(prompt)),
    BOUNDED("max_tokens", openai_read_integer, AT(request.generation.max_tokens), 0, OPENAI_ANY),
    OBEYED("echo", openai_read_bool, AT(request.echo)),
    OBEYED("suffix", read_suffix, 0),
    BOUNDED("logprobs", openai_read_integer, AT(request.logprobs), 0, LOGPROBS_MAX),
    {.name = "best_of",
     .handling = OPENAI_REFUSED,
     .read = openai_read_integer,
     .offset = AT(best_of),
     .low = 1,
     .high = OPENAI_ANY},
    {.name = NULL},
};

const struct openai_group openai_completion_groups[] = {
    {openai_generation_fields, AT(request.generation)},
    {completion_fields, 0},
    {openai_refused_fields, 0},
    {openai_ignored_fields, 0},
    {NULL, 0},
};

static const char wanted_prompt[] =
    "a string, an array of strings, an array of token ids or an array of such arrays";

static bool read_prompt(struct openai_reading *reading, const char *place, const json_t *value,
                        struct openai_prompt *prompt)
{
    if (json_is_string(value)) {
        prompt->text = json_string_value(value);
        prompt->length = json_string_length(value);
        return true;
    }
    if (!json_is_array(value))
        return openai_refuse(reading->problem, place, value, "%s",
                             place[6] == '[' ? "a string or an array of token ids" : wanted_prompt);
    return openai_read_ids(reading, place, value, SIZE_MAX, &prompt->ids, &prompt->n_ids);
}

static bool read_prompts(struct openai_reading *reading, const json_t *value,
                         struct openai_completion_request *request)
{
    bool several = json_is_array(value) && !json_is_number(json_array_get(value, 0));
    size_t size = several ? json_array_size(value) : 1;
    size_t n = request->generation.n.given ? (size_t)request->generation.n.value : 1;
    if (size == 0)
        return openai_refuse(reading->problem, "prompt", value, "%s", wanted_prompt);
    if (size > OPENAI_CHOICES_MAX / n)
        return openai_invalid(
            reading->problem, "prompt",
            "prompt: found %zu prompts for %zu choices each, wanted no more than %d choices", size,
            n, OPENAI_CHOICES_MAX);
    request->prompts = calloc(size, sizeof *request->prompts);
    if (!request->prompts) {
        struct error error;
        error_no_memory(&error, "the request");
        return openai_problem_from(reading->problem, &error, NULL);
    }
    request->n_prompts = size;
    if (!several)
        return read_prompt(reading, "prompt", value, &request->prompts[0]);
    for (size_t i = 0; i < size; i++) {
        char place[32];
        snprintf(place, sizeof place, "prompt[%zu]", i);
        if (!read_prompt(reading, place, json_array_get(value, i), &request->prompts[i]))
            return false;
    }
    return true;
}

static bool check_suffix(const struct openai_completion_request *request,
                         struct openai_problem *problem)
{
    if (!request->suffix)
        return true;
    if (request->echo)
        return openai_unsupported(problem, "suffix", "not supported together with echo");
    for (size_t i = 0; i < request->n_prompts; i++)
        if (!request->prompts[i].text)
            return openai_unsupported(problem, "suffix",
                                      "not supported together with a prompt of token ids");
    return true;
}

static bool finish(struct completion *completion, struct openai_reading *reading)
{
    struct openai_completion_request *request = &completion->request;
    struct openai_generation *generation = &request->generation;
    int64_t n = generation->n.given ? generation->n.value : 1;
    if (!generation->max_tokens.given)
        generation->max_tokens = (struct openai_integer){true, MAX_TOKENS_DEFAULT};
    if (completion->best_of.given && completion->best_of.value != n)
        return openai_unsupported(reading->problem, "best_of",
                                  "only the same number as n is supported");
    return openai_generation_finish(generation, request->body, reading->problem) &&
           read_prompts(reading, completion->prompt, request) &&
           check_suffix(request, reading->problem);
}

bool openai_completion_parse(const char *body, size_t length, const struct openai_limits *limits,
                             struct openai_completion_request *request,
                             struct openai_problem *problem)
{
    struct completion completion = {0};
    struct openai_reading reading = {&completion, limits, problem};
    if (openai_body_parse(body, length, limits, &completion.request.body, problem) &&
        openai_fields_read(openai_completion_groups, completion.request.body, &completion, limits,
                           problem) &&
        finish(&completion, &reading)) {
        *request = completion.request;
        return true;
    }
    openai_completion_clear(&completion.request);
    *request = completion.request;
    return false;
}

void openai_completion_clear(struct openai_completion_request *request)
{
    for (size_t i = 0; i < request->n_prompts; i++)
        free(request->prompts[i].ids);
    free(request->prompts);
    openai_generation_clear(&request->generation);
    json_decref(request->body);
    *request = (struct openai_completion_request){0};
}
