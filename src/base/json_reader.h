/* Reads JSON front to back without building values: for large files (a tokenizer.json is 20 MB)
 * where a tree costs too much. Strict JSON in valid UTF-8; nesting is bounded in json_reader_skip
 * and by the caller's own code elsewhere, so no input can exhaust the stack.
 *
 * The first error stays: every later call returns false. The message gives line and column.
 *
 *     bool first = true;
 *     if (json_reader_enter(reader, '{'))
 *         while (json_reader_member(reader, &first, &key, &key_length))
 *             ... read or skip exactly one value ...
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

struct json_reader {
    const char *name;
    const unsigned char *start, *at, *end;
    struct bytes scratch; /* strings that hold escapes, decoded */
    enum status status;
    struct error *error;
};

/* `data` and `name` must outlive the reader. */
void json_reader_init(struct json_reader *reader, const char *data, size_t length, const char *name,
                      struct error *error);
void json_reader_clear(struct json_reader *reader);
/* Goes to a value that json_reader_skip gave. */
void json_reader_seek(struct json_reader *reader, const char *from, size_t length);

/* The first byte of the next value, '0' for any number, 0 at the end of the data. */
char json_reader_kind(struct json_reader *reader);
/* The kind in words: "an object". */
const char *json_reader_kind_name(struct json_reader *reader);

bool json_reader_enter(struct json_reader *reader, char open);
/* On to the next member or element; false after the last one and after an error. */
bool json_reader_member(struct json_reader *reader, bool *first, const char **key, size_t *length);
bool json_reader_element(struct json_reader *reader, bool *first);
/* The text is valid until the next string is read and may hold NUL. */
bool json_reader_string(struct json_reader *reader, const char **text, size_t *length);
/* A number without fraction and exponent that fits 64 bits. */
bool json_reader_integer(struct json_reader *reader, int64_t *value);
/* Passes over any value; `from` and `length` (may be NULL) are set to its text. */
bool json_reader_skip(struct json_reader *reader, const char **from, size_t *length);
/* Whether only white space is left. */
bool json_reader_finish(struct json_reader *reader);
/* Sets an error from outside, as the first one. */
bool json_reader_fail(struct json_reader *reader, enum status status);
