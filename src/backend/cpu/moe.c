/* Mixture of experts (spec 2.7). Rows are sorted by expert (histogram, prefix sums, scatter), so an
 * expert's weights are read once for all its rows, which lie side by side; "slots" are the places
 * in that order. The shared expert has a slot for every row, after the others.
 *
 * Results are added in ascending order of experts, the shared one last, whatever else is in the
 * step: a row's sum does not depend on its neighbours. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define GATHER 16 /* slots of one unit that copies inputs */
#define BATCH 128 /* rows whose intermediate values lie in a unit's scratch */

struct moe {
    struct cpu_backend *b;
    const struct layer_weights *weights;
};

static int64_t shared_slot(const struct cpu_backend *b)
{
    return (int64_t)b->n * b->shape->num_experts_per_tok;
}

/* One group of an expert's intermediate values for n rows of x from `row` on: silu(gate x) * up x,
 * rounded for down_proj into slots from `slot` on. */
static void gate_up(const struct moe *m, int thread, const struct quant_matrix *gate_proj,
                    const struct quant_matrix *up_proj, int expert, int group,
                    const struct activations *x, int64_t row, int64_t slot, int n)
{
    struct cpu_backend *b = m->b;
    float(*gate)[UNIT_ROWS] = cpu_stage_scratch(b, thread), (*up)[UNIT_ROWS] = gate + BATCH;
    _Static_assert(2 * BATCH * sizeof *gate <= STAGE_SCRATCH, "a batch does not fit");
    struct q4_rows gate_rows = cpu_rows(gate_proj, expert, group * UNIT_ROWS, UNIT_ROWS);
    struct q4_rows up_rows = cpu_rows(up_proj, expert, group * UNIT_ROWS, UNIT_ROWS);
    for (int first = 0; first < n; first += BATCH) {
        int count = n - first < BATCH ? n - first : BATCH;
        cpu_multiply(b, thread, &gate_rows, x, row + first, count, gate[0], UNIT_ROWS);
        cpu_multiply(b, thread, &up_rows, x, row + first, count, up[0], UNIT_ROWS);
        for (int i = 0; i < count; i++) {
            b->kernels->swiglu(gate[i], up[i], UNIT_ROWS);
            b->kernels->quantize(gate[i], group, 1, &b->expert_codes, slot + first + i);
        }
    }
}

/* Router logits and, beside them, the shared expert. */
static void router_unit(void *context, int unit, int thread)
{
    struct moe *m = context;
    struct cpu_backend *b = m->b;
    const struct shape *s = b->shape;
    int groups = s->shared_expert_intermediate_size / UNIT_ROWS;
    if (unit < groups) {
        gate_up(m, thread, &m->weights->mlp.shared_gate_proj, &m->weights->mlp.shared_up_proj, 0,
                unit, &b->x_codes, 0, shared_slot(b), b->n);
        return;
    }
    int from = (unit - groups) * ROUTER_ROWS;
    if (from < s->num_experts)
        b->kernels->matmul_q8(&m->weights->mlp.gate, from, from + ROUTER_ROWS, b->x, b->n,
                              b->router, s->num_experts, cpu_kernel_scratch(b, thread));
    else
        b->kernels->matmul_q8(&m->weights->mlp.shared_expert_gate, 0, 1, b->x, b->n, b->shared_gate,
                              1, cpu_kernel_scratch(b, thread));
}

