/* The file of a conversation: {"calla_chat": 1, "messages": […], "tools": […], "settings": {…}}.
 * What is read may come from anywhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file_map.h"
#include "base/file_write.h"
#include "base/json.h"
#include "cli/conversation.h"

#define MAX_FILE ((size_t)256 << 20)

/* The settings that are numbers, with the limits that the command line has as well. */
static const struct setting {
    const char *name;
    size_t offset;
    bool integer;
    double low, high;
} settings[] = {
    {"max_tokens", offsetof(struct calla_request, max_tokens), true, 0, INT32_MAX},
    {"temperature", offsetof(struct calla_request, temperature), false, 0, 2},
    {"top_k", offsetof(struct calla_request, top_k), true, 0, INT32_MAX},
    {"top_p", offsetof(struct calla_request, top_p), false, 1e-9, 1},
    {"min_p", offsetof(struct calla_request, min_p), false, 0, 1},
    {"presence_penalty", offsetof(struct calla_request, presence_penalty), false, -2, 2},
    {"frequency_penalty", offsetof(struct calla_request, frequency_penalty), false, -2, 2},
    {"repetition_penalty", offsetof(struct calla_request, repetition_penalty), false, 1e-3, 1e3},
};
#define N_SETTINGS (sizeof settings / sizeof settings[0])

/* ---- saving ---------------------------------------------------------------------------------- */

static void print_settings(const struct calla_request *request, struct bytes *out)
{
    bytes_format(out, "{\"thinking\": %s",
                 request->thinking == CALLA_THINKING_OFF ? "false" : "true");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const void *value = (const char *)request + settings[i].offset;
        bytes_format(out, ", \"%s\": ", settings[i].name);
        if (settings[i].integer)
            bytes_format(out, "%d", *(const int32_t *)value);
        else
            json_print_real(*(const double *)value, out);
    }
    bytes_append_byte(out, '}');
}

static void print_conversation(const struct conversation *conversation, struct bytes *out)
{
    bytes_append_text(out, "{\"calla_chat\": 1,\n\"messages\": [");
    for (size_t i = 0; i < json_array_size(conversation->messages); i++) {
        bytes_append_text(out, i ? ",\n  " : "\n  ");
        json_print(json_array_get(conversation->messages, i), out);
    }
    bytes_append_text(out, "],\n\"tools\": ");
    if (conversation->tools)
        json_print(conversation->tools, out);
    else
        bytes_append_text(out, "null");
    bytes_append_text(out, ",\n\"settings\": ");
    print_settings(&conversation->settings, out);
    bytes_append_text(out, "}\n");
}

