/* POST /v1/chat/completions: messages to a prompt. */
#include "server/call.h"
#include "server/problem.h"

/* The default of thinking, where the request says nothing. */
static void set_thinking(struct call *call)
{
    enum template_flag *thinking = &call->chat_request.conversation.options.enable_thinking;
    if (*thinking == TEMPLATE_UNDEFINED && call->service->defaults.thinking == CALLA_THINKING_OFF)
        *thinking = TEMPLATE_FALSE;
}

static enum status encode(const struct call *call, const struct prompt *prompt,
                          struct token_list *ids, struct prefix_places *places, struct error *error)
{
    const struct model *model = &call->service->model;
    struct token_list lengths = {0};
    enum status status = prompt_encode(prompt, model->tokenizer, ids, error);
    if (status == STATUS_OK)
        status = prompt_encode_breakpoints(prompt, model->tokenizer, ids->data, ids->length,
                                           &lengths, error);
    if (status == STATUS_OK) {
        prefix_places_find(&model->turns, ids->data, (int32_t)ids->length, places);
        for (size_t i = 0; i < lengths.length; i++)
            prefix_places_add(places, lengths.data[i], PREFIX_EXPLICIT);
    }
    token_list_clear(&lengths);
    return status;
}

static bool submit(struct call *call)
{
    struct prompt prompt = {0};
    struct token_list ids = {0};
    struct call_prompt first = {.ids = &ids};
    struct error error;
    bool done =
        openai_conversation_render(&call->chat_request.conversation, &prompt, &call->problem);
    if (done && encode(call, &prompt, &ids, &first.places, &error) != STATUS_OK)
        done = openai_problem_from(&call->problem, &error, "messages");
    const struct openai_integer n = call->generation->n;
    done = done && call_submit(call, &first, 1, n.given ? (int)n.value : 1);
    prompt_clear(&prompt);
    token_list_clear(&ids);
    return done;
}

void chat_handle(void *context, struct http_exchange *exchange)
{
    struct service *service = context;
    struct openai_limits limits = service_limits(service);
    struct call *call = call_new(service, exchange, true);
    size_t length;
    const char *body = http_body(exchange, &length);
    if (!call) {
        problem_no_memory(exchange);
        return;
    }
    if (openai_chat_parse(body, length, &limits, &call->chat_request, &call->problem) &&
        call_check_model(call)) {
        set_thinking(call);
        submit(call);
    }
    call_answer(call);
}
