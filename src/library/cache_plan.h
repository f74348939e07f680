/* How much memory a session may keep to reuse what it has read. */
#pragma once

#include "backend/backend.h"
#include "base/memory.h"

/* The budget for what the caller wants (calla_open_options.cache_bytes) beside a memory plan for
 * one sequence whose weights are mapped. STATUS_NO_MEMORY when more is wanted than will be free. */
enum status cache_plan(int64_t wanted, const struct memory_plan *plan,
                       const struct memory_room *room, int64_t *bytes, struct error *error);
