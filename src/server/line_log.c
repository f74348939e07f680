#include "server/line_log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/bytes.h"

#define PATIENCE                                                                                   \
    10 /* milliseconds, once, for a reader that has fallen behind: connections wait                \
        */

void line_log_init(struct line_log *log, int descriptor)
{
    *log = (struct line_log){.descriptor = descriptor};
    pthread_mutex_init(&log->mutex, NULL);
}

void line_log_clear(struct line_log *log)
{
    pthread_mutex_destroy(&log->mutex);
}

/* A pipe that poll calls writable takes PIPE_BUF bytes (4,096 on Linux) without making us wait. */
static bool has_room(struct line_log *log)
{
    struct pollfd poller = {.fd = log->descriptor, .events = POLLOUT};
    int n = poll(&poller, 1, log->stalled ? 0 : PATIENCE);
    log->stalled = n == 0;
    return !log->stalled;
}

static bool put(struct line_log *log, const char *line, size_t length)
{
    size_t done = 0;
    if (!has_room(log))
        return false;
    while (done < length) {
        ssize_t n = write(log->descriptor, line + done, length - done);
        if (n <= 0)
            return false; /* nobody will ever read it, or the disk is full */
        done += (size_t)n;
    }
    return true;
}

void line_log_write(struct line_log *log, const char *line, size_t length)
{
    char text[80];
    pthread_mutex_lock(&log->mutex);
    if (log->lost > 0) {
        int n = snprintf(text, sizeof text, "lost %llu lines of this log: no room for them\n",
                         log->lost);
        if (put(log, text, (size_t)n))
            log->lost = 0;
    }
    log->lost += !put(log, line, length);
    pthread_mutex_unlock(&log->mutex);
}

void line_log_print(struct line_log *log, const char *format, ...)
{
    struct bytes line = {0};
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bytes_format(&line, "%s\n", text);
    if (!line.failed)
        line_log_write(log, line.data, line.length);
    bytes_clear(&line);
}
