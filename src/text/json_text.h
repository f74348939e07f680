/* JSON as text, for what the model wrote and what is passed on letter by letter (integers of any
 * size, floats as they were spelled). Used by the reply parser's value typing and by whoever prints
 * the arguments that it streamed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"

/* Space, tab, LF, CR: JSON's white space and the one of the reply rules. */
bool json_text_is_space(char c);
/* STATUS_OK when `text` is one object or array, white space around it allowed (strict JSON in valid
 * UTF-8, nested at most 512 deep); STATUS_INVALID or STATUS_NO_MEMORY. */
enum status json_text_check_container(const char *text, size_t length);
/* Appends valid JSON on one line, as json.dumps would space it: white space outside of strings is
 * dropped, one space follows each comma and colon. Numbers and strings keep their letters. */
void json_text_print_line(const char *text, size_t length, struct bytes *out);
/* Whether digits[.digits][e[+-]digits], with any sign before it, is a finite double. The text must
 * be of that form. */
bool json_text_is_finite(const char *text, size_t length);
/* Appends a JSON object, which must be valid, with repeated keys resolved: the last value, at the
 * place of the first. Values keep their letters; between members stands ", ". Nested objects are
 * left alone. Memory failure shows in out->failed. */
void json_text_print_unique(const char *text, size_t length, struct bytes *out);
