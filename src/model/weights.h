/* The model's weights as views into the mapped checkpoint: never copied, never aligned by
 * assumption. Names are the checkpoint's (spec 4.3). model/checkpoint fills them; backends read. */
#pragma once

#include <stdint.h>

#include "model/shape.h"

/* Affine-quantised matrices, weight = scale * code + bias per group of 64 inputs (spec 4.4). All
 * three parts are little-endian bytes at any address. `count` > 1: one matrix per expert, one after
 * the other in each part. */
struct quant_matrix {
    const unsigned char *weight; /* [count][rows][columns * bits / 8], lowest nibble first */
    const unsigned char *scales; /* [count][rows][columns / 64] bf16 */
    const unsigned char *biases; /* [count][rows][columns / 64] bf16 */
    int count, rows, columns, bits;
};

/* Plain numbers at any address: bf16, or float32 (only A_log may be, spec 4.3). */
struct vector {
    const unsigned char *data;
    int64_t length;
    int bytes_per_value; /* 2: bf16, 4: float32 */
};

struct layer_weights {
    struct vector input_layernorm, post_attention_layernorm; /* [hidden], 1 already added */
    struct {                                                 /* full-attention layers */
        struct quant_matrix q_proj; /* [heads * 2 * head_dim][hidden], per head query then gate */
        struct quant_matrix k_proj, v_proj; /* [kv_heads * head_dim][hidden] */
        struct quant_matrix o_proj;         /* [hidden][heads * head_dim] */
        struct vector q_norm, k_norm;       /* [head_dim], 1 already added */
    } self_attn;
    struct {                                      /* Gated DeltaNet layers */
        struct quant_matrix in_proj_qkv;          /* [conv_channels][hidden] */
        struct quant_matrix in_proj_z;            /* [value_dim][hidden] */
        struct quant_matrix in_proj_b, in_proj_a; /* [value_heads][hidden] */
        struct quant_matrix out_proj;             /* [hidden][value_dim] */
        struct vector conv1d;                     /* [conv_channels][4], oldest tap first */
        struct vector A_log, dt_bias;             /* [value_heads] */
        struct vector norm;                       /* [value_head_dim], plain */
    } linear_attn;
    struct {
        struct quant_matrix gate;               /* 8 bit [experts][hidden] */
        struct quant_matrix shared_expert_gate; /* 8 bit [1][hidden] */
        struct quant_matrix gate_proj, up_proj; /* experts x [intermediate][hidden] */
        struct quant_matrix down_proj;          /* experts x [hidden][intermediate] */
        struct quant_matrix shared_gate_proj, shared_up_proj, shared_down_proj;
    } mlp;
};

struct weights {
    const struct shape *shape;
    struct quant_matrix embed_tokens, lm_head; /* [vocab][hidden] */
    struct vector norm;                        /* [hidden], 1 already added */
    struct layer_weights layers[MAX_LAYERS];
};

/* Bytes of all parts of all matrices and vectors. */
int64_t weights_bytes(const struct weights *weights);
/* Bytes that one decode step of n_rows tokens reads, each once: all but the embedding, of which it
 * reads a row a token, and but the experts, of which it reads those that the rows choose. Rows that
 * choose independently choose num_experts * (1 - (1 - k / num_experts)^n_rows) of them. */
double weights_step_bytes(const struct weights *weights, int n_rows);
