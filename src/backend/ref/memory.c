/* The memory of the ref backend: workspace and plan, sequences, states and KV rows as bytes. */
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"

int64_t ref_kv_plane(const struct shape *s)
{
    return (int64_t)KV_PAGE * s->num_key_value_heads * s->head_dim;
}

int64_t ref_kv_page(const struct shape *s)
{
    return shape_n_full_attention(s) * 2 * ref_kv_plane(s);
}

int64_t ref_conv_size(const struct shape *s) /* one layer */
{
    return (int64_t)(s->linear_conv_kernel_dim - 1) * shape_conv_channels(s);
}

int64_t ref_recurrent_size(const struct shape *s) /* one layer */
{
    return (int64_t)shape_value_dim(s) * s->linear_key_head_dim;
}

static int widest_projection(const struct shape *s)
{
    int q = s->num_attention_heads * 2 * s->head_dim, c = shape_conv_channels(s);
    return q > c ? q : c;
}

static int mixer_width(const struct shape *s)
{
    int heads = s->num_attention_heads * s->head_dim, value = shape_value_dim(s);
    return heads > value ? heads : value;
}

static size_t ref_state_size(struct backend *backend)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    return (size_t)shape_n_linear_attention(s) *
           (size_t)(ref_conv_size(s) + ref_recurrent_size(s)) * sizeof(float);
}

static enum status ref_state_read(struct backend *backend, struct sequence *sequence, void *out,
                                  struct error *error)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    if (sequence->broken)
        return error_set(error, STATUS_DEVICE, "the sequence is unusable after a failed step");
    size_t conv = (size_t)shape_n_linear_attention(s) * (size_t)ref_conv_size(s) * sizeof(float);
    memcpy(out, q->conv_state, conv);
    memcpy((char *)out + conv, q->recurrent_state, ref_state_size(backend) - conv);
    return STATUS_OK;
}

static enum status ref_state_write(struct backend *backend, struct sequence *sequence,
                                   int32_t position, const void *state, struct error *error)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    enum status status = kv_go_to(sequence, position, error);
    if (status != STATUS_OK)
        return status;
    size_t conv = (size_t)shape_n_linear_attention(s) * (size_t)ref_conv_size(s) * sizeof(float);
    memcpy(q->conv_state, state, conv);
    memcpy(q->recurrent_state, (const char *)state + conv, ref_state_size(backend) - conv);
    return STATUS_OK;
}

static size_t ref_kv_row_size(struct backend *backend)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    return (size_t)(ref_kv_page(s) / KV_PAGE) * sizeof(float);
}

/* Rows [from, from+n) as [n][attention layer][K, V][kv heads][head_dim]. */
static void copy_rows(struct backend *backend, const struct sequence *sequence, int32_t from,
                      int32_t n, char *rows, bool write)
{
    const struct ref_backend *b = (struct ref_backend *)backend;
    const struct ref_sequence *q = (const struct ref_sequence *)sequence;
    int planes = shape_n_full_attention(b->shape) * 2;
    int64_t plane = ref_kv_plane(b->shape), part = plane / KV_PAGE;
    size_t size = (size_t)part * sizeof(float);
    for (int32_t at = from; at < from + n; at++) {
        float *cache =
            b->kv_cache + kv_page_of(&q->kv, at) * ref_kv_page(b->shape) + at % KV_PAGE * part;
        for (int i = 0; i < planes; i++, rows += size, cache += plane)
            memcpy(write ? (void *)cache : rows, write ? rows : (void *)cache, size);
    }
}

static enum status ref_kv_read(struct backend *backend, struct sequence *sequence, int32_t from,
                               int32_t n, void *out, struct error *error)
{
    enum status status = kv_check_read(sequence, from, n, error);
    if (status == STATUS_OK)
        copy_rows(backend, sequence, from, n, out, false);
    return status;
}

static enum status ref_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                                int32_t n, const void *rows, struct error *error)
{
    enum status status = kv_write_begin(backend, sequence, from, n, error);
    if (status == STATUS_OK)
        copy_rows(backend, sequence, from, n, (char *)rows, true);
    return status;
}

static void copy_page(struct backend *backend, int32_t from, int32_t to)
{
    const struct ref_backend *b = (struct ref_backend *)backend;
    int64_t page = ref_kv_page(b->shape);
    memcpy(b->kv_cache + to * page, b->kv_cache + from * page, (size_t)page * sizeof(float));
}

static void ref_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    size_t layers = (size_t)shape_n_linear_attention(s);
    memset(q->conv_state, 0, layers * (size_t)ref_conv_size(s) * sizeof(float));
    memset(q->recurrent_state, 0, layers * (size_t)ref_recurrent_size(s) * sizeof(float));
    kv_sequence_reset(&((struct ref_backend *)backend)->kv, &q->kv);
}

static void ref_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    if (!q)
        return;
    struct ref_backend *b = (struct ref_backend *)backend;
    b->n_open--;
    kv_sequence_clear(&b->kv, &q->kv);
    free(q->conv_state);
    free(q->recurrent_state);
    free(q);
}

static enum status ref_sequence_new(struct backend *backend, struct sequence **out,
                                    struct error *error)
{
    struct ref_backend *b = (struct ref_backend *)backend;
    size_t layers = (size_t)shape_n_linear_attention(b->shape);
    if (b->n_open == b->n_sequences)
        return error_set(error, STATUS_INVALID,
                         "sequences: found %d open, wanted no more than were planned",
                         b->n_sequences);
    struct ref_sequence *q = calloc(1, sizeof *q);
    if (!q)
        return error_no_memory(error, "a sequence");
    b->n_open++;
    enum status status = kv_sequence_init(&q->kv, b->context, error);
    q->conv_state = calloc(layers, (size_t)ref_conv_size(b->shape) * sizeof(float));
    q->recurrent_state = calloc(layers, (size_t)ref_recurrent_size(b->shape) * sizeof(float));
    if (status == STATUS_OK && (!q->conv_state || !q->recurrent_state))
        status = error_no_memory(error, "a sequence's state");
    if (status != STATUS_OK) {
        ref_sequence_free(backend, &q->kv.base);
        return status;
    }
    *out = &q->kv.base;
    return STATUS_OK;
}