/* The k largest logits, ties to the lowest index; softmax over the chosen. */
static void route_row(void *context, int row, int thread)
{
    (void)thread;
    struct cpu_backend *b = context;
    int k = b->shape->num_experts_per_tok, n = 0;
    const float *logits = b->router + (int64_t)row * b->shape->num_experts;
    int32_t *chosen = b->chosen + (int64_t)row * k;
    float *weight = b->chosen_weight + (int64_t)row * k, sum = 0, not_finite = 0;
    for (int e = 0; e < b->shape->num_experts; e++) {
        not_finite += logits[e] * 0; /* NaN is never the larger one, and must not be passed over */
        if (n == k && !(logits[e] > logits[chosen[k - 1]]))
            continue;
        int at = n < k ? n++ : k - 1;
        for (; at > 0 && logits[e] > logits[chosen[at - 1]]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    for (int i = 0; i < k; i++) {
        weight[i] = expf(logits[chosen[i]] - logits[chosen[0]]);
        sum += weight[i];
    }
    for (int i = 0; i < k; i++)
        weight[i] = weight[i] / sum + not_finite;
}

/* Counting sort of all (row, expert) pairs by expert; rows stay in order. */
static void sort_slots(struct cpu_backend *b)
{
    int k = b->shape->num_experts_per_tok, experts = b->shape->num_experts;
    int32_t *first = b->expert_first;
    memset(first, 0, ((size_t)experts + 1) * sizeof *first);
    for (int i = 0; i < b->n * k; i++)
        first[b->chosen[i] + 1]++;
    b->n_active = 0;
    for (int e = 0; e < experts; e++) {
        if (first[e + 1] > 0)
            b->active[b->n_active++] = e;
        first[e + 1] += first[e];
    }
    for (int i = 0; i < b->n * k; i++) {
        int32_t slot = first[b->chosen[i]]++;
        b->slot_row[slot] = i / k;
        b->slot_weight[slot] = b->chosen_weight[i];
    }
    memmove(first + 1, first, (size_t)experts * sizeof *first); /* they moved on to the next's */
    first[0] = 0;
}

/* Copies the rounded inputs of a few slots from their rows. */
static void gather_unit(void *context, int unit, int thread)
{
    (void)thread;
    struct cpu_backend *b = context;
    const struct activations *from = &b->x_codes, *to = &b->slot_codes;
    int slots = b->n * b->shape->num_experts_per_tok, groups = from->columns / GROUP_SIZE;
    for (int slot = unit * GATHER; slot < (unit + 1) * GATHER && slot < slots; slot++) {
        int64_t row = b->slot_row[slot], place = slot;
        memcpy(to->codes + place * to->code_stride, from->codes + row * from->code_stride,
               (size_t)from->columns * sizeof *to->codes);
        memcpy(to->scales + place * groups, from->scales + row * groups,
               (size_t)groups * sizeof *to->scales);
        memcpy(to->sums + place * groups, from->sums + row * groups,
               (size_t)groups * sizeof *to->sums);
    }
}

static void expert_unit(void *context, int unit, int thread)
{
    struct moe *m = context;
    struct cpu_backend *b = m->b;
    int groups = b->shape->moe_intermediate_size / UNIT_ROWS;
    int expert = b->active[unit / groups], first = b->expert_first[expert];
    gate_up(m, thread, &m->weights->mlp.gate_proj, &m->weights->mlp.up_proj, expert, unit % groups,
            &b->slot_codes, first, first, b->expert_first[expert + 1] - first);
}

/* mixed += weight * down x for the slots of one expert and the hidden values of one unit. */
static void down(struct cpu_backend *b, int thread, const struct quant_matrix *down_proj,
                 int expert, int unit, int64_t first, int n, bool shared)
{
    int hidden = b->shape->hidden_size;
    float(*y)[UNIT_ROWS] = cpu_stage_scratch(b, thread); /* [BATCH] */
    struct q4_rows rows = cpu_rows(down_proj, expert, unit * UNIT_ROWS, UNIT_ROWS);
    for (int done = 0; done < n; done += BATCH) {
        int count = n - done < BATCH ? n - done : BATCH;
        cpu_multiply(b, thread, &rows, &b->expert_codes, first + done, count, y[0], UNIT_ROWS);
        for (int i = 0; i < count; i++) {
            int64_t slot = first + done + i;
            int32_t row = shared ? done + i : b->slot_row[slot];
            float weight = shared ? 1 / (1 + expf(-b->shared_gate[row])) : b->slot_weight[slot];
            b->kernels->add_scaled(b->mixed + (int64_t)row * hidden + unit * UNIT_ROWS, weight,
                                   y[i], UNIT_ROWS);
        }
    }
}

static void down_unit(void *context, int unit, int thread)
{
    struct moe *m = context;
    struct cpu_backend *b = m->b;
    int hidden = b->shape->hidden_size, at = unit * UNIT_ROWS;
    for (int r = 0; r < b->n; r++)
        memset(b->mixed + (int64_t)r * hidden + at, 0, UNIT_ROWS * sizeof *b->mixed);
    for (int i = 0; i < b->n_active; i++) {
        int expert = b->active[i], first = b->expert_first[expert];
        down(b, thread, &m->weights->mlp.down_proj, expert, unit, first,
             b->expert_first[expert + 1] - first, false);
    }
    down(b, thread, &m->weights->mlp.shared_down_proj, 0, unit, shared_slot(b), b->n, true);
    for (int r = 0; r < b->n; r++)
        b->kernels->add_scaled(b->h + (int64_t)r * hidden + at, 1,
                               b->mixed + (int64_t)r * hidden + at, UNIT_ROWS);
}

void cpu_moe(struct cpu_backend *b, int layer)
{
    const struct shape *s = b->shape;
    struct moe m = {b, &b->weights->layers[layer]};
    cpu_run(b, router_unit, &m,
            s->shared_expert_intermediate_size / UNIT_ROWS + s->num_experts / ROUTER_ROWS + 1);
    cpu_run(b, route_row, b, b->n);
    sort_slots(b);
    cpu_run(b, gather_unit, b, (b->n * s->num_experts_per_tok + GATHER - 1) / GATHER);
    cpu_run(b, expert_unit, &m, b->n_active * (s->moe_intermediate_size / UNIT_ROWS));
    cpu_run(b, down_unit, &m, s->hidden_size / UNIT_ROWS);
}
