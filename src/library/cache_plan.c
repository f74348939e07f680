#include "library/cache_plan.h"

#define GIB ((int64_t)1 << 30)
#define FEWEST 4 /* snapshots that a conversation is quick with: system block, last turns */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum status cache_plan(int64_t wanted, const struct memory_plan *plan,
                       const struct memory_room *room, int64_t *bytes, struct error *error)
{
    /* the weights are mapped: they can be read again, so they are no loss but a slow one */
    int64_t allocated = plan->total - plan->weights, available = room->available;
    int64_t free_then =
        smaller(available > 0 ? available - allocated : INT64_MAX,
                room->allocatable < INT64_MAX ? room->allocatable - allocated : INT64_MAX);
    *bytes = larger(wanted, 0);
    if (wanted > free_then && wanted > 0)
        return error_set(error, STATUS_NO_MEMORY,
                         "cache: found %.2f GiB, wanted at most %.2f, what will be free",
                         (double)wanted / (double)GIB, (double)larger(free_then, 0) / (double)GIB);
    if (wanted != 0)
        return STATUS_OK;
    *bytes = GIB;
    if (available > 0)
        *bytes = smaller(GIB, larger((available - plan->total) / 2, FEWEST * plan->state));
    *bytes = larger(0, smaller(*bytes, free_then / 2));
    return STATUS_OK;
}