/* The workspace: pointer and floats of each buffer. */
#define N_BUFFERS 12
static void workspace(struct ref_backend *b, float **buffers[N_BUFFERS], int64_t sizes[N_BUFFERS])
{
    const struct shape *s = b->shape;
    int64_t rows = MAX_ROWS, wide = mixer_width(s);
    int64_t longest = s->hidden_size > wide ? s->hidden_size : wide;
    struct {
        float **buffer;
        int64_t size;
    } table[N_BUFFERS] = {
        {&b->h, rows * s->hidden_size},
        {&b->x, rows * s->hidden_size},
        {&b->mixed, rows * s->hidden_size},
        {&b->first, rows * widest_projection(s)},
        {&b->second, rows * widest_projection(s)},
        {&b->wide, rows * wide},
        {&b->gates, rows * 2 * s->linear_num_value_heads},
        {&b->router, rows * s->num_experts},
        {&b->expert_x, rows * s->hidden_size},
        {&b->scores, b->context},
        {&b->expanded, longest},
        {&b->logits, rows * s->vocab_size},
    };
    for (int i = 0; i < N_BUFFERS; i++) {
        buffers[i] = table[i].buffer;
        sizes[i] = table[i].size;
    }
}

static void ref_plan(const struct backend_options *options, struct memory_plan *plan)
{
    const struct shape *s = options->weights->shape;
    struct ref_backend b = {.weights = options->weights, .shape = s, .context = options->context};
    float **buffers[N_BUFFERS];
    int64_t sizes[N_BUFFERS];
    workspace(&b, buffers, sizes);
    *plan = (struct memory_plan){.weights = weights_bytes(options->weights)};
    for (int i = 0; i < N_BUFFERS; i++)
        plan->workspace += sizes[i] * (int64_t)sizeof(float);
    kv_pool_plan(options, ref_kv_row_size(&b.base), plan);
    plan->state = (int64_t)ref_state_size(&b.base);
    plan->total =
        plan->weights + plan->workspace + plan->kv_cache + options->n_sequences * plan->state;
}

static void ref_close(struct backend *backend)
{
    struct ref_backend *b = (struct ref_backend *)backend;
    if (!b)
        return;
    float **buffers[N_BUFFERS];
    int64_t sizes[N_BUFFERS];
    workspace(b, buffers, sizes);
    for (int i = 0; i < N_BUFFERS; i++)
        free(*buffers[i]);
    free(b->kv_cache);
    kv_pool_close(&b->kv);
    free(b);
}

static enum status ref_open(const struct backend_options *options, struct backend **out,
                            struct error *error)
{
    struct ref_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "the ref backend");
    b->base =
        (struct backend){&backend_ref, {.max_rows = MAX_ROWS, .max_chunk = MAX_CHUNK}, &b->kv};
    b->weights = options->weights;
    b->shape = options->weights->shape;
    b->n_valid_ids = options->n_valid_ids;
    b->context = options->context;
    b->n_sequences = options->n_sequences;
    float **buffers[N_BUFFERS];
    int64_t sizes[N_BUFFERS];
    workspace(b, buffers, sizes);
    for (int i = 0; i < N_BUFFERS; i++)
        if (!(*buffers[i] = malloc((size_t)sizes[i] * sizeof(float)))) {
            ref_close(&b->base);
            return error_no_memory(error, "the ref backend's workspace");
        }
    enum status status = kv_pool_open(&b->kv, options, ref_kv_row_size(&b->base), copy_page, error);
    if (status == STATUS_OK &&
        !(b->kv_cache = malloc((size_t)b->kv.n_pages * (size_t)b->kv.page_bytes)))
        status = error_no_memory(error, "the ref backend's KV cache");
    if (status != STATUS_OK) {
        ref_close(&b->base);
        return status;
    }
    *out = &b->base;
    return STATUS_OK;
}

static void ref_set_probe(struct backend *backend, const struct probe *probe)
{
    ((struct ref_backend *)backend)->probe = probe ? *probe : (struct probe){0};
}

/* One thread and plain C: what would choose others must not be without effect. */
static enum status ref_check(const struct backend_options *options, struct error *error)
{
    if (options->threads != 0)
        return error_set(error, STATUS_INVALID, "threads: found %d, but the backend ref takes none",
                         options->threads);
    if (options->cpu)
        return error_set(error, STATUS_INVALID, "cpu: found '%s', but the backend ref takes none",
                         options->cpu);
    return STATUS_OK;
}

const struct backend_ops backend_ref = {
    .name = "ref",
    .check = ref_check,
    .plan = ref_plan,
    .open = ref_open,
    .close = ref_close,
    .sequence_new = ref_sequence_new,
    .sequence_free = ref_sequence_free,
    .sequence_reset = ref_sequence_reset,
    .prefill_chunk = ref_prefill_chunk,
    .decode_step = ref_decode_step,
    .logits = ref_logits,
    .state_size = ref_state_size,
    .state_read = ref_state_read,
    .state_write = ref_state_write,
    .kv_row_size = ref_kv_row_size,
    .kv_read = ref_kv_read,
    .kv_write = ref_kv_write,
    KV_POOL_OPS,
    .set_probe = ref_set_probe,
};
