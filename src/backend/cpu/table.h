/* The table of one level, included by kernels_LEVEL.c after float_ops.h and its products. A level
 * may define TWO_TERMS, see kernels.h. */

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
