/* The JSONL filters: one JSON object a line on stdin, one a line on stdout, order kept. A line that
 * is refused gives {"error": "…"} in its place and the rest goes on. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/error.h"

/* Answers one line: appends one JSON object (no newline) to `out`. An error returned means that the
 * line is not of the stated form: it is printed and the exit code will be 1, unless the error is
 * STATUS_UNSUPPORTED. A line refused only for its content is answered with jsonl_refuse and
 * STATUS_OK. */
typedef enum status jsonl_handler(void *context, const json_t *line, struct bytes *out,
                                  struct error *error);
void jsonl_refuse(struct bytes *out, const struct error *error);

/* Writes a line, which has its newline, to stdout at once. STATUS_CANCELLED when the reader has
 * left.
 */
enum status jsonl_write(const struct bytes *line, struct error *error);

/* Runs until the end of stdin and returns the exit code. */
int jsonl_run(jsonl_handler *handler, void *context);

/* Reads a field of `line`. An absent or null field leaves *value as it is, unless it is required;
 * another type is an error that names the field. Texts may hold NUL. */
enum status jsonl_bool(const json_t *line, const char *field, bool *value, struct error *error);
enum status jsonl_text(const json_t *line, const char *field, bool required, const char **value,
                       size_t *length, struct error *error);
enum status jsonl_array(const json_t *line, const char *field, bool required, const json_t **value,
                        struct error *error);
