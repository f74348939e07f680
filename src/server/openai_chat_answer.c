/* Answers to chat completions, whole and in chunks. */
#include <string.h>

#include "base/json.h"
#include "server/openai_answer_parts.h"
#include "server/openai_print.h"

/* ,"logprobs":{"content":[…],"refusal":null} */
static void print_logprobs(const struct bytes *entries, struct bytes *out)
{
    if (!entries) {
        bytes_append_text(out, ",\"logprobs\":null");
        return;
    }
    bytes_append_text(out, ",\"logprobs\":{\"content\":[");
    bytes_append(out, entries->data, entries->length);
    bytes_append_text(out, "],\"refusal\":null}");
    out->failed |= entries->failed;
}

static void print_bytes(const struct bytes *text, struct bytes *out)
{
    json_print_string(text->data ? text->data : "", text->length, out);
    out->failed |= text->failed;
}

/* "id":"call_…","type":"function","function":{"name":"f","arguments": */
static void print_call_head(const struct openai_answer *answer, int choice, int call,
                            const char *name, size_t length, struct bytes *out)
{
    char id[OPENAI_ID_SIZE];
    openai_id("call_", answer->nonce, choice, call, id);
    bytes_append_text(out, "\"id\":\"");
    bytes_append_text(out, id);
    bytes_append_text(out, "\",\"type\":\"function\",\"function\":{\"name\":");
    json_print_string(name, length, out);
    bytes_append_text(out, ",\"arguments\":");
}

static void print_message(const struct openai_answer *answer, int choice,
                          const struct reply_result *reply, struct bytes *out)
{
    bytes_append_text(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (reply->content.length == 0 && reply->n_calls > 0)
        bytes_append_text(out, "null");
    else
        print_bytes(&reply->content, out);
    bytes_append_text(out, ",\"refusal\":null");
    if (reply->reasoning.length > 0) {
        bytes_append_text(out, ",\"reasoning_content\":");
        print_bytes(&reply->reasoning, out);
    }
    if (reply->reasoning.length > 0 && answer->both_reasoning) {
        bytes_append_text(out, ",\"reasoning\":");
        print_bytes(&reply->reasoning, out);
    }
    if (reply->n_calls > 0)
        bytes_append_text(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < reply->n_calls; i++) {
        const struct reply_call *call = &reply->calls[i];
        bytes_append_text(out, i > 0 ? ",{" : "{");
        print_call_head(answer, choice, (int)i, call->name.data, call->name.length, out);
        print_bytes(&call->arguments, out);
        bytes_append_text(out, "}}");
    }
    bytes_append_text(out, reply->n_calls > 0 ? "]}" : "}");
    out->failed |= reply->failed;
}

void openai_chat_print(const struct openai_answer *answer, const struct openai_chat_choice *choices,
                       int n, const struct openai_usage *usage,
                       const struct openai_timings *timings, struct bytes *out)
{
    answer_begin(answer, out);
    for (int i = 0; i < n; i++) {
        if (i > 0)
            bytes_append_byte(out, ',');
        answer_choice(i, out);
        print_message(answer, i, choices[i].reply, out);
        print_logprobs(choices[i].logprobs, out);
        answer_finish_reason(&choices[i].finish, out);
    }
    answer_end(answer, usage, timings, out);
}

static void delta_begin(const struct openai_answer *answer, int choice, struct bytes *out)
{
    answer_begin(answer, out);
    answer_choice(choice, out);
    bytes_append_text(out, ",\"delta\":{");
}

static void delta_end(const struct openai_answer *answer, const struct bytes *logprobs,
                      struct bytes *out)
{
    bytes_append_byte(out, '}');
    print_logprobs(logprobs, out);
    answer_finish_reason(NULL, out);
    answer_end(answer, NULL, NULL, out);
}

void openai_chunk_role(const struct openai_answer *answer, int choice, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_text(out, "\"role\":\"assistant\",\"content\":\"\"");
    delta_end(answer, NULL, out);
}

void openai_chunk_reasoning(const struct openai_answer *answer, int choice, const char *text,
                            size_t length, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_text(out, "\"reasoning_content\":");
    json_print_string(text, length, out);
    if (answer->both_reasoning) {
        bytes_append_text(out, ",\"reasoning\":");
        json_print_string(text, length, out);
    }
    delta_end(answer, NULL, out);
}

void openai_chunk_content(const struct openai_answer *answer, int choice, const char *text,
                          size_t length, const struct bytes *logprobs, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_text(out, "\"content\":");
    json_print_string(text, length, out);
    delta_end(answer, logprobs, out);
}

void openai_chunk_call(const struct openai_answer *answer, int choice, int call, const char *name,
                       size_t length, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_text(out, "\"tool_calls\":[{\"index\":");
    print_integer(call, out);
    bytes_append_byte(out, ',');
    print_call_head(answer, choice, call, name, length, out);
    bytes_append_text(out, "\"\"}}]");
    delta_end(answer, NULL, out);
}

void openai_chunk_arguments(const struct openai_answer *answer, int choice, int call,
                            const char *piece, size_t length, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_text(out, "\"tool_calls\":[{\"index\":");
    print_integer(call, out);
    bytes_append_text(out, ",\"function\":{\"arguments\":");
    json_print_string(piece, length, out);
    bytes_append_text(out, "}}]");
    delta_end(answer, NULL, out);
}

bool openai_chunk_event(const struct openai_answer *answer, int choice,
                        const struct reply_event *event, struct bytes *out)
{
    switch (event->kind) {
    case REPLY_REASONING:
        openai_chunk_reasoning(answer, choice, event->data, event->length, out);
        return true;
    case REPLY_CONTENT:
        openai_chunk_content(answer, choice, event->data, event->length, NULL, out);
        return true;
    case REPLY_CALL_BEGIN:
        openai_chunk_call(answer, choice, event->call, event->data, event->length, out);
        return true;
    case REPLY_ARGUMENTS:
        openai_chunk_arguments(answer, choice, event->call, event->data, event->length, out);
        return true;
    case REPLY_CALL_END:
        break;
    }
    return false;
}

void openai_chunk_finish(const struct openai_answer *answer, int choice, enum reply_finish finish,
                         const struct openai_timings *timings, struct bytes *out)
{
    delta_begin(answer, choice, out);
    bytes_append_byte(out, '}');
    print_logprobs(NULL, out);
    answer_finish_reason(&finish, out);
    answer_end(answer, NULL, timings, out);
}
