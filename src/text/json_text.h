/* JSON as text: checked without building values, so that what the model wrote can be passed on
 * letter by letter (integers of any size, floats as they were spelled). Used by the reply parser's
 * value typing and by whoever prints the arguments it streamed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

/* Deeper nesting counts as no JSON: common parsers refuse it. */
enum { JSON_TEXT_DEPTH = 500 };

/* Space, tab, LF, CR: JSON's white space and the one of the reply rules. */
bool json_text_is_space(char c);
/* Whether `text` is one object or array, white space around it allowed. Refused besides what is no
 * JSON: lone surrogates and floats beyond double, which most parsers cannot read. */
bool json_text_is_container(const char *text, size_t length);
/* Whether digits[.digits][e[+-]digits], with any sign before it, is a finite double. The text must
 * be of that form. */
bool json_text_is_finite(const char *text, size_t length);
/* Appends a JSON object, which must be valid and have its keys all spelled one way, with repeated
 * keys resolved: the last value, at the place of the first. Values keep their letters; between
 * members stands ", ". Nested objects are left alone. Memory failure shows in out->failed. */
void json_text_print_unique(const char *text, size_t length, struct bytes *out);
