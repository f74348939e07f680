/* The two shapes of the model family that the engine knows (spec 1.1). Everything the computation
 * depends on is here, so kernels can be specialised per shape; model/config checks a checkpoint's
 * config.json against one of them, field by field. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct shape {
    const char *name;
    int hidden_size;
    int num_hidden_layers;
    int vocab_size; /* rows of embedding and head, padding rows included */
    int num_attention_heads;
    int num_key_value_heads;
    int head_dim;
    int rotary_dims; /* head_dim * partial_rotary_factor */
    int linear_num_key_heads;
    int linear_num_value_heads;
    int linear_key_head_dim;
    int linear_value_head_dim;
    int linear_conv_kernel_dim;
    int num_experts;
    int num_experts_per_tok;
    int moe_intermediate_size;
    int shared_expert_intermediate_size;
    int full_attention_interval; /* layer i attends in full when (i+1) % interval == 0 */
    double rms_norm_eps;
    double rope_theta;
};

/* The same in all shapes, so that kernels may count on them. */
#define HEAD_DIM 256        /* of full attention */
#define LINEAR_HEAD_DIM 128 /* of Gated DeltaNet, keys and values */
#define GROUP_SIZE 64       /* weights that share a scale and a bias (spec 4.4) */
#define MAX_LAYERS 40       /* over all shapes */
#define MAX_EXPERTS_PER_TOK 8
#define L2_NORM_EPS 1e-6f /* spec 2.5 step 4: a constant, not rms_norm_eps */

extern const struct shape shape_35b_a3b, shape_tiny;
extern const struct shape *const known_shapes[]; /* all of them; ends with NULL */

const struct shape *shape_find(const char *name); /* NULL: unknown */

bool shape_is_full_attention(const struct shape *shape, int layer);
int shape_n_full_attention(const struct shape *shape);   /* layers with a KV cache */
int shape_n_linear_attention(const struct shape *shape); /* layers with recurrent and conv state */
int shape_key_dim(const struct shape *shape);            /* Hk * dk */
int shape_value_dim(const struct shape *shape);          /* Hv * dv */
int shape_conv_channels(const struct shape *shape);      /* 2 * key_dim + value_dim */
