/* Opening the cpu backend: kernels and threads, the workspace of a step, the small weights as
 * float32, and the memory plan that foretells all of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "model/quant.h"

#define CODE_PADDING 32 /* int16 after each row: rows must not all start in the same cache set */
#define ALIGNMENT 64

/* ---- the workspace --------------------------------------------------------------------------- */

struct buffer {
    void **pointer;
    int64_t bytes;
};

#define MAX_BUFFERS 48
struct buffers {
    struct buffer list[MAX_BUFFERS];
    int n;
};

static void add(struct buffers *buffers, void *pointer, int64_t count, size_t size)
{
    int64_t bytes = (count * (int64_t)size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    buffers->list[buffers->n++] = (struct buffer){pointer, bytes};
}

static void add_activations(struct buffers *buffers, struct activations *x, int64_t rows,
                            int columns)
{
    x->columns = columns;
    x->code_stride = columns + CODE_PADDING;
    add(buffers, &x->codes, rows * x->code_stride, sizeof *x->codes);
    add(buffers, &x->scales, rows * (columns / GROUP_SIZE), sizeof *x->scales);
    add(buffers, &x->sums, rows * (columns / GROUP_SIZE), sizeof *x->sums);
}

static int widest(int a, int b)
{
    return a > b ? a : b;
}

static void workspace(struct cpu_backend *b, struct buffers *buffers)
{
    const struct shape *s = b->shape;
    int64_t rows = MAX_CHUNK, k = s->num_experts_per_tok;
    int heads = s->num_attention_heads * HEAD_DIM, hv = s->linear_num_value_heads;
    buffers->n = 0;
    add(buffers, &b->rows, rows, sizeof *b->rows);
    add(buffers, &b->runs, rows, sizeof *b->runs);
    add(buffers, &b->positions, rows, sizeof *b->positions);
    add(buffers, &b->h, rows * s->hidden_size, sizeof *b->h);
    add(buffers, &b->paused.h, rows * s->hidden_size, sizeof *b->paused.h);
    add(buffers, &b->x, rows * s->hidden_size, sizeof *b->x);
    add_activations(buffers, &b->x_codes, rows, s->hidden_size);
    add(buffers, &b->mixed, 2 * rows * s->hidden_size, sizeof *b->mixed);
    add(buffers, &b->wide, rows * widest(2 * heads, shape_conv_channels(s)), sizeof *b->wide);
    add(buffers, &b->narrow,
        rows * widest(2 * s->num_key_value_heads * HEAD_DIM, shape_value_dim(s)),
        sizeof *b->narrow);
    add(buffers, &b->gates, rows * 2 * hv, sizeof *b->gates);
    add_activations(buffers, &b->mixer_codes, 2 * rows, widest(heads, shape_value_dim(s)));
    add(buffers, &b->rope, rows * s->rotary_dims, sizeof *b->rope);
    add(buffers, &b->router, rows * s->num_experts, sizeof *b->router);
    add(buffers, &b->shared_gate, rows, sizeof *b->shared_gate);
    add_activations(buffers, &b->slot_codes, rows * k, s->hidden_size);
    add_activations(buffers, &b->expert_codes, rows * (k + 1), s->moe_intermediate_size);
    add(buffers, &b->chosen, rows * k, sizeof *b->chosen);
    add(buffers, &b->chosen_weight, rows * k, sizeof *b->chosen_weight);
    add(buffers, &b->slot_row, rows * k, sizeof *b->slot_row);
    add(buffers, &b->slot_weight, rows * k, sizeof *b->slot_weight);
    add(buffers, &b->expert_first, s->num_experts + 1, sizeof *b->expert_first);
    add(buffers, &b->active, s->num_experts, sizeof *b->active);
    add(buffers, &b->splits, SPLIT_ROWS * s->num_key_value_heads * MAX_SPLITS, sizeof *b->splits);
    add(buffers, &b->logits, MAX_ROWS * (int64_t)s->vocab_size, sizeof *b->logits);
    add(buffers, &b->parts, MAX_ROWS * (int64_t)((s->vocab_size + HEAD_ROWS - 1) / HEAD_ROWS),
        sizeof *b->parts);
    add(buffers, &b->scratch, b->n_threads, SCRATCH);
}

static enum status allocate(struct buffers *buffers, struct error *error)
{
    for (int i = 0; i < buffers->n; i++) {
        *buffers->list[i].pointer = aligned_alloc(ALIGNMENT, (size_t)buffers->list[i].bytes);
        if (!*buffers->list[i].pointer)
            return error_no_memory(error, "the cpu backend's workspace");
    }
    return STATUS_OK;
}

static int64_t total(const struct buffers *buffers)
{
    int64_t bytes = 0;
    for (int i = 0; i < buffers->n; i++)
        bytes += buffers->list[i].bytes;
    return bytes;
}

static void release(struct buffers *buffers)
{
    for (int i = 0; i < buffers->n; i++)
        free(*buffers->list[i].pointer);
}

/* ---- the small weights ----------------------------------------------------------------------- */

/* The float32 copies of one layer. */
static void layer_buffers(const struct shape *s, int layer, struct cpu_layer *l,
                          struct buffers *buffers)
{
    buffers->n = 0;
    add(buffers, &l->input_layernorm, s->hidden_size, sizeof(float));
    add(buffers, &l->post_attention_layernorm, s->hidden_size, sizeof(float));
    if (shape_is_full_attention(s, layer)) {
        add(buffers, &l->q_norm, HEAD_DIM, sizeof(float));
        add(buffers, &l->k_norm, HEAD_DIM, sizeof(float));
        return;
    }
    add(buffers, &l->taps, 4 * (int64_t)shape_conv_channels(s), sizeof(float));
    add(buffers, &l->A, s->linear_num_value_heads, sizeof(float));
    add(buffers, &l->dt_bias, s->linear_num_value_heads, sizeof(float));
    add(buffers, &l->norm, LINEAR_HEAD_DIM, sizeof(float));
}

static void load_vector(const struct vector *vector, float *out)
{
    for (int64_t i = 0; i < vector->length; i++)
        out[i] = vector_load(vector, i);
}

static void load_layer(const struct shape *s, int layer, const struct layer_weights *weights,
                       struct cpu_layer *l)
{
    load_vector(&weights->input_layernorm, l->input_layernorm);
    load_vector(&weights->post_attention_layernorm, l->post_attention_layernorm);
    if (shape_is_full_attention(s, layer)) {
        load_vector(&weights->self_attn.q_norm, l->q_norm);
        load_vector(&weights->self_attn.k_norm, l->k_norm);
        return;
    }
    int channels = shape_conv_channels(s);
    for (int c = 0; c < channels; c++)
        for (int tap = 0; tap < 4; tap++)
            l->taps[tap * channels + c] = vector_load(&weights->linear_attn.conv1d, c * 4 + tap);
    load_vector(&weights->linear_attn.A_log, l->A);
    for (int h = 0; h < s->linear_num_value_heads; h++)
        l->A[h] = -expf(l->A[h]);
    load_vector(&weights->linear_attn.dt_bias, l->dt_bias);
    load_vector(&weights->linear_attn.norm, l->norm);
}

static enum status load_layers(struct cpu_backend *b, struct error *error)
{
    b->norm = malloc((size_t)b->shape->hidden_size * sizeof *b->norm);
    if (!b->norm)
        return error_no_memory(error, "the small weights");
    load_vector(&b->weights->norm, b->norm);
    for (int i = 0; i < b->shape->num_hidden_layers; i++) {
        struct buffers buffers;
        layer_buffers(b->shape, i, &b->layers[i], &buffers);
        enum status status = allocate(&buffers, error);
        if (status != STATUS_OK)
            return status;
        load_layer(b->shape, i, &b->weights->layers[i], &b->layers[i]);
    }
    return STATUS_OK;
}

/* ---- the seam -------------------------------------------------------------------------------- */

static int count_threads(const struct backend_options *options)
{
    int n = options->threads > 0 ? options->threads : cpu_physical_cores();
    return n < THREADS_MAX ? n : THREADS_MAX;
}

static void cpu_plan(const struct backend_options *options, struct memory_plan *plan)
{
    const struct shape *s = options->weights->shape;
    struct cpu_backend b = {.shape = s, .n_threads = count_threads(options)};
    struct buffers buffers;
    workspace(&b, &buffers);
    *plan = (struct memory_plan){.weights = weights_bytes(options->weights)};
    plan->workspace = (int64_t)sizeof b + total(&buffers) + s->hidden_size * (int64_t)sizeof(float);
    for (int i = 0; i < s->num_hidden_layers; i++) {
        layer_buffers(s, i, &b.layers[i], &buffers);
        plan->workspace += total(&buffers);
    }
    kv_pool_plan(options, cpu_kv_row_size(&b.base), plan);
    plan->state = (int64_t)cpu_state_size(&b.base);
    plan->total =
        plan->weights + plan->workspace + plan->kv_cache + options->n_sequences * plan->state;
}

static void cpu_close(struct backend *backend)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    if (!b)
        return;
    threads_free(b->threads);
    struct buffers buffers;
    workspace(b, &buffers);
    release(&buffers);
    for (int i = 0; i < b->shape->num_hidden_layers; i++) {
        layer_buffers(b->shape, i, &b->layers[i], &buffers);
        release(&buffers);
    }
    free(b->norm);
    cpu_cache_free(b);
    kv_pool_close(&b->kv);
    free(b);
}

