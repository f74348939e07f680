/* 4-bit matrix products on int16 inputs for arm64, written once for its instruction sets. Included
 * by kernels_neon.c, kernels_dotprod.c and kernels_i8mm.c after float_ops.h; they define before:
 *   ROWS_PER_DOT                1 or 2: rows of weights in one product of a group
 *   WIDE_ROWS                   rows of weights at a time for several rows of x
 *   LARGEST_CODE                the largest code of an input
 *   place_codes(rounded, out)   lays out a group's 64 codes of x, in as many bytes
 *   struct codes, unpack_codes(w, at, out)
 *                               one group's codes of the ROWS_PER_DOT rows w, `at` bytes on
 *   dot_group(codes, x)         int32x4_t; 1 row: its sum is the product of the group; 2 rows: the
 *                               lanes are high and low half of the first, of the second row
 *
 * There is no unpacked tile: a block of 2 or 4 rows of weights meets 1 to 4 rows of x with all sums
 * in registers, and the codes are unpacked anew for each block (a tenth of the work). So decoding
 * and prefill are one loop, the same bits for any number of rows, and weights are read once from
 * memory: matmul keeps BLOCK_ROWS rows of them in the second cache while it goes through the rows
 * of x.
 *
 * 64 codes of at most 15 times 32767 stay below 2^25, a quarter of them in a lane: sums are exact
 * in int32 and as float. */

#define BLOCK_ROWS 64 /* of weights */

/* The instructions for a maximum keep a NaN, and values that are not finite end as a scale that is
 * not; a group of nothing but tiny values becomes 0. */
static void quantize(const float *x, int from, int n, const struct activations *out, int64_t row)
{
    int groups = out->columns / GROUP_SIZE;
    for (int group = from; group < from + n; group++, x += GROUP_SIZE) {
        float32x4_t largest = vdupq_n_f32(0);
        for (int i = 0; i < GROUP_SIZE; i += LANES)
            largest = vmaxq_f32(largest, vabsq_f32(vld1q_f32(x + i)));
        float top = vmaxvq_f32(largest), inverse = top > ROUNDING_LEAST ? LARGEST_CODE / top : 0;
        int16_t rounded[GROUP_SIZE];
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < GROUP_SIZE; i += LANES) {
            int32x4_t code = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
            sum = vaddq_s32(sum, code);
            vst1_s16(rounded + i, vmovn_s32(code));
        }
        place_codes(rounded, out->codes + row * out->code_stride + group * GROUP_SIZE);
        float scale = top / LARGEST_CODE;
        out->scales[row * groups + group] = scale;
        out->sums[row * groups + group] = scale * (float)vaddvq_s32(sum);
    }
}

#if ROWS_PER_DOT == 1
/* Factors of 4 groups: scale of the weights times scale of x. */
struct factors {
    float group[4];
};

INLINE void set_factors(const float32x4_t *scale, float32x4_t x_scale, struct factors *out)
{
    vst1q_f32(out->group, vmulq_f32(scale[0], x_scale));
}

INLINE float32x4_t add_group(float32x4_t sum, int32x4_t dot, const struct factors *factors, int g)
{
    return vfmaq_n_f32(sum, vcvtq_f32_s32(dot), factors->group[g]);
}

INLINE float32x4_t add_biases(float32x4_t sum, const float32x4_t *bias, float32x4_t x_sum)
{
    return vfmaq_f32(sum, bias[0], x_sum);
}

INLINE void finish(float32x4_t sum, float *out)
{
    out[0] = vaddvq_f32(sum);
}
#else
/* The same for the lanes of a dot: 256 times the first row's factor, the factor, the second's. */
struct factors {
    float32x4_t group[4];
};

INLINE void set_factors(const float32x4_t *scale, float32x4_t x_scale, struct factors *out)
{
    float32x4_t a = vmulq_f32(scale[0], x_scale), b = vmulq_f32(scale[1], x_scale);
    float32x4_t low[2] = {vzip1q_f32(a, b), vzip2q_f32(a, b)};
    for (int i = 0; i < 2; i++) {
        float32x4_t high = vmulq_n_f32(low[i], 256);
        out->group[2 * i] = vzip1q_f32(high, low[i]);
        out->group[2 * i + 1] = vzip2q_f32(high, low[i]);
    }
}

INLINE float32x4_t add_group(float32x4_t sum, int32x4_t dot, const struct factors *factors, int g)
{
    return vfmaq_f32(sum, vcvtq_f32_s32(dot), factors->group[g]);
}

