/* Sequences of the cpu backend: KV cache in float16, recurrent and conv state in float32, and both
 * as flat bytes. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

static int64_t capacity_of(int32_t context)
{
    return ((int64_t)context + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
}

int64_t cpu_kv_plane(const struct cpu_backend *b)
{
    return capacity_of(b->context) * HEAD_DIM;
}

int64_t cpu_conv_size(const struct shape *s)
{
    return (int64_t)(s->linear_conv_kernel_dim - 1) * shape_conv_channels(s);
}

int64_t cpu_recurrent_size(const struct shape *s)
{
    return (int64_t)shape_value_dim(s) * s->linear_key_head_dim;
}

int64_t cpu_cache_bytes(const struct shape *s, int32_t context)
{
    return (int64_t)shape_n_full_attention(s) * s->num_key_value_heads * capacity_of(context) *
           HEAD_DIM * (int64_t)sizeof(uint16_t);
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

/* A row is [attention layer][kv head][key, value][head_dim] float16. */
size_t cpu_kv_row_size(struct backend *backend)
{
    const struct shape *s = ((struct cpu_backend *)backend)->shape;
    return (size_t)shape_n_full_attention(s) * (size_t)s->num_key_value_heads * 2 * HEAD_DIM *
           sizeof(uint16_t);
}

static enum status check_rows(const struct sequence *sequence, int32_t from, int32_t n,
                              int32_t limit, struct error *error)
{
    if (from < 0 || n < 0 || from > sequence->kv_length || from > limit - n)
        return error_set(error, STATUS_INVALID, "KV rows %d to %lld, the sequence has %d of %d",
                         from, (long long)from + n, sequence->kv_length, sequence->capacity);
    return STATUS_OK;
}

/* One position's key and value of plane `plane` (a layer's KV head). */
static uint16_t *key_at(const struct cpu_backend *b, struct cpu_sequence *q, int plane,
                        int32_t position)
{
    return q->keys + plane * cpu_kv_plane(b) +
           (int64_t)(position / KV_BLOCK) * KV_BLOCK * HEAD_DIM + position % KV_BLOCK;
}

static uint16_t *value_at(const struct cpu_backend *b, struct cpu_sequence *q, int plane,
                          int32_t position)
{
    return q->values + plane * cpu_kv_plane(b) + (int64_t)position * HEAD_DIM;
}

enum status cpu_kv_read(struct backend *backend, struct sequence *sequence, int32_t from,
                        int32_t n, void *out, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    enum status status = check_rows(sequence, from, n, sequence->kv_length, error);
    if (status != STATUS_OK)
        return status;
    int planes = shape_n_full_attention(b->shape) * b->shape->num_key_value_heads;
    unsigned char *row = out; /* perhaps unaligned */
    uint16_t part[2][HEAD_DIM];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < planes; plane++, row += sizeof part) {
            const uint16_t *key = key_at(b, q, plane, i);
            for (int d = 0; d < HEAD_DIM; d++)
                part[0][d] = key[d * KV_BLOCK];
            memcpy(part[1], value_at(b, q, plane, i), sizeof part[1]);
            memcpy(row, part, sizeof part);
        }
    return STATUS_OK;
}

enum status cpu_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                         int32_t n, const void *rows, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    enum status status = check_rows(sequence, from, n, sequence->capacity, error);
    if (status != STATUS_OK)
        return status;
    sequence->kv_length = from + n;
    if (sequence->position > sequence->kv_length)
        sequence->broken = true; /* until a state that fits the rows is written */
    int planes = shape_n_full_attention(b->shape) * b->shape->num_key_value_heads;
    const unsigned char *row = rows;
    uint16_t part[2][HEAD_DIM];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < planes; plane++, row += sizeof part) {
            memcpy(part, row, sizeof part);
            uint16_t *key = key_at(b, q, plane, i);
            for (int d = 0; d < HEAD_DIM; d++)
                key[d * KV_BLOCK] = part[0][d];
            memcpy(value_at(b, q, plane, i), part[1], sizeof part[1]);
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
    size_t cache = (size_t)cpu_cache_bytes(b->shape, b->context), conv = conv_bytes(b->shape);
    q->keys = malloc(cache);
    q->values = malloc(cache);
    q->conv_state = malloc(conv);
    q->recurrent_state = malloc(cpu_state_size(backend) - conv);
    q->base.capacity = b->context;
    if (!q->keys || !q->values || !q->conv_state || !q->recurrent_state) {
        cpu_sequence_free(backend, &q->base);
        return error_no_memory(error, "a sequence's KV cache and state");
    }
    cpu_sequence_reset(backend, &q->base);
    *out = &q->base;
    return STATUS_OK;
}
