/* What a chat request asks of the tokens themselves: an end to thinking after a budget, a tool call
 * that has to come. The engine asks before each token (engine/guide.h). */
#pragma once

#include "engine/guide.h"
#include "library/model.h"
#include "text/call_opening.h"

struct steering_options {
    bool thinking;            /* the prompt ends inside <think> */
    int32_t thinking_budget;  /* tokens; -1: none */
    bool call;                /* a tool call has to come, of one of the names */
    const char *const *names; /* borrowed */
    int n_names;
};

#define STEERING_QUEUE 4
struct steering {
    const struct model *model;
    struct steering_options options;
    struct call_opening opening;
    int32_t think_close, tool_call; /* ids of the tags; -1: none */
    int32_t newline, blank_line;    /* ids of "\n" and "\n\n"; -1: none */
    int32_t queue[STEERING_QUEUE];  /* [n_queue] ids that come next, whatever the model wants */
    int n_queue;
    int32_t thought; /* tokens */
    bool in_thought, called;
};

/* Whether the options ask for anything. */
bool steering_is_needed(const struct steering_options *options);
enum status steering_init(struct steering *steering, const struct model *model,
                          const struct steering_options *options, struct error *error);
void steering_clear(struct steering *steering);
/* Its functions are called on the engine's thread only. */
struct guide steering_guide(struct steering *steering);
