/* AVX2 with FMA and F16C: every x86 server since 2015. */
#define LEVEL_NAME "avx2"
#define TABLE kernels_avx2

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/hints.h"
#include "backend/cpu/kernels.h"

#define LANES 8
#define TILE_TOKENS 4

typedef int32_t vi __attribute__((vector_size(32)));
typedef float vf __attribute__((vector_size(32)));

static inline vi dot_pairs(vi acc, vi a, vi b)
{
    return acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

static inline __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf load_floats(const float *p, int n)
{
    return n >= LANES ? (vf)_mm256_loadu_ps(p) : (vf)_mm256_maskload_ps(p, first_lanes(n));
}

#ifndef IN_REGISTER /* tests build this file for other registers */
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#endif

static inline float add_lanes(vf v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline void transpose8(const unsigned char *p, int64_t stride, int rows, int dwords,
                              vi out[8])
{
    __m256i r[8], t[8];
    for (int i = 0; i < 8; i++) {
        const int *row = (const int *)(p + i * stride);
        if (i >= rows)
            r[i] = _mm256_setzero_si256();
        else if (dwords >= 8)
            r[i] = _mm256_loadu_si256((const __m256i *)row);
        else
            r[i] = _mm256_maskload_epi32(row, first_lanes(dwords));
    }
    for (int half = 0; half < 8; half += 4) {
        __m256i a = _mm256_unpacklo_epi32(r[half], r[half + 1]);
        __m256i b = _mm256_unpackhi_epi32(r[half], r[half + 1]);
        __m256i c = _mm256_unpacklo_epi32(r[half + 2], r[half + 3]);
        __m256i d = _mm256_unpackhi_epi32(r[half + 2], r[half + 3]);
        t[half] = _mm256_unpacklo_epi64(a, c);
        t[half + 1] = _mm256_unpackhi_epi64(a, c);
        t[half + 2] = _mm256_unpacklo_epi64(b, d);
        t[half + 3] = _mm256_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; i++) { /* 128-bit lanes: dword i, dword i + 4 */
        out[i] = (vi)_mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
        out[i + 4] = (vi)_mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
    }
}

INLINE void load_parts(const unsigned char *p, int n, vf *out)
{
    __m128i words = _mm_setzero_si128();
    if (n >= LANES)
        words = _mm_loadu_si128((const __m128i *)p);
    else
        memcpy(&words, p, (size_t)n * 2);
    out[0] = (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
}

INLINE vi add_fours(const vi *rows)
{
    __m256i a = (__m256i)rows[0], b = (__m256i)rows[1], c = (__m256i)rows[2], d = (__m256i)rows[3];
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return (vi)_mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

INLINE void add_quarters(const vi *fours, vi *out)
{
    __m256i a = (__m256i)fours[0], b = (__m256i)fours[1];
    out[0] = (vi)_mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                  _mm256_permute2x128_si256(a, b, 0x31));
}

#include "backend/cpu/float_ops.h"
#include "backend/cpu/int_ops.h"
#include "backend/cpu/table.h"
