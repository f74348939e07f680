/* The reply parser's outside, its events, and reasoning and content (rules 1, 2, 5 and 9 of
 * tests/golden/README.md part 4). How it works: reply_state.h; calls: reply_call.c. */
#include "text/reply.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/json_text.h"
#include "text/reply_state.h"

const char *const reply_tag_text[REPLY_N_TAGS] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
};

/* ---- events ---- */

void reply_send(struct reply_parser *parser, enum reply_event_kind kind, const struct bytes *data)
{
    bool text = kind == REPLY_REASONING || kind == REPLY_CONTENT;
    struct reply_event event = {kind, data && data->data ? data->data : "", data ? data->length : 0,
                                text ? -1 : parser->call - 1};
    parser->sink(parser->context, &event);
}

void reply_flush(struct reply_parser *parser)
{
    parser->failed = parser->failed || parser->out.failed;
    if (parser->out.length > 0 && !parser->failed)
        reply_send(parser, parser->out_kind, &parser->out);
    parser->out.length = 0;
}

/* The buffer for bytes of this kind. */
struct bytes *reply_out(struct reply_parser *parser, enum reply_event_kind kind)
{
    if (parser->out_kind != kind)
        reply_flush(parser);
    parser->out_kind = kind;
    return &parser->out;
}

static void give(struct reply_parser *parser, enum reply_event_kind kind, size_t to)
{
    if (to > parser->base)
        bytes_append(reply_out(parser, kind), parser->held.data + parser->base, to - parser->base);
}

/* ---- reasoning and content (rules 1, 2, 5) ---- */

/* Gives the held bytes up to `to` and, unless NULL, the letters of a tag behind them. There is
 * something visible among them, or they end the reasoning. Goes on reading at `to`. */
void reply_give_text(struct reply_parser *parser, size_t to, const char *tag)
{
    enum reply_event_kind kind = REPLY_CONTENT;
    if (parser->state == REASONING) {
        kind = REPLY_REASONING;
        if (!parser->part_given && parser->reasoning_given)
            bytes_append_byte(reply_out(parser, kind), '\n');
        parser->part_given = parser->reasoning_given = true;
    } else {
        if (parser->lead == LEAD_CALL && parser->visible)
            bytes_append_byte(reply_out(parser, kind), '\n');
        parser->lead = LEAD_TEXT;
        parser->visible = true;
    }
    give(parser, kind, to);
    if (tag)
        bytes_append_text(reply_out(parser, kind), tag);
    parser->base = parser->at = to;
}

/* All that was read is done with. */
void reply_settle(struct reply_parser *parser)
{
    parser->base = parser->at;
}

static void take_reasoning(struct reply_parser *parser, char c)
{
    bool first = parser->at++ == parser->base && !parser->part_given;
    if (first && c == '\n')
        reply_settle(parser);
    else if (c != '\n' && (parser->part_given || !json_text_is_space(c)))
        reply_give_text(parser, parser->at, NULL);
}

/* The reasoning ends before `to`: gives what is held before it but the newlines at its end. */
void reply_close_reasoning(struct reply_parser *parser, size_t to)
{
    while (to > parser->base && parser->held.data[to - 1] == '\n')
        to--;
    size_t at = parser->at;
    if (to > parser->base)
        reply_give_text(parser, to, NULL);
    parser->at = at;
}

static void take_content(struct reply_parser *parser, char c)
{
    bool first = parser->at++ == parser->base;
    if (!json_text_is_space(c))
        reply_give_text(parser, parser->at, NULL);
    else if (parser->lead == LEAD_CALL || (parser->lead == LEAD_START && first && c == '\n'))
        reply_settle(parser);
}

static void begin_reasoning(struct reply_parser *parser)
{
    parser->state = REASONING;
    parser->part_given = false;
    parser->owed = false;
}

void reply_begin_content(struct reply_parser *parser, enum lead lead)
{
    parser->state = CONTENT;
    parser->lead = lead;
}

/* ---- driving ---- */

/* Reads the held bytes before `end`. Each turn takes a byte, or goes back to a state that will. */
static void read_bytes(struct reply_parser *parser, size_t end)
{
    while (parser->at < end) {
        char c = parser->held.data[parser->at];
        switch (parser->state) {
        case REASONING:
            take_reasoning(parser, c);
            break;
        case CONTENT:
            take_content(parser, c);
            break;
        default:
            reply_take_in_call(parser, c);
        }
    }
}

static void take_tag_in_reasoning(struct reply_parser *parser, enum reply_tag tag)
{
    if (tag == REPLY_THINK_CLOSE) {
        reply_close_reasoning(parser, parser->at);
        reply_settle(parser);
        reply_begin_content(parser, LEAD_START);
    } else if (tag == REPLY_THINK_OPEN && !parser->part_given) {
        reply_settle(parser);
    } else if (tag == REPLY_TOOL_CALL_OPEN && parser->tools) {
        reply_begin_head(parser, REASONING);
    } else {
        reply_give_text(parser, parser->at, reply_tag_text[tag]);
    }
}

