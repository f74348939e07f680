/* Products of 4-bit rows with few rows of x: included by int_ops.h and amx_ops.h after matmul_q4.
 * Needs of them
 *   DOT_GROUPS                  groups in one vector of products: 1, or 2 side by side
 *   dot_row(packed, codes, N, dot)
 *                               DOT_GROUPS groups of one row of w times those of N rows of x
 *   dot_codes(codes, g)         where group g of a row of x begins
 * and of the level
 *   add_fours(rows[4])          four vectors to one: each 128 bits of it have the sums of those of
 *                               the four, one a lane
 *   add_quarters(fours[], out[])
 *                               LANES / 4 of those to the lanes' sums of LANES rows, lane = row; if
 *                               LANES is 16, one vector for the lower halves and one for the upper
 *
 * Weights are read as they lie, four rows side by side, which share each load of x; only their sums
 * change places. From there on all is as in matmul_q4, operation for operation, so that a row of x
 * has the same products, bit for bit, in any company. */

#define STEPS (256 / LANES) /* vectors of a row in one go */
#define AHEAD 8192          /* bytes of weights prefetched: a unit of work is 64 KB and more */
#define STEP_BYTES (DOT_GROUPS * GROUP_SIZE / 2)

/* Four rows from `weight` on, `steps` vectors of each, times N rows of x from group g on. */
INLINE void multiply_four(const unsigned char *weight, int64_t row_bytes, int steps,
                          const int16_t *const *x, int g, const int N,
                          vi (*fours)[LANES / 4][STEPS])
{
    for (int step = 0; step < steps; step++, weight += STEP_BYTES) {
        const int16_t *codes[MATVEC_ROWS];
        vi dot[MATVEC_ROWS][4];
        UNROLL
        for (int r = 0; r < N; r++)
            codes[r] = dot_codes(x[r], g + step * DOT_GROUPS);
        UNROLL
        for (int i = 0; i < 4; i++) {
            vi of_row[MATVEC_ROWS];
            dot_row(weight + i * row_bytes, codes, N, of_row);
            UNROLL
            for (int r = 0; r < N; r++)
                dot[r][i] = of_row[r];
        }
        for (int i = 0; i < 4 * STEP_BYTES;
             i += 64) /* in order, though the rows are read abreast */
            __builtin_prefetch(weight + AHEAD + step * 3 * STEP_BYTES + i, 0, 2);
        UNROLL
        for (int r = 0; r < N; r++)
            fours[r][0][step] = add_fours(dot[r]);
    }
}

struct matvec {
    vf scale[MAX_GROUPS], bias[MAX_GROUPS];
    vi fours[MATVEC_ROWS][LANES / 4][STEPS];
};

/* LANES rows of w from row `from` on, times N rows of x. */
INLINE void matvec_tile(const struct q4_rows *w, int from, const struct activations *x,
                        int64_t first_x, const int N, float *y, int64_t stride, struct matvec *work)
{
    int groups = w->columns / GROUP_SIZE, x_groups = x->columns / GROUP_SIZE;
    int64_t row_bytes = w->columns / 2, parts = (int64_t)from * groups * 2;
    vf *scale = work->scale, *bias = work->bias, sum[MATVEC_ROWS];
    vi(*fours)[LANES / 4][STEPS] = work->fours;
    const int16_t *codes[MATVEC_ROWS];
    transpose_bf16(w->scales + parts, groups, LANES, scale, 1);
    transpose_bf16(w->biases + parts, groups, LANES, bias, 1);
    UNROLL
    for (int r = 0; r < N; r++) {
        sum[r] = (vf){0};
        codes[r] = x->codes + (first_x + r) * x->code_stride;
    }
    for (int first = 0; first < groups; first += STEPS * DOT_GROUPS) {
        int steps = (groups - first) / DOT_GROUPS < STEPS ? (groups - first) / DOT_GROUPS : STEPS;
        for (int i = 0; i < LANES / 4; i++)
            multiply_four(w->weight + (from + 4 * i) * row_bytes + first * (GROUP_SIZE / 2),
                          row_bytes, steps, codes, first, N, (void *)fours[0][i]);
        for (int step = 0; step < steps; step++) {
            int g = first + step * DOT_GROUPS;
            UNROLL
            for (int r = 0; r < N; r++) {
                vi four[LANES / 4], dot[2];
                UNROLL
                for (int i = 0; i < LANES / 4; i++)
                    four[i] = fours[r][i][step];
                add_quarters(four, dot);
                if (DOT_GROUPS < LANES / 8)
                    dot[0] += dot[1];
                UNROLL
                for (int i = 0; i < DOT_GROUPS; i++) {
                    int64_t at = (first_x + r) * x_groups + g + i;
                    sum[r] = add_group(sum[r], dot[i], scale[g + i], bias[g + i], x->scales[at],
                                       x->sums[at]);
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < N; r++)
        store(y + r * stride + from, sum[r]);
}

/* Each number of rows is compiled for itself; the sums then stay in registers. */
#define MATVEC(N)                                                                                  \
    static __attribute__((noinline)) void matvec_##N(                                              \
        const struct q4_rows *w, int from, const struct activations *x, int64_t first, float *y,   \
        int64_t stride, struct matvec *work)                                                       \
    {                                                                                              \
        matvec_tile(w, from, x, first, N, y, stride, work);                                        \
    }
MATVEC(1)
MATVEC(2)
MATVEC(3)
MATVEC(4)
#undef MATVEC
_Static_assert(MATVEC_ROWS == 4, "one function for each number of rows");

static void matvec_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch)
{
    static void (*const tiles[])(const struct q4_rows *, int, const struct activations *, int64_t,
                                 float *, int64_t,
                                 struct matvec *) = {matvec_1, matvec_2, matvec_3, matvec_4};
    _Static_assert(sizeof(struct matvec) <= KERNEL_SCRATCH, "a tile does not fit");
    int from = 0;
    for (; from + LANES <= w->rows; from += LANES)
        tiles[n - 1](w, from, x, first, y, stride, scratch);
    if (from < w->rows) {
        struct q4_rows rest = *w;
        rest.weight += (int64_t)from * (w->columns / 2);
        rest.scales += (int64_t)from * (w->columns / GROUP_SIZE) * 2;
        rest.biases += (int64_t)from * (w->columns / GROUP_SIZE) * 2;
        rest.rows -= from;
        matmul_q4(&rest, x, first, n, y + from, stride, scratch);
    }
}
