/* Plain C for any CPU: what the compiler makes of generic vectors. */
#include <math.h>
#include <string.h>
#if defined __SSE2__
#include <emmintrin.h>
#endif

#include "backend/cpu/hints.h"
#include "backend/cpu/kernels.h"

#define LEVEL_NAME "portable"
#define TABLE kernels_portable
#define LANES 8
#define TILE_TOKENS 4

typedef int32_t vi __attribute__((vector_size(32)));
typedef float vf __attribute__((vector_size(32)));

static inline vi dot_pairs(vi acc, vi a, vi b)
{
#if defined __SSE2__ /* part of x86-64 itself, and ten times as fast */
    __m128i part[2], x[2], y[2];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; i++)
        part[i] = _mm_madd_epi16(x[i], y[i]);
    memcpy(&a, part, sizeof a);
    return acc + a;
#else
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

static inline vf load_floats(const float *p, int n)
{
    vf v = {0};
    memcpy(&v, p, (size_t)(n < LANES ? n : LANES) * sizeof *p);
    return v;
}

#define IN_REGISTER(v) (void)0

static inline float add_lanes(vf v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

static inline void transpose8(const unsigned char *p, int64_t stride, int rows, int dwords,
                              vi out[8])
{
    for (int d = 0; d < 8; d++)
        for (int i = 0; i < LANES; i++) {
            int32_t dword = 0;
            if (i < rows && d < dwords)
                memcpy(&dword, p + i * stride + 4 * d, sizeof dword);
            out[d][i] = dword;
        }
}

INLINE void load_parts(const unsigned char *p, int n, vf *out)
{
    out[0] = (vf){0};
    for (int i = 0; i < n; i++)
        out[0][i] = bf16_load(p + 2 * i);
}

INLINE vi add_fours(const vi *rows)
{
    vi sum = {0};
    for (int i = 0; i < LANES; i++)
        for (int lane = i / 4 * 4; lane < i / 4 * 4 + 4; lane++)
            sum[i] += rows[i % 4][lane];
    return sum;
}

INLINE void add_quarters(const vi *fours, vi *out)
{
    for (int i = 0; i < LANES; i++)
        out[0][i] = fours[i / 4][i % 4] + fours[i / 4][i % 4 + 4];
}

#include "backend/cpu/float_ops.h"
#include "backend/cpu/int_ops.h"
#include "backend/cpu/table.h"
