/* One step of the cpu backend, for a chunk of a prompt and for decoding alike: rows are grouped
 * into runs (consecutive tokens of one sequence), and every layer goes over all rows at once. What
 * makes the difference between reading a prompt and decoding is decided where it matters: by the
 * number of rows in matmul.c, of a run's tokens in deltanet.c and attention.c, of an expert's in
 * moe.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "model/quant.h"

__attribute__((format(printf, 5, 6))) static void show(const struct cpu_backend *b,
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

/* ---- stages over rows ------------------------------------------------------------------------ */

struct rows {
    struct cpu_backend *b;
    const struct row *rows;
    const float *weight; /* of a norm */
};

static void rotate_row(void *context, int row, int thread)
{
    (void)thread;
    struct cpu_backend *b = context;
    int half = b->shape->rotary_dims / 2;
    float *cosines = b->rope + (int64_t)row * b->shape->rotary_dims;
    for (int i = 0; i < half; i++) {
        double angle = b->positions[row] * b->rope_frequency[i];
        cosines[i] = (float)cos(angle);
        cosines[half + i] = (float)sin(angle);
    }
}

static void embed_row(void *context, int row, int thread)
{
    (void)thread;
    struct rows *all = context;
    struct cpu_backend *b = all->b;
    const struct shape *s = b->shape;
    quant_row_load(&b->weights->embed_tokens, 0, all->rows[row].token,
                   b->h + (int64_t)row * s->hidden_size);
}

static void norm_row(void *context, int row, int thread)
{
    (void)thread;
    struct rows *all = context;
    struct cpu_backend *b = all->b;
    int hidden = b->shape->hidden_size;
    float *x = b->x + (int64_t)row * hidden;
    b->kernels->rms_norm(b->h + (int64_t)row * hidden, all->weight, hidden,
                         (float)b->shape->rms_norm_eps, x);
    b->kernels->quantize(x, 0, hidden / GROUP_SIZE, &b->x_codes, row);
}

