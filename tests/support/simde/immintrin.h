/* In place of the compiler's header: Intel's instructions in plain ones, by SIMDe, so that the
 * tables of kernels_avx*.c and kernels_amx.c can be tested on any CPU. The Makefile builds them
 * with this folder in front and without the instructions' own flags. What SIMDe 0.7.4 lacks
 * follows. */
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#include <string.h>

#define IN_REGISTER(v) (void)0

typedef uint8_t __mmask8;
typedef uint16_t __mmask16;

/* Adjacent int16 multiplied and added in pairs (SIMDe's own takes a mask by mistake). */
#undef _mm512_madd_epi16
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b)
{
    __m256i low = _mm256_madd_epi16(_mm512_extracti64x4_epi64(a, 0), //
                                    _mm512_extracti64x4_epi64(b, 0));
    __m256i high = _mm256_madd_epi16(_mm512_extracti64x4_epi64(a, 1), //
                                     _mm512_extracti64x4_epi64(b, 1));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#undef _mm512_dpwssd_epi32
static inline __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

/* Loads of the elements whose bit is set; the others' memory is not touched. */
static inline void masked_load(void *out, size_t size, size_t element, uint32_t mask, const void *p)
{
    memset(out, 0, size);
    for (size_t i = 0; i < size / element; i++)
        if (mask >> i & 1)
            memcpy((char *)out + i * element, (const char *)p + i * element, element);
}

#undef _mm256_maskz_loadu_epi16
static inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *p)
{
    __m256i v;
    masked_load(&v, sizeof v, 2, mask, p);
    return v;
}

#undef _mm256_maskz_loadu_epi32
static inline __m256i _mm256_maskz_loadu_epi32(__mmask8 mask, const void *p)
{
    __m256i v;
    masked_load(&v, sizeof v, 4, mask, p);
    return v;
}

#undef _mm512_maskz_loadu_ps
static inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    __m512 v;
    masked_load(&v, sizeof v, 4, mask, p);
    return v;
}

#undef _mm512_cvtepu16_epi32
static inline __m512i _mm512_cvtepu16_epi32(__m256i words)
{
    __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words));
    __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The halves are added, then their halves, and so on, as the compilers do. */
#undef _mm512_reduce_add_ps
static inline float _mm512_reduce_add_ps(__m512 v)
{
    float x[16];
    memcpy(x, &v, sizeof x);
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            x[i] += x[i + n];
    return x[0];
}

/* SIMDe's own read all and mask then. */
#undef _mm256_maskload_ps
static inline __m256 _mm256_maskload_ps(const float *p, __m256i mask)
{
    int32_t on[8];
    float out[8] = {0};
    memcpy(on, &mask, sizeof on);
    for (int i = 0; i < 8; i++)
        if (on[i] < 0)
            out[i] = p[i];
    __m256 v;
    memcpy(&v, out, sizeof v);
    return v;
}

#undef _mm256_maskload_epi32
static inline __m256i _mm256_maskload_epi32(const int *p, __m256i mask)
{
    int32_t on[8], out[8] = {0};
    memcpy(on, &mask, sizeof on);
    for (int i = 0; i < 8; i++)
        if (on[i] < 0)
            memcpy(&out[i], p + i, sizeof out[i]);
    __m256i v;
    memcpy(&v, out, sizeof v);
    return v;
}

#undef _mm512_dpbusd_epi32
/* Unsigned bytes of a times signed ones of b, four to a lane. */
static inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    uint8_t x[64];
    int8_t y[64];
    int32_t lanes[16];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(lanes, &sum, sizeof lanes);
    for (int i = 0; i < 64; i++)
        lanes[i / 4] += x[i] * y[i];
    memcpy(&sum, lanes, sizeof sum);
    return sum;
}

/* AMX: eight tiles of up to 16 rows of 64 bytes, each thread's own. Reads and writes no more than
 * what is configured, and poisons what a wider tile would have left. */
struct amx_tiles {
    int rows[8], bytes[8];
    unsigned char tile[8][16][64];
};
static _Thread_local struct amx_tiles amx;

static inline void _tile_loadconfig(const void *config)
{
    const unsigned char *p = config;
    memset(&amx, 0xA5, sizeof amx);
    for (int i = 0; i < 8; i++) {
        amx.bytes[i] = p[16 + 2 * i] | p[17 + 2 * i] << 8;
        amx.rows[i] = p[48 + i];
    }
}

static inline void _tile_zero(int tile)
{
    memset(amx.tile[tile], 0, sizeof amx.tile[tile]);
}

static inline void _tile_loadd(int tile, const void *p, int64_t stride)
{
    memset(amx.tile[tile], 0xA5, sizeof amx.tile[tile]);
    for (int r = 0; r < amx.rows[tile]; r++)
        memcpy(amx.tile[tile][r], (const char *)p + r * stride, (size_t)amx.bytes[tile]);
}

static inline void _tile_stored(int tile, void *p, int64_t stride)
{
    for (int r = 0; r < amx.rows[tile]; r++)
        memcpy((char *)p + r * stride, amx.tile[tile][r], (size_t)amx.bytes[tile]);
}

/* Signed bytes: row r of a times column c of b, whose rows hold four of each column. */
static inline void _tile_dpbssd(int sum, int a, int b)
{
    for (int r = 0; r < amx.rows[sum]; r++)
        for (int c = 0; c < amx.bytes[sum] / 4; c++) {
            int32_t lane;
            memcpy(&lane, &amx.tile[sum][r][4 * c], sizeof lane);
            for (int k = 0; k < amx.bytes[a]; k++)
                lane += (int8_t)amx.tile[a][r][k] * (int8_t)amx.tile[b][k / 4][4 * c + k % 4];
            memcpy(&amx.tile[sum][r][4 * c], &lane, sizeof lane);
        }
}

static inline void _tile_release(void)
{
    memset(&amx, 0xA5, sizeof amx);
}
