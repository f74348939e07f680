/* What config.c and config_quantization.c share: one JSON object of a file and how a field of it is
 * refused. Private to the two. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "model/config.h"

struct fields {
    const char *file;   /* begins the message */
    const char *prefix; /* of field names: "text_config." */
    json_t *object;
};

/* "FILE: PREFIX.FIELD: found JSON, wanted …"; a NULL `found` is named "nothing". */
enum status field_refuse(const struct fields *fields, const char *field, const json_t *found,
                         struct error *error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Whether `value`, as json_print spells it, is `wanted`, which must hold neither an object, a real
 * number nor an escape. False when either is NULL. */
bool field_is(const json_t *value, const char *wanted);

enum status config_read_quantization(const struct fields *root, struct config *config,
                                     struct error *error);
