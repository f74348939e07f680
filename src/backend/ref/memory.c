/* The memory of the ref backend: workspace and plan, sequences, states and KV rows as bytes. */
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"

int64_t ref_kv_plane(const struct ref_backend *b) /* one layer's K or V */
{
    return (int64_t)b->context * b->shape->num_key_value_heads * b->shape->head_dim;
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
    if (position < 0 || position > sequence->kv_length)
        return error_set(error, STATUS_INVALID,
                         "a state of position %d, but the sequence has %d KV rows", position,
                         sequence->kv_length);
    size_t conv = (size_t)shape_n_linear_attention(s) * (size_t)ref_conv_size(s) * sizeof(float);
    memcpy(q->conv_state, state, conv);
    memcpy(q->recurrent_state, (const char *)state + conv, ref_state_size(backend) - conv);
    sequence->position = position;
    sequence->broken = false;
    return STATUS_OK;
}

static size_t ref_kv_row_size(struct backend *backend)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    return (size_t)shape_n_full_attention(s) * 2 * (size_t)s->num_key_value_heads *
           (size_t)s->head_dim * sizeof(float);
}

/* Rows [from, from+n) as [n][attention layer][K, V][kv heads][head_dim]. */
static enum status kv_copy(struct backend *backend, struct sequence *sequence, int32_t from,
                           int32_t n, char *rows, bool write, struct error *error)
{
    struct ref_backend *b = (struct ref_backend *)backend;
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    int32_t limit = write ? sequence->capacity : sequence->kv_length;
    if (from < 0 || n < 0 || from > sequence->kv_length || from > limit - n)
        return error_set(error, STATUS_INVALID, "KV rows %d to %d, the sequence has %d of %d", from,
                         from + n, sequence->kv_length, sequence->capacity);
    if (write) {
        sequence->kv_length = from + n;
        if (sequence->position > sequence->kv_length)
            sequence->broken = true; /* until a state that fits the rows is written */
    }
    size_t size = ref_kv_row_size(backend);
    int planes = shape_n_full_attention(b->shape) * 2;
    size_t part = size / (size_t)planes;
    for (int32_t i = 0; i < n; i++)
        for (int plane = 0; plane < planes; plane++) {
            char *cache =
                (char *)(q->kv_cache + plane * ref_kv_plane(b)) + (size_t)(from + i) * part;
            char *row = rows + (size_t)i * size + (size_t)plane * part;
            memcpy(write ? cache : row, write ? row : cache, part);
        }
    return STATUS_OK;
}

static enum status ref_kv_read(struct backend *backend, struct sequence *sequence, int32_t from,
                               int32_t n, void *out, struct error *error)
{
    return kv_copy(backend, sequence, from, n, out, false, error);
}

static enum status ref_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                                int32_t n, const void *rows, struct error *error)
{
    return kv_copy(backend, sequence, from, n, (char *)rows, true, error);
}

static void ref_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    const struct shape *s = ((struct ref_backend *)backend)->shape;
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    size_t layers = (size_t)shape_n_linear_attention(s);
    memset(q->conv_state, 0, layers * (size_t)ref_conv_size(s) * sizeof(float));
    memset(q->recurrent_state, 0, layers * (size_t)ref_recurrent_size(s) * sizeof(float));
    sequence->position = sequence->kv_length = 0;
    sequence->broken = false;
}

static void ref_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct ref_sequence *q = (struct ref_sequence *)sequence;
    if (!q)
        return;
    ((struct ref_backend *)backend)->n_open--;
    free(q->kv_cache);
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
    q->kv_cache = malloc((size_t)b->context * ref_kv_row_size(backend));
    q->conv_state = calloc(layers, (size_t)ref_conv_size(b->shape) * sizeof(float));
    q->recurrent_state = calloc(layers, (size_t)ref_recurrent_size(b->shape) * sizeof(float));
    q->base.capacity = b->context;
    if (!q->kv_cache || !q->conv_state || !q->recurrent_state) {
        ref_sequence_free(backend, &q->base);
        return error_no_memory(error, "a sequence's KV cache and state");
    }
    *out = &q->base;
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
    plan->kv_cache = options->context * (int64_t)ref_kv_row_size(&b.base);
    plan->state = (int64_t)ref_state_size(&b.base);
    plan->total =
        plan->weights + plan->workspace + options->n_sequences * (plan->kv_cache + plan->state);
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
    free(b);
}

static enum status ref_open(const struct backend_options *options, struct backend **out,
                            struct error *error)
{
    struct ref_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "the ref backend");
    b->base = (struct backend){&backend_ref, {.max_rows = MAX_ROWS, .max_chunk = MAX_CHUNK}};
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
    .set_probe = ref_set_probe,
};
