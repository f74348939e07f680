/* Finds stop strings in streamed text and keeps them out of it: text that may be the beginning of a
 * stop string is held back until it is clear. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

struct stop_matcher {
    const char *const *strings; /* borrowed; not empty ones */
    int n;
    struct bytes held; /* a tail that begins some stop string */
};

void stop_matcher_init(struct stop_matcher *matcher, const char *const *strings, int n);
void stop_matcher_clear(struct stop_matcher *matcher);
/* Appends to `out` what is certain; true when a stop string is complete (the earliest one; nothing
 * from its first byte on is given out). */
bool stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t length,
                       struct bytes *out);
/* No more text follows: the stop string that was beginning is none, but a shorter one may stand
 * inside what is held. As stop_matcher_push otherwise. */
bool stop_matcher_flush(struct stop_matcher *matcher, struct bytes *out);
