#include "server/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/problem.h"
#include "server/request_log.h"
#include "server/sse.h"
#include "text/reply_collect.h"

#define WAIT 0.2        /* seconds between looks at the client */
#define WAIT_EACH 0.01  /* the same where several choices may have something */
#define KEEP_ALIVE 10.0 /* seconds of silence before a comment */
#define CONTENT_TYPE "application/json"

struct call_part {
    struct reply_result reply; /* chat */
    struct bytes text;         /* completions */
};

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

/* ---- the answer's parts ---------------------------------------------------------------------- */

static const struct bytes *logprobs_of(const struct choice *choice)
{
    return choice->options.logprobs && choice->options.chat ? &choice->logprobs : NULL;
}

static const struct openai_text_logprobs *text_logprobs_of(const struct choice *choice)
{
    return choice->options.logprobs && !choice->options.chat ? &choice->text_logprobs : NULL;
}

/* Nothing is streamed. */
static void gather(void *context, struct choice *choice, const struct reply_event *event)
{
    struct call *call = context;
    struct call_part *part = &call->parts[choice->options.index];
    if (choice->options.chat)
        reply_collect(&part->reply, event);
    else
        bytes_append(&part->text, event->data, event->length);
}

static void stream(void *context, struct choice *choice, const struct reply_event *event)
{
    struct call *call = context;
    struct bytes *out = call->out;
    int index = choice->options.index;
    if (event->kind == REPLY_CALL_END)
        return;
    sse_begin(out);
    if (!choice->options.chat)
        openai_text_chunk(&call->answer, index, event->data, event->length,
                          text_logprobs_of(choice), out);
    else if (event->kind == REPLY_CONTENT)
        openai_chunk_content(&call->answer, index, event->data, event->length, logprobs_of(choice),
                             out);
    else
        openai_chunk_event(&call->answer, index, event, out);
    sse_end(out);
    if (event->kind == REPLY_CONTENT) {
        bytes_reset(&choice->logprobs);
        openai_text_logprobs_reset(&choice->text_logprobs);
    }
}

/* ---- what was used --------------------------------------------------------------------------- */

static struct openai_usage usage_of(const struct call *call)
{
    struct openai_usage usage = {0};
    for (int i = 0; i < call->n; i++) {
        const struct choice *choice = &call->choices[i];
        if (i % call->per_prompt == 0) {
            usage.prompt_tokens += choice->news.figures.prompt;
            usage.cached_tokens += choice->news.figures.cached;
        }
        usage.completion_tokens += choice->completion_tokens;
        usage.reasoning_tokens += choice->output.reasoning_tokens;
    }
    return usage;
}

static struct openai_timings timings_of(const struct call *call)
{
    const struct openai_usage usage = usage_of(call);
    struct openai_timings timings = {.prompt_n = usage.prompt_tokens - usage.cached_tokens,
                                     .predicted_n = usage.completion_tokens,
                                     .cache_n = usage.cached_tokens};
    double start = 0, first = 0, end = 0;
    for (int i = 0; i < call->n; i++) {
        const struct generation_figures *figures = &call->choices[i].figures;
        double begun = figures->generated > 0 ? figures->first : figures->end;
        start = i == 0 || figures->started < start ? figures->started : start;
        first = i == 0 || begun < first ? begun : first;
        end = figures->end > end ? figures->end : end;
    }
    timings.prompt_ms = 1000 * (first - start);
    timings.predicted_ms = 1000 * (end - first);
    return timings;
}

