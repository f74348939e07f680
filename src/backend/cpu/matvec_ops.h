/* Products of 4-bit rows with few rows of x: included by int_ops.h and amx_ops.h after matmul_q4.
 * Needs of them
 *   DOT_GROUPS                  groups in one vector of products: 1, or 2 side by side
 *   dot_row(packed, codes, N, dot)
 *                               DOT_GROUPS groups of one row of w times those of N rows of x
 *   dot_codes(codes, g)         where group g of a row of x begins
 *   AHEAD, AHEAD_CACHE          how many bytes ahead weights are prefetched, and to which cache (3:
 *                               the nearest)
 * and of the level
 *   add_fours(v[4])             four vectors to one: each 128 bits of it have the sums of those of
 *                               the four, one a lane
 *   add_quarters(fours[LANES / 4], out[LANES / 8])
 *                               LANES / 4 of those to the sums of LANES vectors, one a lane; if
 *                               LANES is 16, of their lower halves and of their upper ones
 *   load_parts(p, n, out[DOT_GROUPS])
 *                               n <= LANES * DOT_GROUPS bf16 as floats, the rest 0; if DOT_GROUPS
 *                               is 2, those of even groups and those of odd ones
 *
 * A row of w is read from end to end; the sums of its groups become lanes, beside scales and biases
 * as they lie. Then LANES rows change places with the groups, and their terms are added in
 * matmul_q4's order: a row of x has the same products, bit for bit, in any company. */

#define BLOCK_GROUPS (LANES * DOT_GROUPS) /* groups of LANES vectors */
#define FOUR_GROUPS (4 * DOT_GROUPS)
#define RUN_GROUPS 32 /* read before the next row's turn: 1 KB, or memory is slow to follow */
#define RUN_VECTORS (RUN_GROUPS / LANES)

/* N rows of x; scales and sums in the order of load_parts. */
struct few {
    const int16_t *codes[MATVEC_ROWS];
    vf scales[MATVEC_ROWS][MAX_GROUPS / LANES], sums[MATVEC_ROWS][MAX_GROUPS / LANES];
};

static void few_rows(const struct activations *x, int64_t first, int n, int groups, struct few *few)
{
    int x_groups = x->columns / GROUP_SIZE;
    memset(few->scales, 0, sizeof few->scales);
    memset(few->sums, 0, sizeof few->sums);
    for (int r = 0; r < n; r++) {
        float *scales = (float *)few->scales[r], *sums = (float *)few->sums[r];
        few->codes[r] = x->codes + (first + r) * x->code_stride;
        for (int g = 0; g < groups; g++) {
            int in_block = g % BLOCK_GROUPS;
            int at = g - in_block + in_block % DOT_GROUPS * LANES + in_block / DOT_GROUPS;
            scales[at] = x->scales[(first + r) * x_groups + g];
            sums[at] = x->sums[(first + r) * x_groups + g];
        }
    }
}

/* Four vectors of a row, from group g on; `groups` end before the next one of x. */
INLINE void multiply_four(const unsigned char *weight, int g, int groups, const struct few *x,
                          const int N, int four, vi (*fours)[LANES / 4])
{
    vi dot[MATVEC_ROWS][4];
    UNROLL
    for (int i = 0; i < 4; i++, g += DOT_GROUPS) {
        const int16_t *codes[MATVEC_ROWS];
        vi of_row[MATVEC_ROWS];
        UNROLL
        for (int r = 0; r < N; r++) {
            codes[r] = dot_codes(x->codes[r], g);
            of_row[r] = (vi){0};
        }
        if (g < groups)
            dot_row(weight + g * (GROUP_SIZE / 2), codes, N, of_row);
        UNROLL
        for (int r = 0; r < N; r++)
            dot[r][i] = of_row[r];
    }
    UNROLL
    for (int r = 0; r < N; r++)
        fours[r][four] = add_fours(dot[r]);
}

