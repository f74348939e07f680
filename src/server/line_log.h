/* The server's log: whole lines to a descriptor that somebody else reads, perhaps too slowly or not
 * any more. A request must not wait for that, so lines that find no room are dropped and counted,
 * and the count is told when there is room again. Any thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct line_log {
    int descriptor;
    pthread_mutex_t mutex; /* guards what follows */
    bool stalled;          /* there was no room last time */
    unsigned long long lost;
};

void line_log_init(struct line_log *log, int descriptor);
void line_log_clear(struct line_log *log);
/* A line with its \n. One longer than 4,096 bytes may make the caller wait for a reader. */
void line_log_write(struct line_log *log, const char *line, size_t length);
/* Appends the \n. */
void line_log_print(struct line_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
