#include "server/plan.h"

#include "engine/prefix_cache.h"

#define GIB ((int64_t)1 << 30)
#define SPARE GIB             /* for other programs */
#define OWN_SPARE (GIB / 4)   /* of what the process's own limits leave */
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

static double gib(int64_t bytes)
{
    return (double)bytes / (double)GIB;
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

/* KV rows for the prefix cache alone: about half as many bytes as its states take. */
static int64_t spare_rows(const struct server_plan *plan, int64_t kv_row)
{
    return plan->cache_states > 0
               ? larger(PREFIX_SPARE_ROWS, kv_row > 0 ? plan->cache_states / 2 / kv_row : 0)
               : 0;
}

/* All of it for sequences of this context with as few KV rows as can be. */
static int64_t least_total(struct planner *planner, const struct server_plan *plan, int32_t context)
{
    int64_t kv_row = plan_for(planner, context, plan->parallel, context).kv_row;
    int64_t rows = context + spare_rows(plan, kv_row);
    return plan_for(planner, context, plan->parallel, rows).total + plan->cache_states;
}

static bool fits(struct planner *planner, const struct server_plan *plan, int32_t context)
{
    return least_total(planner, plan, context) <= planner->usable;
}

struct planned {
    struct planner *planner;
    const struct server_plan *plan;
};

static bool context_fits(void *context, int32_t tokens)
{
    const struct planned *planned = context;
    return fits(planned->planner, planned->plan, tokens);
}

static int64_t choose_rows(struct planner *planner, const struct server_plan *plan)
{
    int64_t kv_row = plan_for(planner, plan->context, plan->parallel, plan->context).kv_row;
    int64_t spare = spare_rows(plan, kv_row);
    int64_t left = planner->usable - least_total(planner, plan, plan->context);
    int64_t more = left > 0 && kv_row > 0 ? left / kv_row : 0;
    return spare + smaller((int64_t)plan->parallel * plan->context, plan->context + more);
}

static void choose_parallel(struct planner *planner, struct server_plan *plan, int32_t context)
{
    plan->parallel = SERVER_PARALLEL;
    while (plan->parallel > 1 && !fits(planner, plan, context))
        plan->parallel /= 2;
}

/* The cache's part outside of the pool: two thirds of what is wanted, or a part of what is left. */
static enum status choose_states(struct planner *planner, const struct server_wishes *wishes,
                                 struct server_plan *plan, int32_t context, struct error *error)
{
    struct memory_plan memory = plan_for(planner, context, plan->parallel, context);
    int64_t left = planner->usable - memory.total;
    if (wishes->cache_bytes > 0 && wishes->cache_bytes > left)
        return error_set(error, STATUS_NO_MEMORY,
                         "cache_ram: found %.2f GiB, wanted at most %.2f, what will be free",
                         gib(wishes->cache_bytes), gib(larger(left, 0)));
    plan->cache_states = wishes->cache_bytes > 0 ? (wishes->cache_bytes + 2) / 3 * 2 : 0;
    if (wishes->cache_bytes < 0 && left > FEWEST_STATES * memory.state)
        plan->cache_states = smaller(MOST_STATES, larger(left / 4, FEWEST_STATES * memory.state));
    return STATUS_OK;
}

static enum status check_wishes(const struct server_wishes *wishes, int32_t most,
                                struct error *error)
{
    enum status status = engine_check_context(wishes->context, most, error);
    if (status != STATUS_OK)
        return status;
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
    status = choose_states(&planner, wishes, plan, least, error);
    if (status != STATUS_OK)
        return status;
    struct planned planned = {&planner, plan};
    plan->context = wishes->context > 0
                        ? wishes->context
                        : engine_longest_context(max_position_embeddings, context_fits, &planned);
    plan->kv_rows = choose_rows(&planner, plan);
    plan->memory = plan_for(&planner, plan->context, plan->parallel, plan->kv_rows);
    plan->cache_bytes =
        wishes->cache_bytes >= 0
            ? wishes->cache_bytes
            : plan->cache_states + spare_rows(plan, plan->memory.kv_row) * plan->memory.kv_row;
    struct memory_plan whole = plan->memory;
    whole.workspace += plan->cache_states;
    whole.total += plan->cache_states;
    return memory_plan_check_in(room, &whole, plan->context, plan->parallel, error);
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
