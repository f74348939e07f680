#include "text/template.h"

#include <string.h>

#include "base/json.h"
#include "text/messages.h"

/* The official template is a Jinja program; this file does what it does, in its order, so that the
 * same input gives the same text or the same error. "content" is always the flattened, trimmed
 * content of the message at hand. */

const char template_sha256[65] = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259";

static const char tools_head[] = "# Tools\n"
                                 "\n"
                                 "You have access to the following functions:\n"
                                 "\n"
                                 "<tools>";

static const char tools_tail[] =
    "\n"
    "</tools>\n"
    "\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n"
    "\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>\n"
    "value_1\n"
    "</parameter>\n"
    "<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines\n"
    "</parameter>\n"
    "</function>\n"
    "</tool_call>\n"
    "\n"
    "<IMPORTANT>\n"
    "Reminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n"
    "</IMPORTANT>";

struct render {
    const json_t *messages;
    const struct template_options *options;
    struct prompt *out;
    struct prompt flat; /* the flattened content of the message at hand */
    size_t last_query;  /* index of the last message in which a user asks */
    struct error *error;
};

/* Bytes [from, to) of render.flat. */
struct range {
    size_t from, to;
};

/* The template's own words. */
static void own(struct render *render, const char *text)
{
    prompt_append(render->out, text, strlen(text), true);
}

static void foreign(struct render *render, const char *text, size_t length)
{
    prompt_append(render->out, text, length, false);
}

static void foreign_json(struct render *render, const json_t *value)
{
    size_t before = render->out->text.length;
    json_print(value, &render->out->text);
    prompt_mark(render->out, render->out->text.length - before, false);
}

static void flat_range(struct render *render, struct range range)
{
    prompt_append_range(render->out, &render->flat, range.from, range.to);
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           memcmp(json_string_value(value), text, strlen(text)) == 0;
}

static bool has_role(const json_t *message, const char *role)
{
    return is_text(json_object_get(message, "role"), role);
}

/* Length of the character that Python's str.strip would remove at the start of text, or else 0:
 * Unicode White_Space and U+001C-001F. */
static size_t space_length(const char *text, size_t length)
{
    const unsigned char *c = (const unsigned char *)text;
    if (length >= 1 &&
        (c[0] == ' ' || (c[0] >= 0x09 && c[0] <= 0x0d) || (c[0] >= 0x1c && c[0] <= 0x1f)))
        return 1;
    if (length >= 2 && c[0] == 0xc2) /* U+0085, U+00A0 */
        return c[1] == 0x85 || c[1] == 0xa0 ? 2 : 0;
    if (length < 3 || c[0] < 0xe1 || c[0] > 0xe3)
        return 0;
    unsigned point = (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    bool space = point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
                 point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
    return space ? 3 : 0;
}

static struct range trim(const char *text, struct range range)
{
    size_t length;
    while ((length = space_length(text + range.from, range.to - range.from)) > 0)
        range.from += length;
    while (range.from < range.to) {
        size_t at = range.to - 1; /* start of the last character */
        while (at > range.from && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (space_length(text + at, range.to - at) != range.to - at)
            break;
        range.to = at;
    }
    return range;
}

static enum status flatten_part(struct render *render, const json_t *part, bool system)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (json_object_get(part, "image") || json_object_get(part, "image_url") ||
        is_text(type, "image")) {
        static const char image[] = "<|vision_start|><|image_pad|><|vision_end|>";
        if (system)
            return error_set(render->error, STATUS_INVALID,
                             "System message cannot contain images.");
        prompt_append(&render->flat, image, strlen(image), true);
    } else if (json_object_get(part, "video") || is_text(type, "video")) {
        static const char video[] = "<|vision_start|><|video_pad|><|vision_end|>";
        if (system)
            return error_set(render->error, STATUS_INVALID,
                             "System message cannot contain videos.");
        prompt_append(&render->flat, video, strlen(video), true);
    } else if (json_is_string(text)) {
        prompt_append(&render->flat, json_string_value(text), json_string_length(text), false);
    } else {
        return error_set(render->error, STATUS_INVALID, "Unexpected item type in content.");
    }
    return STATUS_OK;
}

/* Appends a message's text to render.flat, with the breakpoints in it (text/messages.h). */
static void flatten_text(struct render *render, const json_t *message, const char *text,
                         size_t length)
{
    const json_t *places = json_object_get(message, MESSAGES_BREAKPOINTS);
    size_t from = 0;
    for (size_t i = 0; i < json_array_size(places); i++) {
        json_int_t place = json_integer_value(json_array_get(places, i));
        if (place <= (json_int_t)from || place > (json_int_t)length)
            continue;
        prompt_append(&render->flat, text + from, (size_t)place - from, false);
        prompt_break(&render->flat);
        from = (size_t)place;
    }
    prompt_append(&render->flat, text + from, length - from, false);
}

/* Brings the breakpoints that stand in white space around the content to its border. */
static void trim_breakpoints(struct prompt *flat, struct range content)
{
    for (size_t i = 0; i < flat->n_breakpoints; i++)
        if (flat->breakpoints[i] > content.to)
            flat->breakpoints[i] = content.to;
}

/* Fills render.flat with the message's content; `content` is the trimmed range of it. */
static enum status flatten(struct render *render, const json_t *message, bool system,
                           struct range *content)
{
    const json_t *value = json_object_get(message, "content");
    prompt_reset(&render->flat);
    if (json_is_string(value)) {
        flatten_text(render, message, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            enum status status = flatten_part(render, json_array_get(value, i), system);
            if (status != STATUS_OK)
                return status;
        }
    } else if (value && !json_is_null(value)) {
        return error_set(render->error, STATUS_INVALID, "Unexpected content type.");
    }
    if (render->flat.text.failed)
        return error_no_memory(render->error, "a message's content");
    *content = (struct range){0, render->flat.text.length};
    if (content->to > 0)
        *content = trim(render->flat.text.data, *content);
    trim_breakpoints(&render->flat, *content);
    return STATUS_OK;
}

static enum status render_system(struct render *render, const json_t *tools)
{
    const json_t *first = json_array_get(render->messages, 0);
    bool with_tools = json_array_size(tools) > 0, with_system = has_role(first, "system");
    struct range content = {0, 0};
    if (with_system) {
        enum status status = flatten(render, first, true, &content);
        if (status != STATUS_OK)
            return status;
    }
    if (!with_tools && !with_system)
        return STATUS_OK;
    own(render, "<|im_start|>system\n");
    if (with_tools) {
        own(render, tools_head);
        for (size_t i = 0; i < json_array_size(tools); i++) {
            own(render, "\n");
            foreign_json(render, json_array_get(tools, i));
        }
        own(render, tools_tail);
        if (content.from < content.to)
            own(render, "\n\n");
    }
    flat_range(render, content);
    own(render, "<|im_end|>\n");
    return STATUS_OK;
}

/* A user message that is wholly a tool's response (older clients send them so) is no question. */
static bool is_wrapped(const char *text, struct range content)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t length = content.to - content.from, n_open = strlen(open), n_close = strlen(close);
    return length >= n_close && memcmp(text + content.from, open, n_open) == 0 &&
           memcmp(text + content.to - n_close, close, n_close) == 0;
}

