/* Lists of lengths as the options of `calla bench` take them. */
#include <inttypes.h>

#include "cli/bench.h"

enum status bench_list_parse(const char *option, const char *text, int32_t low, int32_t high,
                             struct bench_list *list, struct error *error)
{
    list->n = 0;
    for (const char *at = text;; at++) {
        int64_t value;
        const char *end = at;
        bool digits = *at >= '0' && *at <= '9' && options_read_size(&end, &value);
        if (!digits || (*end && *end != ','))
            return error_set(error, STATUS_INVALID,
                             "--%s: found '%s', wanted numbers with commas between them, such as "
                             "256,1K",
                             option, text);
        if (value < low || value > high)
            return error_set(error, STATUS_INVALID, "--%s: found %" PRId64 ", wanted %d to %d",
                             option, value, low, high);
        if (list->n == BENCH_MAX_LIST)
            return error_set(error, STATUS_INVALID, "--%s: found more than %d numbers", option,
                             BENCH_MAX_LIST);
        list->values[list->n++] = (int32_t)value;
        if (!*end)
            return STATUS_OK;
        at = end;
    }
}
