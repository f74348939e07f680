#include "server/plan.h"

#include "engine/prefix_cache.h"

#define GIB ((int64_t)1 << 30)
#define SPARE GIB           /* for other programs */
#define OWN_SPARE (GIB / 4) /* of what the process's own limits leave */
#define CONTEXT_STEP 1024
#define LEAST_CONTEXT 4096
#define MOST_STATES (2 * GIB) /* in the prefix cache, if nobody says more */
#define FEWEST_STATES 4       /* that a conversation is quick with: system block, last turns */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* All that may be used, the mapped weights among it. */
static int64_t usable(const struct memory_room *room, int64_t weights)
{
    int64_t bytes = smaller(room->address_space, INT64_MAX);
    if (room->physical > 0)
        bytes = smaller(bytes, room->physical - SPARE);
    if (room->limit > 0)
        bytes = smaller(bytes, room->limit);
    if (room->available > 0)
        bytes = smaller(bytes, room->available - SPARE);
    if (room->allocatable < INT64_MAX - weights)
        bytes = smaller(bytes, room->allocatable - OWN_SPARE + weights);
    return bytes;
}

struct planner {
    const struct backend_ops *ops;
    struct backend_options options;
    int64_t usable;
};

static struct memory_plan plan_for(struct planner *planner, int32_t context, int parallel,
                                   int64_t kv_rows)
{
    struct memory_plan memory;
    planner->options.context = context;
    planner->options.n_sequences = parallel;
    planner->options.kv_rows = kv_rows;
    planner->ops->plan(&planner->options, &memory);
    return memory;
}

static bool fits(struct planner *planner, const struct server_plan *plan, int32_t context,
                 int64_t kv_rows)
{
    return plan_for(planner, context, plan->parallel, kv_rows).total + plan->cache_states <=
           planner->usable;
}

/* The largest multiple of CONTEXT_STEP in low..high for which `rows(multiple)` fits; low is taken
 * even where it does not. */
static int32_t longest_context(struct planner *planner, const struct server_plan *plan,
                               int32_t most)
{
    if (most <= LEAST_CONTEXT || fits(planner, plan, most, most))
        return most;
    int32_t low = LEAST_CONTEXT / CONTEXT_STEP, high = most / CONTEXT_STEP;
    while (low + 1 < high) {
        int32_t middle = low + (high - low) / 2;
        if (fits(planner, plan, middle * CONTEXT_STEP, middle * CONTEXT_STEP))
            low = middle;
        else
            high = middle;
    }
    return low * CONTEXT_STEP;
}

static int64_t most_rows(struct planner *planner, const struct server_plan *plan)
{
    int64_t spare = plan->cache_states > 0 ? PREFIX_SPARE_ROWS : 0;
    int64_t most = (int64_t)plan->parallel * plan->context + spare;
    struct memory_plan memory = plan_for(planner, plan->context, plan->parallel, plan->context);
    int64_t left = planner->usable - memory.total - plan->cache_states;
    int64_t more = left > 0 && memory.kv_row > 0 ? left / memory.kv_row : 0;
    return smaller(most, plan->context + more);
}

static void choose_parallel(struct planner *planner, struct server_plan *plan, int32_t context)
{
    plan->parallel = SERVER_PARALLEL;
    while (plan->parallel > 1 && !fits(planner, plan, context, context))
        plan->parallel /= 2;
}

static void choose_states(struct planner *planner, const struct server_wishes *wishes,
                          struct server_plan *plan, int32_t context)
{
    plan->cache_states = larger(wishes->cache_bytes, 0);
    if (wishes->cache_bytes >= 0)
        return;
    struct memory_plan memory = plan_for(planner, context, plan->parallel, context);
    int64_t left = planner->usable - memory.total;
    if (left > FEWEST_STATES * memory.state)
        plan->cache_states = smaller(MOST_STATES, larger(left / 4, FEWEST_STATES * memory.state));
}

static enum status check_wishes(const struct server_wishes *wishes, int32_t most,
                                struct error *error)
{
    if (wishes->context < 0 || wishes->context > most)
        return error_set(error, STATUS_INVALID,
                         "max_context: found %d, wanted 0 to %d tokens, the model's "
                         "max_position_embeddings",
                         wishes->context, most);
    if (wishes->parallel < 0 || wishes->parallel > SERVER_PARALLEL_MAX)
        return error_set(error, STATUS_INVALID, "parallel: found %d, wanted 0 to %d",
                         wishes->parallel, SERVER_PARALLEL_MAX);
    return STATUS_OK;
}

enum status server_plan_make(const struct backend_ops *ops, const struct weights *weights,
                             int32_t max_position_embeddings, const struct server_wishes *wishes,
                             const struct memory_room *room, struct server_plan *plan,
                             struct error *error)
{
    struct planner planner = {
        .ops = ops,
        .options = {.weights = weights, .n_valid_ids = weights->shape->vocab_size},
    };
    *plan = (struct server_plan){.parallel = wishes->parallel};
    enum status status = check_wishes(wishes, max_position_embeddings, error);
    if (status != STATUS_OK)
        return status;
    planner.usable = usable(room, plan_for(&planner, CONTEXT_STEP, 1, 0).weights);
    int32_t least = wishes->context > 0 ? wishes->context
                                        : (int32_t)smaller(LEAST_CONTEXT, max_position_embeddings);
    if (plan->parallel == 0)
        choose_parallel(&planner, plan, least);
    choose_states(&planner, wishes, plan, least);
    plan->context = wishes->context > 0 ? wishes->context
                                        : longest_context(&planner, plan, max_position_embeddings);
    plan->kv_rows = most_rows(&planner, plan);
    plan->memory = plan_for(&planner, plan->context, plan->parallel, plan->kv_rows);
    plan->cache_bytes = wishes->cache_bytes >= 0 ? wishes->cache_bytes
                        : plan->cache_states > 0 ? plan->cache_states + plan->memory.kv_cache
                                                 : 0;
    struct memory_plan whole = plan->memory;
    whole.workspace += plan->cache_states;
    whole.total += plan->cache_states;
    return memory_plan_check_in(room, &whole, plan->context, plan->parallel, error);
}

static double gib(int64_t bytes)
{
    return (double)bytes / (double)GIB;
}

void server_plan_print(const struct server_plan *plan, struct bytes *out)
{
    memory_plan_print(&plan->memory, plan->context, plan->parallel, out);
    if (plan->kv_rows < (int64_t)plan->parallel * plan->context)
        bytes_format(out, "; they share %lld KV rows", (long long)plan->kv_rows);
    if (plan->cache_bytes > 0)
        bytes_format(out, "; prefix cache up to %.2f, of which %.2f outside of the KV cache",
                     gib(plan->cache_bytes), gib(smaller(plan->cache_states, plan->cache_bytes)));
}
