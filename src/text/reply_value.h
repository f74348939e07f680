/* The value of one argument of a tool call, from the model's text to JSON (rules 6, 8 and 10 of
 * tests/golden/README.md part 4): one newline off each end, then typed by the property's schema.
 * A string is written while it grows, any other type when it is complete. The reply parser is the
 * only caller. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

struct reply_value {
    unsigned types;    /* what the schema lets the value be, a set */
    bool front;        /* nothing came yet: one newline may still be dropped */
    bool newline;      /* a newline is held: it is dropped if the value ends here */
    bool line_start;   /* the last byte pushed was a newline */
    bool opened;       /* a string whose opening quote is written */
    struct bytes text; /* what is held: a string that may become null, or all of another type */
};

/* `schema`: the property's, NULL when it is not declared. */
void reply_value_begin(struct reply_value *value, const json_t *schema);
/* Appends to `json` what is settled. Memory failure shows in value->text.failed and json->failed.
 */
void reply_value_push(struct reply_value *value, const char *text, size_t length,
                      struct bytes *json);
void reply_value_end(struct reply_value *value, struct bytes *json);
void reply_value_clear(struct reply_value *value);
