/* Reply events gathered into the whole answer, for whoever does not stream; and the parser run over
 * recorded output. Used by the library, the CLI and tests. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"
#include "text/reply.h"

/* Starts as zeros. The calls counted are complete; one that was cut is not among them. */
struct reply_result {
    struct bytes reasoning, content;
    struct reply_call {
        struct bytes name;
        struct bytes arguments; /* the JSON object as it was streamed: a repeated key is in it twice
                                   (json_text_print_unique resolves that) */
    } * calls;
    size_t n_calls;
    size_t capacity; /* of calls; those from n_calls on are zeros or a call that is not complete */
    bool failed;     /* out of memory */
};

/* A reply_sink; `context` is the struct reply_result. */
void reply_collect(void *context, const struct reply_event *event);
void reply_result_clear(struct reply_result *result);

/* Pushes recorded output, in which the letters of the four tags stand for the tags; the text
 * between them goes in pieces of `split` bytes, 0: as a whole. */
void reply_push_output(struct reply_parser *parser, const char *output, size_t length,
                       size_t split);
/* All of it: recorded output to the result, which must be empty. Errors: STATUS_NO_MEMORY. */
enum status reply_parse(bool thinking, const json_t *tools, const char *output, size_t length,
                        size_t split, enum reply_end end, struct reply_result *result,
                        enum reply_finish *finish, struct error *error);
