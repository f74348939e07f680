/* From a call's choices to its answer, streamed or whole. */
#include <stdlib.h>

#include "base/clock.h"
#include "server/call.h"
#include "server/problem.h"
#include "server/request_log.h"
#include "server/sse.h"

#define WAIT 0.2       /* seconds between looks at the client */
#define WAIT_EACH 0.01 /* the same where several choices may have something */
#define KEEP_ALIVE 9.0 /* seconds of silence before a comment: one comes within 10 */
#define CONTENT_TYPE "application/json"

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
void call_gather_event(void *context, struct choice *choice, const struct reply_event *event)
{
    struct call *call = context;
    struct call_part *part = &call->parts[choice->options.index];
    if (choice->options.chat)
        reply_collect(&part->reply, event);
    else
        bytes_append(&part->text, event->data, event->length);
}

void call_stream_event(void *context, struct choice *choice, const struct reply_event *event)
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
    for (int i = 0; i < call->n; i++)
        if (!call->choices[i].done) {
            struct generation_figures *figures = &call->choices[i].figures;
            *figures = call->choices[i].news.figures;
            figures->end = figures->end > 0 ? figures->end : clock_seconds();
        }
    const struct openai_usage usage = usage_of(call);
    const struct openai_timings timings = timings_of(call);
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
        call_stream_event(call, choice,
                          &(struct reply_event){.kind = REPLY_CONTENT, .data = "", .call = -1});
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
