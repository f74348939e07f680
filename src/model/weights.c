#include "model/weights.h"

#include <math.h>
#include <stddef.h>

static int64_t matrix_bytes(const struct quant_matrix *matrix)
{
    int64_t values = (int64_t)matrix->count * matrix->rows * matrix->columns;
    return values * matrix->bits / 8 + values / GROUP_SIZE * 4; /* a bf16 scale and bias a group */
}

static int64_t vector_bytes(const struct vector *vector)
{
    return vector->length * vector->bytes_per_value;
}

static int64_t layer_bytes(const struct layer_weights *layer)
{
    /* what the other kind of layer has is zero-sized here */
    const struct quant_matrix *matrices[] = {
        &layer->self_attn.q_proj,
        &layer->self_attn.k_proj,
        &layer->self_attn.v_proj,
        &layer->self_attn.o_proj,
        &layer->linear_attn.in_proj_qkv,
        &layer->linear_attn.in_proj_z,
        &layer->linear_attn.in_proj_b,
        &layer->linear_attn.in_proj_a,
        &layer->linear_attn.out_proj,
        &layer->mlp.gate,
        &layer->mlp.shared_expert_gate,
        &layer->mlp.gate_proj,
        &layer->mlp.up_proj,
        &layer->mlp.down_proj,
        &layer->mlp.shared_gate_proj,
        &layer->mlp.shared_up_proj,
        &layer->mlp.shared_down_proj,
    };
    const struct vector *vectors[] = {
        &layer->input_layernorm,     &layer->post_attention_layernorm, &layer->self_attn.q_norm,
        &layer->self_attn.k_norm,    &layer->linear_attn.conv1d,       &layer->linear_attn.A_log,
        &layer->linear_attn.dt_bias, &layer->linear_attn.norm,
    };
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        bytes += matrix_bytes(matrices[i]);
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        bytes += vector_bytes(vectors[i]);
    return bytes;
}

int64_t weights_bytes(const struct weights *weights)
{
    int64_t bytes = matrix_bytes(&weights->embed_tokens) + matrix_bytes(&weights->lm_head) +
                    vector_bytes(&weights->norm);
    for (int i = 0; i < weights->shape->num_hidden_layers; i++)
        bytes += layer_bytes(&weights->layers[i]);
    return bytes;
}

double weights_step_bytes(const struct weights *weights, int n_rows)
{
    const struct shape *shape = weights->shape;
    int64_t embedding = matrix_bytes(&weights->embed_tokens), experts = 0;
    for (int i = 0; i < shape->num_hidden_layers; i++)
        experts += matrix_bytes(&weights->layers[i].mlp.gate_proj) +
                   matrix_bytes(&weights->layers[i].mlp.up_proj) +
                   matrix_bytes(&weights->layers[i].mlp.down_proj);
    double missed = 1 - (double)shape->num_experts_per_tok / shape->num_experts;
    return (double)(weights_bytes(weights) - embedding - experts) +
           (double)embedding / weights->embed_tokens.rows * n_rows +
           (double)experts * (1 - pow(missed, n_rows));
}
