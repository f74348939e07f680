/* Sequences of the cpu backend: KV cache in int16 with scales, recurrent and conv state in float32,
 * and both as flat bytes. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

/* One head's key or value, rounded. */
struct head_codes {
    int16_t codes[HEAD_DIM];
    float scale;
};

int64_t cpu_capacity(int32_t context)
{
    return ((int64_t)context + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
}

int64_t cpu_conv_size(const struct shape *s)
{
    return (int64_t)(s->linear_conv_kernel_dim - 1) * shape_conv_channels(s);
}

int64_t cpu_recurrent_size(const struct shape *s)
{
    return (int64_t)shape_value_dim(s) * s->linear_key_head_dim;
}

static int64_t kv_positions(const struct shape *s, int32_t context) /* over all planes */
{
    return (int64_t)shape_n_full_attention(s) * s->num_key_value_heads * cpu_capacity(context);
}

int64_t cpu_kv_bytes(const struct shape *s, int32_t context)
{
    return kv_positions(s, context) * 2 * (int64_t)sizeof(struct head_codes);
}

size_t cpu_state_size(struct backend *backend)
{
    const struct shape *s = ((struct cpu_backend *)backend)->shape;
    return (size_t)shape_n_linear_attention(s) *
           (size_t)(cpu_conv_size(s) + cpu_recurrent_size(s)) * sizeof(float);
}

static size_t conv_bytes(const struct shape *s)
{
    return (size_t)shape_n_linear_attention(s) * (size_t)cpu_conv_size(s) * sizeof(float);
}

enum status cpu_state_read(struct backend *backend, struct sequence *sequence, void *out,
                           struct error *error)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    size_t conv = conv_bytes(((struct cpu_backend *)backend)->shape);
    if (sequence->broken)
        return error_set(error, STATUS_DEVICE, "the sequence is unusable after a failed step");
    memcpy(out, q->conv_state, conv);
    memcpy((char *)out + conv, q->recurrent_state, cpu_state_size(backend) - conv);
    return STATUS_OK;
}

enum status cpu_state_write(struct backend *backend, struct sequence *sequence, int32_t position,
                            const void *state, struct error *error)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    size_t conv = conv_bytes(((struct cpu_backend *)backend)->shape);
    if (position < 0 || position > sequence->kv_length)
        return error_set(error, STATUS_INVALID,
                         "a state of position %d, but the sequence has %d KV rows", position,
                         sequence->kv_length);
    memcpy(q->conv_state, state, conv);
    memcpy(q->recurrent_state, (const char *)state + conv, cpu_state_size(backend) - conv);
    sequence->position = position;
    sequence->broken = false;
    return STATUS_OK;
}

/* A row is [attention layer][kv head][key, value] of these. */
size_t cpu_kv_row_size(struct backend *backend)
{
    const struct shape *s = ((struct cpu_backend *)backend)->shape;
    return (size_t)shape_n_full_attention(s) * (size_t)s->num_key_value_heads * 2 *
           sizeof(struct head_codes);
}

static enum status check_rows(const struct sequence *sequence, int32_t from, int32_t n,
                              int32_t limit, struct error *error)
{
    if (from < 0 || n < 0 || from > sequence->kv_length || from > limit - n)
        return error_set(error, STATUS_INVALID, "KV rows %d to %lld, the sequence has %d of %d",
                         from, (long long)from + n, sequence->kv_length, sequence->capacity);
    return STATUS_OK;
}

int16_t *cpu_key(const struct cpu_backend *b, const struct cpu_sequence *q, int plane,
                 int32_t position)
{
    int64_t start = plane * cpu_capacity(b->context) + position / KV_BLOCK * KV_BLOCK;
    return q->keys + start * HEAD_DIM + position % KV_BLOCK;
}

int16_t *cpu_value(const struct cpu_backend *b, const struct cpu_sequence *q, int plane,
                   int32_t position)
{
    return q->values + (plane * cpu_capacity(b->context) + position) * HEAD_DIM;
}

