/* One line for each request. What was generated is noted while it is known, by the connection's
 * thread, on which the line is written at the request's end. */
#pragma once

#include "server/http.h"

struct request_facts {
    int64_t prompt, cached, generated; /* tokens */
    double decode_seconds;
    const char *finish;  /* a literal */
    const char *problem; /* why it failed, copied; NULL: it did not */
};

/* For the request that this thread answers. */
void request_log_note(const struct request_facts *facts);
/* Appends the line, text or JSON, and forgets the facts. */
void request_log_print(const struct http_record *record, bool json, struct bytes *out);
