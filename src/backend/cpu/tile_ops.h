/* What products with transposed rows of weights share: included by int_ops.h and amx_ops.h. Needs,
 * besides what float_ops.h does,
 *   transpose8(p, stride, rows, dwords, out[8])
 *                               LANES rows of up to 8 dwords -> 8 vectors, one dword of each row
 */

/* bf16 numbers [rows][groups] -> out[group * stride], lane = row. */
static void transpose_bf16(const unsigned char *p, int groups, int rows, vf *out, int stride)
{
    for (int first = 0; first < groups; first += 16) {
        int n = groups - first < 16 ? groups - first : 16;
        vi dword[8]; /* two groups each, the first one in the low half */
        transpose8(p + first * 2, groups * 2, rows, n / 2, dword);
        for (int g = 0; g < n; g++)
            out[(first + g) * stride] =
                (vf)(g % 2 ? dword[g / 2] & (int32_t)0xFFFF0000 : dword[g / 2] << 16);
    }
}

/* Asks for the g-th part of the `rows` rows that will be transposed next. They lie behind each
 * other, but are read as so many streams that the hardware does not see them come. */
static inline void prefetch_tile(const unsigned char *next, int g, int rows)
{
    int part = rows * GROUP_SIZE / 2;
    for (int i = 0; i < part; i += 64)
        __builtin_prefetch(next + (int64_t)g * part + i, 0, 2);
}

/* What a group adds to LANES products: the exact sum of codes with the factors of w and x, and the
 * bias. One function, so that all ways round alike. */
INLINE vf term(vi dot, vf scale, vf bias, vf x_sum)
{
    return __builtin_convertvector(dot, vf) * scale + bias * x_sum;
}
