/* The output head: logits and ranked candidates. Each unit multiplies HEAD_ROWS rows of lm_head and
 * ranks its own logits while they are near; the parts are merged in order. */
#include "backend/cpu/cpu.h"

struct head {
    struct cpu_backend *b;
    int first, n; /* rows of b->x_codes */
    int n_parts;
};

static void head_unit(void *context, int unit, int thread)
{
    struct head *head = context;
    struct cpu_backend *b = head->b;
    const struct quant_matrix *matrix = &b->weights->lm_head;
    int vocab = b->shape->vocab_size, from = unit * HEAD_ROWS;
    int to = from + HEAD_ROWS < vocab ? from + HEAD_ROWS : vocab;
    struct q4_rows rows = cpu_rows(matrix, 0, from, to - from);
    cpu_multiply(b, thread, &rows, &b->x_codes, head->first, head->n, b->logits + from, vocab);
    int valid = to < b->n_valid_ids ? to - from : b->n_valid_ids - from;
    for (int i = 0; i < head->n; i++) {
        const float *logits = b->logits + (int64_t)i * vocab + from;
        struct rank_part *part = &b->parts[(int64_t)i * head->n_parts + unit];
        rank_part(logits, from, valid, part);
        part->sum = part->n > 0 ? b->kernels->sum_exp(logits, valid, part->logit[0]) : 0;
    }
}

enum status cpu_head(struct cpu_backend *b, int first, int n, struct ranked *ranked,
                     struct error *error)
{
    struct head head = {b, first, n, (b->shape->vocab_size + HEAD_ROWS - 1) / HEAD_ROWS};
    cpu_run(b, head_unit, &head, head.n_parts);
    enum status status = STATUS_OK;
    for (int i = 0; status == STATUS_OK && i < n; i++)
        status = rank_merge(b->parts + (int64_t)i * head.n_parts, head.n_parts, &ranked[i], error);
    return status;
}
