/* A request that generates, from its parsed form to its answer, streamed or whole: makes its
 * choices, waits for their tokens and prints them. chat.c and completion.c say what is special to
 * either API. Lives on its connection's thread. */
#pragma once

#include "server/choice.h"
#include "server/http.h"
#include "server/openai_request.h"
#include "server/service.h"
#include "text/reply_collect.h"

/* What of a choice is gathered, when nothing is streamed. */
struct call_part {
    struct reply_result reply; /* chat */
    struct bytes text;         /* completions */
};

struct call {
    struct shared shared; /* by its connection, and by the engine while it generates */
    struct service *service;
    struct http_exchange *exchange;
    bool chat;
    struct openai_chat_request chat_request; /* one of these is used */
    struct openai_completion_request text_request;
    const struct openai_generation *generation; /* that one's */
    struct openai_answer answer;
    struct choice *choices;  /* [n] */
    struct call_part *parts; /* [n] */
    const char **tool_names; /* [n_tool_names], those that may have to be called */
    int n_tool_names;
    int32_t *stop_ids; /* [n_stop_ids] */
    int n_stop_ids;
    int n, per_prompt;
    double arrived, sent; /* in the clock's seconds; sent: something, to keep the client awake */
    struct bytes *out;    /* of the producer's call that is under way */
    bool started, failed;
    int64_t progress; /* tokens of the prompt that were told of */
    struct openai_problem problem;
};

/* A prompt that choices begin with. */
struct call_prompt {
    const struct token_list *ids;
    struct prefix_places places;
    const char *echo; /* NULL: none */
    size_t echo_length;
};

struct call *call_new(struct service *service, struct http_exchange *exchange, bool chat);
/* Cancels what still runs. The memory goes when the engine has let go of it, too. */
void call_free(struct call *call);
/* Whether the request names this model; else the problem is set. */
bool call_check_model(struct call *call);
/* Makes `per_prompt` choices for each of n prompts and submits them. */
bool call_submit(struct call *call, const struct call_prompt *prompts, int n, int per_prompt);
/* Sinks of its choices. */
void call_gather_event(void *context, struct choice *choice, const struct reply_event *event);
void call_stream_event(void *context, struct choice *choice, const struct reply_event *event);
/* Answers the exchange: with the problem, or with the choices that were submitted. Takes the call
 * over. */
void call_answer(struct call *call);

/* The handlers. */
void chat_handle(void *context, struct http_exchange *exchange);
void completion_handle(void *context, struct http_exchange *exchange);
