/* OpenAI's messages and tools brought to the form that the chat template receives. Everything here
 * may come from the network: any JSON shape gives a result or one clear line that names the field
 * ("messages[2].content: found an integer, wanted …"). Server and commands call it before
 * template_render. */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* In a prepared message: where its content was marked by `prompt_cache_breakpoint`, as ascending
 * byte offsets into the content (an array of integers). The template brings them to the prompt. */
#define MESSAGES_BREAKPOINTS "prompt_cache_breakpoints"

/* Makes the template's messages: a new array that the caller owns.
 *  - role developer becomes system; leading system messages become one, joined by a newline;
 *  - content becomes one string: text parts joined without separator; a part that is no text
 *    (image, audio, file) is refused;
 *  - the reasoning of an assistant may be called `reasoning_content` or `reasoning`;
 *  - an assistant's `refusal` stands in for content that is missing;
 *  - a text part's `prompt_cache_breakpoint` becomes a place in MESSAGES_BREAKPOINTS;
 *  - arguments of tool calls, JSON in a string, become objects ("" is {});
 *  - tool results stand in the order of the calls that they answer, as far as their ids tell.
 * The order of roles is left to the template, which says what it wants. */
enum status messages_prepare(const json_t *messages, json_t **out, struct error *error);

/* Checks a request's `tools`: an array of {type: "function", function: {name, …}}. NULL and null
 * are no tools. They need no change: the template prints them as they were received. */
enum status messages_check_tools(const json_t *tools, struct error *error);
