/* How much of what a server holds: sequences, context, KV rows that they share, prefix cache. What
 * is not wanted in figures is chosen by what fits. */
#pragma once

#include "base/memory.h"
#include "engine/engine.h"

struct server_wishes {
    int32_t context;     /* tokens of one sequence at most; 0: as many as fit, up to the model's */
    int parallel;        /* sequences at once; 0: SERVER_PARALLEL, fewer where memory is short */
    int64_t cache_bytes; /* of the prefix cache; -1: a part of what is free; 0: none */
};

#define SERVER_PARALLEL 4
#define SERVER_PARALLEL_MAX 256

struct server_plan {
    int32_t context;
    int parallel;
    int64_t kv_rows;      /* of the pool: at least one context, at most one for each sequence */
    int64_t cache_bytes;  /* budget of the prefix cache; KV rows that it holds lie in the pool */
    int64_t cache_states; /* of these, outside of the pool at most */
    struct memory_plan memory;
};

/* `max_position_embeddings` is the model's longest context. STATUS_INVALID for wishes that no
 * machine fulfils, STATUS_NO_MEMORY for those that this room does not hold; the error names the
 * field. */
enum status server_plan_make(const struct backend_ops *ops, const struct weights *weights,
                             int32_t max_position_embeddings, const struct server_wishes *wishes,
                             const struct memory_room *room, struct server_plan *plan,
                             struct error *error);
/* The plan in one line. */
void server_plan_print(const struct server_plan *plan, struct bytes *out);
