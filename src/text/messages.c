#include "text/messages.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"

enum { TOOLS_MAX = 128, NAME_MAX_LENGTH = 64 }; /* OpenAI's own limits */

/* What an error message calls the place at hand: "messages[2].content[0]". */
struct place {
    char text[96];
};

__attribute__((format(printf, 1, 2))) static struct place place(const char *format, ...)
{
    struct place place;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(place.text, sizeof place.text, format, arguments);
    va_end(arguments);
    return place;
}

static enum status refuse(struct error *error, struct place place, const char *field,
                          const json_t *found, const char *wanted)
{
    size_t length = json_string_length(found);
    if (length > 0 && length <= 40) /* a short word says more than "a string" */
        return error_set(error, STATUS_INVALID, "%s%s: found \"%s\", wanted %s", place.text, field,
                         json_string_value(found), wanted);
    return error_set(error, STATUS_INVALID, "%s%s: found %s, wanted %s", place.text, field,
                     json_type_name(found), wanted);
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           memcmp(json_string_value(value), text, strlen(text)) == 0;
}

/* A field where null means the same as leaving it out. */
static const json_t *get(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

static enum status set(json_t *object, const char *field, json_t *owned, struct error *error)
{
    return json_object_set_new(object, field, owned) == 0 ? STATUS_OK
                                                          : error_no_memory(error, "the messages");
}

static enum status append(json_t *array, json_t *owned, struct error *error)
{
    return json_array_append_new(array, owned) == 0 ? STATUS_OK
                                                    : error_no_memory(error, "the messages");
}

/* A message's content while it is put together. */
struct content {
    struct bytes text;
    json_t *breakpoints; /* NULL: none yet */
};

/* Notes that the text so far will be used again, when the part says so. */
static enum status note_breakpoint(struct content *content, const json_t *part, struct place at,
                                   struct error *error)
{
    static const char field[] = ".prompt_cache_breakpoint";
    const json_t *breakpoint = get(part, field + 1);
    if (!breakpoint)
        return STATUS_OK;
    if (!json_is_object(breakpoint))
        return refuse(error, at, field, breakpoint, "an object with a mode");
    const json_t *mode = json_object_get(breakpoint, "mode");
    if (!is_text(mode, "explicit"))
        return refuse(error, at, ".prompt_cache_breakpoint.mode", mode, "\"explicit\"");
    if (!content->breakpoints && !(content->breakpoints = json_array()))
        return error_no_memory(error, "the messages");
    return append(content->breakpoints, json_integer((json_int_t)content->text.length), error);
}

static enum status append_part(struct content *content, const json_t *part, bool assistant,
                               struct place at, struct error *error)
{
    if (!json_is_object(part))
        return refuse(error, at, "", part, "an object with a type");
    const json_t *type = json_object_get(part, "type");
    const char *field = "text";
    if (assistant && is_text(type, "refusal"))
        field = "refusal";
    else if (!is_text(type, "text"))
        return refuse(error, at, ".type", type, "\"text\": only text can be read here");
    const json_t *value = json_object_get(part, field);
    if (!json_is_string(value))
        return refuse(error, place("%s.%s", at.text, field), "", value, "a string");
    bytes_append(&content->text, json_string_value(value), json_string_length(value));
    return note_breakpoint(content, part, at, error);
}

/* Appends a message's whole content, which may be left out only where `optional`. */
static enum status append_content(struct content *content, const json_t *message, bool assistant,
                                  struct place at, struct error *error)
{
    const json_t *value = get(message, "content");
    const char *field = ".content", *wanted = "a string or an array of text parts";
    if (!value && assistant) {
        value = get(message, "refusal");
        field = ".refusal";
        wanted = "a string";
        if (!value)
            return STATUS_OK;
    }
    if (json_is_string(value)) {
        bytes_append(&content->text, json_string_value(value), json_string_length(value));
        return STATUS_OK;
    }
    if (!json_is_array(value) || strcmp(field, ".content") != 0)
        return refuse(error, at, field, value, wanted);
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(value); i++)
        status = append_part(content, json_array_get(value, i), assistant,
                             place("%s.content[%zu]", at.text, i), error);
    return status;
}