enum status conversation_save(const struct conversation *conversation, const char *path,
                              struct error *error)
{
    struct bytes text = {0};
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return error_set(error, STATUS_INVALID, "%s: found no regular file, wanted one", path);
    print_conversation(conversation, &text);
    enum status status = text.failed ? error_no_memory(error, "the conversation")
                                     : file_write(path, 0600, text.data, text.length, error);
    bytes_clear(&text);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static enum status read_json(const char *path, json_t **value, struct error *error)
{
    struct file_map map;
    enum status status = file_map_open(path, &map, error);
    if (status != STATUS_OK)
        return status;
    if (map.size > MAX_FILE)
        status = error_set(error, STATUS_UNSUPPORTED, "%s: found %zu bytes, wanted at most %zu",
                           path, map.size, MAX_FILE);
    else
        status = json_parse(map.size ? (const char *)map.data : "", map.size, path, value, error);
    file_map_close(&map);
    return status;
}

static enum status read_setting(const char *path, const struct setting *setting,
                                const json_t *value, struct calla_request *request,
                                struct error *error)
{
    if (!(setting->integer ? json_is_integer(value) : json_is_number(value)))
        return error_set(error, STATUS_INVALID, "%s: settings.%s: found %s, wanted %s", path,
                         setting->name, json_type_name(value),
                         setting->integer ? "an integer" : "a number");
    double number = json_number_value(value);
    if (!(number >= setting->low && number <= setting->high))
        return error_set(error, STATUS_INVALID,
                         "%s: settings.%s: found %.10g, wanted %.10g to %.10g", path, setting->name,
                         number, setting->low, setting->high);
    void *field = (char *)request + setting->offset;
    if (setting->integer)
        *(int32_t *)field = (int32_t)number;
    else
        *(double *)field = number;
    return STATUS_OK;
}

static enum status read_settings(const char *path, const json_t *object,
                                 struct calla_request *request, struct error *error)
{
    enum status status = STATUS_OK;
    if (!object || json_is_null(object))
        return STATUS_OK;
    if (!json_is_object(object))
        return error_set(error, STATUS_INVALID, "%s: settings: found %s, wanted an object", path,
                         json_type_name(object));
    const json_t *thinking = json_object_get(object, "thinking");
    if (thinking && !json_is_boolean(thinking))
        return error_set(error, STATUS_INVALID, "%s: settings.thinking: found %s, wanted a boolean",
                         path, json_type_name(thinking));
    if (thinking)
        request->thinking = json_is_true(thinking) ? CALLA_THINKING_ON : CALLA_THINKING_OFF;
    for (size_t i = 0; i < N_SETTINGS && status == STATUS_OK; i++) {
        const json_t *value = json_object_get(object, settings[i].name);
        if (value)
            status = read_setting(path, &settings[i], value, request, error);
    }
    return status;
}

static enum status check_messages(const char *path, const json_t *messages, struct error *error)
{
    if (!json_is_array(messages))
        return error_set(error, STATUS_INVALID, "%s: messages: found %s, wanted an array", path,
                         json_type_name(messages));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role");
        if (!json_is_object(message))
            return error_set(error, STATUS_INVALID, "%s: messages[%zu]: found %s, wanted an object",
                             path, i, json_type_name(message));
        if (!json_is_string(role))
            return error_set(error, STATUS_INVALID,
                             "%s: messages[%zu].role: found %s, wanted a string", path, i,
                             json_type_name(role));
    }
    return STATUS_OK;
}

static int count_calls(const json_t *messages)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        n += json_array_size(json_object_get(json_array_get(messages, i), "tool_calls"));
    return (int)n;
}

enum status conversation_load(struct conversation *conversation, const char *path,
                              struct error *error)
{
    json_t *file = NULL;
    enum status status = read_json(path, &file, error);
    if (status != STATUS_OK)
        return status;
    bool bare = json_is_array(file);
    json_t *messages = bare ? file : json_object_get(file, "messages");
    json_t *tools = bare ? NULL : json_object_get(file, "tools");
    struct calla_request request = conversation->settings;
    if (!bare && !json_is_object(file))
        status = error_set(error, STATUS_INVALID,
                           "%s: found %s, wanted a saved conversation or an array of messages",
                           path, json_type_name(file));
    if (status == STATUS_OK)
        status = check_messages(path, messages, error);
    if (status == STATUS_OK && tools && !json_is_null(tools) && !json_is_array(tools))
        status = error_set(error, STATUS_INVALID, "%s: tools: found %s, wanted an array", path,
                           json_type_name(tools));
    if (status == STATUS_OK && !bare)
        status = read_settings(path, json_object_get(file, "settings"), &request, error);
    if (status == STATUS_OK) {
        json_decref(conversation->messages);
        json_decref(conversation->tools);
        conversation->messages = json_incref(messages);
        conversation->tools = json_is_array(tools) ? json_incref(tools) : NULL;
        conversation->settings = request;
        conversation->n_calls = count_calls(messages); /* new ids come after these */
    }
    json_decref(file);
    return status;
}

enum status conversation_load_tools(const char *path, json_t **tools, struct error *error)
{
    *tools = NULL;
    enum status status = read_json(path, tools, error);
    if (status == STATUS_OK && !json_is_array(*tools))
        status = error_set(error, STATUS_INVALID, "%s: found %s, wanted an array of tools", path,
                           json_type_name(*tools));
    if (status != STATUS_OK) {
        json_decref(*tools);
        *tools = NULL;
    }
    return status;
}
