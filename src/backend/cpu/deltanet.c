/* Gated DeltaNet (spec 2.5, 2.6). A unit is one run of a sequence's tokens and one key head with
 * the value heads that share it: convolution, norms, delta rule, gated norm, rounding for out_proj,
 * all while the state stays in the near caches. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define CHUNK_MIN 8   /* tokens from which the chunked form is faster than single steps */
#define VALUE_HEADS 2 /* that share a key head, in all shapes */

struct deltanet {
    struct cpu_backend *b;
    const struct cpu_layer *layer;
    int index; /* among the DeltaNet layers */
};

/* Convolved inputs of a few tokens, and one value head's outputs. */
struct heads {
    float q[CHUNK_TOKENS][LINEAR_HEAD_DIM], k[CHUNK_TOKENS][LINEAR_HEAD_DIM];
    float v[CHUNK_TOKENS][VALUE_HEADS * LINEAR_HEAD_DIM];
    float o[CHUNK_TOKENS][LINEAR_HEAD_DIM];
};

/* Convolution of channels [channel, channel + n_channels) for n tokens from row `first` on. */
static void convolve(const struct deltanet *d, const struct run *run, int first, int n, int channel,
                     int n_channels, float *out)
{
    struct cpu_backend *b = d->b;
    int64_t channels = shape_conv_channels(b->shape);
    b->kernels->conv(b->wide + first * channels + channel, channels, n, d->layer->taps + channel,
                     channels,
                     run->sequence->conv_state + d->index * cpu_conv_size(b->shape) + channel,
                     channels, n_channels, out);
}

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Rounds one head's output of a row for out_proj, with its rounding error as the second term. */
static void round_output(struct cpu_backend *b, const float *o, int head, int row)
{
    enum { GROUPS = LINEAR_HEAD_DIM / GROUP_SIZE };
    float error[LINEAR_HEAD_DIM];
    b->kernels->quantize(o, head * GROUPS, GROUPS, &b->mixer_codes, row);
    if (!b->kernels->two_terms)
        return;
    b->kernels->rounding_error(o, GROUPS, error);
    b->kernels->quantize(error, head * GROUPS, GROUPS, &b->mixer_codes, b->n + row);
}

/* The delta rule of one value head for n tokens from row `first` on. */
static void value_head(const struct deltanet *d, int thread, const struct run *run, int first,
                       int n, int head, struct heads *x)
{
    enum { D = LINEAR_HEAD_DIM };
    struct cpu_backend *b = d->b;
    const struct shape *s = b->shape;
    int hv = s->linear_num_value_heads, local = head % VALUE_HEADS;
    float g[CHUNK_TOKENS], beta[CHUNK_TOKENS], (*o)[D] = x->o;
    for (int t = 0; t < n; t++) {
        const float *gates = b->gates + (int64_t)(first + t) * 2 * hv;
        beta[t] = 1.0f / (1.0f + expf(-gates[head]));
        g[t] = d->layer->A[head] * softplus(gates[hv + head] + d->layer->dt_bias[head]);
    }
    float *state =
        run->sequence->recurrent_state + d->index * cpu_recurrent_size(s) + (int64_t)head * D * D;
    if (n < CHUNK_MIN)
        for (int t = 0; t < n; t++)
            b->kernels->deltanet_step(state, x->q[t], x->k[t], &x->v[t][local * D], g[t], beta[t],
                                      o[t]);
    else
        b->kernels->deltanet_chunk(state, x->q[0], x->k[0], &x->v[0][local * D], D, VALUE_HEADS * D,
                                   g, beta, n, o[0], cpu_kernel_scratch(b, thread));
    for (int t = 0; t < n; t++) {
        const float *z = b->narrow + (int64_t)(first + t) * shape_value_dim(s) + head * D;
        b->kernels->gated_norm(o[t], d->layer->norm, z, D, (float)s->rms_norm_eps);
        round_output(b, o[t], head, first + t);
    }
}

static void head_unit(void *context, int unit, int thread)
{
    enum { D = LINEAR_HEAD_DIM };
    struct deltanet *d = context;
    struct cpu_backend *b = d->b;
    int key_heads = b->shape->linear_num_key_heads, key_dim = shape_key_dim(b->shape);
    int head = unit % key_heads;
    const struct run *run = &b->runs[unit / key_heads];
    struct heads *x = cpu_stage_scratch(b, thread);
    _Static_assert(sizeof *x <= STAGE_SCRATCH, "a chunk's inputs do not fit");
    for (int at = 0; at < run->n; at += CHUNK_TOKENS) {
        int n = run->n - at < CHUNK_TOKENS ? run->n - at : CHUNK_TOKENS, first = run->first + at;
        convolve(d, run, first, n, head * D, D, x->q[0]);
        convolve(d, run, first, n, key_dim + head * D, D, x->k[0]);
        convolve(d, run, first, n, 2 * key_dim + VALUE_HEADS * head * D, VALUE_HEADS * D, x->v[0]);
        for (int t = 0; t < n; t++) {
            b->kernels->l2_norm(x->q[t], D, 1.0f / sqrtf((float)D));
            b->kernels->l2_norm(x->k[t], D, 1.0f);
        }
        for (int v = 0; v < VALUE_HEADS; v++)
            value_head(d, thread, run, first, n, VALUE_HEADS * head + v, x);
    }
}

void cpu_deltanet(struct cpu_backend *b, int layer, int index)
{
    const struct shape *s = b->shape;
    const struct layer_weights *weights = &b->weights->layers[layer];
    struct deltanet d = {b, &b->layers[layer], index};
    int hv = s->linear_num_value_heads;
    struct product products[] = {
        {&weights->linear_attn.in_proj_qkv, b->wide, shape_conv_channels(s)},
        {&weights->linear_attn.in_proj_z, b->narrow, shape_value_dim(s)},
        {&weights->linear_attn.in_proj_b, b->gates, 2 * hv},
        {&weights->linear_attn.in_proj_a, b->gates + hv, 2 * hv},
    };
    cpu_products(b, products, 4, &b->x_codes, b->n);
    cpu_run(b, head_unit, &d, b->n_runs * s->linear_num_key_heads);
    cpu_project_back(b, &weights->linear_attn.out_proj, &b->mixer_codes,
                     b->kernels->two_terms ? 2 : 1);
}
