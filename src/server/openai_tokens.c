/* POST /tokenize, /detokenize and /apply-template: the requests, in vLLM's forms. */
#include <stdlib.h>

#include "server/openai_conversation.h"

/* A request of /tokenize or /apply-template while it is read. */
struct tokenize {
    struct openai_tokenize_request request;
    struct openai_conversation_fields fields;
    enum template_flag add_generation_prompt;
    const json_t *prompt;
};

#define AT(member) offsetof(struct tokenize, member)

static const struct openai_field tokenize_fields[] = {
    IGNORED("model", openai_check_string),
    OBEYED("prompt", openai_read_json, AT(prompt)),
    OBEYED("messages", openai_read_json, AT(fields.messages)),
    OBEYED("return_token_strs", openai_read_bool, AT(request.return_token_strs)),
    IGNORED("add_special_tokens", openai_check_bool), /* there are none to add */
    OBEYED("add_generation_prompt", openai_read_flag, AT(add_generation_prompt)),
    {.name = NULL},
};

static const struct openai_field template_fields[] = {
    IGNORED("model", openai_check_string),
    REQUIRED("messages", openai_read_json, AT(fields.messages)),
    OBEYED("add_generation_prompt", openai_read_flag, AT(add_generation_prompt)),
    {.name = NULL},
};

const struct openai_group openai_tokenize_groups[] = {
    {tokenize_fields, 0},
    {openai_conversation_fields, AT(fields)},
    {NULL, 0},
};

const struct openai_group openai_template_groups[] = {
    {template_fields, 0},
    {openai_conversation_fields, AT(fields)},
    {NULL, 0},
};

static bool finish(struct tokenize *tokenize, struct openai_problem *problem)
{
    struct openai_tokenize_request *request = &tokenize->request;
    if (tokenize->prompt && tokenize->fields.messages)
        return openai_invalid(problem, "prompt", "prompt: found messages, too, wanted one of both");
    if (!tokenize->prompt && !tokenize->fields.messages)
        return openai_refuse(problem, "prompt", NULL, "a string, or messages in its place");
    if (tokenize->prompt) {
        if (!json_is_string(tokenize->prompt))
            return openai_refuse(problem, "prompt", tokenize->prompt, "a string");
        request->prompt = json_string_value(tokenize->prompt);
        request->length = json_string_length(tokenize->prompt);
        return true;
    }
    request->conversation.options.add_generation_prompt =
        tokenize->add_generation_prompt != TEMPLATE_FALSE;
    return openai_conversation_finish(&tokenize->fields, &request->conversation, problem);
}

static bool parse(const struct openai_group *groups, const char *body, size_t length,
                  const struct openai_limits *limits, struct openai_tokenize_request *request,
                  struct openai_problem *problem)
{
    struct tokenize tokenize = {0};
    if (openai_body_parse(body, length, limits, &tokenize.request.body, problem) &&
        openai_fields_read(groups, tokenize.request.body, &tokenize, limits, problem) &&
        finish(&tokenize, problem)) {
        *request = tokenize.request;
        return true;
    }
    openai_tokenize_clear(&tokenize.request);
    *request = tokenize.request;
    return false;
}

bool openai_tokenize_parse(const char *body, size_t length, const struct openai_limits *limits,
                           struct openai_tokenize_request *request, struct openai_problem *problem)
{
    return parse(openai_tokenize_groups, body, length, limits, request, problem);
}

bool openai_template_parse(const char *body, size_t length, const struct openai_limits *limits,
                           struct openai_tokenize_request *request, struct openai_problem *problem)
{
    return parse(openai_template_groups, body, length, limits, request, problem);
}

void openai_tokenize_clear(struct openai_tokenize_request *request)
{
    openai_conversation_clear(&request->conversation);
    json_decref(request->body);
    *request = (struct openai_tokenize_request){0};
}

static bool read_tokens(struct openai_reading *reading, const struct openai_field *field,
                        const json_t *value)
{
    struct openai_detokenize_request *request = reading->request;
    return openai_read_ids(reading, field->name, value, SIZE_MAX, &request->ids, &request->n_ids);
}

static const struct openai_field detokenize_fields[] = {
    IGNORED("model", openai_check_string),
    REQUIRED("tokens", read_tokens, 0),
    {.name = NULL},
};

const struct openai_group openai_detokenize_groups[] = {{detokenize_fields, 0}, {NULL, 0}};

bool openai_detokenize_parse(const char *body, size_t length, const struct openai_limits *limits,
                             struct openai_detokenize_request *request,
                             struct openai_problem *problem)
{
    *request = (struct openai_detokenize_request){0};
    json_t *root;
    bool read = openai_body_parse(body, length, limits, &root, problem) &&
                openai_fields_read(openai_detokenize_groups, root, request, limits, problem);
    json_decref(root);
    if (!read)
        openai_detokenize_clear(request);
    return read;
}

void openai_detokenize_clear(struct openai_detokenize_request *request)
{
    free(request->ids);
    *request = (struct openai_detokenize_request){0};
}
