#include "server/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* When neither connection nor engine has it any more; on the thread of either. */
static void destroy(struct shared *shared)
{
    struct call *call = (struct call *)shared;
    for (int i = 0; i < call->n; i++) {
        choice_clear(&call->choices[i]);
        if (call->parts) {
            reply_result_clear(&call->parts[i].reply);
            bytes_clear(&call->parts[i].text);
        }
    }
    free(call->choices);
    free(call->parts);
    free(call->tool_names);
    free(call->stop_ids);
    openai_answer_clear(&call->answer);
    openai_chat_clear(&call->chat_request);
    openai_completion_clear(&call->text_request);
    free(call);
}

struct call *call_new(struct service *service, struct http_exchange *exchange, bool chat)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    shared_init(&call->shared, destroy);
    call->service = service;
    call->exchange = exchange;
    call->chat = chat;
    call->arrived = call->sent = clock_seconds();
    call->generation = chat ? &call->chat_request.generation : &call->text_request.generation;
    return call;
}

void call_free(struct call *call)
{
    for (int i = 0; i < call->n; i++)
        choice_abandon(&call->choices[i]);
    shared_release(&call->shared);
}

bool call_check_model(struct call *call)
{
    const char *name = call->generation->model;
    return service_has_name(call->service, name) ||
           openai_problem_set(&call->problem, 404, "invalid_request_error", "model_not_found",
                              "model", "model: found '%.200s', wanted '%s'", name,
                              call->service->id);
}

/* ---- submitting ------------------------------------------------------------------------------ */

static double given(struct openai_number number, double otherwise)
{
    return number.given ? number.value : otherwise;
}

static struct sampling sampling_of(const struct call *call, uint64_t seed)
{
    const struct openai_generation *g = call->generation;
    const struct calla_request *defaults = &call->service->defaults;
    return (struct sampling){
        .temperature = given(g->temperature, defaults->temperature),
        .top_k = g->top_k.given ? (int)g->top_k.value : defaults->top_k,
        .top_p = given(g->top_p, defaults->top_p),
        .min_p = given(g->min_p, defaults->min_p),
        .presence_penalty = given(g->presence_penalty, defaults->presence_penalty),
        .frequency_penalty = given(g->frequency_penalty, defaults->frequency_penalty),
        .repetition_penalty = given(g->repetition_penalty, defaults->repetition_penalty),
        .seed = seed,
        .logit_bias = g->logit_bias,
        .n_logit_bias = g->n_logit_bias,
    };
}

static int32_t limit(struct openai_integer number, int32_t otherwise)
{
    return !number.given ? otherwise : number.value < INT32_MAX ? (int32_t)number.value : INT32_MAX;
}

/* Alternatives with each token; -1: no logprobs. */
static int top_of(const struct call *call)
{
    const struct openai_chat_request *chat = &call->chat_request;
    if (call->chat)
        return chat->logprobs ? (int)chat->top_logprobs.value : -1;
    return call->text_request.logprobs.given ? (int)call->text_request.logprobs.value : -1;
}

/* The model's own, unless they are ignored, and the request's. */
static bool find_stop_ids(struct call *call)
{
    const struct model *model = &call->service->model;
    const struct openai_generation *g = call->generation;
    call->stop_ids =
        malloc((size_t)(model->n_stop_ids + g->n_stop_ids + 1) * sizeof *call->stop_ids);
    for (int i = 0; call->stop_ids && i < model->n_stop_ids && !g->ignore_eos; i++)
        call->stop_ids[call->n_stop_ids++] = model->stop_ids[i];
    for (int i = 0; call->stop_ids && i < g->n_stop_ids; i++)
        call->stop_ids[call->n_stop_ids++] = g->stop_ids[i];
    return call->stop_ids;
}

static void fill_generation(struct call *call, const struct call_prompt *prompt,
                            struct choice *choice, uint64_t seed,
                            struct generation_options *options)
{
    const struct openai_generation *g = call->generation;
    *options = (struct generation_options){
        .prompt = prompt->ids->data,
        .n_prompt = (int32_t)prompt->ids->length,
        .places = prompt->places,
        .sampling = sampling_of(call, seed),
        .max_tokens = limit(g->max_tokens, -1),
        .min_tokens = limit(g->min_tokens, 0),
        .n_top = top_of(call),
        .prompt_logprobs = prompt->echo && top_of(call) >= 0,
        .guide = choice->guide.next ? &choice->guide : NULL,
        .stop_ids = call->stop_ids,
        .n_stop_ids = call->n_stop_ids,
        .owner = &call->shared,
    };
}

/* Whether the answer begins in a thought. */
static bool thinks(const struct call *call)
{
    return call->chat && call->chat_request.conversation.options.enable_thinking != TEMPLATE_FALSE;
}

