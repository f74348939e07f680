#include "text/reply_collect.h"

#include <stdlib.h>
#include <string.h>

/* The call with this index, with room made for it; NULL when out of memory. */
static struct reply_call *call_at(struct reply_result *result, size_t index)
{
    if (index >= result->capacity) {
        size_t capacity = result->capacity ? result->capacity * 2 : 4;
        struct reply_call *calls = realloc(result->calls, capacity * sizeof *calls);
        if (!calls) {
            result->failed = true;
            return NULL;
        }
        memset(calls + result->capacity, 0, (capacity - result->capacity) * sizeof *calls);
        result->calls = calls;
        result->capacity = capacity;
    }
    return &result->calls[index];
}

void reply_collect(void *context, const struct reply_event *event)
{
    struct reply_result *result = context;
    struct reply_call *call = event->call >= 0 ? call_at(result, (size_t)event->call) : NULL;
    struct bytes *target = NULL;
    switch (event->kind) {
    case REPLY_REASONING:
        target = &result->reasoning;
        break;
    case REPLY_CONTENT:
        target = &result->content;
        break;
    case REPLY_CALL_BEGIN:
        target = call ? &call->name : NULL;
        break;
    case REPLY_ARGUMENTS:
        target = call ? &call->arguments : NULL;
        break;
    case REPLY_CALL_END:
        result->n_calls++;
        break;
    }
    if (!target || result->failed)
        return;
    bytes_append(target, event->data, event->length);
    result->failed = target->failed;
}

void reply_result_clear(struct reply_result *result)
{
    bytes_clear(&result->reasoning);
    bytes_clear(&result->content);
    for (size_t i = 0; i < result->capacity; i++) {
        bytes_clear(&result->calls[i].name);
        bytes_clear(&result->calls[i].arguments);
    }
    free(result->calls);
    *result = (struct reply_result){0};
}

/* The tag that begins at `text`, REPLY_N_TAGS when there is none. */
static enum reply_tag tag_at(const char *text, size_t length)
{
    int tag = 0;
    for (; tag < REPLY_N_TAGS; tag++) {
        size_t n = strlen(reply_tag_text[tag]);
        if (n <= length && memcmp(text, reply_tag_text[tag], n) == 0)
            break;
    }
    return (enum reply_tag)tag;
}

void reply_push_output(struct reply_parser *parser, const char *output, size_t length, size_t split)
{
    size_t from = 0; /* of the text that is not pushed yet */
    for (size_t at = 0; at <= length; at++) {
        bool end = at == length;
        if (!end && output[at] != '<')
            continue;
        enum reply_tag tag = end ? REPLY_N_TAGS : tag_at(output + at, length - at);
        if (!end && tag == REPLY_N_TAGS)
            continue;
        while (from < at) {
            size_t n = split > 0 && split < at - from ? split : at - from;
            reply_push_text(parser, output + from, n);
            from += n;
        }
        if (end)
            return;
        reply_push_tag(parser, tag);
        from = at + strlen(reply_tag_text[tag]);
        at = from - 1; /* the loop steps on */
    }
}

enum status reply_parse(bool thinking, const json_t *tools, const char *output, size_t length,
                        size_t split, enum reply_end end, struct reply_result *result,
                        enum reply_finish *finish, struct error *error)
{
    struct reply_parser *parser = reply_new(thinking, tools, reply_collect, result);
    if (!parser)
        return error_no_memory(error, "the reply parser");
    reply_push_output(parser, output, length, split);
    enum status status = reply_finish(parser, end, finish, error);
    reply_free(parser);
    if (status == STATUS_OK && result->failed)
        status = error_no_memory(error, "the reply");
    return status;
}