static enum status open_parts(struct cpu_backend *b, const struct backend_options *options,
                              struct error *error)
{
    enum status status = kernels_find(options->cpu, &b->kernels, error);
    if (status == STATUS_OK)
        status =
            threads_new(options->threads > 0 ? options->threads : b->n_threads, &b->threads, error);
    if (status == STATUS_OK) {
        struct buffers buffers;
        workspace(b, &buffers);
        status = allocate(&buffers, error);
    }
    if (status == STATUS_OK)
        status = kv_pool_open(&b->kv, options, cpu_kv_row_size(&b->base), cpu_copy_page, error);
    if (status == STATUS_OK)
        status = cpu_cache_new(b, error);
    return status == STATUS_OK ? load_layers(b, error) : status;
}

static enum status cpu_open(const struct backend_options *options, struct backend **out,
                            struct error *error)
{
    struct cpu_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "the cpu backend");
    const struct shape *s = options->weights->shape;
    b->base = (struct backend){
        &backend_cpu, {.max_rows = MAX_ROWS, .max_chunk = MAX_CHUNK, .pauses = true}, &b->kv};
    b->weights = options->weights;
    b->shape = s;
    b->n_valid_ids = options->n_valid_ids;
    b->context = options->context;
    b->n_sequences = options->n_sequences;
    b->n_threads = count_threads(options);
    for (int i = 0; i < s->rotary_dims / 2; i++)
        b->rope_frequency[i] = pow(s->rope_theta, -2.0 * i / s->rotary_dims);
    enum status status = open_parts(b, options, error);
    if (status != STATUS_OK) {
        cpu_close(&b->base);
        return status;
    }
    *out = &b->base;
    return STATUS_OK;
}

