#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define FIRST_AFTER 1.0 /* seconds: what is quicker needs no progress */
#define REDRAW_AFTER 0.2

void progress_begin(struct progress *progress, const char *what, int64_t total)
{
    *progress = (struct progress){.what = what,
                                  .total = total,
                                  .started = clock_seconds(),
                                  .drawn = -1,
                                  .terminal = isatty(STDERR_FILENO)};
}

bool progress_line(struct progress *progress, int64_t done, double now, char *line, size_t size)
{
    double elapsed = now - progress->started;
    if (elapsed < FIRST_AFTER || (progress->drawn >= 0 && now - progress->drawn < REDRAW_AFTER))
        return false;
    progress->drawn = now;
    double share = progress->total > 0 ? (double)done / (double)progress->total : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    int percent = (int)(share * 100);
    if (share <= 0) {
        snprintf(line, size, "%s: 0 %%", progress->what);
        return true;
    }
    int64_t left = (int64_t)(elapsed / share - elapsed + 0.5);
    if (left < 100)
        snprintf(line, size, "%s: %d %%, %d s left", progress->what, percent, (int)left);
    else
        snprintf(line, size, "%s: %d %%, %lld min left", progress->what, percent,
                 (long long)(left + 30) / 60);
    return true;
}

void progress_update(struct progress *progress, int64_t done)
{
    char line[160];
    if (progress->terminal && progress_line(progress, done, clock_seconds(), line, sizeof line)) {
        fprintf(stderr, "\r\033[K%s", line);
        fflush(stderr);
    }
}

void progress_end(struct progress *progress)
{
    if (progress->terminal && progress->drawn >= 0)
        fprintf(stderr, "\r\033[K");
    progress->drawn = -1;
}
