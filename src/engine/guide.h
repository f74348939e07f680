/* What the next token may be, decided outside of the engine: a budget for thinking, a call that has
 * to come, a grammar. Called on the thread that drives the generation, between its steps. */
#pragma once

#include <stdint.h>

enum {
    GUIDE_FREE = -1, /* anything may come */
    GUIDE_MASK = -2, /* what `mask` leaves */
};

struct guide {
    /* GUIDE_FREE, GUIDE_MASK, or the id that has to come. */
    int32_t (*next)(void *context);
    /* Sets the logits [n] of what may not come to -INFINITY, and leaves at least one. */
    void (*mask)(void *context, float *logits, int32_t n);
    /* A token was generated, forced ones too. */
    void (*add)(void *context, int32_t token);
    void *context;
};