/* The arguments as an object, owned by the caller. */
static enum status read_arguments(const json_t *arguments, struct place at, json_t **out,
                                  struct error *error)
{
    if (json_is_object(arguments)) { /* some clients send what the template wants */
        *out = json_incref((json_t *)arguments);
        return STATUS_OK;
    }
    if (!arguments || (json_is_string(arguments) && json_string_length(arguments) == 0)) {
        *out = json_object();
        return *out ? STATUS_OK : error_no_memory(error, "the messages");
    }
    if (!json_is_string(arguments))
        return refuse(error, at, "", arguments, "a string that holds a JSON object");
    enum status status = json_parse(json_string_value(arguments), json_string_length(arguments),
                                    at.text, out, error);
    if (status != STATUS_OK || json_is_object(*out))
        return status;
    error_set(error, STATUS_INVALID, "%s: found JSON of %s, wanted an object", at.text,
              json_type_name(*out));
    json_decref(*out);
    *out = NULL;
    return STATUS_INVALID;
}

static enum status append_call(json_t *calls, const json_t *call, struct place at,
                               struct error *error)
{
    if (!json_is_object(call))
        return refuse(error, at, "", call, "an object");
    const json_t *type = get(call, "type"), *id = get(call, "id");
    if (type && !is_text(type, "function"))
        return refuse(error, at, ".type", type, "\"function\"");
    if (id && !json_is_string(id))
        return refuse(error, at, ".id", id, "a string");
    const json_t *function = json_object_get(call, "function");
    if (!json_is_object(function))
        return refuse(error, at, ".function", function, "an object");
    const json_t *name = json_object_get(function, "name");
    if (json_string_length(name) == 0)
        return refuse(error, at, ".function.name", name, "a string that is not empty");
    json_t *arguments = NULL;
    enum status status = read_arguments(get(function, "arguments"),
                                        place("%s.function.arguments", at.text), &arguments, error);
    if (status != STATUS_OK)
        return status;
    json_t *made = json_object();
    if (append(calls, made, error) != STATUS_OK) { /* the array owns `made` now, or it is gone */
        json_decref(arguments);
        return STATUS_NO_MEMORY;
    }
    status = set(made, "arguments", arguments, error);
    if (status == STATUS_OK)
        status = set(made, "name", json_incref((json_t *)name), error);
    return status;
}

static enum status prepare_assistant(const json_t *message, struct place at, json_t *made,
                                     struct error *error)
{
    const json_t *reasoning = get(message, "reasoning_content");
    const char *field = ".reasoning_content";
    if (!reasoning) {
        reasoning = get(message, "reasoning");
        field = ".reasoning";
    }
    enum status status = STATUS_OK;
    if (reasoning && !json_is_string(reasoning))
        return refuse(error, at, field, reasoning, "a string");
    if (reasoning)
        status = set(made, "reasoning_content", json_incref((json_t *)reasoning), error);
    if (get(message, "function_call")) /* deprecated; left out, the call would be lost unseen */
        return refuse(error, at, ".function_call", get(message, "function_call"),
                      "tool_calls in its place");
    if (get(message, "audio")) /* an earlier answer that only its maker can hear */
        return refuse(error, at, ".audio", get(message, "audio"), "text content in its place");
    const json_t *calls = get(message, "tool_calls");
    if (calls && !json_is_array(calls))
        return refuse(error, at, ".tool_calls", calls, "an array");
    if (status != STATUS_OK || json_array_size(calls) == 0)
        return status;
    json_t *made_calls = json_array();
    status = set(made, "tool_calls", made_calls, error);
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(calls); i++)
        status = append_call(made_calls, json_array_get(calls, i),
                             place("%s.tool_calls[%zu]", at.text, i), error);
    return status;
}

