/* NEON as every arm64 CPU has it (Cortex-A72, Graviton 1). Codes and inputs are int16 and smlal
 * multiplies 4 pairs at a time: a group of a row costs 16 of them, 12 operations to unpack and 2
 * for its factor, with 8 registers of x that all rows share. Products of int8 halves (smull, smlal
 * to int16) would multiply 8 pairs at a time but twice, and float32 would need as many fmla and
 * conversions too. */
#define LEVEL_NAME "neon"
#define TABLE kernels_neon
#define ROWS_PER_DOT 1
#define WIDE_ROWS 2
#define LARGEST_CODE 32767

#include "backend/cpu/kernels.h"
#include "backend/cpu/neon_vectors.h"

/* Each 16 bytes of a row are 8 words of 4 codes: nibble j of all words is plane j. */
static inline void place_codes(const int16_t *rounded, int16_t *out)
{
    for (int half = 0; half < 2; half++) {
        int16x8x4_t plane = vld4q_s16(rounded + 32 * half);
        for (int j = 0; j < 4; j++)
            vst1q_s16(out + 32 * half + 8 * j, plane.val[j]);
    }
}

struct codes {
    int16x8_t plane[8];
};

static inline void unpack_codes(const unsigned char *const *w, int64_t at, struct codes *out)
{
    const uint16x8_t low = vdupq_n_u16(15);
    for (int half = 0; half < 2; half++) {
        uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(w[0] + at + 16 * half));
        int16x8_t *plane = out->plane + 4 * half;
        plane[0] = vreinterpretq_s16_u16(vandq_u16(words, low));
        plane[1] = vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(words, 4), low));
        plane[2] = vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(words, 8), low));
        plane[3] = vreinterpretq_s16_u16(vshrq_n_u16(words, 12));
    }
}

static inline int32x4_t dot_group(const struct codes *codes, const int16_t *x)
{
    int32x4_t sum = vdupq_n_s32(0);
    UNROLL
    for (int i = 0; i < 8; i++) {
        int16x8_t in = vld1q_s16(x + 8 * i);
        sum = vmlal_s16(sum, vget_low_s16(codes->plane[i]), vget_low_s16(in));
        sum = vmlal_high_s16(sum, codes->plane[i], in);
    }
    return sum;
}

#include "backend/cpu/float_ops.h"
#include "backend/cpu/neon_ops.h"
#include "backend/cpu/table.h"
