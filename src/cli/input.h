/* What a command reads as a whole: files, stdin, and the check that it is text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"
#include "text/tokenizer.h"

/* Bytes of a text, of a line, of a JSON file: more than that is refused while it is read, for there
 * are files without end. */
#define INPUT_MAX TOKENIZER_TEXT_MAX

/* Appends a file, stdin for "-", or whatever else can be read to its end: <(…) is a pipe. */
enum status input_read(const char *path, struct bytes *out, struct error *error);
/* Appends the next line of stdin without its newline; *found is false at the end. */
enum status input_line(struct bytes *out, bool *found, struct error *error);
/* STATUS_INVALID with `name` when that many bytes are more than INPUT_MAX. */
enum status input_check_size(const char *name, size_t length, struct error *error);
/* The path as a message shows it. */
const char *input_name(const char *path);
/* STATUS_INVALID with `name`, the place and the byte when the text is no UTF-8. */
enum status input_check_utf8(const char *name, const char *text, size_t length,
                             struct error *error);
/* input_read for a JSON text: checked, NUL-terminated, with no NUL in it. */
enum status input_read_json(const char *path, struct bytes *out, struct error *error);
/* Whether there is nothing but ASCII white space. */
bool input_is_blank(const char *text, size_t length);