static enum status find_last_query(struct render *render)
{
    for (size_t i = json_array_size(render->messages); i-- > 0;) {
        const json_t *message = json_array_get(render->messages, i);
        if (!has_role(message, "user"))
            continue;
        struct range content;
        enum status status = flatten(render, message, false, &content);
        if (status != STATUS_OK)
            return status;
        if (!is_wrapped(render->flat.text.data, content)) {
            render->last_query = i;
            return STATUS_OK;
        }
    }
    return error_set(render->error, STATUS_INVALID, "No user query found in messages.");
}

/* The first or the last place of `tag` in the range; range.to when it is not there. */
static size_t find(const char *text, struct range range, const char *tag, bool last)
{
    size_t found = range.to, length = strlen(tag);
    while (range.from < range.to) {
        const char *at = memmem(text + range.from, range.to - range.from, tag, length);
        if (!at)
            break;
        found = (size_t)(at - text);
        if (!last)
            break;
        range.from = found + length;
    }
    return found;
}

/* Takes the reasoning out of `content` when a message brings both in one text. */
static struct range split_reasoning(const char *text, struct range *content)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t first = find(text, *content, close, false);
    if (first == content->to)
        return (struct range){content->from, content->from};
    struct range reasoning = {content->from, first};
    while (reasoning.from < reasoning.to && text[reasoning.to - 1] == '\n')
        reasoning.to--;
    size_t opened = find(text, reasoning, open, true);
    if (opened < reasoning.to)
        reasoning.from = opened + strlen(open); /* a newline after it falls to trim */
    content->from = find(text, *content, close, true) + strlen(close);
    while (content->from < content->to && text[content->from] == '\n')
        content->from++;
    return trim(text, reasoning);
}

