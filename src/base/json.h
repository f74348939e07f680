/* JSON in and out. jansson parses; printing is ours because prompts need the spelling of Python's
 * json.dumps(ensure_ascii=False): separators ", " and ": ", key order kept, shortest floats that
 * read back the same (1.0, 1e-07), only `"`, `\` and characters below 0x20 escaped (spec 8.1). */
#pragma once

#include <jansson.h>

#include "base/bytes.h"
#include "base/error.h"

/* Parses one JSON value of any type that fills `text` (white space around it is allowed). A key
 * that comes twice has its last value at its first place; U+0000 in values is kept. `name` (a path,
 * "line 3") begins the message, which says line and column. On success *out is owned by the caller.
 * Errors: STATUS_INVALID; STATUS_UNSUPPORTED for integers beyond 64 bits, numbers beyond a double
 * and U+0000 in keys, which may or may not stand in valid JSON: reading ends there. */
enum status json_parse(const char *text, size_t length, const char *name, json_t **out,
                       struct error *error);

/* The same, stricter: an object that has a key twice and U+0000 anywhere are refused. For files
 * that decide what is computed. */
enum status json_parse_strict(const char *text, size_t length, const char *name, json_t **out,
                              struct error *error);
/* "an object", "a string", "null" …; "nothing" for NULL. For messages. */
const char *json_type_name(const json_t *value);

void json_print(const json_t *value, struct bytes *out);
void json_print_string(const char *text, size_t length, struct bytes *out);
/* The same without the quotes, for a string that is written piece by piece. */
void json_print_escaped(const char *text, size_t length, struct bytes *out);
/* A finite double as Python's repr spells it. */
void json_print_real(double value, struct bytes *out);
