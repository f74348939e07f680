/* Vectors of the arm64 tables, and what float_ops.h wants of a level: included
 * by kernels_neon.c, kernels_dotprod.c and kernels_i8mm.c before their own operations. */
#pragma once

#include <math.h>
#include <string.h>

#include <arm_neon.h>

#include "backend/cpu/hints.h"

#define LANES 4

typedef int32_t vi __attribute__((vector_size(16)));
typedef float vf __attribute__((vector_size(16)));

static inline vf load_floats(const float *p, int n)
{
    vf v = {0};
    memcpy(&v, p, n < LANES ? (size_t)n * sizeof *p : sizeof v);
    return v;
}

static inline vf load_bf16(const unsigned char *p, int n)
{
    uint16_t words[LANES] = {0};
    memcpy(words, p, n < LANES ? (size_t)n * sizeof *words : sizeof words);
    return (vf)vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(words), 16));
}

/* LANES codes of the KV cache as floats. */
static inline vf load_codes(const int16_t *p)
{
    return (vf)vcvtq_f32_s32(vmovl_s16(vld1_s16(p)));
}

static inline float add_lanes(vf v)
{
    return vaddvq_f32((float32x4_t)v);
}