/* For the log line and /metrics; the call has ended. */
static void note(struct call *call, bool gone)
{
    static const char *const finishes[] = {[REPLY_FINISH_STOP] = "stop",
                                           [REPLY_FINISH_LENGTH] = "length",
                                           [REPLY_FINISH_TOOL_CALLS] = "tool_calls"};
    const struct openai_usage usage = usage_of(call);
    struct openai_timings timings = timings_of(call);
    const char *finish = finishes[call->choices[0].finish];
    for (int i = 0; i < call->n; i++) {
        if (call->choices[i].done && !call->choices[i].failed)
            metrics_count_generation(&call->service->metrics, &call->choices[i].figures,
                                     call->arrived);
        if (!call->choices[i].done || call->choices[i].failed)
            finish = call->choices[i].news.overflowed ? "slow reader"
                     : gone                           ? "cancelled"
                                                      : "error";
    }
    request_log_note(&(struct request_facts){
        .prompt = usage.prompt_tokens,
        .cached = usage.cached_tokens,
        .generated = usage.completion_tokens,
        .decode_seconds = timings.predicted_ms / 1000,
        .finish = finish,
        .problem = call->failed ? call->problem.message : NULL,
    });
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Passes on what has come, waiting for it a little; true: everything is there, or something has
 * failed. */
static bool pump(struct call *call)
{
    int done = 0, got = 0;
    for (int i = 0; i < call->n; i++)
        got += choice_pump(&call->choices[i], call->n == 1 ? WAIT : 0);
    for (int i = 0; i < call->n && got == 0 && call->n > 1; i++)
        if (!call->choices[i].done) {
            choice_pump(&call->choices[i], WAIT_EACH);
            break;
        }
    for (int i = 0; i < call->n; i++) {
        done += call->choices[i].done;
        if (call->choices[i].failed && !call->failed) {
            call->failed = true;
            call->problem = call->choices[i].problem;
        }
    }
    if (done < call->n && !call->failed && atomic_load(&call->service->state) == SERVICE_STOPPING) {
        call->failed = true;
        choice_shutting_down(&call->problem);
    }
    return done == call->n || call->failed;
}

/* ---- a whole answer -------------------------------------------------------------------------- */

static void print_whole(struct call *call, struct bytes *out)
{
    const struct openai_usage usage = usage_of(call);
    const struct openai_timings timings = timings_of(call);
    struct openai_chat_choice *chats = calloc((size_t)call->n, sizeof *chats);
    struct openai_text_choice *texts = calloc((size_t)call->n, sizeof *texts);
    out->failed |= !chats || !texts;
    for (int i = 0; i < call->n && !out->failed; i++) {
        const struct choice *choice = &call->choices[i];
        const struct call_part *part = &call->parts[i];
        chats[i] = (struct openai_chat_choice){&part->reply, choice->finish, logprobs_of(choice)};
        texts[i] = (struct openai_text_choice){part->text.data, part->text.length, choice->finish,
                                               text_logprobs_of(choice)};
        out->failed |= part->text.failed || part->reply.failed;
    }
    if (!out->failed && call->chat)
        openai_chat_print(&call->answer, chats, call->n, &usage, &timings, out);
    else if (!out->failed)
        openai_text_print(&call->answer, texts, call->n, &usage, &timings, out);
    free(chats);
    free(texts);
}

static void answer_whole(struct call *call)
{
    bool gone = false;
    while (!gone && !pump(call))
        gone = http_client_gone(call->exchange);
    note(call, gone);
    if (gone) {
        http_problem(call->exchange, 499, "invalid_request_error", NULL, NULL,
                     "the client has left");
    } else if (call->failed) {
        problem_answer(call->exchange, &call->problem);
    } else {
        struct bytes body = {0};
        print_whole(call, &body);
        http_answer_bytes(call->exchange, 200, CONTENT_TYPE, &body);
        bytes_clear(&body);
    }
    call_free(call);
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void print_start(struct call *call)
{
    for (int i = 0; i < call->n && call->chat; i++) {
        sse_begin(call->out);
        openai_chunk_role(&call->answer, i, call->out);
        sse_end(call->out);
    }
    if (!call->chat)
        sse_comment("accepted", call->out);
    call->started = true;
}

/* Logprobs of tokens whose text was held back and is not part of the answer, then the reason. */
static void print_finish(struct call *call, struct choice *choice, bool last)
{
    const struct openai_timings timings = timings_of(call);
    const struct openai_timings *shown = last && !call->generation->include_usage ? &timings : NULL;
    int index = choice->options.index;
    if (choice->logprobs.length > 0 || choice->text_logprobs.tokens.length > 0)
        stream(call, choice, &(struct reply_event){.kind = REPLY_CONTENT, .data = "", .call = -1});
    sse_begin(call->out);
    if (call->chat)
        openai_chunk_finish(&call->answer, index, choice->finish, shown, call->out);
    else
        openai_text_chunk_finish(&call->answer, index, choice->finish, shown, call->out);
    sse_end(call->out);
}

static void print_end(struct call *call)
{
    if (call->failed) {
        sse_begin(call->out);
        openai_problem_print(&call->problem, call->out);
        sse_end(call->out);
        sse_done(call->out);
        return;
    }
    for (int i = 0; i < call->n; i++)
        print_finish(call, &call->choices[i], i == call->n - 1);
    if (call->generation->include_usage) {
        const struct openai_usage usage = usage_of(call);
        const struct openai_timings timings = timings_of(call);
        sse_begin(call->out);
        openai_chunk_usage(&call->answer, &usage, &timings, call->out);
        sse_end(call->out);
    }
    sse_done(call->out);
}

/* Says how far the prompt is, or that the connection is alive, while nothing else is said. */
static void print_comments(struct call *call)
{
    const struct job_news *news = &call->choices[0].news;
    const struct generation_figures *figures = &news->figures;
    int64_t read = figures->cached + figures->read;
    if (call->generation->return_progress && news->phase == JOB_READING && read != call->progress &&
        read <= figures->prompt) {
        call->progress = read;
        sse_progress(figures->prompt, read, figures->cached, call->out);
    }
    double now = clock_seconds();
    if (call->out->length == 0 && now - call->sent >= KEEP_ALIVE)
        sse_comment("keep-alive", call->out);
    if (call->out->length > 0)
        call->sent = now;
}

static enum http_more produce(void *context, struct bytes *out)
{
    struct call *call = context;
    call->out = out;
    if (!call->started) {
        print_start(call);
        return HTTP_MORE;
    }
    bool end = pump(call);
    if (end)
        print_end(call);
    else
        print_comments(call);
    return end ? HTTP_END : HTTP_MORE;
}

static void release(void *context, bool gone)
{
    struct call *call = context;
    note(call, gone);
    call_free(call);
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
        .sink = {call->generation->stream ? stream : gather, call},
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

void call_answer(struct call *call)
{
    bool submitted = call->n > 0 && call->choices[0].job;
    if (!submitted) {
        problem_answer(call->exchange, &call->problem);
        call_free(call);
    } else if (call->generation->stream) {
        http_stream(call->exchange, "text/event-stream", produce, call, release);
    } else {
        answer_whole(call);
    }
}
