/* tool_choice: which tools the model sees, and whether it must call one. */
#include <stdio.h>
#include <string.h>

#include "server/openai_conversation.h"

enum { ALLOWED_MAX = 128 }; /* as many as there may be tools */

static const json_t *name_of(const json_t *tool)
{
    return json_object_get(json_object_get(tool, "function"), "name");
}

/* The tool of this name; NULL when there is none. */
static json_t *find(const json_t *tools, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_equal(name_of(json_array_get(tools, i)), name))
            return json_array_get(tools, i);
    return NULL;
}

/* {type: "function", function: {name}} at `place`: the tool of that name, or a problem. */
static json_t *read_function(const json_t *tools, const json_t *value, const char *place,
                             struct openai_problem *problem)
{
    char field[96];
    const json_t *type = json_object_get(value, "type"), *name = name_of(value);
    if (!json_is_object(value)) {
        openai_refuse(problem, place, value, "an object with a type");
        return NULL;
    }
    if (!openai_is_text(type, "function")) {
        snprintf(field, sizeof field, "%s.type", place);
        openai_refuse(problem, field, type, "\"function\"");
        return NULL;
    }
    json_t *tool = json_is_string(name) ? find(tools, name) : NULL;
    if (!tool) {
        snprintf(field, sizeof field, "%s.function.name", place);
        openai_refuse(problem, field, name, "the name of one of the tools");
    }
    return tool;
}

static bool refuse_without_tools(struct openai_problem *problem)
{
    return openai_invalid(problem, "tool_choice",
                          "tool_choice: a call is asked for, wanted tools to be given, too");
}

static bool no_memory(struct openai_problem *problem)
{
    struct error error;
    error_no_memory(&error, "the tools");
    return openai_problem_from(problem, &error, NULL);
}

/* Keeps the allowed ones in the order of all tools. */
static bool choose_allowed(const json_t *tools, const json_t *allowed,
                           struct openai_conversation *conversation, struct openai_problem *problem)
{
    static const char place[] = "tool_choice.allowed_tools";
    const json_t *mode = json_object_get(allowed, "mode"),
                 *list = json_object_get(allowed, "tools");
    if (!json_is_object(allowed))
        return openai_refuse(problem, place, allowed, "an object with mode and tools");
    bool required = openai_is_text(mode, "required");
    if (!required && !openai_is_text(mode, "auto"))
        return openai_refuse(problem, "tool_choice.allowed_tools.mode", mode, "auto or required");
    if (json_array_size(list) == 0 || json_array_size(list) > ALLOWED_MAX)
        return openai_refuse(problem, "tool_choice.allowed_tools.tools", list,
                             "an array of 1 to %d tools", ALLOWED_MAX);
    bool keep[ALLOWED_MAX] = {false};
    for (size_t i = 0; i < json_array_size(list); i++) {
        char field[64];
        snprintf(field, sizeof field, "%s.tools[%zu]", place, i);
        const json_t *tool = read_function(tools, json_array_get(list, i), field, problem);
        if (!tool)
            return false;
        for (size_t k = 0; k < json_array_size(tools); k++)
            keep[k] |= json_array_get(tools, k) == tool;
    }
    conversation->tool_choice = required ? OPENAI_TOOLS_REQUIRED : OPENAI_TOOLS_AUTO;
    conversation->tools = json_array();
    for (size_t k = 0; k < json_array_size(tools); k++)
        if (keep[k] && json_array_append(conversation->tools, json_array_get(tools, k)) != 0)
            return no_memory(problem);
    return conversation->tools || no_memory(problem);
}

static bool choose_object(const json_t *tools, const json_t *choice,
                          struct openai_conversation *conversation, struct openai_problem *problem)
{
    const json_t *type = json_object_get(choice, "type");
    bool allowed = openai_is_text(type, "allowed_tools");
    if (!allowed && !openai_is_text(type, "function"))
        return openai_refuse(problem, "tool_choice.type", type, "function or allowed_tools");
    if (!tools)
        return refuse_without_tools(problem);
    if (allowed)
        return choose_allowed(tools, json_object_get(choice, "allowed_tools"), conversation,
                              problem);
    const json_t *tool = read_function(tools, choice, "tool_choice", problem);
    if (!tool)
        return false;
    conversation->tool_choice = OPENAI_TOOLS_NAMED;
    conversation->tool_name = json_string_value(name_of(tool));
    conversation->tools = json_incref((json_t *)tools);
    return true;
}

bool openai_tools_choose(const json_t *tools, const json_t *choice,
                         struct openai_conversation *conversation, struct openai_problem *problem)
{
    bool none = openai_is_text(choice, "none"), required = openai_is_text(choice, "required");
    conversation->tool_choice = OPENAI_TOOLS_NONE;
    if (json_is_object(choice))
        return choose_object(tools, choice, conversation, problem);
    if (choice && !none && !required && !openai_is_text(choice, "auto"))
        return openai_refuse(problem, "tool_choice", choice,
                             "none, auto, required or an object with a type");
    if (required && !tools)
        return refuse_without_tools(problem);
    if (none || !tools)
        return true;
    conversation->tool_choice = required ? OPENAI_TOOLS_REQUIRED : OPENAI_TOOLS_AUTO;
    conversation->tools = json_incref((json_t *)tools);
    return true;
}
