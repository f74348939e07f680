/* Plain C for any CPU: what the compiler makes of generic vectors. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels.h"

#define LEVEL_NAME "portable"
#define TABLE kernels_portable
#define LANES 8
#define TILE_TOKENS 4

typedef int32_t vi __attribute__((vector_size(32)));
typedef float vf __attribute__((vector_size(32)));

static inline vi dot_pairs(vi acc, vi a, vi b)
{
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
}

static inline vf load_floats(const float *p, int n)
{
    vf v = {0};
    memcpy(&v, p, (size_t)(n < LANES ? n : LANES) * sizeof *p);
    return v;
}

static inline vf load_bf16(const unsigned char *p, int n)
{
    vf v = {0};
    for (int i = 0; i < n && i < LANES; i++)
        v[i] = bf16_load(p + 2 * i);
    return v;
}

#define IN_REGISTER(v) (void)0

struct group_index {
    int group;
};

static inline struct group_index group_index_first(void)
{
    return (struct group_index){0};
}

static inline void group_index_next(struct group_index *index)
{
    index->group++;
}

static inline vf group_lanes(const vf *c, const struct group_index *index)
{
    return (vf){0} + ((const float *)c)[index->group];
}

static inline float add_lanes(vf v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

/* float16 by hand: not every compiler has the type. */
static float from_f16(uint16_t half)
{
    uint32_t magnitude = half & 0x7FFF, bits;
    float value;
    if (magnitude < 0x0400) { /* zero and subnormal: units of 2^-24 */
        value = (float)magnitude * 0x1p-24f;
        return half & 0x8000 ? -value : value;
    }
    bits = magnitude < 0x7C00 ? (magnitude << 13) + (112u << 23) : (magnitude << 13) | 0x7F800000;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    float size = fabsf(value);
    if (!(size < 65520.0f)) /* infinite or NaN */
        return (uint16_t)(sign | (size > 0 ? 0x7C00 : 0x7E00));
    if (size < 0x1p-14f) /* subnormal: the sum's low bits are multiples of 2^-24, rounded */
        return (uint16_t)(sign | (uint16_t)lrintf(size * 0x1p24f));
    bits &= 0x7FFFFFFF;
    bits += 0xFFF + (bits >> 13 & 1); /* to nearest even */
    return (uint16_t)(sign | (uint16_t)((bits >> 13) - (112u << 10)));
}

static inline vf load_f16(const uint16_t *p)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = from_f16(p[i]);
    return v;
}

static inline void store_f16_lanes(vf v, uint16_t *p)
{
    for (int i = 0; i < LANES; i++)
        p[i] = to_f16(v[i]);
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

#include "backend/cpu/int_ops.h"
#include "backend/cpu/float_ops.h"
#include "backend/cpu/table.h"
