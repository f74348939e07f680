/* A backend that generates given ids for each sequence, whatever it reads: for tests of everything
 * around the model with text that no small model would write. Put the ids into `replay` before a
 * generation; after the last one it repeats `replay.end`. */
#pragma once

#include "backend/backend.h"

#define REPLAY_ROWS 16

extern const struct backend_ops backend_replay;

extern struct replay {
    const int32_t *ids;
    int n;
    int32_t end;
    int steps;                 /* decode steps done since the last prompt */
    int max_chunk;             /* 0: REPLAY_ROWS */
    int fail_at;               /* the step that fails with STATUS_DEVICE; 0: none */
    void (*on_step)(int step); /* called in each decode step; may be NULL */
} replay;
