#include "server/openai_problem.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "server/openai_print.h"

static void set(struct openai_problem *problem, int status, const char *type, const char *code,
                const char *param, const char *format, va_list arguments)
{
    struct error error;
    error_vset(&error, STATUS_INVALID, format, arguments);
    problem->status = status;
    problem->type = type;
    problem->code = code;
    snprintf(problem->param, sizeof problem->param, "%s", param ? param : "");
    memcpy(problem->message, error.message, sizeof problem->message);
}

bool openai_problem_set(struct openai_problem *problem, int status, const char *type,
                        const char *code, const char *param, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(problem, status, type, code, param, format, arguments);
    va_end(arguments);
    return false;
}

bool openai_invalid(struct openai_problem *problem, const char *param, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(problem, 400, "invalid_request_error", "invalid_value", param, format, arguments);
    va_end(arguments);
    return false;
}

/* The value itself when it is short enough to be recognised, else its type. */
static void describe(const json_t *value, char *out, size_t size)
{
    if (json_is_integer(value))
        snprintf(out, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, size, "%.15g", json_real_value(value));
    else if (json_string_length(value) > 0 && json_string_length(value) <= 40)
        snprintf(out, size, "\"%s\"", json_string_value(value));
    else if (json_is_string(value))
        snprintf(out, size, "%s", json_string_length(value) ? "a string" : "an empty string");
    else if (json_is_array(value) && json_array_size(value) == 0)
        snprintf(out, size, "an empty array");
    else
        snprintf(out, size, "%s", json_type_name(value));
}

bool openai_refuse(struct openai_problem *problem, const char *param, const json_t *found,
                   const char *wanted, ...)
{
    char found_text[64], wanted_text[256];
    describe(found, found_text, sizeof found_text);
    va_list arguments;
    va_start(arguments, wanted);
    vsnprintf(wanted_text, sizeof wanted_text, wanted, arguments);
    va_end(arguments);
    return openai_invalid(problem, param, "%s: found %s, wanted %s", param, found_text,
                          wanted_text);
}

bool openai_unsupported(struct openai_problem *problem, const char *param, const char *why)
{
    return openai_problem_set(problem, 400, "invalid_request_error", "unsupported_value", param,
                              "%s: %s", param, why);
}

/* The length of the field's name that a message begins with, 0 when it begins with none. */
static size_t field_length(const char *message)
{
    size_t length = strspn(message, "abcdefghijklmnopqrstuvwxyz_0123456789.[]");
    return message[length] == ':' && message[length + 1] == ' ' ? length : 0;
}

bool openai_problem_from(struct openai_problem *problem, const struct error *error,
                         const char *param)
{
    static const char *const codes[] = {
        [STATUS_INVALID] = "invalid_value",
        [STATUS_UNSUPPORTED] = "unsupported_value",
        [STATUS_CONTEXT] = "context_length_exceeded",
        [STATUS_DEVICE] = NULL, /* as all others */
    };
    const char *code = codes[error->status];
    size_t length = field_length(error->message);
    char field[sizeof problem->param];
    if (param && strncmp(error->message, param, strlen(param)) == 0 && length > 0 &&
        length < sizeof field) {
        snprintf(field, sizeof field, "%.*s", (int)length, error->message);
        param = field;
    }
    if (!code) /* what a second try may not meet */
        return openai_problem_set(problem, 500, "server_error", NULL, NULL, "%s", error->message);
    return openai_problem_set(problem, 400, "invalid_request_error", code, param, "%s",
                              error->message);
}

void openai_problem_print(const struct openai_problem *problem, struct bytes *out)
{
    bytes_append_text(out, "{\"error\":{\"message\":");
    print_string(problem->message, out);
    bytes_append_text(out, ",\"type\":");
    print_string(problem->type, out);
    bytes_append_text(out, ",\"param\":");
    print_string_or_null(problem->param[0] ? problem->param : NULL, out);
    bytes_append_text(out, ",\"code\":");
    print_string_or_null(problem->code, out);
    bytes_append_text(out, "}}");
}
