/* Full attention (spec 2.3): projections, norms and RoPE, KV cache, softmax, output gate.
 *
 * A unit of the softmax is one KV head and a few rows, so a block of keys and values serves all
 * query heads of the group. In a step of few rows a long context is cut into splits that threads
 * take side by side; their running softmaxes are merged in order. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define TILE 8           /* rows of a run that one unit takes together */
#define SPLIT_LENGTH 512 /* positions of a split at least */

_Static_assert(KV_PAGE % SCORE_BLOCK == 0, "a block of scores lies in one page");

struct attention {
    struct cpu_backend *b;
    const struct layer_weights *weights;
    const struct cpu_layer *layer;
    int index;    /* among the attention layers */
    int n_splits; /* 1: not cut */
};

static const struct run *run_of(const struct cpu_backend *b, int row)
{
    const struct run *run = b->runs;
    while (row >= run->first + run->n)
        run++;
    return run;
}

static int plane_of(const struct attention *a, int kv_head)
{
    return a->index * a->b->shape->num_key_value_heads + kv_head;
}

static float *query_of(const struct cpu_backend *b, int row, int head) /* its gate follows */
{
    return b->wide + ((int64_t)row * b->shape->num_attention_heads + head) * 2 * HEAD_DIM;
}

static void rope(const struct cpu_backend *b, int row, float *head)
{
    int half = b->shape->rotary_dims / 2;
    const float *cosines = b->rope + (int64_t)row * b->shape->rotary_dims, *sines = cosines + half;
    for (int i = 0; i < half; i++) {
        float first = head[i], second = head[i + half];
        head[i] = first * cosines[i] - second * sines[i];
        head[i + half] = second * cosines[i] + first * sines[i];
    }
}

/* Norms and rotates one row's queries and keys and stores its keys and values. */
static void prepare_row(void *context, int row, int thread)
{
    (void)thread;
    struct attention *a = context;
    struct cpu_backend *b = a->b;
    const struct shape *s = b->shape;
    float eps = (float)s->rms_norm_eps;
    struct cpu_sequence *q = run_of(b, row)->sequence;
    int32_t position = b->positions[row];
    for (int h = 0; h < s->num_attention_heads; h++) {
        float *query = query_of(b, row, h);
        b->kernels->rms_norm(query, a->layer->q_norm, HEAD_DIM, eps, query);
        rope(b, row, query);
        for (int i = 0; i < HEAD_DIM; i++)
            query[i] *= 1.0f / 16; /* 1 / sqrt(head_dim) */
    }
    for (int h = 0; h < s->num_key_value_heads; h++) {
        float *key = b->narrow + ((int64_t)row * 2 * s->num_key_value_heads + h) * HEAD_DIM;
        float *value = key + s->num_key_value_heads * HEAD_DIM;
        int64_t place = cpu_kv_place(b, q, plane_of(a, h), position);
        int16_t rounded[HEAD_DIM], *codes = cpu_key(b, place);
        b->kernels->rms_norm(key, a->layer->k_norm, HEAD_DIM, eps, key);
        rope(b, row, key);
        b->cache.key_scales[place] = b->kernels->round_head(key, rounded);
        for (int i = 0; i < HEAD_DIM; i++)
            codes[i * KV_BLOCK] = rounded[i];
        b->cache.value_scales[place] = b->kernels->round_head(value, cpu_value(b, place));
    }
}

/* What a unit works with. */
struct tile {
    float queries[TILE][QUERIES][HEAD_DIM];
    struct attention_state states[TILE];
};
_Static_assert(sizeof(struct tile) <= STAGE_SCRATCH, "a tile does not fit");

static void attend_init(struct attention_state *state)
{
    memset(state, 0, sizeof *state);
    for (int q = 0; q < QUERIES; q++)
        state->max[q] = -INFINITY;
}

