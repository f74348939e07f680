/* The part of the reply parser that reads tool calls: heads, values and what ends them (rules 3, 4,
 * 6 and 7 of tests/golden/README.md part 4). */
#include "text/reply_state.h"

#include <string.h>

#include "base/json.h"

static struct bytes *json_of(struct reply_parser *parser)
{
    return reply_out(parser, REPLY_ARGUMENTS);
}

/* ---- calls (rules 3, 4, 7) ---- */

void reply_begin_head(struct reply_parser *parser, enum state origin)
{
    parser->state = HEAD;
    parser->origin = origin;
    parser->mark = parser->at;
    reader_begin(&parser->reader, 1u << READER_FUNCTION, true);
}

void reply_fail_head(struct reply_parser *parser)
{
    if (parser->origin == HEAD) { /* there was no tag; white space after a call is dropped */
        reply_begin_content(parser, LEAD_CALL);
        parser->at = parser->mark;
        return;
    }
    parser->state = parser->origin;
    reply_give_text(parser, parser->mark, reply_tag_text[REPLY_TOOL_CALL_OPEN]);
}

/* The tool called `name`, NULL when there is none. */
static const json_t *find_function(const struct reply_parser *parser, const struct bytes *name)
{
    for (size_t i = 0; i < json_array_size(parser->tools); i++) {
        const json_t *function = json_object_get(json_array_get(parser->tools, i), "function");
        const json_t *found = json_object_get(function, "name");
        if (json_is_string(found) && json_string_length(found) == name->length &&
            memcmp(json_string_value(found), name->data, name->length) == 0)
            return function;
    }
    return NULL;
}

static void begin_call(struct reply_parser *parser)
{
    if (parser->origin == REASONING) {
        parser->state = REASONING;
        reply_close_reasoning(parser, parser->mark);
        parser->owed = true;
    }
    reply_settle(parser);
    reply_flush(parser);
    const json_t *function = find_function(parser, &parser->function);
    parser->properties = json_object_get(json_object_get(function, "parameters"), "properties");
    parser->first_parameter = true;
    json_object_clear(parser->given);
    parser->call++;
    if (!parser->failed)
        reply_send(parser, REPLY_CALL_BEGIN, &parser->function);
    bytes_append_byte(json_of(parser), '{');
}

static void end_call(struct reply_parser *parser)
{
    bytes_append_byte(json_of(parser), '}');
    reply_flush(parser);
    parser->calls_ended++;
    if (!parser->failed)
        reply_send(parser, REPLY_CALL_END, NULL);
}

/* </tool_call>, or something that stands for it: the block is over. */
static void end_block(struct reply_parser *parser)
{
    end_call(parser);
    reply_begin_content(parser, LEAD_CALL);
}

/* </function>: white space, </tool_call> or another head may come (rule 7). */
static void end_function(struct reply_parser *parser)
{
    end_call(parser);
    reply_begin_head(parser, HEAD);
}

/* The schema of the parameter called reader.name; NULL when it is not declared. */
static const json_t *find_parameter(struct reply_parser *parser)
{
    struct bytes *key = &parser->reader.name;
    const char *text = bytes_terminate(key);
    return text && strlen(text) == key->length ? json_object_get(parser->properties, text) : NULL;
}

/* <parameter=KEY> was read. */
static void begin_value(struct reply_parser *parser)
{
    struct bytes *json = json_of(parser), *key = &parser->reader.name;
    const json_t *schema = find_parameter(parser);
    if (schema && json_object_set_new_nocheck(parser->given, key->data, json_true()) != 0)
        parser->failed = true;
    bytes_append_text(json, parser->first_parameter ? "" : ", ");
    parser->first_parameter = false;
    json_print_string(key->data, key->length, json);
    bytes_append_text(json, ": ");
    reply_value_begin(&parser->value, schema);
    parser->state = VALUE;
    reply_settle(parser);
}

static void take_head(struct reply_parser *parser, char c)
{
    enum reader_result result = reader_take(&parser->reader, c);
    bool known = true;
    if (result == READER_DONE && parser->origin == REASONING) /* rule 4 */
        known = find_function(parser, &parser->reader.name) != NULL;
    if (result == READER_FAILED || !known) {
        reply_fail_head(parser);
        return;
    }
    parser->at++;
    if (result == READER_MORE)
        return;
    struct bytes name = parser->function;
    parser->function = parser->reader.name;
    parser->reader.name = name;
    parser->state = HEAD_NEXT;
    reader_begin(&parser->reader,
                 1u << READER_PARAMETER | 1u << READER_FUNCTION_CLOSE | 1u << READER_CALL_CLOSE,
                 true);
}

static void take_head_next(struct reply_parser *parser, char c)
{
    enum reader_result result = reader_take(&parser->reader, c);
    if (result == READER_FAILED) {
        reply_fail_head(parser);
        return;
    }
    parser->at++;
    if (result == READER_MORE)
        return;
    begin_call(parser);
    if (parser->reader.tag == READER_PARAMETER)
        begin_value(parser);
    else
        end_function(parser);
}

/* ---- values (rule 6) ---- */

/* What is held before `to` belongs to the value; goes on reading at `to`. */
static void give_value(struct reply_parser *parser, size_t to)
{
    reply_value_push(&parser->value, parser->held.data + parser->base, to - parser->base,
                     json_of(parser));
    parser->state = VALUE;
    parser->base = parser->at = to;
}

static void end_value(struct reply_parser *parser)
{
    reply_value_end(&parser->value, json_of(parser));
}

