/* One choice of an answer: a job's tokens made into text, reasoning, calls and logprobs, and given
 * to whoever gathers or streams them. */
#pragma once

#include "engine/scheduler.h"
#include "library/output.h"
#include "server/openai_answer.h"
#include "server/steering.h"

struct choice;

/* Parts of the answer, in their order. `logprobs` of chat content, or text_logprobs of a text, are
 * in the choice and belong to what is delivered; whoever takes them resets them. */
struct choice_sink {
    void (*event)(void *context, struct choice *choice, const struct reply_event *event);
    void *context;
};

struct choice_options {
    int index;
    bool chat; /* else raw text: logprobs in the form of text completions */
    bool logprobs;
    const char *echo; /* text that comes before the answer, copied; NULL: none */
    size_t echo_length;
    struct output_options output;
    struct choice_sink sink;
};

struct choice {
    struct choice_options options;
    const struct model *model;
    struct job *job;
    struct job_news news;
    struct output output;
    struct bytes logprobs;                     /* entries of chat content not delivered yet */
    struct openai_text_logprobs text_logprobs; /* the same of a text */
    struct steering steering;
    struct guide guide;
    struct generation_figures figures; /* as of the end */
    int32_t completion_tokens;
    struct bytes echo; /* what comes before the answer */
    bool echoed, has_content;
    bool done, failed; /* failed: see problem */
    enum reply_finish finish;
    struct openai_problem problem;
};

/* `choice` must be zeros; choice_clear takes it also after an error, and cancels its job. */
enum status choice_init(struct choice *choice, const struct model *model,
                        const struct choice_options *options, struct error *error);
void choice_clear(struct choice *choice);
/* What a request is told that the server's end cancels. */
void choice_shutting_down(struct openai_problem *problem);
/* Lets go of the job, which is cancelled; what it borrows of the choice must stay until it ends. */
void choice_abandon(struct choice *choice);
/* Waits at most `seconds` for something to happen and passes it on; gives the number of tokens. */
int choice_pump(struct choice *choice, double seconds);
