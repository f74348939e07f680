/* The reference backend: the whole model in plain float32 C, in the order of the spec (2.1 to 2.7),
 * written to be read first. It is the oracle of all other backends, so nothing here is clever: one
 * thread, one token after the other wherever order matters, and the same operations in the same
 * order for a token whether it comes alone, in a chunk or among other sequences. So every way to
 * cut a prompt gives the same bits.
 *
 * First the operations (backend/ref/ops.h), then the layers, then the steps of the seam. What only
 * holds memory (sequences, snapshots, the plan) is in memory.c. */
#include "backend/ref/ops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/rank.h"
#include "backend/ref/ref.h"
#include "model/quant.h"

/* ---- operations ------------------------------------------------------------------------------ */

float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

float ref_silu(float x)
{
    return x * ref_sigmoid(x);
}

float ref_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Sixteen partial sums: the compiler may use vectors without changing the order of additions. */
static float dot(const float *a, const float *b, int n)
{
    float sums[16] = {0}, sum = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            sums[j] += a[i + j] * b[i + j];
    for (int j = 0; j < 16; j++)
        sum += sums[j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void ref_rms_norm(const float *x, const struct vector *weight, int n, float eps, float *y)
{
    float r = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * vector_load(weight, i);
}

void ref_matmul(const struct quant_matrix *matrix, int index, const float *x, int n, float *y,
                float *expanded)
{
    for (int row = 0; row < matrix->rows; row++) {
        quant_row_load(matrix, index, row, expanded);
        for (int r = 0; r < n; r++)
            y[(int64_t)r * matrix->rows + row] =
                dot(expanded, x + (int64_t)r * matrix->columns, matrix->columns);
    }
}

void ref_rope(float *head, int rotary_dims, double rope_theta, int32_t position)
{
    int half = rotary_dims / 2;
    for (int i = 0; i < half; i++) {
        double angle = position * pow(rope_theta, -2.0 * i / rotary_dims);
        float c = (float)cos(angle), s = (float)sin(angle);
        float first = head[i], second = head[i + half];
        head[i] = first * c - second * s;
        head[i + half] = second * c + first * s;
    }
}

static const float *row_at(const struct ref_rows *rows, int32_t position)
{
    if (!rows->pages)
        return rows->first + position * rows->stride;
    return rows->first + rows->pages[position / KV_PAGE] * rows->page_stride +
           position % KV_PAGE * rows->stride;
}

void ref_attention(const float *query, const struct ref_rows *keys, const struct ref_rows *values,
                   int32_t n, int head_dim, float *scores, float *out)
{
    float scale = 1.0f / sqrtf((float)head_dim), best = -INFINITY, sum = 0;
    for (int32_t s = 0; s < n; s++) {
        scores[s] = dot(query, row_at(keys, s), head_dim) * scale;
        best = fmaxf(best, scores[s]);
    }
    for (int32_t s = 0; s < n; s++) {
        scores[s] = expf(scores[s] - best);
        sum += scores[s];
    }
    for (int d = 0; d < head_dim; d++)
        out[d] = 0;
    for (int32_t s = 0; s < n; s++) {
        float p = scores[s] / sum;
        const float *value = row_at(values, s);
        for (int d = 0; d < head_dim; d++)
            out[d] += p * value[d];
    }
}

void ref_conv_step(const struct vector *taps, int channels, float *state, float *x)
{
    float *oldest = state, *older = state + channels, *newest = state + 2 * channels;
    for (int c = 0; c < channels; c++) {
        float m = x[c];
        float sum = vector_load(taps, c * 4) * oldest[c] + vector_load(taps, c * 4 + 1) * older[c] +
                    vector_load(taps, c * 4 + 2) * newest[c] + vector_load(taps, c * 4 + 3) * m;
        oldest[c] = older[c]; /* the state keeps what came in, before SiLU */
        older[c] = newest[c];
        newest[c] = m;
        x[c] = ref_silu(sum);
    }
}

void ref_l2_norm(float *x, int n, float scale)
{
    float r = scale / sqrtf(dot(x, x, n) + L2_NORM_EPS);
    for (int i = 0; i < n; i++)
        x[i] *= r;
}

void ref_deltanet_step(float *restrict state, const float *q, const float *k, const float *v,
                       float g, float beta, int dk, int dv, float *restrict o)
{
    float decay = expf(g);
    for (int j = 0; j < dv; j++)
        o[j] = 0; /* holds r = S^T k first */
    for (int i = 0; i < dk; i++)
        for (int j = 0; j < dv; j++) {
            float *s = &state[i * dv + j];
            *s *= decay; /* decay first, then read */
            o[j] += *s * k[i];
        }
    for (int j = 0; j < dv; j++)
        o[j] = beta * (v[j] - o[j]); /* now delta */
    for (int i = 0; i < dk; i++)
        for (int j = 0; j < dv; j++)
            state[i * dv + j] += k[i] * o[j];
    for (int j = 0; j < dv; j++)
        o[j] = 0;
    for (int i = 0; i < dk; i++) /* the output reads the updated state */
        for (int j = 0; j < dv; j++)
            o[j] += state[i * dv + j] * q[i];
}

void ref_gated_norm(float *o, const struct vector *weight, const float *z, int n, float eps)
{
    ref_rms_norm(o, weight, n, eps, o);
    for (int i = 0; i < n; i++)
        o[i] *= ref_silu(z[i]);
}

void ref_moe_route(const float *logits, int num_experts, int k, int *experts, float *weights)
{
    /* softmax over all experts renormalised over the chosen = softmax over the chosen */
    for (int chosen = 0; chosen < k; chosen++) {
        int best = -1;
        for (int e = 0; e < num_experts; e++) {
            int taken = 0;
            for (int c = 0; c < chosen; c++)
                taken |= experts[c] == e;
            if (!taken && (best < 0 || logits[e] > logits[best]))
                best = e;
        }
        experts[chosen] = best;
    }
    float sum = 0, not_finite = 0;
    for (int e = 0; e < num_experts; e++)
        not_finite += logits[e] * 0; /* NaN is never the larger one, and must not be passed over */
    for (int c = 0; c < k; c++) {
        weights[c] = expf(logits[experts[c]] - logits[experts[0]]);
        sum += weights[c];
    }
    for (int c = 0; c < k; c++)
        weights[c] = weights[c] / sum + not_finite;
}

/* ---- the layers ------------------------------------------------------------------------------ */

__attribute__((format(printf, 5, 6))) static void show(const struct ref_backend *b,
                                                       const float *values, int64_t rows,
                                                       int64_t columns, const char *format, ...)
{
    if (!b->probe.tensor)
        return;
    char name[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    b->probe.tensor(b->probe.context, name, values, rows, columns);
}

static struct ref_sequence *sequence_of(const struct row *row)
{
    return (struct ref_sequence *)row->sequence;
}

/* Full attention over n rows: b->x -> b->mixed (spec 2.3). positions[r] is the row's own. */
static void attention(struct ref_backend *b, const struct layer_weights *layer, int index,
                      const struct row *rows, const int32_t *positions, int n)
{
    const struct shape *s = b->shape;
    int hd = s->head_dim, heads = s->num_attention_heads, kv_heads = s->num_key_value_heads;
    int64_t kv_row = (int64_t)kv_heads * hd;
    float *q = b->first, *k = b->second, *v = b->second + (int64_t)n * kv_row;
    ref_matmul(&layer->self_attn.q_proj, 0, b->x, n, q, b->expanded);
    ref_matmul(&layer->self_attn.k_proj, 0, b->x, n, k, b->expanded);
    ref_matmul(&layer->self_attn.v_proj, 0, b->x, n, v, b->expanded);
    for (int r = 0; r < n; r++) {
        int32_t position = positions[r];
        const struct kv_sequence *pages = &sequence_of(&rows[r])->kv;
        float *layer_keys = b->kv_cache + 2 * index * ref_kv_plane(s);
        float *key =
            layer_keys + kv_page_of(pages, position) * ref_kv_page(s) + position % KV_PAGE * kv_row;
        for (int j = 0; j < kv_heads; j++) {
            float *head = k + r * kv_row + j * hd;
            ref_rms_norm(head, &layer->self_attn.k_norm, hd, (float)s->rms_norm_eps, head);
            ref_rope(head, s->rotary_dims, s->rope_theta, position);
        }
        memcpy(key, k + r * kv_row, (size_t)kv_row * sizeof *k);
        memcpy(key + ref_kv_plane(s), v + r * kv_row, (size_t)kv_row * sizeof *v);
        for (int h = 0; h < heads; h++) {
            float *query = q + ((int64_t)r * heads + h) * 2 * hd, *gate = query + hd;
            float *out = b->wide + ((int64_t)r * heads + h) * hd;
            float *first = layer_keys + (int64_t)(h / (heads / kv_heads)) * hd;
            struct ref_rows keys = {first, kv_row, pages->pages, ref_kv_page(s)};
            struct ref_rows values = keys;
            values.first += ref_kv_plane(s);
            ref_rms_norm(query, &layer->self_attn.q_norm, hd, (float)s->rms_norm_eps, query);
            ref_rope(query, s->rotary_dims, s->rope_theta, position);
            ref_attention(query, &keys, &values, position + 1, hd, b->scores, out);
            for (int d = 0; d < hd; d++)
                out[d] *= ref_sigmoid(gate[d]);
        }
    }
    ref_matmul(&layer->self_attn.o_proj, 0, b->wide, n, b->mixed, b->expanded);
}

/* Gated DeltaNet over n rows: b->x -> b->mixed (spec 2.5, 2.6). */
static void deltanet(struct ref_backend *b, const struct layer_weights *layer, int index,
                     const struct row *rows, int n)
{
    const struct shape *s = b->shape;
    int hk = s->linear_num_key_heads, hv = s->linear_num_value_heads;
    int dk = s->linear_key_head_dim, dv = s->linear_value_head_dim;
    int channels = shape_conv_channels(s), key_dim = shape_key_dim(s),
        value_dim = shape_value_dim(s);
    float *qkv = b->first, *z = b->second, *beta = b->gates, *decay = b->gates + (int64_t)n * hv;
    ref_matmul(&layer->linear_attn.in_proj_qkv, 0, b->x, n, qkv, b->expanded);
    ref_matmul(&layer->linear_attn.in_proj_z, 0, b->x, n, z, b->expanded);
    ref_matmul(&layer->linear_attn.in_proj_b, 0, b->x, n, beta, b->expanded);
    ref_matmul(&layer->linear_attn.in_proj_a, 0, b->x, n, decay, b->expanded);
    for (int r = 0; r < n; r++) {
        struct ref_sequence *sequence = sequence_of(&rows[r]);
        float *q = qkv + (int64_t)r * channels, *k = q + key_dim, *v = k + key_dim;
        ref_conv_step(&layer->linear_attn.conv1d, channels,
                      sequence->conv_state + index * ref_conv_size(s), q);
        for (int h = 0; h < hk; h++) {
            ref_l2_norm(q + h * dk, dk, 1.0f / sqrtf((float)dk));
            ref_l2_norm(k + h * dk, dk, 1.0f);
        }
        for (int h = 0; h < hv; h++) {
            int key_head = h / (hv / hk); /* grouped: 0 0 1 1 2 2 … */
            float *o = b->wide + (int64_t)r * value_dim + h * dv;
            float *state =
                sequence->recurrent_state + index * ref_recurrent_size(s) + (int64_t)h * dk * dv;
            float a = decay[r * hv + h] + vector_load(&layer->linear_attn.dt_bias, h);
            float g = -expf(vector_load(&layer->linear_attn.A_log, h)) * ref_softplus(a);
            ref_deltanet_step(state, q + key_head * dk, k + key_head * dk, v + h * dv, g,
                              ref_sigmoid(beta[r * hv + h]), dk, dv, o);
            ref_gated_norm(o, &layer->linear_attn.norm, z + (int64_t)r * value_dim + h * dv, dv,
                           (float)s->rms_norm_eps);
        }
    }
    ref_matmul(&layer->linear_attn.out_proj, 0, b->wide, n, b->mixed, b->expanded);
}

/* down(silu(gate x) * up x) of expert `index` for n rows of x -> y [n][hidden] (spec 2.7 step 2).
 */
static void swiglu(struct ref_backend *b, const struct quant_matrix *gate_proj,
                   const struct quant_matrix *up_proj, const struct quant_matrix *down_proj,
                   int index, const float *x, int n, float *y)
{
    float *gate = b->first, *up = b->first + (int64_t)n * gate_proj->rows;
    ref_matmul(gate_proj, index, x, n, gate, b->expanded);
    ref_matmul(up_proj, index, x, n, up, b->expanded);
    for (int64_t i = 0; i < (int64_t)n * gate_proj->rows; i++)
        gate[i] = ref_silu(gate[i]) * up[i];
    ref_matmul(down_proj, index, gate, n, y, b->expanded);
}

/* Mixture of experts over n rows: b->x -> b->mixed (spec 2.7). Experts are added in ascending order
 * and the shared expert last, whatever else is in the step. */
static void moe(struct ref_backend *b, const struct layer_weights *layer, int n)
{
    const struct shape *s = b->shape;
    int hidden = s->hidden_size, k = s->num_experts_per_tok;
    int experts[MAX_ROWS][MAX_EXPERTS_PER_TOK];
    float weights[MAX_ROWS][MAX_EXPERTS_PER_TOK];
    ref_matmul(&layer->mlp.gate, 0, b->x, n, b->router, b->expanded);
    for (int r = 0; r < n; r++)
        ref_moe_route(b->router + (int64_t)r * s->num_experts, s->num_experts, k, experts[r],
                      weights[r]);
    memset(b->mixed, 0, (size_t)n * hidden * sizeof *b->mixed);
    float *y = b->second;
    for (int e = 0; e < s->num_experts; e++) {
        int chosen = 0, row_of[MAX_ROWS]; /* the rows that chose e */
        float weight_of[MAX_ROWS];
        for (int r = 0; r < n; r++)
            for (int c = 0; c < k; c++)
                if (experts[r][c] == e) {
                    memcpy(b->expert_x + (int64_t)chosen * hidden, b->x + (int64_t)r * hidden,
                           (size_t)hidden * sizeof *b->x);
                    weight_of[chosen] = weights[r][c];
                    row_of[chosen++] = r;
                }
        if (chosen == 0)
            continue;
        swiglu(b, &layer->mlp.gate_proj, &layer->mlp.up_proj, &layer->mlp.down_proj, e, b->expert_x,
               chosen, y);
        for (int c = 0; c < chosen; c++)
            for (int i = 0; i < hidden; i++)
                b->mixed[(int64_t)row_of[c] * hidden + i] += weight_of[c] * y[c * hidden + i];
    }
    swiglu(b, &layer->mlp.shared_gate_proj, &layer->mlp.shared_up_proj,
           &layer->mlp.shared_down_proj, 0, b->x, n, y);
    float shared[MAX_ROWS];
    ref_matmul(&layer->mlp.shared_expert_gate, 0, b->x, n, shared, b->expanded);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < hidden; i++)
            b->mixed[(int64_t)r * hidden + i] += ref_sigmoid(shared[r]) * y[r * hidden + i];
}

static void add(float *h, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h[i] += x[i];
}

static void norm_rows(struct ref_backend *b, const struct vector *weight, int n)
{
    int hidden = b->shape->hidden_size;
    for (int r = 0; r < n; r++)
        ref_rms_norm(b->h + (int64_t)r * hidden, weight, hidden, (float)b->shape->rms_norm_eps,
                     b->x + (int64_t)r * hidden);
}

/* The whole model over n rows; logits of the rows from `first_output` on (spec 2.1). */
static enum status forward(struct ref_backend *b, const struct row *rows, const int32_t *positions,
                           int n, int first_output, const atomic_bool *cancel, struct error *error)
{
    const struct shape *s = b->shape;
    int hidden = s->hidden_size, n_attention = 0, n_deltanet = 0;
    int64_t size = (int64_t)n * hidden;
    for (int r = 0; r < n; r++)
        quant_row_load(&b->weights->embed_tokens, 0, rows[r].token, b->h + (int64_t)r * hidden);
    show(b, b->h, n, hidden, "embed");
    for (int i = 0; i < s->num_hidden_layers; i++) {
        const struct layer_weights *layer = &b->weights->layers[i];
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            return error_set(error, STATUS_CANCELLED, "cancelled");
        norm_rows(b, &layer->input_layernorm, n);
        if (shape_is_full_attention(s, i)) {
            attention(b, layer, n_attention++, rows, positions, n);
        } else {
            deltanet(b, layer, n_deltanet, rows, n);
            show(b, sequence_of(&rows[n - 1])->recurrent_state + n_deltanet * ref_recurrent_size(s),
                 (int64_t)s->linear_num_value_heads * s->linear_key_head_dim,
                 s->linear_value_head_dim, "layer.%d.recurrent_state", i);
            n_deltanet++;
        }
        add(b->h, b->mixed, size);
        show(b, b->h, n, hidden, "layer.%d.mixed", i);
        norm_rows(b, &layer->post_attention_layernorm, n);
        moe(b, layer, n);
        show(b, b->router, n, s->num_experts, "layer.%d.router", i);
        add(b->h, b->mixed, size);
        show(b, b->h, n, hidden, "layer.%d", i);
    }
    norm_rows(b, &b->weights->norm, n);
    show(b, b->x, n, hidden, "norm");
    b->n_outputs = n - first_output;
    ref_matmul(&b->weights->lm_head, 0, b->x + (int64_t)first_output * hidden, b->n_outputs,
               b->logits, b->expanded);
    show(b, b->logits, b->n_outputs, s->vocab_size, "logits");
    return STATUS_OK;
}

/* ---- the steps of the seam --------------------------------------------------------------------
 */

/* One step: checks that it can be done; the sequences are broken while it is under way. */
static enum status step(struct ref_backend *b, const struct row *rows, int n, int first_output,
                        struct ranked *ranked, const atomic_bool *cancel, struct error *error)
{
    int32_t positions[MAX_ROWS];
    enum status status = step_check(b->shape, rows, n, MAX_ROWS, positions, error);
    if (status != STATUS_OK)
        return status;
    status = kv_step_begin(&b->base, rows, n, positions, error);
    if (status != STATUS_OK)
        return status;
    b->n_outputs = 0;
    status = forward(b, rows, positions, n, first_output, cancel, error);
    for (int i = 0; status == STATUS_OK && i < b->n_outputs; i++)
        status = rank_logits(b->logits + (int64_t)i * b->shape->vocab_size, b->n_valid_ids,
                             &ranked[i], error);
    if (status != STATUS_OK)
        return status;
    kv_step_end(&b->base, rows, n, positions);
    return STATUS_OK;
}

enum status ref_prefill_chunk(struct backend *backend, struct sequence *sequence,
                              const int32_t *tokens, int n, enum prefill_output output,
                              struct ranked *ranked, const struct interrupt *interrupt,
                              struct error *error)
{
    struct row rows[MAX_CHUNK];
    for (int r = 0; r < n && r < MAX_CHUNK; r++)
        rows[r] = (struct row){.sequence = sequence, .token = tokens[r]};
    return step((struct ref_backend *)backend, rows, n, output == PREFILL_ALL ? 0 : n - 1, ranked,
                interrupt ? interrupt->cancel : NULL, error);
}

enum status ref_decode_step(struct backend *backend, const struct row *rows, int n,
                            struct ranked *ranked, struct error *error)
{
    return step((struct ref_backend *)backend, rows, n, 0, ranked, NULL, error);
}

enum status ref_logits(struct backend *backend, int i, float *out, struct error *error)
{
    struct ref_backend *b = (struct ref_backend *)backend;
    if (i < 0 || i >= b->n_outputs)
        return error_set(error, STATUS_INVALID, "logits: found output %d, wanted 0 to %d", i,
                         b->n_outputs - 1);
    memcpy(out, b->logits + (int64_t)i * b->shape->vocab_size,
           (size_t)b->shape->vocab_size * sizeof *out);
    return STATUS_OK;
}
