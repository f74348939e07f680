/* The model's chat template (spec 8) as code: messages and tools to the text of a prompt. The text
 * equals what the official template gives, and each byte is marked as the template's own (control
 * tokens are recognised there) or as somebody's content (they are not, spec 7.3). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "text/prompt.h"

/* A Jinja variable that is only ever compared with the values true and false. */
enum template_flag { TEMPLATE_UNDEFINED, TEMPLATE_FALSE, TEMPLATE_TRUE };

struct template_options {
    bool add_generation_prompt;
    enum template_flag enable_thinking; /* anything but FALSE opens <think> */
    enum template_flag preserve_thinking;
};

/* Renders into an empty prompt. `messages` and `tools` are what the template itself receives: tool
 * call arguments are objects (text/messages.h brings OpenAI's form there); tools may be NULL.
 * Errors: STATUS_INVALID with the template's own words (spec 8.7), in the order of
 * tests/golden/README.md part 3. */
enum status template_render(const json_t *messages, const json_t *tools,
                            const struct template_options *options, struct prompt *prompt,
                            struct error *error);
/* SHA-256, in hex, of the chat_template.jinja that this file implements. */
extern const char template_sha256[65];
