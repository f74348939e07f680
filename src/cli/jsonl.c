#include "cli/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/input.h"

void jsonl_refuse(struct bytes *out, const struct error *error)
{
    bytes_append_text(out, "{\"error\": ");
    json_print_string(error->message, strlen(error->message), out);
    bytes_append_byte(out, '}');
}

enum status jsonl_write(const struct bytes *line, struct error *error)
{
    if (line->failed)
        return error_no_memory(error, "the answer");
    if (fwrite(line->data, 1, line->length, stdout) == line->length && fflush(stdout) == 0)
        return STATUS_OK;
    return error_set(error, errno == EPIPE ? STATUS_CANCELLED : STATUS_IO,
                     "cannot write to stdout: %s", strerror(errno));
}

static enum status answer(jsonl_handler *handler, void *context, const char *text, size_t length,
                          long number, struct bytes *out, struct error *error)
{
    char name[32];
    snprintf(name, sizeof name, "line %ld", number);
    json_t *line;
    enum status status = json_parse(text, length, name, &line, error);
    if (status != STATUS_OK)
        return status;
    if (json_is_object(line)) {
        struct error problem;
        status = handler(context, line, out, &problem);
        if (status != STATUS_OK)
            error_set(error, status, "%s: %s", name, problem.message);
    } else {
        status =
            error_set(error, STATUS_INVALID, "%s: found JSON that is no object, wanted one", name);
    }
    json_decref(line);
    if (status == STATUS_OK && out->failed)
        status = error_no_memory(error, "the answer");
    return status;
}

static bool is_empty(const struct bytes *line)
{
    return line->length == 0 || input_is_blank(line->data, line->length);
}

int jsonl_run(jsonl_handler *handler, void *context)
{
    int code = EXIT_DONE;
    struct bytes text = {0}, out = {0};
    struct error error;
    enum status input;
    bool found;
    if (isatty(STDIN_FILENO))
        fprintf(stderr, "JSON objects, one a line, come from the terminal; Ctrl-D ends\n");
    for (long number = 1;; number++) {
        bytes_reset(&text);
        input = input_line(&text, &found, &error);
        if (input != STATUS_OK || !found)
            break;
        if (is_empty(&text)) /* asks nothing */
            continue;
        bytes_reset(&out);
        enum status status = answer(handler, context, text.data, text.length, number, &out, &error);
        if (status != STATUS_OK) {
            bytes_reset(&out);
            jsonl_refuse(&out, &error);
        }
        if (status != STATUS_OK && status != STATUS_UNSUPPORTED)
            code = EXIT_FAILED;
        bytes_append_byte(&out, '\n');
        if (jsonl_write(&out, &error) != STATUS_OK) {
            code = command_failed(&error);
            break;
        }
    }
    if (input != STATUS_OK)
        code = command_failed(&error);
    bytes_clear(&text);
    bytes_clear(&out);
    return code;
}

static enum status wrong_type(const json_t *value, const char *field, const char *wanted,
                              struct error *error)
{
    return error_set(error, STATUS_INVALID, "%s: found %s, wanted %s", field, json_type_name(value),
                     wanted);
}

enum status jsonl_bool(const json_t *line, const char *field, bool *value, struct error *error)
{
    const json_t *found = json_object_get(line, field);
    if (!found || json_is_null(found))
        return STATUS_OK;
    if (!json_is_boolean(found))
        return wrong_type(found, field, "true or false", error);
    *value = json_is_true(found);
    return STATUS_OK;
}

enum status jsonl_text(const json_t *line, const char *field, bool required, const char **value,
                       size_t *length, struct error *error)
{
    const json_t *found = json_object_get(line, field);
    if (!required && (!found || json_is_null(found)))
        return STATUS_OK;
    if (!json_is_string(found))
        return wrong_type(found, field, "a string", error);
    *value = json_string_value(found);
    *length = json_string_length(found);
    return STATUS_OK;
}

enum status jsonl_array(const json_t *line, const char *field, bool required, const json_t **value,
                        struct error *error)
{
    const json_t *found = json_object_get(line, field);
    if (!required && (!found || json_is_null(found)))
        return STATUS_OK;
    if (!json_is_array(found))
        return wrong_type(found, field, "an array", error);
    *value = found;
    return STATUS_OK;
}
