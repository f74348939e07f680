/* The operations of the reference model, one function each, in plain float32 (spec 2). ref.c
 * strings them together; tests use them as the oracle for the same-named ops of the other backends.
 */
#pragma once

#include <stdint.h>

#include "model/weights.h"

float ref_sigmoid(float x);
float ref_silu(float x);
float ref_softplus(float x);

/* y = x / rms(x) * weight, n values (spec 2.2). y may be x. */
void ref_rms_norm(const float *x, const struct vector *weight, int n, float eps, float *y);
/* y[r] = W x[r] for n rows; x [n][columns], y [n][rows]; expanded [columns] is scratch. */
void ref_matmul(const struct quant_matrix *matrix, int index, const float *x, int n, float *y,
                float *expanded);

/* Rotates dims 0..rotary_dims-1 of one head in place, pairs (i, i + rotary_dims/2) (spec 2.4). */
void ref_rope(float *head, int rotary_dims, double rope_theta, int32_t position);
/* Where the keys, or the values, of one KV head lie. */
struct ref_rows {
    const float *first;   /* row 0 of page 0 */
    int64_t stride;       /* floats from a row to the next */
    const int32_t *pages; /* of KV_PAGE rows each; NULL: all rows are in page 0 */
    int64_t page_stride;  /* floats from a page to the next */
};
/* One query head over n cached positions; scores [n] is scratch; out [head_dim] (spec 2.3 step 6).
 */
void ref_attention(const float *query, const struct ref_rows *keys, const struct ref_rows *values,
                   int32_t n, int head_dim, float *scores, float *out);

/* Causal depthwise convolution of one token and SiLU (spec 2.5 step 2). taps [channels][4]; state
 * [3][channels], oldest first, is moved on; x [channels] is replaced by the result. */
void ref_conv_step(const struct vector *taps, int channels, float *state, float *x);
/* x = x / sqrt(sum x^2 + 1e-6) * scale (spec 2.5 step 4). */
void ref_l2_norm(float *x, int n, float scale);
/* One token of the gated delta rule for one value head (spec 2.6). state [dk][dv]; q, k normed and
 * q scaled; g the log decay; o [dv]. */
void ref_deltanet_step(float *state, const float *q, const float *k, const float *v, float g,
                       float beta, int dk, int dv, float *o);
/* o = RMSNorm(o; weight) * silu(z), n values, in place. */
void ref_gated_norm(float *o, const struct vector *weight, const float *z, int n, float eps);

/* The k experts of the largest logits, best first, ties to the lowest index, and their weights:
 * softmax over all, renormalised over the chosen (spec 2.7 step 1). */
void ref_moe_route(const float *logits, int num_experts, int k, int *experts, float *weights);
