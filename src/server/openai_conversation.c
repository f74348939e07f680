#include "server/openai_conversation.h"

#include <string.h>

#include "text/messages.h"

#define AT(member) offsetof(struct openai_conversation_fields, member)

const struct openai_field openai_conversation_fields[] = {
    OBEYED("tools", openai_read_json, AT(tools)),
    OBEYED("tool_choice", openai_read_json, AT(tool_choice)),
    OBEYED("chat_template_kwargs", openai_read_json, AT(template_kwargs)),
    OBEYED("enable_thinking", openai_read_flag, AT(enable_thinking)),
    OBEYED("preserve_thinking", openai_read_flag, AT(preserve_thinking)),
    OBEYED("reasoning_effort", openai_read_json, AT(effort)),
    REFUSED("functions", openai_refuse_any),
    REFUSED("function_call", openai_refuse_any),
    REFUSED("chat_template", openai_refuse_any),
    REFUSED("continue_final_message", openai_refuse_true),
    {.name = NULL},
};

static bool read_kwarg(const json_t *kwargs, const char *place, enum template_flag *flag,
                       struct openai_problem *problem)
{
    const json_t *value = openai_get(kwargs, strchr(place, '.') + 1);
    if (value && !json_is_boolean(value))
        return openai_refuse(problem, place, value, "true or false");
    if (value)
        *flag = json_is_true(value) ? TEMPLATE_TRUE : TEMPLATE_FALSE;
    return true;
}

/* The three spellings of thinking, the weakest first. */
static bool read_thinking(const struct openai_conversation_fields *fields,
                          struct template_options *options, struct openai_problem *problem)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max", NULL};
    if (fields->effort) {
        int i = 0;
        while (efforts[i] && !openai_is_text(fields->effort, efforts[i]))
            i++;
        if (!efforts[i])
            return openai_refuse(problem, "reasoning_effort", fields->effort,
                                 "none, minimal, low, medium, high, xhigh or max");
        options->enable_thinking = i == 0 ? TEMPLATE_FALSE : TEMPLATE_TRUE;
    }
    if (fields->enable_thinking != TEMPLATE_UNDEFINED)
        options->enable_thinking = fields->enable_thinking;
    options->preserve_thinking = fields->preserve_thinking;
    const json_t *kwargs = fields->template_kwargs;
    if (!kwargs)
        return true;
    if (!json_is_object(kwargs))
        return openai_refuse(problem, "chat_template_kwargs", kwargs, "an object");
    return read_kwarg(kwargs, "chat_template_kwargs.enable_thinking", &options->enable_thinking,
                      problem) &&
           read_kwarg(kwargs, "chat_template_kwargs.preserve_thinking", &options->preserve_thinking,
                      problem);
}

bool openai_conversation_finish(const struct openai_conversation_fields *fields,
                                struct openai_conversation *conversation,
                                struct openai_problem *problem)
{
    struct error error;
    if (!read_thinking(fields, &conversation->options, problem))
        return false;
    if (messages_check_tools(fields->tools, &error) != STATUS_OK)
        return openai_problem_from(problem, &error, "tools");
    const json_t *tools = json_array_size(fields->tools) > 0 ? fields->tools : NULL;
    if (!openai_tools_choose(tools, fields->tool_choice, conversation, problem))
        return false;
    if (json_is_array(fields->messages) && json_array_size(fields->messages) == 0)
        return openai_refuse(problem, "messages", fields->messages, "at least one message");
    if (messages_prepare(fields->messages, &conversation->messages, &error) != STATUS_OK)
        return openai_problem_from(problem, &error, "messages");
    return true;
}

bool openai_conversation_render(const struct openai_conversation *conversation,
                                struct prompt *prompt, struct openai_problem *problem)
{
    struct error error;
    return template_render(conversation->messages, conversation->tools, &conversation->options,
                           prompt, &error) == STATUS_OK ||
           openai_problem_from(problem, &error, "messages");
}

void openai_conversation_clear(struct openai_conversation *conversation)
{
    json_decref(conversation->messages);
    json_decref(conversation->tools);
    *conversation = (struct openai_conversation){0};
}
