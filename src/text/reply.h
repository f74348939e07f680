/* The model's output taken apart while it streams: reasoning, content and tool calls (spec 8.8 and
 * the binding rules in tests/golden/README.md part 4). Incremental: nothing given out is ever taken
 * back, and every split of the same output gives the same joined events.
 *
 * In live output a tag is a token id; the same letters made of ordinary tokens are text. So tags
 * and text come in through separate functions. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"

enum reply_tag {
    REPLY_THINK_OPEN,      /* <think> */
    REPLY_THINK_CLOSE,     /* </think> */
    REPLY_TOOL_CALL_OPEN,  /* <tool_call> */
    REPLY_TOOL_CALL_CLOSE, /* </tool_call> */
    REPLY_N_TAGS,
};
extern const char *const reply_tag_text[REPLY_N_TAGS];

/* Events come in the order of the text they stand for. Calls are numbered from 0 and never overlap.
 * A call is valid when its REPLY_CALL_END has come: its joined arguments are then one JSON object,
 * in which a repeated key counts by its last value. A call that the token limit cuts gets no
 * REPLY_CALL_END and its JSON stays unclosed; it is always the last one, and consumers drop it. */
enum reply_event_kind {
    REPLY_REASONING,  /* data: text */
    REPLY_CONTENT,    /* data: text */
    REPLY_CALL_BEGIN, /* data: the function's name */
    REPLY_ARGUMENTS,  /* data: bytes of the arguments' JSON object */
    REPLY_CALL_END,   /* no data */
};

struct reply_event {
    enum reply_event_kind kind;
    const char *data; /* UTF-8, valid during the call only; a code point is never split */
    size_t length;
    int call; /* index of the call from 0; -1 for text */
};
/* Must not call back into the parser. */
typedef void reply_sink(void *context, const struct reply_event *event);

/* How generation ended: by a stop token, or at the token limit. */
enum reply_end { REPLY_END_STOP, REPLY_END_LENGTH };
enum reply_finish { REPLY_FINISH_STOP, REPLY_FINISH_LENGTH, REPLY_FINISH_TOOL_CALLS };

struct reply_parser;

/* `thinking`: the prompt ended inside <think>. `tools`: OpenAI's list, borrowed for the parser's
 * life; NULL or empty turns tool tags into text. NULL when out of memory. */
struct reply_parser *reply_new(bool thinking, const json_t *tools, reply_sink *sink, void *context);
/* `text` may end inside a code point. After a failed allocation a push does nothing. */
void reply_push_text(struct reply_parser *parser, const char *text, size_t length);
void reply_push_tag(struct reply_parser *parser, enum reply_tag tag);
/* Completes or drops what is open; nothing may be pushed afterwards. STATUS_NO_MEMORY when this or
 * an earlier push ran out of memory. */
enum status reply_finish(struct reply_parser *parser, enum reply_end end, enum reply_finish *finish,
                         struct error *error);
void reply_free(struct reply_parser *parser);
