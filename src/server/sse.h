/* Server-sent events: the frames around an answer's chunks. Everything is appended to `out`. */
#pragma once

#include <stdint.h>

#include "base/bytes.h"

/* An event's data, which must be one line of UTF-8, is written between the two. */
void sse_begin(struct bytes *out);
void sse_end(struct bytes *out);
/* The end of a stream: `data: [DONE]`. */
void sse_done(struct bytes *out);
/* A comment, which clients pass over; a line break in the text becomes a space. */
void sse_comment(const char *text, struct bytes *out);
/* A comment that tells how far the prompt has been read: `total` tokens, of which `read` are done,
 * `cached` of these without reading. */
void sse_progress(int64_t total, int64_t read, int64_t cached, struct bytes *out);
