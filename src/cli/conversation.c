#include "cli/conversation.h"

#include <string.h>

#include "base/json.h"

static bool has_role(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));
    return found && strcmp(found, role) == 0;
}

static json_t *last(const struct conversation *conversation)
{
    size_t n = json_array_size(conversation->messages);
    return n > 0 ? json_array_get(conversation->messages, n - 1) : NULL;
}

static size_t first_index(const struct conversation *conversation)
{
    return has_role(json_array_get(conversation->messages, 0), "system") ? 1 : 0;
}

enum status conversation_init(struct conversation *conversation, struct error *error)
{
    *conversation = (struct conversation){.messages = json_array()};
    return conversation->messages ? STATUS_OK : error_no_memory(error, "the conversation");
}

void conversation_clear(struct conversation *conversation)
{
    json_decref(conversation->messages);
    json_decref(conversation->tools);
    *conversation = (struct conversation){.messages = NULL};
}

size_t conversation_length(const struct conversation *conversation)
{
    return json_array_size(conversation->messages) - first_index(conversation);
}

/* ---- growing --------------------------------------------------------------------------------- */

/* {"role": role, "content": text}, NULL when out of memory. */
static json_t *new_message(const char *role, const char *text, size_t length)
{
    json_t *message = json_object();
    if (message && json_object_set_new(message, "role", json_string(role)) == 0 &&
        json_object_set_new(message, "content", json_stringn(text ? text : "", length)) == 0)
        return message;
    json_decref(message);
    return NULL;
}

/* Takes the message over. */
static enum status append(struct conversation *conversation, json_t *message, struct error *error)
{
    if (message && json_array_append_new(conversation->messages, message) == 0)
        return STATUS_OK;
    return error_no_memory(error, "the message");
}

const json_t *conversation_system(const struct conversation *conversation)
{
    if (first_index(conversation) == 0)
        return NULL;
    return json_object_get(json_array_get(conversation->messages, 0), "content");
}

enum status conversation_set_system(struct conversation *conversation, const char *text,
                                    size_t length, struct error *error)
{
    json_t *message = text ? new_message("system", text, length) : NULL;
    if (text && !message)
        return error_no_memory(error, "the system message");
    if (text && json_array_insert_new(conversation->messages, 0, message) != 0)
        return error_no_memory(error, "the system message");
    size_t old = text ? 1 : 0;
    if (has_role(json_array_get(conversation->messages, old), "system"))
        json_array_remove(conversation->messages, old);
    return STATUS_OK;
}

enum status conversation_add_user(struct conversation *conversation, const char *text,
                                  size_t length, struct error *error)
{
    return append(conversation, new_message("user", text, length), error);
}

/* OpenAI's form of a call: its arguments are a JSON text. */
static json_t *new_call(struct conversation *conversation, const json_t *call)
{
    struct bytes arguments = {0};
    json_print(json_object_get(call, "arguments"), &arguments);
    const char *text = bytes_terminate(&arguments);
    json_t *out = NULL;
    if (text)
        out = json_pack("{s:o, s:s, s:{s:O, s:s%}}", "id",
                        json_sprintf("call_%d", ++conversation->n_calls), "type", "function",
                        "function", "name", json_object_get(call, "name"), "arguments", text,
                        arguments.length);
    bytes_clear(&arguments);
    return out;
}

static enum status add_calls(struct conversation *conversation, const struct answer *answer,
                             json_t *message, struct error *error)
{
    struct bytes text = {0};
    json_t *parsed = NULL, *calls = json_array();
    bytes_format(&text, "[");
    bytes_append(&text, answer->calls.data, answer->calls.length);
    bytes_append_byte(&text, ']');
    enum status status =
        bytes_terminate(&text) && calls ? STATUS_OK : error_no_memory(error, "the tool calls");
    if (status == STATUS_OK)
        status = json_parse(text.data, text.length, "the tool calls", &parsed, error);
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(parsed); i++)
        if (json_array_append_new(calls, new_call(conversation, json_array_get(parsed, i))) != 0)
            status = error_no_memory(error, "the tool calls");
    if (status == STATUS_OK && json_object_set(message, "tool_calls", calls) != 0)
        status = error_no_memory(error, "the tool calls");
    json_decref(calls);
    json_decref(parsed);
    bytes_clear(&text);
    return status;
}