INLINE float32x4_t add_biases(float32x4_t sum, const float32x4_t *bias, float32x4_t x_sum)
{
    return vaddq_f32(sum, vpaddq_f32(vmulq_f32(bias[0], x_sum), vmulq_f32(bias[1], x_sum)));
}

INLINE void finish(float32x4_t sum, float *out)
{
    float32x2_t rows = vget_low_f32(vpaddq_f32(sum, sum));
    vst1_f32(out, rows);
}
#endif

/* Rows [row, row + R) of w, as far as there are so many, times T rows of x from
 * `first_x` on. */
INLINE void multiply(const struct q4_rows *w, int row, const int R, const struct activations *x,
                     int64_t first_x, const int T, float *y, int64_t stride)
{
    enum { D = ROWS_PER_DOT };
    int groups = w->columns / GROUP_SIZE, x_groups = x->columns / GROUP_SIZE;
    const unsigned char *weight[4];
    int64_t part[4]; /* where the row's scales and biases are */
    float32x4_t sum[4][MATVEC_ROWS];
    UNROLL
    for (int r = 0; r < R; r++) {
        int64_t at = row + r < w->rows ? row + r : w->rows - 1;
        weight[r] = w->weight + at * (w->columns / 2);
        part[r] = at * groups * 2;
        UNROLL
        for (int t = 0; t < T; t++)
            sum[r][t] = vdupq_n_f32(0);
    }
    for (int first = 0; first < groups; first += LANES) {
        int n = groups - first < LANES ? groups - first : LANES;
        struct factors factors[4][MATVEC_ROWS];
        UNROLL
        for (int r = 0; r < R; r += D) {
            float32x4_t scale[D], bias[D];
            for (int i = 0; i < D; i++) {
                scale[i] = (float32x4_t)load_bf16(w->scales + part[r + i] + first * 2, n);
                bias[i] = (float32x4_t)load_bf16(w->biases + part[r + i] + first * 2, n);
            }
            UNROLL
            for (int t = 0; t < T; t++) {
                int64_t at = (first_x + t) * x_groups + first;
                set_factors(scale, (float32x4_t)load_floats(x->scales + at, n), &factors[r][t]);
                sum[r][t] = add_biases(sum[r][t], bias, (float32x4_t)load_floats(x->sums + at, n));
            }
        }
        for (int g = 0; g < n; g++) {
            UNROLL
            for (int r = 0; r < R; r += D) {
                struct codes codes;
                unpack_codes(weight + r, (first + g) * (GROUP_SIZE / 2), &codes);
                UNROLL
                for (int t = 0; t < T; t++) {
                    const int16_t *x_codes =
                        x->codes + (first_x + t) * x->code_stride + (first + g) * GROUP_SIZE;
                    sum[r][t] = add_group(sum[r][t], dot_group(&codes, x_codes), &factors[r][t], g);
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < R; r += D) {
        UNROLL
        for (int t = 0; t < T; t++) {
            float out[D];
            finish(sum[r][t], out);
            for (int i = 0; i < D && row + r + i < w->rows; i++)
                y[t * stride + row + r + i] = out[i];
        }
    }
}

/* Rows [from, to) of w in blocks, the last of which may be short. Each case is compiled for its own
 * n, of at most MATVEC_ROWS. */
static void multiply_rows(const struct q4_rows *w, int from, int to, const struct activations *x,
                          int64_t first, int n, float *y, int64_t stride)
{
    switch (n) {
    case 1:
        for (; from < to; from += 4)
            multiply(w, from, 4, x, first, 1, y, stride);
        break;
    case 2:
        for (; from < to; from += WIDE_ROWS)
            multiply(w, from, WIDE_ROWS, x, first, 2, y, stride);
        break;
    case 3:
        for (; from < to; from += WIDE_ROWS)
            multiply(w, from, WIDE_ROWS, x, first, 3, y, stride);
        break;
    default:
        for (; from < to; from += WIDE_ROWS)
            multiply(w, from, WIDE_ROWS, x, first, MATVEC_ROWS, y, stride);
        break;
    }
}

static void matvec_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch)
{
    (void)scratch;
    multiply_rows(w, 0, w->rows, x, first, n, y, stride);
}

static void matmul_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch)
{
    (void)scratch;
    for (int from = 0; from < w->rows; from += BLOCK_ROWS) {
        int to = from + BLOCK_ROWS < w->rows ? from + BLOCK_ROWS : w->rows;
        for (int done = 0; done < n; done += MATVEC_ROWS) {
            int count = n - done < MATVEC_ROWS ? n - done : MATVEC_ROWS;
            multiply_rows(w, from, to, x, first + done, count, y + done * stride, stride);
        }
    }
}
