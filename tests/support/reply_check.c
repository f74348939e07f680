#include "support/reply_check.h"

#include <string.h>

static bool is_utf8(const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    json_decref(string);
    return string != NULL;
}

/* Numbers and keys that jansson cannot hold are fine JSON, so they are no problem here. */
static bool is_object(const struct bytes *text)
{
    json_error_t problem;
    json_t *value = json_loadb(text->data ? text->data : "", text->length,
                               JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &problem);
    bool ok = value ? json_is_object(value)
                    : json_error_code(&problem) == json_error_numeric_overflow ||
                          json_error_code(&problem) == json_error_null_byte_in_key;
    json_decref(value);
    return ok;
}

static const char *problem_of(struct reply_check *check, const struct reply_event *event)
{
    bool text = event->kind == REPLY_REASONING || event->kind == REPLY_CONTENT;
    if (!is_utf8(event->data, event->length))
        return "an event that is not whole code points";
    if (text && (event->call != -1 || check->open))
        return "text inside a call";
    if (event->kind != REPLY_CALL_END && event->length == 0)
        return "an empty event";
    if (text)
        return NULL;
    if ((event->kind == REPLY_CALL_BEGIN) == check->open)
        return check->open ? "a call begun inside a call" : "part of a call that has not begun";
    if (event->call != check->n_calls - (event->kind == REPLY_CALL_BEGIN ? 0 : 1))
        return "a call with the wrong number";
    if (event->kind == REPLY_CALL_BEGIN) {
        check->open = true;
        check->n_calls++;
    }
    if (event->kind != REPLY_CALL_END)
        return NULL;
    check->open = false;
    const struct reply_result *result = &check->result;
    return is_object(&result->calls[event->call].arguments) ? NULL : "arguments that do not parse";
}

void reply_check_event(void *context, const struct reply_event *event)
{
    struct reply_check *check = context;
    const char *problem = problem_of(check, event);
    check->n_events++;
    if (!check->problem)
        check->problem = problem;
    reply_collect(&check->result, event);
}

enum status reply_check_parse(struct reply_check *check, bool thinking, const json_t *tools,
                              const char *output, size_t length, size_t split, enum reply_end end,
                              enum reply_finish *finish)
{
    struct reply_parser *parser = reply_new(thinking, tools, reply_check_event, check);
    if (!parser)
        return STATUS_NO_MEMORY;
    reply_push_output(parser, output, length, split);
    enum status status = reply_finish(parser, end, finish, NULL);
    reply_free(parser);
    if (!check->problem && check->open && end == REPLY_END_STOP)
        check->problem = "a call left open";
    if (!check->problem && (int)check->result.n_calls != check->n_calls - check->open)
        check->problem = "another number of calls than events say";
    return status;
}

static bool equal(const struct bytes *a, const struct bytes *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0);
}

bool reply_result_equal(const struct reply_result *a, const struct reply_result *b)
{
    if (!equal(&a->reasoning, &b->reasoning) || !equal(&a->content, &b->content) ||
        a->n_calls != b->n_calls)
        return false;
    for (size_t i = 0; i < a->n_calls; i++)
        if (!equal(&a->calls[i].name, &b->calls[i].name) ||
            !equal(&a->calls[i].arguments, &b->calls[i].arguments))
            return false;
    return true;
}
