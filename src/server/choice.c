#include "server/choice.h"

#include <string.h>

#include "base/clock.h"

#define TOKENS_AT_ONCE 16

static void deliver(struct choice *choice, const struct reply_event *event)
{
    choice->has_content |= event->kind == REPLY_CONTENT && event->length > 0;
    choice->options.sink.event(choice->options.sink.context, choice, event);
}

static void deliver_text(struct choice *choice, const char *text, size_t length)
{
    deliver(choice, &(struct reply_event){
                        .kind = REPLY_CONTENT, .data = text, .length = length, .call = -1});
}

static bool on_event(void *context, const struct reply_event *event)
{
    deliver(context, event);
    return true;
}

enum status choice_init(struct choice *choice, const struct model *model,
                        const struct choice_options *options, struct error *error)
{
    choice->options = *options;
    choice->model = model;
    bytes_append(&choice->echo, options->echo, options->echo_length);
    if (choice->echo.failed)
        return error_no_memory(error, "the prompt");
    return output_init(&choice->output, model, &options->output, on_event, choice, error);
}

void choice_abandon(struct choice *choice)
{
    job_free(choice->job);
    choice->job = NULL;
}

void choice_clear(struct choice *choice)
{
    choice_abandon(choice);
    output_clear(&choice->output);
    steering_clear(&choice->steering);
    bytes_clear(&choice->logprobs);
    bytes_clear(&choice->echo);
    openai_text_logprobs_clear(&choice->text_logprobs);
    *choice = (struct choice){0};
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static struct openai_logprob logprob_of(const struct choice *choice, int32_t token, float logprob)
{
    struct openai_logprob out = {.logprob = (double)logprob};
    out.data = tokenizer_bytes(choice->model->tokenizer, token, &out.length);
    return out;
}

static void note_logprob(struct choice *choice, const struct generated *generated)
{
    struct openai_logprob top[TOP_MAX];
    const struct openai_logprob token = logprob_of(choice, generated->token, generated->logprob);
    for (int i = 0; i < generated->n_top; i++)
        top[i] = logprob_of(choice, generated->top[i].token, generated->top[i].logprob);
    if (choice->options.chat)
        openai_chat_logprob(&token, top, generated->n_top, &choice->logprobs);
    else
        openai_text_logprob(&choice->text_logprobs, &token, generated->n_top >= 0, top,
                            generated->n_top > 0 ? generated->n_top : 0);
}

/* Whether a token, before it is pushed, stands for content: not for reasoning, a tag, a call, or
 * the line breaks behind a thought, which are no part of the answer. */
static bool is_content(const struct choice *choice, int32_t token)
{
    const struct output *output = &choice->output;
    size_t length;
    const char *data = tokenizer_bytes(choice->model->tokenizer, token, &length);
    if (!choice->options.chat)
        return true;
    for (int tag = 0; tag < REPLY_N_TAGS; tag++)
        if (token == output->tag_ids[tag])
            return false;
    if (output->in_reasoning || output->in_call)
        return false;
    for (size_t i = 0; i < length && !choice->has_content && output->options.thinking; i++)
        if (data[i] != '\n')
            return true;
    return choice->has_content || !output->options.thinking;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The prompt's text, with the logprobs that came for it. */
static void echo(struct choice *choice)
{
    if (choice->echo.length > 0 && !choice->echoed)
        deliver_text(choice, choice->echo.data, choice->echo.length);
    choice->echoed = true;
}

static void take(struct choice *choice, const struct generated *generated)
{
    if (generated->in_prompt) {
        note_logprob(choice, generated);
        return;
    }
    echo(choice);
    choice->completion_tokens++;
    if (generated->stops)
        return;
    if (choice->options.logprobs && is_content(choice, generated->token))
        note_logprob(choice, generated);
    output_push(&choice->output, generated->token);
}

void choice_shutting_down(struct openai_problem *problem)
{
    openai_problem_set(problem, 503, "server_error", "shutting_down", NULL,
                       "the server is shutting down");
}

/* Why a job ended that was not asked to. */
static void explain(struct choice *choice)
{
    const struct job_news *news = &choice->news;
    choice->failed = true;
    if (news->end == GENERATION_FAILED)
        openai_problem_from(&choice->problem, &news->error, NULL);
    else if (news->overflowed)
        openai_problem_set(&choice->problem, 503, "server_error", "slow_reader", NULL,
                           "the answer was cancelled: it was not read as fast as it came");
    else
        choice_shutting_down(&choice->problem);
}

static void finish(struct choice *choice)
{
    struct error error;
    const struct job_news *news = &choice->news;
    choice->done = true;
    choice->figures = news->figures;
    if (!choice->output.complete && news->end != GENERATION_STOPPED &&
        news->end != GENERATION_LENGTH) {
        explain(choice);
        return;
    }
    echo(choice);
    choice->output.end = news->phase == JOB_ENDED && news->end == GENERATION_LENGTH
                             ? REPLY_END_LENGTH
                             : REPLY_END_STOP;
    if (output_finish(&choice->output, false, &choice->finish, &error) != STATUS_OK) {
        choice->failed = true;
        openai_problem_from(&choice->problem, &error, NULL);
    }
}

int choice_pump(struct choice *choice, double seconds)
{
    struct generated tokens[TOKENS_AT_ONCE];
    if (choice->done)
        return 0;
    int n = job_wait(choice->job, seconds, tokens, TOKENS_AT_ONCE, &choice->news);
    for (int i = 0; i < n && !choice->output.complete; i++)
        take(choice, &tokens[i]);
    if (choice->output.complete) { /* by what it said: the engine need not go on */
        job_cancel(choice->job);
        if (choice->news.phase != JOB_ENDED)
            choice->news.figures.end = clock_seconds();
        finish(choice);
    } else if (choice->news.phase == JOB_ENDED) {
        finish(choice);
    }
    return n;
}
