/* NEON with int8 matrix products (Neoverse V1 and N2, Graviton 3 and 4, Apple M2). smmla multiplies
 * two rows of 8 int8 with two others, so two rows of weights meet the high and the low halves of 8
 * inputs at once: 8 smmla for a group of two rows where dot products take 16 sdot and 2 shifts. The
 * halves have lanes of their own, which their factors bring together.
 *
 * bfmmla is no way to more speed: bfloat16 inputs change the model's choices (a KL of 6.5e-4
 * instead of 1.2e-5), and inputs in two parts cost two products of 4 columns where int8 has 8. */
#define LEVEL_NAME "i8mm"
#define TABLE kernels_i8mm
#define ROWS_PER_DOT 2
#define WIDE_ROWS 4
#define LARGEST_CODE 32639 /* 256 * 127 + 127 */

#include "backend/cpu/kernels.h"
#include "backend/cpu/neon_vectors.h"

/* For each 8 bytes of a row the even codes, then the odd ones: 8 high halves, 8 low halves. */
static inline void place_codes(const int16_t *rounded, int16_t *out)
{
    int8_t *bytes = (int8_t *)out;
    for (int i = 0; i < 4; i++) {
        int16x8x2_t codes = vld2q_s16(rounded + 16 * i);
        for (int odd = 0; odd < 2; odd++, bytes += 16) {
            /* a negative low half takes 1 away from the high one */
            vst1_s8(bytes, vshrn_n_s16(vaddq_s16(codes.val[odd], vdupq_n_s16(128)), 8));
            vst1_s8(bytes + 8, vmovn_s16(codes.val[odd]));
        }
    }
}

struct codes {
    int8x16_t part[8];
};

static inline void unpack_codes(const unsigned char *const *w, int64_t at, struct codes *out)
{
    for (int half = 0; half < 2; half++) {
        uint64x2_t a = vreinterpretq_u64_u8(vld1q_u8(w[0] + at + 16 * half));
        uint64x2_t b = vreinterpretq_u64_u8(vld1q_u8(w[1] + at + 16 * half));
        uint8x16_t both[2] = {vreinterpretq_u8_u64(vzip1q_u64(a, b)),
                              vreinterpretq_u8_u64(vzip2q_u64(a, b))};
        for (int i = 0; i < 2; i++) {
            int8x16_t *part = out->part + 4 * half + 2 * i;
            part[0] = vreinterpretq_s8_u8(vandq_u8(both[i], vdupq_n_u8(15)));
            part[1] = vreinterpretq_s8_u8(vshrq_n_u8(both[i], 4));
        }
    }
}

static inline int32x4_t dot_group(const struct codes *codes, const int16_t *x)
{
    const int8_t *bytes = (const int8_t *)x;
    int32x4_t sum = vdupq_n_s32(0);
    UNROLL
    for (int i = 0; i < 8; i++)
        sum = vmmlaq_s32(sum, codes->part[i], vld1q_s8(bytes + 16 * i));
    return sum;
}

#include "backend/cpu/float_ops.h"
#include "backend/cpu/neon_ops.h"
#include "backend/cpu/table.h"
