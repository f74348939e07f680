/* Sequences of the cpu backend: KV pages in int16 with scales, recurrent and conv state in float32,
 * and both as flat bytes. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

/* One head's key or value, rounded. */
struct head_codes {
    int16_t codes[HEAD_DIM];
    float scale;
};

int64_t cpu_conv_size(const struct shape *s)
{
    return (int64_t)(s->linear_conv_kernel_dim - 1) * shape_conv_channels(s);
}

int64_t cpu_recurrent_size(const struct shape *s)
{
    return (int64_t)shape_value_dim(s) * s->linear_key_head_dim;
}

static int n_planes(const struct cpu_backend *b)
{
    return shape_n_full_attention(b->shape) * b->shape->num_key_value_heads;
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
    enum status status = kv_go_to(sequence, position, error);
    if (status != STATUS_OK)
        return status;
    memcpy(q->conv_state, state, conv);
    memcpy(q->recurrent_state, (const char *)state + conv, cpu_state_size(backend) - conv);
    return STATUS_OK;
}

/* A row is [attention layer][kv head][key, value] of these. */
size_t cpu_kv_row_size(struct backend *backend)
{
    return (size_t)n_planes((struct cpu_backend *)backend) * 2 * sizeof(struct head_codes);
}

int64_t cpu_kv_place(const struct cpu_backend *b, const struct cpu_sequence *q, int plane,
                     int32_t position)
{
    int64_t page = kv_page_of(&q->kv, position);
    return (page * n_planes(b) + plane) * KV_PAGE + position % KV_PAGE;
}

int16_t *cpu_key(const struct cpu_backend *b, int64_t place)
{
    return b->cache.keys + place / KV_BLOCK * KV_BLOCK * HEAD_DIM + place % KV_BLOCK;
}

int16_t *cpu_value(const struct cpu_backend *b, int64_t place)
{
    return b->cache.values + place * HEAD_DIM;
}

enum status cpu_cache_new(struct cpu_backend *b, struct error *error)
{
    struct kv_cache *c = &b->cache;
    size_t places = (size_t)b->kv.n_pages * (size_t)n_planes(b) * KV_PAGE;
    c->keys = malloc(places * HEAD_DIM * sizeof *c->keys); /* pages of memory come by touching */
    c->values = malloc(places * HEAD_DIM * sizeof *c->values);
    c->key_scales = malloc(places * sizeof *c->key_scales);
    c->value_scales = malloc(places * sizeof *c->value_scales);
    if (!c->keys || !c->values || !c->key_scales || !c->value_scales)
        return error_no_memory(error, "the KV cache");
    return STATUS_OK;
}

void cpu_cache_free(struct cpu_backend *b)
{
    free(b->cache.keys);
    free(b->cache.values);
    free(b->cache.key_scales);
    free(b->cache.value_scales);
}

void cpu_copy_page(struct backend *backend, int32_t from, int32_t to)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    const struct kv_cache *c = &b->cache;
    size_t n = (size_t)n_planes(b) * KV_PAGE, source = (size_t)from * n, target = (size_t)to * n;
    memcpy(c->keys + target * HEAD_DIM, c->keys + source * HEAD_DIM,
           n * HEAD_DIM * sizeof *c->keys);
    memcpy(c->values + target * HEAD_DIM, c->values + source * HEAD_DIM,
           n * HEAD_DIM * sizeof *c->values);
    memcpy(c->key_scales + target, c->key_scales + source, n * sizeof *c->key_scales);
    memcpy(c->value_scales + target, c->value_scales + source, n * sizeof *c->value_scales);
}

static void read_position(const struct cpu_backend *b, int64_t place, struct head_codes out[2])
{
    const int16_t *key = cpu_key(b, place);
    for (int d = 0; d < HEAD_DIM; d++)
        out[0].codes[d] = key[d * KV_BLOCK];
    out[0].scale = b->cache.key_scales[place];
    memcpy(out[1].codes, cpu_value(b, place), sizeof out[1].codes);
    out[1].scale = b->cache.value_scales[place];
}

static void write_position(const struct cpu_backend *b, int64_t place,
                           const struct head_codes in[2])
{
    int16_t *key = cpu_key(b, place);
    for (int d = 0; d < HEAD_DIM; d++)
        key[d * KV_BLOCK] = in[0].codes[d];
    b->cache.key_scales[place] = in[0].scale;
    memcpy(cpu_value(b, place), in[1].codes, sizeof in[1].codes);
    b->cache.value_scales[place] = in[1].scale;
}

enum status cpu_kv_read(struct backend *backend, struct sequence *sequence, int32_t from, int32_t n,
                        void *out, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    enum status status = kv_check_read(sequence, from, n, error);
    if (status != STATUS_OK)
        return status;
    const struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    unsigned char *row = out; /* perhaps unaligned */
    struct head_codes pair[2];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < n_planes(b); plane++, row += sizeof pair) {
            read_position(b, cpu_kv_place(b, q, plane, i), pair);
            memcpy(row, pair, sizeof pair);
        }
    return STATUS_OK;
}

enum status cpu_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                         int32_t n, const void *rows, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    enum status status = kv_write_begin(backend, sequence, from, n, error);
    if (status != STATUS_OK)
        return status;
    const struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    const unsigned char *row = rows;
    struct head_codes pair[2];
    for (int32_t i = from; i < from + n; i++)
        for (int plane = 0; plane < n_planes(b); plane++, row += sizeof pair) {
            memcpy(pair, row, sizeof pair);
            write_position(b, cpu_kv_place(b, q, plane, i), pair);
        }
    return STATUS_OK;
}

void cpu_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    size_t conv = conv_bytes(((struct cpu_backend *)backend)->shape);
    memset(q->conv_state, 0, conv);
    memset(q->recurrent_state, 0, cpu_state_size(backend) - conv);
    kv_sequence_reset(&((struct cpu_backend *)backend)->kv, &q->kv);
}

void cpu_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct cpu_sequence *q = (struct cpu_sequence *)sequence;
    if (!q)
        return;
    struct cpu_backend *b = (struct cpu_backend *)backend;
    b->n_open--;
    if (b->paused.sequence == q)
        b->paused.sequence = NULL;
    kv_sequence_clear(&b->kv, &q->kv);
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
    size_t conv = conv_bytes(b->shape);
    enum status status = kv_sequence_init(&q->kv, b->context, error);
    q->conv_state = malloc(conv);
    q->recurrent_state = malloc(cpu_state_size(backend) - conv);
    if (status == STATUS_OK && (!q->conv_state || !q->recurrent_state))
        status = error_no_memory(error, "a sequence's state");
    if (status != STATUS_OK) {
        cpu_sequence_free(backend, &q->kv.base);
        return status;
    }
    cpu_sequence_reset(backend, &q->kv.base);
    *out = &q->kv.base;
    return STATUS_OK;
}
