/* The fields that make a prompt out of messages; chat completions, /tokenize and /apply-template
 * share them, so that the same fields give the same prompt everywhere. */
#pragma once

#include "server/openai_fields.h"

/* The fields as they stand in the body (borrowed), until openai_conversation_finish. */
struct openai_conversation_fields {
    const json_t *messages, *tools, *tool_choice, *template_kwargs, *effort;
    enum template_flag enable_thinking, preserve_thinking;
};

extern const struct openai_field openai_conversation_fields[]; /* all but messages */

/* Makes messages, tools and the template's options of them, all but add_generation_prompt.
 * `conversation` must be zeros; it is cleared by the caller, whatever comes back. */
bool openai_conversation_finish(const struct openai_conversation_fields *fields,
                                struct openai_conversation *conversation,
                                struct openai_problem *problem);
/* Its part of tool_choice: which tools the model sees and whether it must call one. `tools` have
 * been checked; NULL: none. */
bool openai_tools_choose(const json_t *tools, const json_t *choice,
                         struct openai_conversation *conversation, struct openai_problem *problem);
