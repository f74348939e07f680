/* Products of dense 4-bit matrices with the rows of a step: each unit of work is UNIT_ROWS rows of
 * one matrix for all rows of the step, so that every weight is read by one thread and once. */
#include "backend/cpu/cpu.h"

struct q4_rows cpu_rows(const struct quant_matrix *matrix, int index, int from, int n)
{
    int64_t row = (int64_t)index * matrix->rows + from;
    int64_t parts = row * (matrix->columns / GROUP_SIZE) * 2; /* bf16 scales before it, in bytes */
    return (struct q4_rows){
        .weight = matrix->weight + row * (matrix->columns / 2),
        .scales = matrix->scales + parts,
        .biases = matrix->biases + parts,
        .rows = from + n <= matrix->rows ? n : matrix->rows - from,
        .columns = matrix->columns,
    };
}

void cpu_multiply(const struct cpu_backend *b, int thread, const struct q4_rows *w,
                  const struct activations *x, int64_t first, int n, float *y, int64_t stride)
{
    void *scratch = cpu_kernel_scratch(b, thread);
    if (n <= MATVEC_ROWS)
        b->kernels->matvec_q4(w, x, first, n, y, stride, scratch);
    else
        b->kernels->matmul_q4(w, x, first, n, y, stride, scratch);
}

struct products {
    struct cpu_backend *b;
    const struct product *products;
    const struct activations *x;
    int n;
};

static int units_of(const struct quant_matrix *matrix)
{
    return (matrix->rows + UNIT_ROWS - 1) / UNIT_ROWS;
}

static void product_unit(void *context, int unit, int thread)
{
    struct products *all = context;
    const struct product *p = all->products;
    for (; unit >= units_of(p->matrix); p++)
        unit -= units_of(p->matrix);
    struct q4_rows w = cpu_rows(p->matrix, 0, unit * UNIT_ROWS, UNIT_ROWS);
    cpu_multiply(all->b, thread, &w, all->x, 0, all->n, p->y + unit * UNIT_ROWS, p->stride);
}

void cpu_products(struct cpu_backend *b, const struct product *products, int n_products,
                  const struct activations *x, int n)
{
    struct products all = {b, products, x, n};
    int units = 0;
    for (int i = 0; i < n_products; i++)
        units += units_of(products[i].matrix);
    cpu_run(b, product_unit, &all, units);
}

static void project_back_unit(void *context, int unit, int thread)
{
    struct products *all = context;
    struct cpu_backend *b = all->b;
    int hidden = b->shape->hidden_size;
    product_unit(context, unit, thread);
    for (int r = 0; r < all->n; r++) /* the second term's rows come after all of the first's */
        b->kernels->add_scaled(b->h + (int64_t)(r % b->n) * hidden + unit * UNIT_ROWS, 1,
                               b->mixed + (int64_t)r * hidden + unit * UNIT_ROWS, UNIT_ROWS);
}

void cpu_project_back(struct cpu_backend *b, const struct quant_matrix *matrix,
                      const struct activations *x, int terms)
{
    struct product product = {matrix, b->mixed, b->shape->hidden_size};
    struct products all = {b, &product, x, terms * b->n};
    cpu_run(b, project_back_unit, &all, units_of(matrix));
}
