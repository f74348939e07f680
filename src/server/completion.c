/* POST /v1/completions: texts or ids to prompts. */
#include <stdlib.h>
#include <string.h>

#include "server/call.h"
#include "server/problem.h"

/* A prompt on its way. */
struct raw {
    struct token_list ids;
    struct bytes echo;
};

/* Appends what a text says; control tokens in it count. */
static enum status append_text(const struct call *call, const char *text, size_t length,
                               struct token_list *ids, struct error *error)
{
    const struct text_span span = {text, length, true};
    return length > 0 ? tokenizer_encode(call->service->model.tokenizer, &span, 1, ids, error)
                      : STATUS_OK;
}

/* Prefix, suffix and the place between them, in the order of the model's training. */
static enum status append_both(const struct call *call, const struct openai_prompt *prompt,
                               struct token_list *ids, struct error *error)
{
    const struct openai_completion_request *request = &call->text_request;
    const struct service *service = call->service;
    if (service->fim.prefix < 0 || service->fim.suffix < 0 || service->fim.middle < 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "suffix: this model's tokenizer has no <|fim_…|> tokens");
    token_list_append(ids, service->fim.prefix);
    enum status status = append_text(call, prompt->text, prompt->length, ids, error);
    token_list_append(ids, service->fim.suffix);
    if (status == STATUS_OK)
        status = append_text(call, request->suffix, request->suffix_length, ids, error);
    token_list_append(ids, service->fim.middle);
    return status;
}

static void append_echo(const struct call *call, const struct openai_prompt *prompt,
                        struct raw *raw)
{
    if (prompt->text) {
        bytes_append(&raw->echo, prompt->text, prompt->length);
        return;
    }
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, call->service->model.tokenizer, false);
    for (size_t i = 0; i < prompt->n_ids; i++)
        detokenizer_push(&detokenizer, prompt->ids[i], &raw->echo);
    detokenizer_finish(&detokenizer, &raw->echo);
}

static enum status make(const struct call *call, const struct openai_prompt *prompt,
                        struct raw *raw, struct call_prompt *out, struct error *error)
{
    const struct openai_completion_request *request = &call->text_request;
    const struct model *model = &call->service->model;
    enum status status = STATUS_OK;
    if (request->suffix)
        status = append_both(call, prompt, &raw->ids, error);
    else if (prompt->text)
        status = append_text(call, prompt->text, prompt->length, &raw->ids, error);
    for (size_t i = 0; i < prompt->n_ids; i++)
        token_list_append(&raw->ids, prompt->ids[i]);
    if (status == STATUS_OK && raw->ids.length == 0 && call->service->fim.end_of_text >= 0)
        token_list_append(&raw->ids, call->service->fim.end_of_text);
    if (request->echo)
        append_echo(call, prompt, raw);
    if (status == STATUS_OK && (raw->ids.failed || raw->echo.failed))
        status = error_no_memory(error, "the prompt");
    if (status != STATUS_OK)
        return status;
    *out = (struct call_prompt){.ids = &raw->ids};
    if (request->echo) {
        out->echo = raw->echo.data ? raw->echo.data : "";
        out->echo_length = raw->echo.length;
    }
    prefix_places_find(&model->turns, raw->ids.data, (int32_t)raw->ids.length, &out->places);
    return STATUS_OK;
}

static bool submit(struct call *call)
{
    const struct openai_completion_request *request = &call->text_request;
    const struct openai_integer n = call->generation->n;
    struct error error;
    struct raw *raws = calloc(request->n_prompts, sizeof *raws);
    struct call_prompt *prompts = calloc(request->n_prompts, sizeof *prompts);
    enum status status = raws && prompts ? STATUS_OK : error_no_memory(&error, "the prompts");
    for (size_t i = 0; i < request->n_prompts && status == STATUS_OK; i++)
        status = make(call, &request->prompts[i], &raws[i], &prompts[i], &error);
    bool done = status == STATUS_OK ? call_submit(call, prompts, (int)request->n_prompts,
                                                  n.given ? (int)n.value : 1)
                                    : openai_problem_from(&call->problem, &error, "prompt");
    for (size_t i = 0; raws && i < request->n_prompts; i++) {
        token_list_clear(&raws[i].ids);
        bytes_clear(&raws[i].echo);
    }
    free(raws);
    free(prompts);
    return done;
}

void completion_handle(void *context, struct http_exchange *exchange)
{
    struct service *service = context;
    struct openai_limits limits = service_limits(service);
    struct call *call = call_new(service, exchange, false);
    size_t length;
    const char *body = http_body(exchange, &length);
    if (!call) {
        problem_no_memory(exchange);
        return;
    }
    if (openai_completion_parse(body, length, &limits, &call->text_request, &call->problem) &&
        call_check_model(call))
        submit(call);
    call_answer(call);
}
