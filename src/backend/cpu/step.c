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

static void embed_row(void *context, int row, int thread)
{
    (void)thread;
    struct rows *all = context;
    struct cpu_backend *b = all->b;
    const struct shape *s = b->shape;
    quant_row_load(&b->weights->embed_tokens, 0, all->rows[row].token,
                   b->h + (int64_t)row * s->hidden_size);
    int half = s->rotary_dims / 2;
    float *cosines = b->rope + (int64_t)row * s->rotary_dims;
    for (int i = 0; i < half; i++) {
        double angle = b->positions[row] * b->rope_frequency[i];
        cosines[i] = (float)cos(angle);
        cosines[half + i] = (float)sin(angle);
    }
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

static enum status layers(struct cpu_backend *b, const atomic_bool *cancel, struct error *error)
{
    const struct shape *s = b->shape;
    int hidden = s->hidden_size, n_attention = 0, n_deltanet = 0;
    for (int i = 0; i < s->num_hidden_layers; i++) {
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            return error_set(error, STATUS_CANCELLED, "cancelled");
        norm_rows(b, b->layers[i].input_layernorm);
        if (shape_is_full_attention(s, i)) {
            cpu_attention(b, i, n_attention++);
        } else {
            cpu_deltanet(b, i, n_deltanet);
            show(b,
                 b->runs[b->n_runs - 1].sequence->recurrent_state +
                     n_deltanet * cpu_recurrent_size(s),
                 (int64_t)s->linear_num_value_heads * LINEAR_HEAD_DIM, LINEAR_HEAD_DIM,
                 "layer.%d.recurrent_state", i);
            n_deltanet++;
        }
        show(b, b->h, b->n, hidden, "layer.%d.mixed", i);
        norm_rows(b, b->layers[i].post_attention_layernorm);
        cpu_moe(b, i);
        show(b, b->router, b->n, s->num_experts, "layer.%d.router", i);
        show(b, b->h, b->n, hidden, "layer.%d", i);
    }
    return STATUS_OK;
}

/* Checks that the step can be done; the sequences are broken while it is under way. */
static enum status step(struct cpu_backend *b, const struct row *rows, int n, int max_rows,
                        int first_output, struct ranked *ranked, const atomic_bool *cancel,
                        struct error *error)
{
    enum status status = step_check(b->shape, rows, n, max_rows, b->positions, error);
    if (status != STATUS_OK)
        return status;
    status = kv_step_begin(&b->base, rows, n, b->positions, error);
    if (status != STATUS_OK)
        return status;
    b->n = n;
    b->n_outputs = 0;
    find_runs(b, rows);
    struct rows all = {.b = b, .rows = rows};
    cpu_run(b, embed_row, &all, n);
    show(b, b->h, n, b->shape->hidden_size, "embed");
    status = layers(b, cancel, error);
    if (status != STATUS_OK)
        return status;
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
                              struct ranked *ranked, const atomic_bool *cancel, struct error *error)
{
    struct cpu_backend *b = (struct cpu_backend *)backend;
    int max_rows = output == PREFILL_ALL ? MAX_ROWS : MAX_CHUNK;
    for (int r = 0; n <= max_rows && r < n; r++) /* else step refuses n before it looks */
        b->rows[r] = (struct row){.sequence = sequence, .token = tokens[r]};
    return step(b, b->rows, n, max_rows, output == PREFILL_ALL ? 0 : n - 1, ranked, cancel, error);
}

enum status cpu_decode_step(struct backend *backend, const struct row *rows, int n,
                            struct ranked *ranked, struct error *error)
{
    return step((struct cpu_backend *)backend, rows, n, MAX_ROWS, 0, ranked, NULL, error);
}
