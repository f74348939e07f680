/* What the AVX-512 tables share. Included by kernels_avx512.c, kernels_avx512vnni.c and
 * kernels_amx.c, which define LEVEL_NAME, TABLE, and DOT_PAIRS for int_ops.h or INT_OPS, their own
 * products. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/hints.h"
#include "backend/cpu/kernels.h"

#define LANES 16
#define TILE_TOKENS 8

typedef int32_t vi __attribute__((vector_size(64)));
typedef float vf __attribute__((vector_size(64)));

#ifdef DOT_PAIRS
static inline vi dot_pairs(vi acc, vi a, vi b)
{
    return (vi)DOT_PAIRS((__m512i)acc, (__m512i)a, (__m512i)b);
}
#endif

static inline __mmask16 first_lanes(int n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

static inline vf load_floats(const float *p, int n)
{
    return (vf)_mm512_maskz_loadu_ps(first_lanes(n), p);
}

#ifndef IN_REGISTER /* tests build this file for other registers */
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#endif

static inline float add_lanes(vf v)
{
    return _mm512_reduce_add_ps((__m512)v);
}

/* Row i's dwords for the lower half, row i + 4's for the upper one. */
static inline __m512i two_rows(const unsigned char *p, int64_t stride, int i, int rows, __mmask8 m)
{
    __m256i low = _mm256_maskz_loadu_epi32(i < rows ? m : 0, p + i * stride);
    __m256i high = _mm256_maskz_loadu_epi32(i + 4 < rows ? m : 0, p + (i + 4) * stride);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

static inline void transpose8(const unsigned char *p, int64_t stride, int rows, int dwords,
                              vi out[8])
{
    __mmask8 m = (__mmask8)((1u << dwords) - 1);
    __m512i quad[2][4]; /* [rows 0-7, 8-15][dword modulo 4] */
    for (int half = 0; half < 2; half++) {
        __m512i r[4];
        for (int i = 0; i < 4; i++)
            r[i] = two_rows(p + 8 * half * stride, stride, i, rows - 8 * half, m);
        __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
        __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
        quad[half][0] = _mm512_unpacklo_epi64(a, c);
        quad[half][1] = _mm512_unpackhi_epi64(a, c);
        quad[half][2] = _mm512_unpacklo_epi64(b, d);
        quad[half][3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; i++) {
        /* 128-bit lanes of quad: dword i of rows 0-3, dword i + 4 of them, the same of rows 4-7 */
        out[i] = (vi)_mm512_shuffle_i32x4(quad[0][i], quad[1][i], 0x88);
        out[i + 4] = (vi)_mm512_shuffle_i32x4(quad[0][i], quad[1][i], 0xDD);
    }
}

INLINE void load_parts(const unsigned char *p, int n, vf *out)
{
#ifdef DOT_PAIRS
    __mmask16 m = first_lanes(n / 2);
    __m256i low = _mm256_maskz_loadu_epi32((__mmask8)m, p);
    __m256i high = _mm256_maskz_loadu_epi32((__mmask8)(m >> 8), p + 32);
    __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    out[0] = (vf)_mm512_slli_epi32(pairs, 16);
    out[1] = (vf)_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000));
#else
    __m256i words = _mm256_maskz_loadu_epi16(first_lanes(n), p);
    out[0] = (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
#endif
}

INLINE vi add_fours(const vi *rows)
{
    __m512i a = (__m512i)rows[0], b = (__m512i)rows[1], c = (__m512i)rows[2], d = (__m512i)rows[3];
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return (vi)_mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

INLINE void add_quarters(const vi *fours, vi *out)
{
    __m512i eights[2]; /* 128 bits each: lower half, upper half, the same of the next four rows */
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i a = (__m512i)fours[2 * i], b = (__m512i)fours[2 * i + 1];
        eights[i] =
            _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    }
    out[0] = (vi)_mm512_shuffle_i32x4(eights[0], eights[1], 0x88);
    out[1] = (vi)_mm512_shuffle_i32x4(eights[0], eights[1], 0xDD);
}

#include "backend/cpu/float_ops.h"
#ifdef INT_OPS
#include INT_OPS
#else
#include "backend/cpu/int_ops.h"
#endif
#include "backend/cpu/table.h"
