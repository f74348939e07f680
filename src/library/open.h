/* Opening a model on any backend, also one that is not compiled into the table: tests bring theirs.
 */
#pragma once

#include "backend/backend.h"
#include "calla.h"

/* calla_open with the backend given; options->backend is not looked at, options may be NULL. */
enum status library_open(const char *path, const struct backend_ops *ops,
                         const struct calla_open_options *options, struct calla_model **model,
                         struct error *error);
