/* Bodies of requests for tests, written with ' for ". All failures fail the cmocka test. */
#pragma once

#include "server/openai_request.h"

extern const struct openai_limits body_limits; /* 1 MiB, the target's vocabulary */
extern struct openai_problem body_problem;     /* of the last refusal */

/* The parsers with body_limits. */
typedef bool body_parser(const char *body, void *request);
body_parser body_chat, body_completion, body_tokenize, body_template, body_detokenize;

/* The body must be taken; the caller clears the request. */
void body_accept(body_parser *parse, const char *body, void *request);
/* The body must be refused with 400, this param and code, and a message that begins with `message`;
 * the request must be zeros. */
void body_refuse(body_parser *parse, const char *body, const char *param, const char *code,
                 const char *message);
