/* NEON with the dot products of Armv8.2 (Neoverse N1, Graviton 2, Ampere Altra, Apple M1). sdot
 * multiplies 16 pairs of int8, so an input is two of them, 256 * high + low, both signed, and a
 * group of a row costs 4 sdot with the high halves, a shift, 4 sdot with the low ones: half of what
 * smlal takes, and unpacking to bytes takes 4 operations instead of 12. With the factor that is 15
 * operations for 32 bytes of weights: 7.5 cycles on the two pipes of a Neoverse N1, 12 GB/s at
 * 3 GHz, more than its share of the memory. Halves keep the sums exact, as int16 does. */
#define LEVEL_NAME "dotprod"
#define TABLE kernels_dotprod
#define ROWS_PER_DOT 1
#define WIDE_ROWS 2
#define LARGEST_CODE 32639 /* 256 * 127 + 127 */

#include "backend/cpu/kernels.h"
#include "backend/cpu/neon_vectors.h"

/* Low nibbles of 16 bytes are the even codes of 32, high nibbles the odd ones. All high halves come
 * before the low ones. */
static inline void place_codes(const int16_t *rounded, int16_t *out)
{
    int8_t *high = (int8_t *)out, *low = high + GROUP_SIZE;
    const int16x8_t round = vdupq_n_s16(128); /* what a negative low half takes away */
    for (int half = 0; half < 2; half++) {
        int16x8x2_t a = vld2q_s16(rounded + 32 * half), b = vld2q_s16(rounded + 32 * half + 16);
        for (int odd = 0; odd < 2; odd++) {
            int at = 32 * half + 16 * odd;
            vst1q_s8(low + at,
                     vuzp1q_s8(vreinterpretq_s8_s16(a.val[odd]), vreinterpretq_s8_s16(b.val[odd])));
            vst1q_s8(high + at, vuzp2q_s8(vreinterpretq_s8_s16(vaddq_s16(a.val[odd], round)),
                                          vreinterpretq_s8_s16(vaddq_s16(b.val[odd], round))));
        }
    }
}

struct codes {
    int8x16_t part[4];
};

static inline void unpack_codes(const unsigned char *const *w, int64_t at, struct codes *out)
{
    for (int half = 0; half < 2; half++) {
        uint8x16_t packed = vld1q_u8(w[0] + at + 16 * half);
        out->part[2 * half] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        out->part[2 * half + 1] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
    }
}

static inline int32x4_t dot_group(const struct codes *codes, const int16_t *x)
{
    const int8_t *high = (const int8_t *)x, *low = high + GROUP_SIZE;
    int32x4_t sum = vdupq_n_s32(0);
    UNROLL
    for (int i = 0; i < 4; i++)
        sum = vdotq_s32(sum, codes->part[i], vld1q_s8(high + 16 * i));
    sum = vshlq_n_s32(sum, 8);
    UNROLL
    for (int i = 0; i < 4; i++)
        sum = vdotq_s32(sum, codes->part[i], vld1q_s8(low + 16 * i));
    return sum;
}

#include "backend/cpu/float_ops.h"
#include "backend/cpu/neon_ops.h"
#include "backend/cpu/table.h"