static const char *role_of(const json_t *message)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const json_t *role = json_object_get(message, "role");
    if (is_text(role, "developer"))
        return "system";
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (is_text(role, roles[i]))
            return roles[i];
    return NULL;
}

/* Appends message `from` to `out`, or several that are all system as one; *next is the first that
 * is left. */
static enum status prepare_message(const json_t *messages, size_t from, json_t *out, size_t *next,
                                   struct error *error)
{
    struct content content = {0};
    enum status status = STATUS_OK;
    const json_t *message = json_array_get(messages, from);
    const char *role = role_of(message);
    bool system = strcmp(role, "system") == 0, assistant = strcmp(role, "assistant") == 0;
    for (*next = from; status == STATUS_OK;) {
        status = append_content(&content, json_array_get(messages, *next), assistant,
                                place("messages[%zu]", *next), error);
        ++*next;
        const char *following = role_of(json_array_get(messages, *next));
        if (!system || from > 0 || !following || strcmp(following, "system") != 0)
            break;
        bytes_append_byte(&content.text, '\n');
    }
    json_t *made = json_object(), *text = NULL;
    if (status == STATUS_OK) {
        const struct bytes *joined = &content.text;
        if (!joined->failed) /* jansson wants a pointer even for no bytes */
            text = json_stringn(joined->data ? joined->data : "", joined->length);
        status = set(made, "role", json_string(role), error);
    }
    if (status == STATUS_OK)
        status = set(made, "content", text, error);
    else
        json_decref(text);
    if (status == STATUS_OK && content.breakpoints)
        status = set(made, MESSAGES_BREAKPOINTS, json_incref(content.breakpoints), error);
    if (status == STATUS_OK && assistant)
        status = prepare_assistant(message, place("messages[%zu]", from), made, error);
    if (status == STATUS_OK)
        status = append(out, json_incref(made), error);
    json_decref(made);
    json_decref(content.breakpoints);
    bytes_clear(&content.text);
    return status;
}

/* One tool result: which call it answers, and where it stood. */
struct result {
    size_t call, position;
    json_t *message; /* borrowed while sorting */
};

static int compare_results(const void *a, const void *b)
{
    const struct result *left = a, *right = b;
    if (left->call != right->call)
        return left->call < right->call ? -1 : 1;
    return left->position < right->position ? -1 : 1;
}

/* Puts the tool results messages[from .. from+n) of `source` in the order of the calls. Those with
 * an id that no call has keep their places; the others are sorted over the places that are left.
 * `out` ends with the n prepared results. */
static enum status order_results(const json_t *calls, const json_t *source, size_t from, size_t n,
                                 json_t *out, struct error *error)
{
    size_t base = json_array_size(out) - n, n_known = 0;
    struct result *results = calloc(n, sizeof *results);
    size_t *places = calloc(n, sizeof *places);
    json_t *index_of = json_object();
    enum status status =
        results && places && index_of ? STATUS_OK : error_no_memory(error, "the messages");
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(calls); i++) {
        const char *id = json_string_value(json_object_get(json_array_get(calls, i), "id"));
        if (id && !json_object_get(index_of, id))
            status = set(index_of, id, json_integer((json_int_t)i), error);
    }
    for (size_t i = 0; status == STATUS_OK && i < n; i++) {
        const json_t *result = json_array_get(source, from + i);
        const char *id = json_string_value(json_object_get(result, "tool_call_id"));
        const json_t *call = id ? json_object_get(index_of, id) : NULL;
        if (!call)
            continue;
        places[n_known] = base + i;
        results[n_known++] = (struct result){(size_t)json_integer_value(call), i,
                                             json_incref(json_array_get(out, base + i))};
    }
    if (n_known > 1)
        qsort(results, n_known, sizeof *results, compare_results);
    for (size_t i = 0; i < n_known; i++) /* cannot fail: the places exist */
        json_array_set_new(out, places[i], results[i].message);
    json_decref(index_of);
    free(places);
    free(results);
    return status;
}

