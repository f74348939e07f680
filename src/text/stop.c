#include "text/stop.h"

#include <string.h>

void stop_matcher_init(struct stop_matcher *matcher, const char *const *strings, int n)
{
    *matcher = (struct stop_matcher){.strings = strings, .n = n};
}

void stop_matcher_clear(struct stop_matcher *matcher)
{
    bytes_clear(&matcher->held);
}

/* At `at` of the held text: 2 a stop string stands there, 1 one may be beginning, 0 none. */
static int match_at(const struct stop_matcher *matcher, size_t at)
{
    size_t left = matcher->held.length - at;
    int best = 0;
    for (int i = 0; i < matcher->n; i++) {
        size_t length = strlen(matcher->strings[i]), compared = length < left ? length : left;
        if (memcmp(matcher->held.data + at, matcher->strings[i], compared) != 0)
            continue;
        int match = length <= left ? 2 : 1;
        best = match > best ? match : best;
    }
    return best;
}

bool stop_matcher_push(struct stop_matcher *matcher, const char *text, size_t length,
                       struct bytes *out)
{
    bytes_append(&matcher->held, text, length);
    size_t at = 0;
    int match = 0;
    while (at < matcher->held.length && (match = match_at(matcher, at)) == 0)
        at++;
    out->failed |= matcher->held.failed;
    bytes_append(out, matcher->held.data, at);
    if (at > 0) {
        matcher->held.length -= at;
        memmove(matcher->held.data, matcher->held.data + at, matcher->held.length);
    }
    if (match == 2)
        bytes_reset(&matcher->held);
    return match == 2;
}

bool stop_matcher_flush(struct stop_matcher *matcher, struct bytes *out)
{
    size_t at = 0;
    while (at < matcher->held.length && match_at(matcher, at) != 2)
        at++;
    bool found = at < matcher->held.length;
    bytes_append(out, matcher->held.data, at);
    bytes_reset(&matcher->held);
    return found;
}
