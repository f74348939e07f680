/* Lists of lengths as the options of `calla bench` take them. */
#include <errno.h>
#include <stdlib.h>

#include "cli/bench.h"

enum status bench_list_parse(const char *option, const char *text, int32_t low, int32_t high,
                             struct bench_list *list, struct error *error)
{
    list->n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        bool digits = end > at && *at >= '0' && *at <= '9' && errno == 0 && value <= INT32_MAX;
        if (digits && (*end == 'K' || *end == 'k')) {
            value *= 1024;
            end++;
        }
        if (!digits || (*end && *end != ','))
            return error_set(error, STATUS_INVALID,
                             "--%s: found '%s', wanted numbers with commas between them, such as "
                             "256,1K",
                             option, text);
        if (value < low || value > high)
            return error_set(error, STATUS_INVALID, "--%s: found %ld, wanted %d to %d", option,
                             value, low, high);
        if (list->n == BENCH_MAX_LIST)
            return error_set(error, STATUS_INVALID, "--%s: found more than %d numbers", option,
                             BENCH_MAX_LIST);
        list->values[list->n++] = (int32_t)value;
        if (!*end)
            return STATUS_OK;
        at = end;
    }
}
