/* How much memory a session may keep to reuse what it has read. */
#pragma once

#include "backend/backend.h"

/* The budget for what the caller wants (calla_open_options.cache_bytes) beside a memory plan for
 * one sequence, on a machine with `available` bytes free (0: unknown). STATUS_NO_MEMORY when more
 * is wanted than will be free. */
enum status cache_plan(int64_t wanted, const struct memory_plan *plan, int64_t available,
                       int64_t *bytes, struct error *error);
