/* A sink between the reply parser and a struct reply_result that checks what every consumer relies
 * on: the order of events, the numbering of calls, whole code points, arguments that parse. */
#pragma once

#include <stdbool.h>

#include "text/reply_collect.h"

struct reply_check {
    struct reply_result result;
    const char *problem; /* the first thing found wrong; NULL when all is well */
    int n_calls;         /* begun */
    bool open;           /* a call without its end */
    int n_events;
};

void reply_check_event(void *context, const struct reply_event *event);
/* Parses like reply_parse, through the checks; `check` must be zeros. */
enum status reply_check_parse(struct reply_check *check, bool thinking, const json_t *tools,
                              const char *output, size_t length, size_t split, enum reply_end end,
                              enum reply_finish *finish);
/* Whether two results have the same texts, names and argument bytes. */
bool reply_result_equal(const struct reply_result *a, const struct reply_result *b);