/* Appends the tool results from message `from` on, which follow message from-1. */
static enum status prepare_results(const json_t *messages, size_t from, json_t *out, size_t *next,
                                   struct error *error)
{
    const json_t *caller = from > 0 ? json_array_get(messages, from - 1) : NULL;
    const json_t *calls = json_object_get(caller, "tool_calls");
    struct place first = place("messages[%zu]", from);
    if (!is_text(json_object_get(caller, "role"), "assistant") || json_array_size(calls) == 0)
        return error_set(error, STATUS_INVALID,
                         "%s: found a tool result, wanted one only after an assistant's tool_calls",
                         first.text);
    enum status status = STATUS_OK;
    for (*next = from; status == STATUS_OK;) {
        const json_t *message = json_array_get(messages, *next);
        const char *role = role_of(message);
        if (!role || strcmp(role, "tool") != 0)
            break;
        const json_t *id = json_object_get(message, "tool_call_id");
        if (!json_is_string(id))
            return refuse(error, place("messages[%zu]", *next), ".tool_call_id", id, "a string");
        status = prepare_message(messages, *next, out, next, error);
    }
    if (status == STATUS_OK)
        status = order_results(calls, messages, from, *next - from, out, error);
    return status;
}

enum status messages_prepare(const json_t *messages, json_t **out, struct error *error)
{
    *out = NULL;
    if (!json_is_array(messages))
        return refuse(error, place("messages"), "", messages, "an array");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_object(message))
            return refuse(error, place("messages[%zu]", i), "", message, "an object");
        if (!role_of(message))
            return refuse(error, place("messages[%zu]", i), ".role",
                          json_object_get(message, "role"),
                          "system, developer, user, assistant or tool");
    }
    json_t *made = json_array();
    enum status status = made ? STATUS_OK : error_no_memory(error, "the messages");
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(messages);) {
        bool tool = strcmp(role_of(json_array_get(messages, i)), "tool") == 0;
        status = tool ? prepare_results(messages, i, made, &i, error)
                      : prepare_message(messages, i, made, &i, error);
    }
    if (status == STATUS_OK)
        *out = made;
    else
        json_decref(made);
    return status;
}

static enum status check_name(const json_t *name, struct place at, struct error *error)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t length = json_string_length(name);
    if (length == 0 || length > NAME_MAX_LENGTH ||
        strspn(json_string_value(name), allowed) != length)
        return refuse(error, at, ".function.name", name,
                      "a string of 1 to 64 characters of a-z, A-Z, 0-9, _ and -");
    return STATUS_OK;
}

enum status messages_check_tools(const json_t *tools, struct error *error)
{
    if (!tools || json_is_null(tools))
        return STATUS_OK;
    if (!json_is_array(tools))
        return refuse(error, place("tools"), "", tools, "an array");
    if (json_array_size(tools) > TOOLS_MAX)
        return error_set(error, STATUS_INVALID, "tools: found %zu, wanted no more than %d",
                         json_array_size(tools), TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        struct place at = place("tools[%zu]", i);
        if (!json_is_object(tool))
            return refuse(error, at, "", tool, "an object");
        const json_t *type = json_object_get(tool, "type");
        if (!is_text(type, "function"))
            return refuse(error, at, ".type", type, "\"function\"");
        const json_t *function = json_object_get(tool, "function");
        if (!json_is_object(function))
            return refuse(error, at, ".function", function, "an object");
        enum status status = check_name(json_object_get(function, "name"), at, error);
        if (status != STATUS_OK)
            return status;
        const json_t *description = get(function, "description");
        if (description && !json_is_string(description))
            return refuse(error, at, ".function.description", description, "a string");
        const json_t *parameters = get(function, "parameters");
        if (parameters && !json_is_object(parameters))
            return refuse(error, at, ".function.parameters", parameters, "an object");
    }
    return STATUS_OK;
}
