/* A backend that generates given ids, whatever it reads: for tests of everything around the model
 * with text that no small model would write. Put the ids into `replay` before a generation; after
 * the last one it repeats `replay.end`. */
#pragma once

#include "backend/backend.h"

extern const struct backend_ops backend_replay;

extern struct replay {
    const int32_t *ids;
    int n;
    int32_t end;
    int steps;                 /* decode steps done since the last reset of a sequence */
    int max_chunk;             /* 0: 16 */
    int fail_at;               /* the step that fails with STATUS_DEVICE; 0: none */
    void (*on_step)(int step); /* called in each decode step; may be NULL */
} replay;