/* `n` rows from `row` on, one KV head, positions [from, to) as far as each row sees them. */
static void attend(const struct attention *a, int row, int n, int kv_head, int32_t from, int32_t to,
                   struct tile *tile, struct attention_state *states)
{
    struct cpu_backend *b = a->b;
    const struct cpu_sequence *sequence = run_of(b, row)->sequence;
    int plane = plane_of(a, kv_head);
    float(*queries)[QUERIES][HEAD_DIM] = tile->queries;
    if (to > b->positions[row + n - 1] + 1) /* behind it there may be no page */
        to = b->positions[row + n - 1] + 1;
    for (int r = 0; r < n; r++) {
        attend_init(&states[r]);
        for (int q = 0; q < QUERIES; q++)
            memcpy(queries[r][q], query_of(b, row + r, kv_head * QUERIES + q),
                   sizeof queries[r][q]);
    }
    for (int32_t start = from; start < to; start += SCORE_BLOCK) {
        int64_t place = cpu_kv_place(b, sequence, plane, start);
        struct kv_block kv = {
            .keys = cpu_key(b, place),
            .values = cpu_value(b, place),
            .key_scales = b->cache.key_scales + place,
            .value_scales = b->cache.value_scales + place,
        };
        for (int r = 0; r < n; r++) {
            int32_t visible = b->positions[row + r] + 1 < to ? b->positions[row + r] + 1 : to;
            int count = visible - start < SCORE_BLOCK ? visible - start : SCORE_BLOCK;
            if (count > 0)
                b->kernels->attention_block(queries[r][0], &kv, count, &states[r]);
        }
    }
}

/* Divides by the softmax's sum, applies the output gate and rounds for o_proj. */
static void finish_row(const struct attention *a, int row, int kv_head,
                       struct attention_state *state)
{
    struct cpu_backend *b = a->b;
    for (int q = 0; q < QUERIES; q++) {
        int head = kv_head * QUERIES + q;
        for (int i = 0; i < HEAD_DIM; i++)
            state->out[q][i] /= state->sum[q];
        b->kernels->sigmoid_gate(state->out[q], query_of(b, row, head) + HEAD_DIM, HEAD_DIM);
        b->kernels->quantize(state->out[q], head * (HEAD_DIM / GROUP_SIZE), HEAD_DIM / GROUP_SIZE,
                             &b->mixer_codes, row);
    }
}

/* The positions of a row's splits depend on its own position alone. */
static int32_t split_length(int32_t position)
{
    int32_t even = (position + MAX_SPLITS) / MAX_SPLITS;
    int32_t length = even < SPLIT_LENGTH ? SPLIT_LENGTH : even;
    return (length + SCORE_BLOCK - 1) / SCORE_BLOCK * SCORE_BLOCK;
}

/* sum = both. */
static void merge_states(struct attention_state *sum, const struct attention_state *next)
{
    for (int q = 0; q < QUERIES; q++) {
        float max = fmaxf(sum->max[q], next->max[q]);
        float keep = expf(sum->max[q] - max), add = expf(next->max[q] - max);
        for (int i = 0; i < HEAD_DIM; i++)
            sum->out[q][i] = sum->out[q][i] * keep + next->out[q][i] * add;
        sum->sum[q] = sum->sum[q] * keep + next->sum[q] * add;
        sum->max[q] = max;
    }
}

/* A row split by split, as split_unit and merge_unit do it for a step of few rows. */
static void attend_splits(const struct attention *a, int row, int kv_head, struct tile *tile)
{
    int32_t position = a->b->positions[row], length = split_length(position);
    struct attention_state *sum = &tile->states[0], *next = &tile->states[1];
    for (int split = 0; split * length <= position; split++) {
        attend(a, row, 1, kv_head, split * length, (split + 1) * length, tile, split ? next : sum);
        if (split > 0)
            merge_states(sum, next);
    }
    finish_row(a, row, kv_head, sum);
}

/* A tile of rows of one run with all that they see. Which way it goes depends on the run alone: a
 * row's result is the same bits in any company. */
