/* The table of one level, included by kernels_LEVEL.c after float_ops.h and its products. A level
 * may define TWO_TERMS, see kernels.h. */

#ifndef ROWS_PER_DOT /* neon_ops.h has its own, for several rows of w at a time */
static void matvec_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride)
{
    for (int row = 0; row < w->rows; row++) {
        /* Each case is compiled for its own n; the sums then stay in registers. */
        switch (n) {
        case 1:
            matvec_row(w, row, x, first, 1, y, stride);
            break;
        case 2:
            matvec_row(w, row, x, first, 2, y, stride);
            break;
        case 3:
            matvec_row(w, row, x, first, 3, y, stride);
            break;
        default:
            matvec_row(w, row, x, first, MATVEC_ROWS, y, stride);
            break;
        }
    }
}
#endif

static void rounding_error(const float *x, int n, float *out)
{
    for (int group = 0; group < n; group++, x += GROUP_SIZE, out += GROUP_SIZE) {
        struct rounding rounding = rounding_of(x, GROUP_SIZE, LARGEST_CODE);
        for (int i = 0; i < GROUP_SIZE; i++)
            out[i] = x[i] - (float)round_value(x[i], rounding) * rounding.scale;
    }
}

#ifndef TWO_TERMS
#define TWO_TERMS false
#endif

const struct kernels TABLE = {
    .name = LEVEL_NAME,
    .two_terms = TWO_TERMS,
    .quantize = quantize,
    .rounding_error = rounding_error,
    .matvec_q4 = matvec_q4,
    .matmul_q4 = matmul_q4,
    .matmul_q8 = matmul_q8,
    .rms_norm = rms_norm,
    .l2_norm = l2_norm,
    .gated_norm = gated_norm,
    .swiglu = swiglu,
    .sigmoid_gate = sigmoid_gate,
    .add_scaled = add_scaled,
    .conv = conv,
    .deltanet_step = deltanet_step,
    .deltanet_chunk = deltanet_chunk,
    .sum_exp = sum_exp,
    .attention_block = attention_block,
    .round_head = round_head,
};