/* The terms of n <= BLOCK_GROUPS groups of one row, from group `first` on. */
INLINE void row_terms(const struct q4_rows *w, int row, int first, int n, const struct few *x,
                      const int N, vf (*terms)[LANES][RUN_VECTORS], int at)
{
    int groups = w->columns / GROUP_SIZE;
    const unsigned char *weight = w->weight + (int64_t)row * (w->columns / 2);
    const unsigned char *end = w->weight + (int64_t)w->rows * (w->columns / 2);
    int64_t parts = ((int64_t)row * groups + first) * 2;
    vf scale[DOT_GROUPS], bias[DOT_GROUPS];
    vi fours[MATVEC_ROWS][LANES / 4];
    __builtin_prefetch(w->scales + parts + PREFETCH / 8, 0, 3);
    __builtin_prefetch(w->biases + parts + PREFETCH / 8, 0, 3);
    load_parts(w->scales + parts, n, scale);
    load_parts(w->biases + parts, n, bias);
    for (int four = 0; four < LANES / 4; four++) {
        int g = first + four * FOUR_GROUPS;
        const unsigned char *ahead = weight + g * (GROUP_SIZE / 2) + AHEAD;
        if (ahead < end) { /* what lies behind is another thread's */
            UNROLL
            for (int i = 0; i < FOUR_GROUPS * GROUP_SIZE / 2; i += 64)
                __builtin_prefetch(ahead + i, 0, AHEAD_CACHE);
        }
        if (g + FOUR_GROUPS <= first + n) {
            multiply_four(weight, g, g + FOUR_GROUPS, x, N, four, fours);
        } else if (g < first + n) {
            multiply_four(weight, g, first + n, x, N, four, fours);
        } else {
            UNROLL
            for (int r = 0; r < N; r++)
                fours[r][four] = (vi){0};
        }
    }
    UNROLL
    for (int r = 0; r < N; r++) {
        vi dot[2];
        add_quarters(fours[r], dot);
        if (DOT_GROUPS < LANES / 8)
            dot[0] += dot[1];
        UNROLL
        for (int i = 0; i < DOT_GROUPS; i++)
            terms[r][row % LANES][at + i] = term(dot[i], scale[i] * x->scales[r][first / LANES + i],
                                                 bias[i], x->sums[r][first / LANES + i]);
    }
}

/* sum += the terms of n groups, one after the other; lane = row. */
static inline vf add_terms(vf sum, vf (*terms)[RUN_VECTORS], int n)
{
    for (int first = 0; first < n; first += 8 * DOT_GROUPS) {
        vi group[DOT_GROUPS][8];
        int block = first / BLOCK_GROUPS * DOT_GROUPS, lane = first % BLOCK_GROUPS / DOT_GROUPS;
        for (int i = 0; i < DOT_GROUPS; i++)
            transpose8((const unsigned char *)(terms[0] + block + i) + 4 * lane, sizeof *terms,
                       LANES, 8, group[i]);
        for (int g = 0; g < 8 * DOT_GROUPS && first + g < n; g++)
            sum += (vf)group[g % DOT_GROUPS][g / DOT_GROUPS];
    }
    return sum;
}

/* LANES rows of w from row `from` on, a multiple of LANES, times N rows of x. */
INLINE void matvec_tile(const struct q4_rows *w, int from, const struct few *x, const int N,
                        float *y, int64_t stride)
{
    int groups = w->columns / GROUP_SIZE;
    vf sum[MATVEC_ROWS];
    UNROLL
    for (int r = 0; r < N; r++)
        sum[r] = (vf){0};
    for (int first = 0; first < groups; first += RUN_GROUPS) {
        vf terms[MATVEC_ROWS][LANES][RUN_VECTORS];
        int n = groups - first < RUN_GROUPS ? groups - first : RUN_GROUPS;
        for (int i = 0; i < LANES; i++)
            for (int done = 0; done < n; done += BLOCK_GROUPS)
                row_terms(w, from + i, first + done,
                          n - done < BLOCK_GROUPS ? n - done : BLOCK_GROUPS, x, N, terms,
                          done / LANES);
        UNROLL
        for (int r = 0; r < N; r++)
            sum[r] = add_terms(sum[r], terms[r], n);
    }
    UNROLL
    for (int r = 0; r < N; r++)
        store(y + r * stride + from, sum[r]);
}

/* Each number of rows is compiled for itself; the sums then stay in registers. */
#define MATVEC(N)                                                                                  \
    static __attribute__((noinline)) void matvec_##N(                                              \
        const struct q4_rows *w, int from, const struct few *x, float *y, int64_t stride)          \
    {                                                                                              \
        matvec_tile(w, from, x, N, y, stride);                                                     \
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
    static void (*const tiles[])(const struct q4_rows *, int, const struct few *, float *,
                                 int64_t) = {matvec_1, matvec_2, matvec_3, matvec_4};
    struct few few;
    int from = 0;
    few_rows(x, first, n, w->columns / GROUP_SIZE, &few);
    for (; from + LANES <= w->rows; from += LANES)
        tiles[n - 1](w, from, &few, y, stride);
    if (from < w->rows) {
        struct q4_rows rest = *w;
        rest.weight += (int64_t)from * (w->columns / 2);
        rest.scales += (int64_t)from * (w->columns / GROUP_SIZE) * 2;
        rest.biases += (int64_t)from * (w->columns / GROUP_SIZE) * 2;
        rest.rows -= from;
        matmul_q4(&rest, x, first, n, y + from, stride, scratch);
    }
}
