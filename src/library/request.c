/* Requests: defaults, presets, checks, and the way to the prompt's ids. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "library/handles.h"
#include "text/messages.h"
#include "text/template.h"

void calla_request_init(const struct calla_model *model, struct calla_request *request)
{
    model_request_init(&model->model, request);
}

static const struct {
    const char *name;
    enum calla_thinking thinking;
    double temperature, top_p;
    int32_t top_k;
    double presence_penalty;
} presets[] = {
    /* spec 1.2; min_p is 0 and the repetition penalty 1 in all of them */
    {"thinking", CALLA_THINKING_ON, 1.0, 0.95, 20, 1.5},
    {"coding", CALLA_THINKING_ON, 0.6, 0.95, 20, 0.0},
    {"chat", CALLA_THINKING_OFF, 0.7, 0.8, 20, 1.5},
    {"reasoning", CALLA_THINKING_OFF, 1.0, 1.0, 40, 2.0},
};
#define N_PRESETS (int)(sizeof presets / sizeof presets[0])

const char *calla_preset_name(int i)
{
    return i >= 0 && i < N_PRESETS ? presets[i].name : NULL;
}

enum calla_status calla_request_preset(struct calla_request *request, const char *name,
                                       struct calla_error *error)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(name, presets[i].name) != 0)
            continue;
        request->thinking = presets[i].thinking;
        request->temperature = presets[i].temperature;
        request->top_p = presets[i].top_p;
        request->top_k = presets[i].top_k;
        request->min_p = 0;
        request->presence_penalty = presets[i].presence_penalty;
        request->frequency_penalty = 0;
        request->repetition_penalty = 1;
        return CALLA_OK;
    }
    struct error problem;
    error_set(&problem, STATUS_INVALID,
              "preset: found '%s', wanted thinking, coding, chat or reasoning", name);
    return library_error(STATUS_INVALID, &problem, error);
}

static enum status check_range(const char *name, double value, double low, double high,
                               struct error *error)
{
    if (value >= low && value <= high) /* false for NaN */
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: found %.10g, wanted %.10g to %.10g", name, value,
                     low, high);
}

static enum status check_request(const struct calla_request *r, struct error *error)
{
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"max_tokens", r->max_tokens, 0, INT32_MAX},
        {"temperature", r->temperature, 0, 100},
        {"top_k", r->top_k, 0, INT32_MAX},
        {"top_p", r->top_p, TOP_P_MIN, 1},
        {"min_p", r->min_p, 0, 1},
        {"presence_penalty", r->presence_penalty, -2, 2},
        {"frequency_penalty", r->frequency_penalty, -2, 2},
        {"repetition_penalty", r->repetition_penalty, 1e-3, 1e3},
    };
    if (!r->messages == !r->prompt)
        return error_set(error, STATUS_INVALID, "request: wanted either messages or a prompt");
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        enum status status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high, error);
        if (status != STATUS_OK)
            return status;
    }
    for (int i = 0; i < r->n_stop; i++)
        if (!r->stop[i][0])
            return error_set(error, STATUS_INVALID, "stop: found an empty string");
        else if (utf8_valid_length(r->stop[i], strlen(r->stop[i])) != strlen(r->stop[i]))
            return error_set(error, STATUS_INVALID, "stop: found '%s', which is not UTF-8",
                             r->stop[i]); /* it could cut a character in two */
    return STATUS_OK;
}

/* ---- prompt ---------------------------------------------------------------------------------- */

static enum status encode_messages(const struct model *model, const struct calla_request *request,
                                   const json_t *tools, struct token_list *ids, struct error *error)
{
    json_t *given = NULL, *messages = NULL;
    struct prompt prompt = {0};
    enum status status =
        json_parse(request->messages, strlen(request->messages), "messages", &given, error);
    if (status == STATUS_OK)
        status = messages_prepare(given, &messages, error);
    struct template_options options = {
        .add_generation_prompt = true,
        .enable_thinking = request->thinking == CALLA_THINKING_OFF  ? TEMPLATE_FALSE
                           : request->thinking == CALLA_THINKING_ON ? TEMPLATE_TRUE
                                                                    : TEMPLATE_UNDEFINED,
        .preserve_thinking = request->preserve_thinking ? TEMPLATE_TRUE : TEMPLATE_UNDEFINED,
    };
    if (status == STATUS_OK)
        status = template_render(messages, tools, &options, &prompt, error);
    if (status == STATUS_OK)
        status = prompt_encode(&prompt, model->tokenizer, ids, error);
    prompt_clear(&prompt);
    json_decref(given);
    json_decref(messages);
    return status;
}

static enum status encode_request(const struct model *model, const struct calla_request *request,
                                  const json_t *tools, struct token_list *ids, struct error *error)
{
    if (request->messages)
        return encode_messages(model, request, tools, ids, error);
    struct text_span span = {request->prompt, request->prompt_length, true};
    return tokenizer_encode(model->tokenizer, &span, 1, ids, error);
}

enum status request_prepare(const struct model *model, const struct calla_request *request,
                            json_t **tools, struct token_list *ids, struct error *error)
{
    enum status status = check_request(request, error);
    if (status == STATUS_OK && request->tools) {
        status = json_parse(request->tools, strlen(request->tools), "tools", tools, error);
        if (status == STATUS_OK)
            status = messages_check_tools(*tools, error);
    }
    return status == STATUS_OK ? encode_request(model, request, *tools, ids, error) : status;
}

enum calla_status calla_count_tokens(const struct calla_model *model,
                                     const struct calla_request *request, int32_t *tokens,
                                     struct calla_error *error)
{
    struct error problem;
    struct token_list ids = {0};
    json_t *parsed = NULL;
    enum status status = request_prepare(&model->model, request, &parsed, &ids, &problem);
    *tokens = status == STATUS_OK ? (int32_t)ids.length : 0;
    token_list_clear(&ids);
    json_decref(parsed);
    return library_error(status, &problem, error);
}