/* A closing tag was read; `tags`: those that confirm it. */
static void begin_follow(struct reply_parser *parser, enum reader_tag closing, unsigned tags)
{
    parser->state = VALUE_FOLLOW;
    parser->closing = closing;
    parser->mark = parser->at;
    reader_begin(&parser->reader, tags, true);
}

/* It is not confirmed: it belongs to the value, and reading goes on behind it. */
static void fail_follow(struct reply_parser *parser)
{
    if (parser->closing == READER_CALL_CLOSE) { /* a tag: it is not among the bytes */
        const char *letters = reply_tag_text[REPLY_TOOL_CALL_CLOSE];
        reply_value_push(&parser->value, letters, strlen(letters), json_of(parser));
    }
    give_value(parser, parser->mark);
}

static void take_value(struct reply_parser *parser, char c)
{
    if (c != '<') {
        give_value(parser, parser->at + 1);
        return;
    }
    unsigned tags = 1u << READER_PARAMETER_CLOSE | 1u << READER_FUNCTION_CLOSE;
    if (parser->value.line_start)
        tags |= 1u << READER_PARAMETER;
    parser->state = VALUE_TAG;
    reader_begin(&parser->reader, tags, false);
}

static void take_value_tag(struct reply_parser *parser, char c)
{
    enum reader_result result = reader_take(&parser->reader, c);
    if (result == READER_FAILED) { /* no other `<` is among the bytes, so all of them are text */
        give_value(parser, parser->at);
        return;
    }
    parser->at++;
    if (result == READER_MORE)
        return;
    switch (parser->reader.tag) {
    case READER_PARAMETER_CLOSE:
        begin_follow(parser, READER_PARAMETER_CLOSE,
                     1u << READER_PARAMETER | 1u << READER_FUNCTION_CLOSE |
                         1u << READER_CALL_CLOSE);
        return;
    case READER_FUNCTION_CLOSE:
        begin_follow(parser, READER_FUNCTION_CLOSE, 1u << READER_CALL_CLOSE);
        return;
    default:
        if (find_parameter(parser) && !json_object_get(parser->given, parser->reader.name.data))
            parser->state = VALUE_NEWLINE;
        else
            give_value(parser, parser->at);
    }
}

static void take_value_newline(struct reply_parser *parser, char c)
{
    if (c != '\n') {
        give_value(parser, parser->at);
        return;
    }
    end_value(parser);
    begin_value(parser); /* the newline is read again, as the first of the new value */
}

static void take_value_follow(struct reply_parser *parser, char c)
{
    enum reader_result result = reader_take(&parser->reader, c);
    if (result == READER_FAILED) {
        fail_follow(parser);
        return;
    }
    parser->at++;
    if (result == READER_MORE)
        return;
    end_value(parser);
    if (parser->reader.tag == READER_PARAMETER) {
        begin_value(parser);
    } else {
        reply_settle(parser);
        end_function(parser);
    }
}

/* The tag that a VALUE_FOLLOW waits for; only white space may have come between. */
static bool take_tag_in_follow(struct reply_parser *parser, enum reply_tag tag)
{
    bool opens = parser->closing == READER_CALL_CLOSE;
    if (parser->reader.phase != READER_SPACE ||
        tag != (opens ? REPLY_TOOL_CALL_OPEN : REPLY_TOOL_CALL_CLOSE)) {
        fail_follow(parser);
        return false;
    }
    end_value(parser);
    reply_settle(parser);
    end_block(parser);
    return !opens; /* <tool_call> begins the next block */
}

void reply_take_in_call(struct reply_parser *parser, char c)
{
    switch (parser->state) {
    case HEAD:
        take_head(parser, c);
        break;
    case HEAD_NEXT:
        take_head_next(parser, c);
        break;
    case VALUE:
        take_value(parser, c);
        break;
    case VALUE_TAG:
        take_value_tag(parser, c);
        break;
    case VALUE_NEWLINE:
        take_value_newline(parser, c);
        break;
    default:
        take_value_follow(parser, c);
    }
}

static void take_tag_in_value(struct reply_parser *parser, enum reply_tag tag)
{
    if (tag == REPLY_TOOL_CALL_CLOSE)
        begin_follow(parser, READER_CALL_CLOSE, 1u << READER_CALL);
    else
        reply_value_push(&parser->value, reply_tag_text[tag], strlen(reply_tag_text[tag]),
                         json_of(parser));
}

bool reply_take_tag_in_call(struct reply_parser *parser, enum reply_tag tag)
{
    bool closes = tag == REPLY_TOOL_CALL_CLOSE && parser->reader.phase == READER_SPACE;
    switch (parser->state) {
    case HEAD:
        if (!closes || parser->origin != HEAD)
            break;
        reply_settle(parser);
        reply_begin_content(parser, LEAD_CALL);
        return true;
    case HEAD_NEXT:
        if (!closes)
            break;
        begin_call(parser);
        end_block(parser);
        return true;
    case VALUE:
        take_tag_in_value(parser, tag);
        return true;
    case VALUE_FOLLOW:
        return take_tag_in_follow(parser, tag);
    default: /* VALUE_TAG, VALUE_NEWLINE */
        give_value(parser, parser->at);
        return false;
    }
    reply_fail_head(parser);
    return false;
}

void reply_finish_value(struct reply_parser *parser, enum reply_end end)
{
    bool complete = end == REPLY_END_STOP;
    if (parser->state == VALUE_FOLLOW)
        complete = complete || parser->closing != READER_PARAMETER_CLOSE;
    else
        give_value(parser, parser->at);
    if (!complete)
        return;
    end_value(parser);
    end_call(parser);
}