static void tile_unit(void *context, int unit, int thread)
{
    struct attention *a = context;
    struct cpu_backend *b = a->b;
    int kv_heads = b->shape->num_key_value_heads, kv_head = unit % kv_heads, tile = unit / kv_heads;
    const struct run *run = b->runs;
    for (; tile >= (run->n + TILE - 1) / TILE; run++)
        tile -= (run->n + TILE - 1) / TILE;
    int row = run->first + tile * TILE, left = run->n - tile * TILE, n = left < TILE ? left : TILE;
    struct tile *work = cpu_stage_scratch(b, thread);
    if (run->n <= SPLIT_ROWS) {
        for (int r = 0; r < n; r++)
            attend_splits(a, row + r, kv_head, work);
        return;
    }
    attend(a, row, n, kv_head, 0, b->positions[row + n - 1] + 1, work, work->states);
    for (int r = 0; r < n; r++)
        finish_row(a, row + r, kv_head, &work->states[r]);
}

static struct attention_state *split_of(const struct attention *a, int row, int kv_head)
{
    return a->b->splits + ((int64_t)row * a->b->shape->num_key_value_heads + kv_head) * a->n_splits;
}

static void split_unit(void *context, int unit, int thread)
{
    struct attention *a = context;
    struct cpu_backend *b = a->b;
    int kv_heads = b->shape->num_key_value_heads, split = unit % a->n_splits;
    int kv_head = unit / a->n_splits % kv_heads, row = unit / a->n_splits / kv_heads;
    int32_t position = b->positions[row], length = split_length(position);
    if (split * length <= position)
        attend(a, row, 1, kv_head, split * length, (split + 1) * length,
               cpu_stage_scratch(b, thread), split_of(a, row, kv_head) + split);
}

/* Merges a row's splits in order. */
static void merge_unit(void *context, int unit, int thread)
{
    (void)thread;
    struct attention *a = context;
    struct cpu_backend *b = a->b;
    int kv_heads = b->shape->num_key_value_heads, kv_head = unit % kv_heads, row = unit / kv_heads;
    int32_t position = b->positions[row], length = split_length(position);
    struct attention_state *all = split_of(a, row, kv_head);
    for (int split = 1; split * length <= position; split++)
        merge_states(&all[0], &all[split]);
    finish_row(a, row, kv_head, &all[0]);
}

void cpu_attention(struct cpu_backend *b, int layer, int index)
{
    const struct shape *s = b->shape;
    const struct layer_weights *weights = &b->weights->layers[layer];
    struct attention a = {b, weights, &b->layers[layer], index, 1};
    int kv_heads = s->num_key_value_heads;
    int64_t kv_width = (int64_t)kv_heads * HEAD_DIM;
    struct product products[] = {
        {&weights->self_attn.q_proj, b->wide, (int64_t)s->num_attention_heads * 2 * HEAD_DIM},
        {&weights->self_attn.k_proj, b->narrow, 2 * kv_width},
        {&weights->self_attn.v_proj, b->narrow + kv_width, 2 * kv_width},
    };
    cpu_products(b, products, 3, &b->x_codes, b->n);
    cpu_run(b, prepare_row, &a, b->n);
    if (b->n <= SPLIT_ROWS) {
        for (int r = 0; r < b->n; r++) {
            int n = b->positions[r] / split_length(b->positions[r]) + 1;
            a.n_splits = n > a.n_splits ? n : a.n_splits;
        }
        cpu_run(b, split_unit, &a, b->n * kv_heads * a.n_splits);
        cpu_run(b, merge_unit, &a, b->n * kv_heads);
    } else {
        int tiles = 0;
        for (int i = 0; i < b->n_runs; i++)
            tiles += (b->runs[i].n + TILE - 1) / TILE;
        cpu_run(b, tile_unit, &a, tiles * kv_heads);
    }
    cpu_project_back(b, &weights->self_attn.o_proj, &b->mixer_codes, 1);
}