static void read_position(const struct cpu_backend *b, const struct cpu_sequence *q, int plane,
                          int32_t position, struct head_codes out[2])
{
    int64_t scale = plane * cpu_capacity(b->context) + position;
    const int16_t *key = cpu_key(b, q, plane, position);
    for (int d = 0; d < HEAD_DIM; d++)
        out[0].codes[d] = key[d * KV_BLOCK];
    out[0].scale = q->key_scales[scale];
    memcpy(out[1].codes, cpu_value(b, q, plane, position), sizeof out[1].codes);
    out[1].scale = q->value_scales[scale];
}

static void write_position(const struct cpu_backend *b, struct cpu_sequence *q, int plane,
                           int32_t position, const struct head_codes in[2])
{
    int64_t scale = plane * cpu_capacity(b->context) + position;
    int16_t *key = cpu_key(b, q, plane, position);
    for (int d = 0; d < HEAD_DIM; d++)
        key[d * KV_BLOCK] = in[0].codes[d];
    q->key_scales[scale] = in[0].scale;
    memcpy(cpu_value(b, q, plane, position), in[1].codes, sizeof in[1].codes);
    q->value_scales[scale] = in[1].scale;
}

enum status cpu_kv_read(struct backend *backend, struct sequence *sequence, int32_t from, int32_t n,
                        void *out, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    enum status status = check_rows(sequence, from, n, sequence->kv_length, error);
    if (status != STATUS_OK)
        return status;
    int planes = shape_n_full_attention(b->shape) * b->shape->num_key_value_heads;
    unsigned char *row = out; /* perhaps unaligned */
    struct head_codes pair[2];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < planes; plane++, row += sizeof pair) {
            read_position(b, (struct cpu_sequence *)sequence, plane, i, pair);
            memcpy(row, pair, sizeof pair);
        }
    return STATUS_OK;
}

enum status cpu_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                         int32_t n, const void *rows, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    enum status status = check_rows(sequence, from, n, sequence->capacity, error);
    if (status != STATUS_OK)
        return status;
    sequence->kv_length = from + n;
    if (sequence->position > sequence->kv_length)
        sequence->broken = true; /* until a state that fits the rows is written */
    int planes = shape_n_full_attention(b->shape) * b->shape->num_key_value_heads;
    const unsigned char *row = rows;
    struct head_codes pair[2];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < planes; plane++, row += sizeof pair) {
            memcpy(pair, row, sizeof pair);
            write_position(b, (struct cpu_sequence *)sequence, plane, i, pair);
        }
    return STATUS_OK;
}

void cpu_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    size_t conv = conv_bytes(((struct cpu_backend *)backend)->shape);
    memset(q->conv_state, 0, conv);
    memset(q->recurrent_state, 0, cpu_state_size(backend) - conv);
    sequence->position = sequence->kv_length = 0;
    sequence->broken = false;
}

void cpu_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    if (!q)
        return;
    ((struct cpu_backend *)backend)->n_open--;
    free(q->keys);
    free(q->values);
    free(q->key_scales);
    free(q->value_scales);
    free(q->conv_state);
    free(q->recurrent_state);
    free(q);
}

enum status cpu_sequence_new(struct backend *backend, struct sequence **out, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    if (b->n_open == b->n_sequences)
        return error_set(error, STATUS_INVALID,
                         "sequences: found %d open, wanted no more than were planned",
                         b->n_sequences);
    struct cpu_sequence *q = calloc(1, sizeof *q);
    if (!q)
        return error_no_memory(error, "a sequence");
    b->n_open++;
    size_t positions = (size_t)kv_positions(b->shape, b->context), conv = conv_bytes(b->shape);
    q->keys = malloc(positions * HEAD_DIM * sizeof *q->keys);
    q->values = malloc(positions * HEAD_DIM * sizeof *q->values);
    q->key_scales = malloc(positions * sizeof *q->key_scales);
    q->value_scales = malloc(positions * sizeof *q->value_scales);
    q->conv_state = malloc(conv);
    q->recurrent_state = malloc(cpu_state_size(backend) - conv);
    q->base.capacity = b->context;
    if (!q->keys || !q->values || !q->key_scales || !q->value_scales || !q->conv_state ||
        !q->recurrent_state) {
        cpu_sequence_free(backend, &q->base);
        return error_no_memory(error, "a sequence's KV cache and state");
    }
    cpu_sequence_reset(backend, &q->base);
    *out = &q->base;
    return STATUS_OK;
}