static void render_arguments(struct render *render, const json_t *arguments)
{
    for (void *at = json_object_iter((json_t *)arguments); at;
         at = json_object_iter_next((json_t *)arguments, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        own(render, "<parameter=");
        foreign(render, key, strlen(key));
        own(render, ">\n");
        if (json_is_string(value))
            foreign(render, json_string_value(value), json_string_length(value));
        else
            foreign_json(render, value);
        own(render, "\n</parameter>\n");
    }
}

static enum status render_calls(struct render *render, size_t index, bool after_text)
{
    const json_t *message = json_array_get(render->messages, index);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (json_is_string(calls) && json_string_length(calls) > 0)
        return error_set(render->error, STATUS_INVALID,
                         "messages[%zu].tool_calls: found a string, wanted an array", index);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *function = json_object_get(call, "function");
        if (function)
            call = function;
        const json_t *name = json_object_get(call, "name");
        const json_t *arguments = json_object_get(call, "arguments");
        if (!json_is_string(name))
            return error_set(render->error, STATUS_INVALID,
                             "messages[%zu].tool_calls[%zu]: found %s as the function's name, "
                             "wanted a string",
                             index, i, json_type_name(name));
        if (arguments && !json_is_object(arguments))
            return error_set(render->error, STATUS_INVALID,
                             "messages[%zu].tool_calls[%zu]: found %s as the arguments, wanted an "
                             "object",
                             index, i, json_type_name(arguments));
        own(render, i > 0 ? "\n" : after_text ? "\n\n" : "");
        own(render, "<tool_call>\n<function=");
        foreign(render, json_string_value(name), json_string_length(name));
        own(render, ">\n");
        render_arguments(render, arguments);
        own(render, "</function>\n</tool_call>");
    }
    return STATUS_OK;
}

static enum status render_assistant(struct render *render, size_t index, struct range content)
{
    const json_t *message = json_array_get(render->messages, index);
    const json_t *field = json_object_get(message, "reasoning_content");
    const char *text = render->flat.text.data ? render->flat.text.data : "";
    struct range reasoning = {0, 0};
    if (!json_is_string(field))
        reasoning = split_reasoning(text, &content);
    own(render, "<|im_start|>assistant\n");
    if (render->options->preserve_thinking == TEMPLATE_TRUE || index > render->last_query) {
        own(render, "<think>\n");
        if (json_is_string(field)) {
            const char *given = json_string_value(field);
            struct range trimmed = trim(given, (struct range){0, json_string_length(field)});
            foreign(render, given + trimmed.from, trimmed.to - trimmed.from);
        } else {
            flat_range(render, reasoning);
        }
        own(render, "\n</think>\n\n");
    }
    flat_range(render, content);
    struct range visible = trim(text, content);
    enum status status = render_calls(render, index, visible.from < visible.to);
    own(render, "<|im_end|>\n");
    return status;
}

static void render_tool(struct render *render, size_t index, struct range content)
{
    /* tool messages in a row share one user turn; the very first message opens none */
    if (index > 0 && !has_role(json_array_get(render->messages, index - 1), "tool"))
        own(render, "<|im_start|>user");
    own(render, "\n<tool_response>\n");
    flat_range(render, content);
    own(render, "\n</tool_response>");
    if (!has_role(json_array_get(render->messages, index + 1), "tool"))
        own(render, "<|im_end|>\n");
}

static enum status render_message(struct render *render, size_t index)
{
    const json_t *message = json_array_get(render->messages, index);
    struct range content;
    enum status status = flatten(render, message, false, &content);
    if (status != STATUS_OK)
        return status;
    if (has_role(message, "system")) { /* the first one is out already */
        if (index > 0)
            status = error_set(render->error, STATUS_INVALID,
                               "System message must be at the beginning.");
    } else if (has_role(message, "user")) {
        own(render, "<|im_start|>user\n");
        flat_range(render, content);
        own(render, "<|im_end|>\n");
    } else if (has_role(message, "assistant")) {
        status = render_assistant(render, index, content);
    } else if (has_role(message, "tool")) {
        render_tool(render, index, content);
    } else {
        status = error_set(render->error, STATUS_INVALID, "Unexpected message role.");
    }
    return status;
}

static enum status render_all(struct render *render, const json_t *tools)
{
    if (json_array_size(render->messages) == 0)
        return error_set(render->error, STATUS_INVALID, "No messages provided.");
    for (size_t i = 0; i < json_array_size(render->messages); i++) {
        const json_t *message = json_array_get(render->messages, i);
        if (!json_is_object(message))
            return error_set(render->error, STATUS_INVALID,
                             "messages[%zu]: found %s, wanted an object", i,
                             json_type_name(message));
    }
    enum status status = render_system(render, tools);
    if (status == STATUS_OK)
        status = find_last_query(render);
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(render->messages); i++)
        status = render_message(render, i);
    if (status != STATUS_OK)
        return status;
    if (render->options->add_generation_prompt) {
        own(render, "<|im_start|>assistant\n");
        own(render, render->options->enable_thinking == TEMPLATE_FALSE ? "<think>\n\n</think>\n\n"
                                                                       : "<think>\n");
    }
    if (render->out->text.failed)
        return error_no_memory(render->error, "the prompt's text");
    return STATUS_OK;
}

enum status template_render(const json_t *messages, const json_t *tools,
                            const struct template_options *options, struct prompt *prompt,
                            struct error *error)
{
    struct render render = {
        .messages = messages, .options = options, .out = prompt, .error = error};
    enum status status = render_all(&render, tools);
    prompt_clear(&render.flat);
    return status;
}