static void take_tag_in_content(struct reply_parser *parser, enum reply_tag tag)
{
    if (tag == REPLY_TOOL_CALL_OPEN && parser->tools) {
        reply_begin_head(parser, CONTENT);
    } else if (tag == REPLY_THINK_CLOSE && (parser->owed || !parser->visible)) {
        parser->owed = false;
        if (!parser->visible)
            reply_settle(parser); /* white space only counts as no content */
    } else if (tag == REPLY_THINK_OPEN && !parser->visible) {
        reply_settle(parser);
        begin_reasoning(parser);
    } else {
        reply_give_text(parser, parser->at, reply_tag_text[tag]);
    }
}

/* False: the state has changed, and what is held must be read before the tag is offered again. */
static bool take_tag(struct reply_parser *parser, enum reply_tag tag)
{
    if (parser->state == REASONING)
        take_tag_in_reasoning(parser, tag);
    else if (parser->state == CONTENT)
        take_tag_in_content(parser, tag);
    else
        return reply_take_tag_in_call(parser, tag);
    return true;
}

/* The end of a push: gives what is settled and drops it from `held`. */
static void end_push(struct reply_parser *parser)
{
    parser->failed = parser->failed || parser->held.failed || parser->function.failed ||
                     parser->reader.name.failed || parser->value.text.failed;
    reply_flush(parser);
    if (parser->base == 0)
        return;
    parser->held.length -= parser->base;
    memmove(parser->held.data, parser->held.data + parser->base, parser->held.length);
    parser->at -= parser->base;
    parser->mark = parser->mark > parser->base ? parser->mark - parser->base : 0;
    parser->base = 0;
}

/* How many bytes at the end may be the beginning of a code point. */
static size_t count_incomplete(const char *text, size_t length)
{
    for (size_t n = 1; n <= 3 && n <= length; n++) {
        size_t size;
        if (utf8_examine(text + length - n, n, &size) == UTF8_OPEN)
            return n;
    }
    return 0;
}

struct reply_parser *reply_new(bool thinking, const json_t *tools, reply_sink *sink, void *context)
{
    struct reply_parser *parser = calloc(1, sizeof *parser);
    json_t *given = json_object();
    if (!parser || !given) {
        free(parser);
        json_decref(given);
        return NULL;
    }
    parser->sink = sink;
    parser->context = context;
    parser->tools = json_array_size(tools) > 0 ? tools : NULL;
    parser->given = given;
    if (thinking)
        begin_reasoning(parser);
    else
        reply_begin_content(parser, LEAD_START);
    return parser;
}

void reply_push_text(struct reply_parser *parser, const char *text, size_t length)
{
    if (parser->failed || length == 0)
        return;
    bytes_append(&parser->held, text, length);
    size_t unread = parser->held.length - parser->at;
    if (!parser->held.failed)
        read_bytes(parser,
                   parser->held.length - count_incomplete(parser->held.data + parser->at, unread));
    end_push(parser);
}

void reply_push_tag(struct reply_parser *parser, enum reply_tag tag)
{
    if (parser->failed)
        return;
    do
        read_bytes(parser, parser->held.length);
    while (!take_tag(parser, tag));
    end_push(parser);
}

enum status reply_finish(struct reply_parser *parser, enum reply_end end, enum reply_finish *finish,
                         struct error *error)
{
    read_bytes(parser, parser->held.length);
    bool head = parser->state == HEAD || parser->state == HEAD_NEXT;
    if (head && (end == REPLY_END_STOP || parser->origin == REASONING)) {
        reply_fail_head(parser);
        read_bytes(parser, parser->held.length);
    }
    switch (parser->state) {
    case REASONING:
        reply_close_reasoning(parser, parser->at);
        break;
    case CONTENT:
        if (parser->lead == LEAD_TEXT)
            reply_give_text(parser, parser->at, NULL);
        break;
    case HEAD: /* cut by the limit: dropped */
    case HEAD_NEXT:
        break;
    default:
        reply_finish_value(parser, end);
    }
    end_push(parser);
    if (parser->failed)
        return error_no_memory(error, "the reply");
    if (end == REPLY_END_LENGTH)
        *finish = REPLY_FINISH_LENGTH;
    else
        *finish = parser->calls_ended > 0 ? REPLY_FINISH_TOOL_CALLS : REPLY_FINISH_STOP;
    return STATUS_OK;
}

void reply_free(struct reply_parser *parser)
{
    if (!parser)
        return;
    json_decref(parser->given);
    bytes_clear(&parser->held);
    bytes_clear(&parser->function);
    bytes_clear(&parser->out);
    reader_clear(&parser->reader);
    reply_value_clear(&parser->value);
    free(parser);
}
