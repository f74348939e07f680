/* POST /v1/chat/completions: the request. */
#include "server/openai_conversation.h"

/* The request while it is read. */
struct chat {
    struct openai_chat_request request;
    struct openai_conversation_fields fields;
    struct openai_integer max_completion_tokens;
    enum template_flag parallel_tool_calls;
};

static bool read_modalities(struct openai_reading *reading, const struct openai_field *field,
                            const json_t *value)
{
    if (!json_is_array(value))
        return openai_refuse(reading->problem, field->name, value, "an array");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!openai_is_text(json_array_get(value, i), "text"))
            return openai_unsupported(reading->problem, field->name, "only \"text\" is supported");
    return true;
}

#define AT(member) offsetof(struct chat, member)

static const struct openai_field chat_fields[] = {
    REQUIRED("messages", openai_read_json, AT(fields.messages)),
    BOUNDED("max_completion_tokens", openai_read_integer, AT(max_completion_tokens), 1, OPENAI_ANY),
    BOUNDED("max_tokens", openai_read_integer, AT(request.generation.max_tokens), 1, OPENAI_ANY),
    OBEYED("logprobs", openai_read_bool, AT(request.logprobs)),
    BOUNDED("top_logprobs", openai_read_integer, AT(request.top_logprobs), 0,
            OPENAI_TOP_LOGPROBS_MAX),
    BOUNDED("thinking_budget", openai_read_integer, AT(request.thinking_budget), 0, OPENAI_ANY),
    OBEYED("parallel_tool_calls", openai_read_flag, AT(parallel_tool_calls)),
    REFUSED("add_generation_prompt", openai_refuse_false),
    REFUSED("modalities", read_modalities),
    REFUSED("audio", openai_refuse_any),
    REFUSED("web_search_options", openai_refuse_any),
    IGNORED("prediction", openai_check_object),
    IGNORED("verbosity", openai_check_string),
    {.name = NULL},
};

const struct openai_group openai_chat_groups[] = {
    {openai_generation_fields, AT(request.generation)},
    {chat_fields, 0},
    {openai_conversation_fields, AT(fields)},
    {openai_refused_fields, 0},
    {openai_ignored_fields, 0},
    {NULL, 0},
};

static bool finish(struct chat *chat, struct openai_problem *problem)
{
    struct openai_chat_request *request = &chat->request;
    if (chat->max_completion_tokens.given)
        request->generation.max_tokens = chat->max_completion_tokens;
    request->parallel_tool_calls = chat->parallel_tool_calls != TEMPLATE_FALSE;
    request->conversation.options.add_generation_prompt = true;
    if (request->top_logprobs.given && !request->logprobs)
        return openai_invalid(problem, "top_logprobs",
                              "top_logprobs: wanted only together with logprobs true");
    return openai_generation_finish(&request->generation, request->body, problem) &&
           openai_conversation_finish(&chat->fields, &request->conversation, problem);
}

bool openai_chat_parse(const char *body, size_t length, const struct openai_limits *limits,
                       struct openai_chat_request *request, struct openai_problem *problem)
{
    struct chat chat = {0};
    if (openai_body_parse(body, length, limits, &chat.request.body, problem) &&
        openai_fields_read(openai_chat_groups, chat.request.body, &chat, limits, problem) &&
        finish(&chat, problem)) {
        *request = chat.request;
        return true;
    }
    openai_chat_clear(&chat.request);
    *request = chat.request;
    return false;
}

void openai_chat_clear(struct openai_chat_request *request)
{
    openai_generation_clear(&request->generation);
    openai_conversation_clear(&request->conversation);
    json_decref(request->body);
    *request = (struct openai_chat_request){0};
}
