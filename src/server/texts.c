#include "server/texts.h"

#include <string.h>

#include "server/openai_answer.h"
#include "server/problem.h"
#include "server/service.h"

#define JSON "application/json"

/* ---- the server's condition ------------------------------------------------------------------ */

void health_handle(void *context, struct http_exchange *exchange)
{
    static const char *const names[] = {
        [SERVICE_LOADING] = "loading", [SERVICE_READY] = "ok", [SERVICE_STOPPING] = "stopping"};
    struct service *service = context;
    enum service_state state = atomic_load(&service->state);
    struct bytes body = {0};
    bytes_format(&body, "{\"status\":\"%s\"}", names[state]);
    if (state != SERVICE_READY)
        http_header(exchange, "Retry-After", "1");
    http_answer_bytes(exchange, state == SERVICE_READY ? 200 : 503, JSON, &body);
    bytes_clear(&body);
}

void metrics_handle(void *context, struct http_exchange *exchange)
{
    struct service *service = context;
    struct scheduler_figures figures;
    struct bytes body = {0};
    bool loaded = atomic_load(&service->state) != SERVICE_LOADING;
    if (loaded)
        scheduler_read_figures(service->scheduler, &figures);
    metrics_print(&service->metrics, loaded ? &figures : NULL, &body);
    http_answer_bytes(exchange, 200, "text/plain; version=0.0.4", &body);
    bytes_clear(&body);
}

/* ---- models ---------------------------------------------------------------------------------- */

static struct openai_model model_of(const struct service *service, const char *name)
{
    return (struct openai_model){name, service->created, service->plan.context};
}

void models_handle(void *context, struct http_exchange *exchange)
{
    const struct service *service = context;
    struct openai_model models[SERVICE_NAMES];
    struct bytes body = {0};
    for (int i = 0; i < service->n_names; i++)
        models[i] = model_of(service, service->names[i]);
    openai_models_print(models, service->n_names, &body);
    http_answer_bytes(exchange, 200, JSON, &body);
    bytes_clear(&body);
}

void model_handle(void *context, struct http_exchange *exchange)
{
    const struct service *service = context;
    const char *name = http_path(exchange) + strlen("/v1/models/");
    struct openai_problem problem;
    if (!service_has_name(service, name)) {
        openai_problem_set(&problem, 404, "invalid_request_error", "model_not_found", "model",
                           "model: found '%.200s', wanted '%s'", name, service->id);
        problem_answer(exchange, &problem);
        return;
    }
    const struct openai_model model = model_of(service, name);
    struct bytes body = {0};
    openai_model_print(&model, &body);
    http_answer_bytes(exchange, 200, JSON, &body);
    bytes_clear(&body);
}

/* ---- tokens and texts ------------------------------------------------------------------------ */

static bool encode(const struct service *service, const struct openai_tokenize_request *request,
                   struct token_list *ids, struct openai_problem *problem)
{
    struct error error;
    enum status status = STATUS_OK;
    struct prompt prompt = {0};
    const struct text_span span = {request->prompt, request->length, true};
    if (request->prompt && request->length > 0) {
        status = tokenizer_encode(service->model.tokenizer, &span, 1, ids, &error);
    } else if (!request->prompt) {
        if (!openai_conversation_render(&request->conversation, &prompt, problem)) {
            prompt_clear(&prompt);
            return false;
        }
        status = prompt_encode(&prompt, service->model.tokenizer, ids, &error);
    }
    prompt_clear(&prompt);
    return status == STATUS_OK ||
           openai_problem_from(problem, &error, request->prompt ? "prompt" : "messages");
}

/* The answer, or the problem where `done` is false. */
static void answer(struct http_exchange *exchange, bool done, const struct openai_problem *problem,
                   struct bytes *body)
{
    if (done)
        http_answer_bytes(exchange, 200, JSON, body);
    else
        problem_answer(exchange, problem);
    bytes_clear(body);
}

void tokenize_handle(void *context, struct http_exchange *exchange)
{
    const struct service *service = context;
    struct openai_limits limits = service_limits(service);
    struct openai_tokenize_request request = {0};
    struct openai_problem problem;
    struct token_list ids = {0};
    struct bytes body = {0};
    size_t length;
    const char *text = http_body(exchange, &length);
    bool done = openai_tokenize_parse(text, length, &limits, &request, &problem) &&
                encode(service, &request, &ids, &problem);
    if (done)
        openai_tokens_print(&ids, service->plan.context,
                            request.return_token_strs ? service->model.tokenizer : NULL, &body);
    answer(exchange, done, &problem, &body);
    token_list_clear(&ids);
    openai_tokenize_clear(&request);
}

void detokenize_handle(void *context, struct http_exchange *exchange)
{
    const struct service *service = context;
    struct openai_limits limits = service_limits(service);
    struct openai_detokenize_request request = {0};
    struct openai_problem problem;
    struct bytes text = {0}, body = {0};
    size_t length;
    const char *given = http_body(exchange, &length);
    bool done = openai_detokenize_parse(given, length, &limits, &request, &problem);
    if (done) {
        struct detokenizer detokenizer;
        detokenizer_init(&detokenizer, service->model.tokenizer, false);
        for (size_t i = 0; i < request.n_ids; i++)
            detokenizer_push(&detokenizer, request.ids[i], &text);
        detokenizer_finish(&detokenizer, &text);
        openai_prompt_print(text.data, text.length, &body);
        body.failed |= text.failed;
    }
    answer(exchange, done, &problem, &body);
    bytes_clear(&text);
    openai_detokenize_clear(&request);
}

void template_handle(void *context, struct http_exchange *exchange)
{
    const struct service *service = context;
    struct openai_limits limits = service_limits(service);
    struct openai_tokenize_request request = {0};
    struct openai_problem problem;
    struct prompt prompt = {0};
    struct bytes body = {0};
    size_t length;
    const char *given = http_body(exchange, &length);
    bool done = openai_template_parse(given, length, &limits, &request, &problem) &&
                openai_conversation_render(&request.conversation, &prompt, &problem);
    if (done) {
        openai_prompt_print(prompt.text.data, prompt.text.length, &body);
        body.failed |= prompt.text.failed;
    }
    answer(exchange, done, &problem, &body);
    prompt_clear(&prompt);
    openai_tokenize_clear(&request);
}
