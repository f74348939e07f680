#include "support/openai_body.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct openai_problem body_problem;
const struct openai_limits body_limits = {.body_size = 1 << 20, .vocabulary = 248077};

static char *with_quotes(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    return copy;
}

bool body_chat(const char *body, void *request)
{
    return openai_chat_parse(body, strlen(body), &body_limits, request, &body_problem);
}

bool body_completion(const char *body, void *request)
{
    return openai_completion_parse(body, strlen(body), &body_limits, request, &body_problem);
}

bool body_tokenize(const char *body, void *request)
{
    return openai_tokenize_parse(body, strlen(body), &body_limits, request, &body_problem);
}

bool body_template(const char *body, void *request)
{
    return openai_template_parse(body, strlen(body), &body_limits, request, &body_problem);
}

bool body_detokenize(const char *body, void *request)
{
    return openai_detokenize_parse(body, strlen(body), &body_limits, request, &body_problem);
}

void body_accept(body_parser *parse, const char *body, void *request)
{
    char *copy = with_quotes(body);
    if (!parse(copy, request))
        fail_msg("%s: %s", copy, body_problem.message);
    free(copy);
}

void body_refuse(body_parser *parse, const char *body, const char *param, const char *code,
                 const char *message)
{
    static const unsigned char zeros[sizeof(struct openai_chat_request)];
    union {
        struct openai_chat_request chat;
        struct openai_completion_request completion;
        struct openai_tokenize_request tokenize;
        struct openai_detokenize_request detokenize;
    } request;
    memset(&request, 0, sizeof request);
    char *copy = with_quotes(body);
    if (parse(copy, &request))
        fail_msg("accepted: %s", copy);
    const struct openai_problem *problem = &body_problem;
    bool right = problem->status == 400 && strcmp(problem->type, "invalid_request_error") == 0 &&
                 strcmp(problem->param, param) == 0 && strcmp(problem->code, code) == 0 &&
                 strncmp(problem->message, message, strlen(message)) == 0;
    if (!right)
        fail_msg("%s: found %d %s '%s' \"%s\", wanted %s '%s' \"%s\"", copy, problem->status,
                 problem->code, problem->param, problem->message, code, param, message);
    assert_memory_equal(&request, zeros, sizeof request);
    free(copy);
}