static void norm_rows(struct cpu_backend *b, const float *weight)
{
    struct rows all = {.b = b, .weight = weight};
    cpu_run(b, norm_row, &all, b->n);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void find_runs(struct cpu_backend *b, const struct row *rows)
{
    b->n_runs = 0;
    for (int r = 0; r < b->n; r++) {
        struct cpu_sequence *sequence = (struct cpu_sequence *)rows[r].sequence;
        struct run *last = b->n_runs > 0 ? &b->runs[b->n_runs - 1] : NULL;
        if (last && last->sequence == sequence)
            last->n++;
        else
            b->runs[b->n_runs++] = (struct run){sequence, r, 1, b->positions[r]};
    }
}

/* Whether one more layer, if it takes as long as the last one, would end too late. */
static bool should_pause(double pause_at, double *last)
{
    double now = clock_seconds(), layer = now - *last;
    *last = now;
    return now + layer > pause_at;
}

/* Layers from *layer on; sets it to the next one where they paused. */
static enum status layers(struct cpu_backend *b, int *layer, const struct interrupt *interrupt,
                          struct error *error)
{
    const struct shape *s = b->shape;
    int hidden = s->hidden_size, n_attention = 0, n_deltanet = 0, first = *layer;
    double last = interrupt->pause_at > 0 ? clock_seconds() : 0;
    for (int i = 0; i < s->num_hidden_layers; i++) {
        bool attends = shape_is_full_attention(s, i);
        int index = attends ? n_attention++ : n_deltanet++;
        if (i < first)
            continue;
        *layer = i;
        if (interrupt->cancel && atomic_load_explicit(interrupt->cancel, memory_order_relaxed))
            return error_set(error, STATUS_CANCELLED, "cancelled");
        if (i > first && interrupt->pause_at > 0 && should_pause(interrupt->pause_at, &last))
            return STATUS_OK;
        norm_rows(b, b->layers[i].input_layernorm);
        if (attends) {
            cpu_attention(b, i, index);
        } else {
            cpu_deltanet(b, i, index);
            show(b,
                 b->runs[b->n_runs - 1].sequence->recurrent_state + index * cpu_recurrent_size(s),
                 (int64_t)s->linear_num_value_heads * LINEAR_HEAD_DIM, LINEAR_HEAD_DIM,
                 "layer.%d.recurrent_state", i);
        }
        show(b, b->h, b->n, hidden, "layer.%d.mixed", i);
        norm_rows(b, b->layers[i].post_attention_layernorm);
        cpu_moe(b, i);
        show(b, b->router, b->n, s->num_experts, "layer.%d.router", i);
        show(b, b->h, b->n, hidden, "layer.%d", i);
    }
    *layer = s->num_hidden_layers;
    return STATUS_OK;
}

/* Checks that a step can be done and begins it: the sequences are broken until its end. */
static enum status begin(struct cpu_backend *b, const struct row *rows, int n, int max_rows,
                         struct error *error)
{
    enum status status = step_check(b->shape, rows, n, max_rows, b->positions, error);
    if (status == STATUS_OK)
        status = kv_step_begin(&b->base, rows, n, b->positions, error);
    return status;
}

static void swap_streams(struct cpu_backend *b)
{
    float *h = b->h;
    b->h = b->paused.h;
    b->paused.h = h;
}

/* Goes on with the chunk that paused; *layer: the one that comes next. */
static enum status resume(struct cpu_backend *b, struct sequence *sequence, int n,
                          enum prefill_output output, int *layer, struct error *error)
{
    if (n != sequence->paused || output != PREFILL_LAST)
        return error_set(error, STATUS_INVALID, "a chunk of %d tokens, but one of %d has paused", n,
                         sequence->paused);
    for (int r = 0; r < n; r++)
        b->positions[r] = sequence->position + r;
    sequence->paused = 0;
    *layer = b->paused.layer;
    swap_streams(b);
    return STATUS_OK;
}

/* A step that has begun, from a layer on: to its end, or to where it pauses. */
static enum status advance(struct cpu_backend *b, const struct row *rows, int n, int layer,
                           int first_output, struct ranked *ranked,
                           const struct interrupt *interrupt, struct error *error)
{
    struct rows all = {.b = b, .rows = rows};
    b->n = n;
    b->n_outputs = 0;
    find_runs(b, rows);
    cpu_run(b, rotate_row, b, n);
    if (layer == 0) {
        cpu_run(b, embed_row, &all, n);
        show(b, b->h, n, b->shape->hidden_size, "embed");
    }
    enum status status = layers(b, &layer, interrupt, error);
    if (status != STATUS_OK)
        return status;
    if (layer < b->shape->num_hidden_layers) {
        rows[0].sequence->paused = n;
        b->paused.sequence = (struct cpu_sequence *)rows[0].sequence;
        b->paused.layer = layer;
        swap_streams(b);
        return STATUS_OK;
    }
    norm_rows(b, b->norm);
    show(b, b->x, n, b->shape->hidden_size, "norm");
    status = cpu_head(b, first_output, n - first_output, ranked, error);
    if (status != STATUS_OK)
        return status;
    b->n_outputs = n - first_output;
    show(b, b->logits, b->n_outputs, b->shape->vocab_size, "logits");
    kv_step_end(&b->base, rows, n, b->positions);
    return STATUS_OK;
}

enum status cpu_prefill_chunk(struct backend *backend, struct sequence *sequence,
                              const int32_t *tokens, int n, enum prefill_output output,
                              struct ranked *ranked, const struct interrupt *interrupt,
                              struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    struct interrupt until = interrupt ? *interrupt : (struct interrupt){0};
    int max_rows = output == PREFILL_ALL ? MAX_ROWS : MAX_CHUNK, layer = 0;
    for (int r = 0; n <= max_rows && r < n; r++) /* else begin refuses n before it looks */
        b->rows[r] = (struct row){.sequence = sequence, .token = tokens[r]};
    enum status status = sequence->paused > 0 ? resume(b, sequence, n, output, &layer, error)
                                              : begin(b, b->rows, n, max_rows, error);
    if (status != STATUS_OK)
        return status;
    const struct cpu_sequence *other = b->paused.sequence;
    if (output == PREFILL_ALL || (other && other->kv.base.paused > 0))
        until.pause_at = 0;
    return advance(b, b->rows, n, layer, output == PREFILL_ALL ? 0 : n - 1, ranked, &until, error);
}

enum status cpu_decode_step(struct backend *backend, const struct row *rows, int n,
                            struct ranked *ranked, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    enum status status = begin(b, rows, n, MAX_ROWS, error);
    if (status != STATUS_OK)
        return status;
    return advance(b, rows, n, 0, 0, ranked, &(struct interrupt){0}, error);
}
