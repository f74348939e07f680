/* The inner loops of the cpu backend, one table for each instruction set. kernels_LEVEL.c fills a
 * table; kernels.c picks one at open, the best this CPU can run or the one asked for by name. Names
 * are those of the reference (backend/ref/ops.h) where it has the op alone; CONTRIBUTING.md says
 * where the others are and how a level is added. Tests compare every table with the reference.
 *
 * Inputs of 4-bit matrices are rounded to int16, one scale for each group of 64: next to float32 in
 * fidelity at the speed of integer products (DESIGN.md, "The cpu backend"). Every sum is taken in a
 * fixed order, so a result depends on nothing but its own inputs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/quant.h"
#include "model/weights.h"

#define PREFETCH 2048   /* bytes of weights ahead: about a memory access's time */
#define MATVEC_ROWS 4   /* rows of x that matvec_q4 takes at most; matmul_q4 is faster from 5 on */
#define MAX_GROUPS 64   /* in a row of a matrix: 4096 columns */
#define PAIR 128        /* columns of two groups, whose codes lie interleaved */
#define KV_BLOCK 16     /* positions whose keys lie interleaved in the KV cache */
#define SCORE_BLOCK 64  /* positions that attention_block takes at most */
#define QUERIES 8       /* query heads that share a KV head */
#define CHUNK_TOKENS 64 /* tokens that deltanet_chunk takes at most (spec 2.6) */
/* Bytes that a kernel may need beside its operands, `scratch` below: a multiple of 64, aligned so,
 * for one thread at a time. The stack may be too small for it (ulimit -s, threads of a library). */
#define KERNEL_SCRATCH (196 << 10)

/* Rounded inputs of a 4-bit matrix product: value = scale * code. `sums` are the sums of a group's
 * rounded values. The order of codes inside a pair of groups is the table's own. */
struct activations {
    int16_t *codes;           /* [rows][code_stride] */
    float *scales, *sums;     /* [rows][columns / 64] */
    int columns, code_stride; /* room of a row; a matrix may use fewer columns */
};

/* Rows of a 4-bit matrix where they lie in the mapped file (spec 4.4). */
struct q4_rows {
    const unsigned char *weight, *scales, *biases;
    int rows, columns;
};

/* Keys and values of one KV head from some position on, a multiple of KV_BLOCK: int16 codes with
 * one scale for each position. */
struct kv_block {
    const int16_t *keys;                    /* [positions / KV_BLOCK][HEAD_DIM][KV_BLOCK] */
    const int16_t *values;                  /* [positions][HEAD_DIM] */
    const float *key_scales, *value_scales; /* [positions], up to a multiple of KV_BLOCK */
};

/* The running softmax of QUERIES queries over the positions seen so far. */
struct attention_state {
    float max[QUERIES], sum[QUERIES];
    float out[QUERIES][HEAD_DIM]; /* not yet divided by sum */
};

struct kernels {
    const char *name; /* as in --cpu */
    /* DeltaNet's outputs are what loses most by rounding: a third of all noise (bench/NOTES.md). A
     * table with speed to spare has their rounding errors multiplied too. */
    bool two_terms;

    /* Rounds n groups of row `row`, from group `from` on; x points to the first one's values. */
    void (*quantize)(const float *x, int from, int n, const struct activations *out, int64_t row);
    /* out = x - what quantize makes of it, for n groups. */
    void (*rounding_error)(const float *x, int n, float *out);
    /* y[r * stride + i] = row i of w times row `first` + r of x, for n rows of x; the same bits by
     * both. matvec: n <= MATVEC_ROWS, reads the rows of w one after the other. matmul: any n,
     * transposes some rows of w and uses them for many rows of x. */
    void (*matvec_q4)(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch);
    void (*matmul_q4)(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch);
    /* The same for rows [from, to) of an 8-bit matrix and float32 rows of x, [n][columns]. */
    void (*matmul_q8)(const struct quant_matrix *w, int from, int to, const float *x, int n,
                      float *y, int64_t stride, void *scratch);

    void (*rms_norm)(const float *x, const float *weight, int n, float eps, float *y);
    void (*l2_norm)(float *x, int n, float scale);
    void (*gated_norm)(float *o, const float *weight, const float *z, int n, float eps);
    void (*swiglu)(float *gate, const float *up, int n);          /* gate = silu(gate) * up */
    void (*sigmoid_gate)(float *x, const float *gate, int n);     /* x *= sigmoid(gate) */
    void (*add_scaled)(float *y, float a, const float *x, int n); /* y += a * x */

    /* Convolution and SiLU of n consecutive tokens (ref_conv_step). x [n][x_stride], its first
     * `channels` columns; taps [4][tap_stride], oldest first; state [3][state_stride], oldest
     * first, is moved on; out [n][channels]. */
    void (*conv)(const float *x, int64_t x_stride, int n, const float *taps, int64_t tap_stride,
                 float *state, int64_t state_stride, int channels, float *out);
    /* One token of one value head (ref_deltanet_step). state [128][128]. */
    void (*deltanet_step)(float *state, const float *q, const float *k, const float *v, float g,
                          float beta, float *o);
    /* n <= CHUNK_TOKENS tokens of one value head at once. The strides are floats from one token's
     * row to the next; g, beta [n]; o [n][128]. */
    void (*deltanet_chunk)(float *state, const float *q, const float *k, const float *v,
                           int64_t qk_stride, int64_t v_stride, const float *g, const float *beta,
                           int n, float *o, void *scratch);
    /* Sum of exp(x - max) over any n values. */
    double (*sum_exp)(const float *x, int n, float max);

    /* QUERIES scaled queries [QUERIES][HEAD_DIM] on n <= SCORE_BLOCK positions. */
    void (*attention_block)(const float *queries, const struct kv_block *kv, int n,
                            struct attention_state *state);
    /* Rounds HEAD_DIM values for the KV cache; gives their scale. */
    float (*round_head)(const float *x, int16_t *codes);
};

/* The tables that are compiled in, best first, whether this CPU can run them or not; ends with
 * NULL. */
extern const struct kernels *const kernels_tables[];
/* Whether this CPU and system can run a table. */
bool kernels_usable(const struct kernels *kernels);
/* The best usable table for NULL, else the one of that name. */
enum status kernels_find(const char *name, const struct kernels **out, struct error *error);
