/* What is wrong with a request, in the form of OpenAI's error object: an HTTP status, and the four
 * fields of `{"error": {…}}`. Made where the facts are known, printed by the HTTP side before the
 * first byte of an answer or as an event of a stream that began. No ownership: texts are copied,
 * `type` and `code` are literals. */
#pragma once

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/error.h"

struct openai_problem {
    int status;        /* HTTP */
    const char *type;  /* "invalid_request_error", "server_error" … */
    const char *code;  /* "invalid_value" …; NULL: null */
    char param[160];   /* the field, as "messages[1].content"; "": null */
    char message[600]; /* one line of UTF-8, not empty */
};

/* Fills `problem`; param may be NULL. All of these return false, for `return openai_…`. */
__attribute__((format(printf, 6, 7))) bool openai_problem_set(struct openai_problem *problem,
                                                              int status, const char *type,
                                                              const char *code, const char *param,
                                                              const char *format, ...);
/* 400 with code invalid_value; the format gives the whole message. */
__attribute__((format(printf, 3, 4))) bool
openai_invalid(struct openai_problem *problem, const char *param, const char *format, ...);
/* 400 with code invalid_value: "PARAM: found 7, wanted …"; `found` may be NULL (nothing). */
__attribute__((format(printf, 4, 5))) bool openai_refuse(struct openai_problem *problem,
                                                         const char *param, const json_t *found,
                                                         const char *wanted, ...);
/* 400 with code unsupported_value: "PARAM: …". */
bool openai_unsupported(struct openai_problem *problem, const char *param, const char *why);

/* An error of the layers below. STATUS_INVALID is 400 invalid_value, STATUS_UNSUPPORTED 400
 * unsupported_value, STATUS_CONTEXT 400 context_length_exceeded, all others 500. `param` (may be
 * NULL) is the field at hand; where the message names a part of it ("messages[2].content: …" for
 * "messages"), that is the param. */
bool openai_problem_from(struct openai_problem *problem, const struct error *error,
                         const char *param);

/* Appends {"error":{"message":…,"type":…,"param":…,"code":…}}: the body of an error response and
 * the data of an error event. */
void openai_problem_print(const struct openai_problem *problem, struct bytes *out);
