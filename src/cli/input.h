/* What a command reads as a whole: files, stdin, and the check that it is text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"

/* Appends a file, stdin for "-", or whatever else can be read to its end: <(…) is a pipe. */
enum status input_read(const char *path, struct bytes *out, struct error *error);
/* The path as a message shows it. */
const char *input_name(const char *path);
/* STATUS_INVALID with `name`, the place and the byte when the text is no UTF-8. */
enum status input_check_utf8(const char *name, const char *text, size_t length,
                             struct error *error);
/* input_read for a JSON text: checked, NUL-terminated, with no NUL in it. */
enum status input_read_json(const char *path, struct bytes *out, struct error *error);
/* Whether there is nothing but ASCII white space. */
bool input_is_blank(const char *text, size_t length);
