/* A backend whose next id is a hash of all tokens read before it: for tests of everything that
 * moves sequences about, at a speed that no model has. However tokens were cut, saved, shared or
 * read again, hashed_next tells what has to come. KV rows are the tokens themselves, and each step
 * proves that they and the state are of the same past. */
#pragma once

#include "backend/backend.h"

#define HASHED_ROWS 32

extern const struct backend_ops backend_hashed;

/* May be changed while no step is under way. */
extern struct hashed {
    int max_chunk; /* 0: 64; as of open */
    int slices;    /* > 1: chunks pause until the last of so many calls; as of open */
    /* Called in each step before anything happens, on the engine's thread; may be NULL. Another
     * status than STATUS_OK fails the step; with `broken` set also the rows' sequences. */
    enum status (*on_step)(const struct row *rows, int n, bool prefill, bool *broken);
} hashed;

/* The id that follows the n tokens. */
int32_t hashed_next(const int32_t *tokens, int32_t n);
