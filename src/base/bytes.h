/* A growable run of bytes. Appending never fails visibly: when memory runs out the buffer remembers
 * it in `failed` and drops what follows, so that builders check once, at the end. The data may hold
 * NUL bytes; it is not NUL-terminated unless bytes_terminate was called last. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct bytes {
    char *data;
    size_t length, capacity;
    bool failed;
};

void bytes_append(struct bytes *bytes, const void *data, size_t length);
void bytes_append_text(struct bytes *bytes, const char *text);
void bytes_append_byte(struct bytes *bytes, char byte);
void bytes_format(struct bytes *bytes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Makes data[length] a NUL (not counted) and returns data; NULL when an append failed. */
const char *bytes_terminate(struct bytes *bytes);
/* Empties the buffer and keeps its memory. */
void bytes_reset(struct bytes *bytes);
void bytes_clear(struct bytes *bytes);