enum status conversation_add_answer(struct conversation *conversation, const struct answer *answer,
                                    struct error *error)
{
    json_t *message = new_message("assistant", answer->text.data, answer->text.length);
    enum status status = message ? STATUS_OK : error_no_memory(error, "the answer");
    if (status == STATUS_OK && answer->reasoning.length > 0 &&
        json_object_set_new(message, "reasoning_content",
                            json_stringn(answer->reasoning.data, answer->reasoning.length)) != 0)
        status = error_no_memory(error, "the answer");
    if (status == STATUS_OK && answer->n_calls > 0)
        status = add_calls(conversation, answer, message, error);
    if (status == STATUS_OK)
        return append(conversation, message, error);
    json_decref(message);
    return status;
}

const json_t *conversation_open_call(const struct conversation *conversation, int *left)
{
    size_t n = json_array_size(conversation->messages), results = 0;
    while (n > 0 && has_role(json_array_get(conversation->messages, n - 1), "tool")) {
        n--;
        results++;
    }
    const json_t *message = n > 0 ? json_array_get(conversation->messages, n - 1) : NULL;
    const json_t *calls =
        has_role(message, "assistant") ? json_object_get(message, "tool_calls") : NULL;
    size_t n_calls = json_array_size(calls);
    *left = n_calls > results ? (int)(n_calls - results) : 0;
    return *left > 0 ? json_array_get(calls, results) : NULL;
}

enum status conversation_add_result(struct conversation *conversation, const char *text,
                                    size_t length, struct error *error)
{
    int left;
    const json_t *call = conversation_open_call(conversation, &left);
    json_t *id = json_object_get(call, "id"), *message = new_message("tool", text, length);
    if (message && json_is_string(id) && json_object_set(message, "tool_call_id", id) != 0) {
        json_decref(message);
        message = NULL;
    }
    return append(conversation, message, error);
}

/* ---- going back ------------------------------------------------------------------------------ */

static void cut(struct conversation *conversation, size_t length)
{
    while (json_array_size(conversation->messages) > length)
        json_array_remove(conversation->messages, json_array_size(conversation->messages) - 1);
}

bool conversation_is_answered(const struct conversation *conversation)
{
    return has_role(last(conversation), "assistant");
}

void conversation_drop_answer(struct conversation *conversation)
{
    if (conversation_is_answered(conversation))
        cut(conversation, json_array_size(conversation->messages) - 1);
}

/* The place of the user's last message, or the number of messages. */
static size_t last_user(const struct conversation *conversation)
{
    size_t n = json_array_size(conversation->messages);
    for (size_t i = n; i-- > 0;)
        if (has_role(json_array_get(conversation->messages, i), "user"))
            return i;
    return n;
}

const json_t *conversation_last_user(const struct conversation *conversation)
{
    return json_object_get(json_array_get(conversation->messages, last_user(conversation)),
                           "content");
}

void conversation_drop_last_turn(struct conversation *conversation)
{
    cut(conversation, last_user(conversation));
}

bool conversation_drop_first_turn(struct conversation *conversation)
{
    size_t first = first_index(conversation), n = json_array_size(conversation->messages);
    size_t second = first + 1;
    while (second < n && !has_role(json_array_get(conversation->messages, second), "user"))
        second++;
    if (second >= n)
        return false;
    for (size_t i = first; i < second; i++)
        json_array_remove(conversation->messages, first);
    return true;
}

void conversation_drop_all(struct conversation *conversation)
{
    cut(conversation, first_index(conversation));
}

enum status conversation_request(const struct conversation *conversation, struct bytes *messages,
                                 struct bytes *tools, struct calla_request *request,
                                 struct error *error)
{
    bytes_reset(messages);
    bytes_reset(tools);
    json_print(conversation->messages, messages);
    if (conversation->tools)
        json_print(conversation->tools, tools);
    if (!bytes_terminate(messages) || !bytes_terminate(tools))
        return error_no_memory(error, "the conversation");
    request->messages = messages->data;
    request->tools = conversation->tools ? tools->data : NULL;
    return STATUS_OK;
}
