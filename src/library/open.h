/* Opening a model on any backend, also one that is not compiled into the table: tests bring theirs.
 */
#pragma once

#include "backend/backend.h"
#include "calla.h"

/* context: tokens, 0 for the default. On failure *model is NULL. */
enum status library_open(const char *path, const struct backend_ops *ops, int32_t context,
                         struct calla_model **model, struct error *error);
