/* "verifying: 37 %, 12 s left" on stderr while something long goes on: on a terminal only, only
 * once it has taken a second, rewritten in place and wiped at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    const char *what;
    int64_t total;
    double started, drawn; /* seconds; drawn: when last, negative before the first time */
    bool terminal;
};

void progress_begin(struct progress *progress, const char *what, int64_t total);
void progress_update(struct progress *progress, int64_t done);
void progress_end(struct progress *progress);

/* What progress_update writes at the time `now`, without the terminal; false: nothing yet. */
bool progress_line(struct progress *progress, int64_t done, double now, char *line, size_t size);
