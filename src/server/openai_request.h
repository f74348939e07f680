/* Requests of the OpenAI-compatible API: a body's bytes to a struct, or to the problem that is
 * answered with. Pure functions without state, for any thread; everything here comes from the
 * network, so any bytes give one of the two.
 *
 * A parsed request is owned by the caller and freed by openai_…_clear, which also takes one that
 * was never filled (zeros). After a failed parse the request is zeros. Texts are borrowed from the
 * request's own `body`. What a client did not give is left to the server's defaults: such a member
 * has `given` false. docs/api.md lists all fields. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sampler.h"
#include "server/openai_problem.h"
#include "text/prompt.h"
#include "text/template.h"

#define OPENAI_N_MAX 8
#define OPENAI_STOP_MAX 4
#define OPENAI_STOP_IDS_MAX 256
#define OPENAI_TOP_LOGPROBS_MAX 20
#define OPENAI_CHOICES_MAX 128 /* of a completion: prompts times n */

struct openai_limits {
    size_t body_size;   /* bytes; a longer one is answered with 413 */
    int depth;          /* of nested objects and arrays; 0: 128 */
    int32_t vocabulary; /* ids from 0 to below this are tokens */
};

struct openai_integer {
    bool given;
    int64_t value;
};
struct openai_number {
    bool given;
    double value;
};

/* What chat and text completions have in common. */
struct openai_generation {
    const char *model;
    bool stream, include_usage; /* include_usage: only with stream */
    bool return_progress, ignore_eos;
    struct openai_integer max_tokens;                 /* >= 1 (completions: >= 0) */
    struct openai_integer min_tokens, n, seed, top_k; /* top_k <= 0: off; seed: any */
    struct openai_number temperature, top_p, min_p;   /* top_p 0 is greedy in effect */
    struct openai_number presence_penalty, frequency_penalty, repetition_penalty;
    const char *stop[OPENAI_STOP_MAX]; /* not empty, without NUL bytes */
    int n_stop;
    int32_t *stop_ids;
    int n_stop_ids;
    struct logit_bias *logit_bias; /* each id once */
    int n_logit_bias;
};

enum openai_tool_choice {
    OPENAI_TOOLS_NONE,     /* also without tools */
    OPENAI_TOOLS_AUTO,     /* the model decides */
    OPENAI_TOOLS_REQUIRED, /* the answer begins with a call of any tool */
    OPENAI_TOOLS_NAMED,    /* … of `tool_name` */
};

/* Messages and tools in the template's form, both owned. */
struct openai_conversation {
    json_t *messages;
    json_t *tools; /* those that the model sees; NULL: none */
    struct template_options options;
    enum openai_tool_choice tool_choice;
    const char *tool_name; /* of OPENAI_TOOLS_NAMED */
};

struct openai_chat_request {
    json_t *body; /* owned */
    struct openai_generation generation;
    struct openai_conversation conversation;
    bool parallel_tool_calls; /* false: the answer ends after its first call */
    bool logprobs;
    struct openai_integer top_logprobs;    /* 0..20, only with logprobs */
    struct openai_integer thinking_budget; /* >= 0 reasoning tokens; 0: </think> comes at once */
};

bool openai_chat_parse(const char *body, size_t length, const struct openai_limits *limits,
                       struct openai_chat_request *request, struct openai_problem *problem);
void openai_chat_clear(struct openai_chat_request *request);

/* Renders the prompt into an empty one. What the template does not like is a problem of the field
 * `messages`, with the template's words. */
bool openai_conversation_render(const struct openai_conversation *conversation,
                                struct prompt *prompt, struct openai_problem *problem);
void openai_conversation_clear(struct openai_conversation *conversation);

/* One prompt: a text, in which control tokens are recognised, or ids. */
struct openai_prompt {
    const char *text; /* NULL: ids; may hold NUL bytes */
    size_t length;    /* bytes of the text; 0 and no ids: an empty prompt */
    int32_t *ids;     /* owned */
    size_t n_ids;
};

struct openai_completion_request {
    json_t *body;                        /* owned */
    struct openai_generation generation; /* max_tokens is given: 16 by default */
    struct openai_prompt *prompts;       /* choice i*n + k is the k-th of prompts[i] */
    size_t n_prompts;
    bool echo;
    const char *suffix; /* NULL: none; only with texts and without echo */
    size_t suffix_length;
    struct openai_integer logprobs; /* 0 to 5 */
};

bool openai_completion_parse(const char *body, size_t length, const struct openai_limits *limits,
                             struct openai_completion_request *request,
                             struct openai_problem *problem);
void openai_completion_clear(struct openai_completion_request *request);

/* POST /tokenize: a text or a conversation; POST /apply-template: a conversation. */
struct openai_tokenize_request {
    json_t *body;       /* owned */
    const char *prompt; /* NULL: the conversation; control tokens are recognised in it */
    size_t length;
    struct openai_conversation conversation;
    bool return_token_strs;
};

bool openai_tokenize_parse(const char *body, size_t length, const struct openai_limits *limits,
                           struct openai_tokenize_request *request, struct openai_problem *problem);
bool openai_template_parse(const char *body, size_t length, const struct openai_limits *limits,
                           struct openai_tokenize_request *request, struct openai_problem *problem);
void openai_tokenize_clear(struct openai_tokenize_request *request);

/* POST /detokenize. */
struct openai_detokenize_request {
    int32_t *ids; /* owned */
    size_t n_ids;
};

bool openai_detokenize_parse(const char *body, size_t length, const struct openai_limits *limits,
                             struct openai_detokenize_request *request,
                             struct openai_problem *problem);
void openai_detokenize_clear(struct openai_detokenize_request *request);
