#include "model/shape.h"

#include <string.h>

const struct shape shape_35b_a3b = {
    .name = "35b-a3b",
    .hidden_size = 2048,
    .num_hidden_layers = 40,
    .vocab_size = 248320,
    .num_attention_heads = 16,
    .num_key_value_heads = 2,
    .head_dim = HEAD_DIM,
    .rotary_dims = 64,
    .linear_num_key_heads = 16,
    .linear_num_value_heads = 32,
    .linear_key_head_dim = LINEAR_HEAD_DIM,
    .linear_value_head_dim = LINEAR_HEAD_DIM,
    .linear_conv_kernel_dim = 4,
    .num_experts = 256,
    .num_experts_per_tok = 8,
    .moe_intermediate_size = 512,
    .shared_expert_intermediate_size = 512,
    .full_attention_interval = 4,
    .rms_norm_eps = 1e-6,
    .rope_theta = 1e7,
};

const struct shape shape_tiny = {
    .name = "tiny",
    .hidden_size = 256,
    .num_hidden_layers = 8,
    .vocab_size = 4096,
    .num_attention_heads = 16,
    .num_key_value_heads = 2,
    .head_dim = HEAD_DIM,
    .rotary_dims = 64,
    .linear_num_key_heads = 4,
    .linear_num_value_heads = 8,
    .linear_key_head_dim = LINEAR_HEAD_DIM,
    .linear_value_head_dim = LINEAR_HEAD_DIM,
    .linear_conv_kernel_dim = 4,
    .num_experts = 32,
    .num_experts_per_tok = 8,
    .moe_intermediate_size = 128,
    .shared_expert_intermediate_size = 128,
    .full_attention_interval = 4,
    .rms_norm_eps = 1e-6,
    .rope_theta = 1e7,
};

const struct shape *const known_shapes[] = {&shape_35b_a3b, &shape_tiny, NULL};

const struct shape *shape_find(const char *name)
{
    for (const struct shape *const *shape = known_shapes; *shape; shape++)
        if (strcmp(name, (*shape)->name) == 0)
            return *shape;
    return NULL;
}

bool shape_is_full_attention(const struct shape *shape, int layer)
{
    return (layer + 1) % shape->full_attention_interval == 0;
}

int shape_n_full_attention(const struct shape *shape)
{
    return shape->num_hidden_layers / shape->full_attention_interval;
}

int shape_n_linear_attention(const struct shape *shape)
{
    return shape->num_hidden_layers - shape_n_full_attention(shape);
}

int shape_key_dim(const struct shape *shape)
{
    return shape->linear_num_key_heads * shape->linear_key_head_dim;
}

int shape_value_dim(const struct shape *shape)
{
    return shape->linear_num_value_heads * shape->linear_value_head_dim;
}

int shape_conv_channels(const struct shape *shape)
{
    return 2 * shape_key_dim(shape) + shape_value_dim(shape);
}