static enum status cpu_logits(struct backend *backend, int i, float *out, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    if (i < 0 || i >= b->n_outputs)
        return error_set(error, STATUS_INVALID, "logits: found output %d, wanted 0 to %d", i,
                         b->n_outputs - 1);
    memcpy(out, b->logits + (int64_t)i * b->shape->vocab_size,
           (size_t)b->shape->vocab_size * sizeof *out);
    return STATUS_OK;
}

static void cpu_set_probe(struct backend *backend, const struct probe *probe)
{
    ((struct cpu_backend *)backend)->probe = probe ? *probe : (struct probe){0};
}

static enum status cpu_check(const struct backend_options *options, struct error *error)
{
    const struct kernels *unused;
    if (options->threads < 0 || options->threads > THREADS_MAX)
        return error_set(error, STATUS_INVALID, "threads: found %d, wanted 0 to %d",
                         options->threads, THREADS_MAX);
    return kernels_find(options->cpu, &unused, error);
}

static const char *cpu_level(int i)
{
    return kernels_tables[i] ? kernels_tables[i]->name : NULL;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .check = cpu_check,
    .level = cpu_level,
    .plan = cpu_plan,
    .open = cpu_open,
    .close = cpu_close,
    .sequence_new = cpu_sequence_new,
    .sequence_free = cpu_sequence_free,
    .sequence_reset = cpu_sequence_reset,
    .prefill_chunk = cpu_prefill_chunk,
    .decode_step = cpu_decode_step,
    .logits = cpu_logits,
    .state_size = cpu_state_size,
    .state_read = cpu_state_read,
    .state_write = cpu_state_write,
    .kv_row_size = cpu_kv_row_size,
    .kv_read = cpu_kv_read,
    .kv_write = cpu_kv_write,
    KV_POOL_OPS,
    .set_probe = cpu_set_probe,
};