static enum status init_choice(struct call *call, const struct call_prompt *prompt, int index,
                               struct error *error)
{
    const struct openai_conversation *conversation = &call->chat_request.conversation;
    const struct model *model = &call->service->model;
    struct choice *choice = &call->choices[index];
    const struct choice_options options = {
        .index = index,
        .chat = call->chat,
        .logprobs = top_of(call) >= 0,
        .echo = prompt->echo,
        .echo_length = prompt->echo_length,
        .output = {.raw = !call->chat,
                   .thinking = thinks(call),
                   .one_call = call->chat && !call->chat_request.parallel_tool_calls,
                   .tools = conversation->tools,
                   .stop = call->generation->stop,
                   .n_stop = call->generation->n_stop},
        .sink = {call->generation->stream ? call_stream_event : call_gather_event, call},
    };
    const struct steering_options steering = {
        .thinking = thinks(call),
        .thinking_budget = limit(call->chat_request.thinking_budget, -1),
        .call = call->chat && (conversation->tool_choice == OPENAI_TOOLS_REQUIRED ||
                               conversation->tool_choice == OPENAI_TOOLS_NAMED),
        .names = call->tool_names,
        .n_names = call->n_tool_names,
    };
    enum status status = choice_init(choice, model, &options, error);
    if (status != STATUS_OK || !steering_is_needed(&steering))
        return status;
    status = steering_init(&choice->steering, model, &steering, error);
    choice->guide = steering_guide(&choice->steering);
    return status;
}

/* The names that a forced call may have. */
static bool find_tool_names(struct call *call)
{
    const struct openai_conversation *conversation = &call->chat_request.conversation;
    size_t n = json_array_size(conversation->tools);
    if (conversation->tool_choice == OPENAI_TOOLS_NAMED)
        n = 1;
    if (conversation->tool_choice != OPENAI_TOOLS_NAMED &&
        conversation->tool_choice != OPENAI_TOOLS_REQUIRED)
        return true;
    call->tool_names = calloc(n, sizeof *call->tool_names);
    if (!call->tool_names)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *tool = json_array_get(conversation->tools, i);
        call->tool_names[i] =
            conversation->tool_choice == OPENAI_TOOLS_NAMED
                ? conversation->tool_name
                : json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    }
    call->n_tool_names = (int)n;
    return true;
}

static uint64_t next_nonce(struct service *service)
{
    return atomic_fetch_add(&service->nonce, 1);
}

static enum status submit(struct call *call, const struct call_prompt *prompts, uint64_t nonce,
                          struct error *error)
{
    struct generation_options *options = calloc((size_t)call->n, sizeof *options);
    struct job **jobs = calloc((size_t)call->n, sizeof *jobs);
    struct openai_integer given_seed = call->generation->seed;
    uint64_t seed = given_seed.given ? (uint64_t)given_seed.value : nonce * 0x9e3779b97f4a7c15;
    enum status status = options && jobs && find_tool_names(call) && find_stop_ids(call)
                             ? STATUS_OK
                             : error_no_memory(error, "the request");
    for (int i = 0; i < call->n && status == STATUS_OK; i++) {
        const struct call_prompt *prompt = &prompts[i / call->per_prompt];
        status = init_choice(call, prompt, i, error);
        fill_generation(call, prompt, &call->choices[i], seed + (uint64_t)i * 0xbf58476d1ce4e5b9,
                        &options[i]);
    }
    if (status == STATUS_OK)
        status = scheduler_submit(call->service->scheduler, options, call->n, jobs, error);
    for (int i = 0; i < call->n && status == STATUS_OK; i++)
        call->choices[i].job = jobs[i];
    free(options);
    free(jobs);
    return status;
}

bool call_submit(struct call *call, const struct call_prompt *prompts, int n, int per_prompt)
{
    struct error error;
    uint64_t nonce = next_nonce(call->service);
    call->per_prompt = per_prompt;
    call->choices = calloc((size_t)n * (size_t)per_prompt, sizeof *call->choices);
    call->parts = calloc((size_t)n * (size_t)per_prompt, sizeof *call->parts);
    if (!call->choices || !call->parts) {
        error_no_memory(&error, "the request");
        return openai_problem_from(&call->problem, &error, NULL);
    }
    call->n = n * per_prompt;
    enum openai_kind kind = !call->chat                ? OPENAI_TEXT
                            : call->generation->stream ? OPENAI_CHAT_CHUNK
                                                       : OPENAI_CHAT;
    openai_answer_init(&call->answer, kind, nonce, (int64_t)time(NULL), call->service->id,
                       call->service->fingerprint);
    call->answer.include_usage = call->generation->include_usage;
    call->answer.both_reasoning = call->service->options.reasoning_twice;
    enum status status = submit(call, prompts, nonce, &error);
    if (status == STATUS_BUSY)
        return openai_problem_set(&call->problem, 429, "rate_limit_error", "server_overloaded",
                                  NULL, "%s", error.message);
    if (status == STATUS_CANCELLED)
        return openai_problem_set(&call->problem, 503, "server_error", "shutting_down", NULL, "%s",
                                  error.message);
    return status == STATUS_OK ||
           openai_problem_from(&call->problem, &error, call->chat ? "messages" : "prompt");
}
