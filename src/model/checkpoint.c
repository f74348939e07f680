#include "model/checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sha256.h"
#include "model/shards.h"

enum part {
    PART_EMBEDDING,
    PART_ATTENTION,
    PART_DELTANET,
    PART_ROUTER,
    PART_EXPERTS,
    PART_SHARED_EXPERT,
    PART_NORMS,
    PART_HEAD,
    PART_MTP,
    PART_VISION,
    PART_OTHER,
    N_PARTS,
};

static const struct checkpoint_part empty_parts[N_PARTS + 1] = {
    [PART_EMBEDDING] = {.name = "embedding", .bits = "4"},
    [PART_ATTENTION] = {.name = "attention", .bits = "4"},
    [PART_DELTANET] = {.name = "deltanet", .bits = "4, bf16"},
    [PART_ROUTER] = {.name = "router", .bits = "8"},
    [PART_EXPERTS] = {.name = "experts", .bits = "4"},
    [PART_SHARED_EXPERT] = {.name = "shared expert", .bits = "4, 8"},
    [PART_NORMS] = {.name = "norms", .bits = "bf16"},
    [PART_HEAD] = {.name = "head", .bits = "4"},
    [PART_MTP] = {.name = "MTP (skipped)", .bits = "", .skipped = true},
    [PART_VISION] = {.name = "vision (skipped)", .bits = "", .skipped = true},
    [PART_OTHER] = {.name = "other (skipped)", .bits = "", .skipped = true},
};

struct checkpoint {
    struct config config;
    struct shard_set set;
    struct weights weights;
    struct checkpoint_part parts[N_PARTS + 1];
};

/* Fills the weights. The first failure is kept in `status`, later calls then do nothing. */
struct loader {
    struct checkpoint *checkpoint;
    bool *used; /* by place in set.tensors */
    const char *folder;
    char prefix[80]; /* of the module names: "language_model.model.layers.7." */
    enum status status;
    struct error *error;
};

/* The text with the tensor and its file before it. */
__attribute__((format(printf, 3, 4))) static void
refuse(struct loader *loader, const struct tensor *tensor, const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    loader->status = error_set(loader->error, STATUS_INVALID, "%s: tensor %s: %s",
                               tensor->file->path, tensor->name, text);
}

static const struct tensor *take(struct loader *loader, enum part part, const char *name)
{
    struct checkpoint *checkpoint = loader->checkpoint;
    ptrdiff_t at = shard_set_find(&checkpoint->set, name);
    if (at < 0) {
        loader->status = error_set(loader->error, STATUS_INVALID, "%s: tensor %s is missing",
                                   loader->folder, name);
        return NULL;
    }
    const struct tensor *tensor = checkpoint->set.tensors[at];
    loader->used[at] = true;
    checkpoint->parts[part].tensors++;
    checkpoint->parts[part].bytes += tensor->size;
    return tensor;
}

/* The data of a tensor that must have this dtype and shape. */
static const unsigned char *data_of(struct loader *loader, const struct tensor *tensor,
                                    const char *dtype, int n_dims, const int64_t *dims)
{
    if (strcmp(tensor->dtype, dtype) != 0) {
        refuse(loader, tensor, "dtype: found %s, wanted %s", tensor->dtype, dtype);
        return NULL;
    }
    if (tensor->n_dims != n_dims ||
        memcmp(tensor->dims, dims, (size_t)n_dims * sizeof *dims) != 0) {
        char found[120], wanted[120];
        tensor_describe_shape(tensor->dims, tensor->n_dims, found, sizeof found);
        tensor_describe_shape(dims, n_dims, wanted, sizeof wanted);
        refuse(loader, tensor, "shape: found %s, wanted %s", found, wanted);
        return NULL;
    }
    return tensor->data;
}

/* One of the three tensors of a quantised module. */
static const unsigned char *quant_part(struct loader *loader, enum part part, const char *module,
                                       const char *suffix, const char *dtype,
                                       const struct quant_matrix *matrix, int row_values)
{
    if (loader->status != STATUS_OK)
        return NULL;
    char name[160];
    snprintf(name, sizeof name, "%s.%s", module, suffix);
    const struct tensor *tensor = take(loader, part, name);
    int64_t dims[3] = {matrix->count, matrix->rows, row_values};
    int skip = matrix->count > 1 ? 0 : 1; /* only experts have the first dimension */
    return tensor ? data_of(loader, tensor, dtype, 3 - skip, dims + skip) : NULL;
}

static void load_quant(struct loader *loader, enum part part, const char *suffix, int count,
                       int rows, int columns, int bits, struct quant_matrix *out)
{
    if (loader->status != STATUS_OK)
        return;
    char module[128];
    snprintf(module, sizeof module, "%s%s", loader->prefix, suffix);
    int found;
    loader->status = config_bits(&loader->checkpoint->config, module, &found, loader->error);
    if (loader->status != STATUS_OK)
        return;
    if (found != bits) {
        loader->status = error_set(loader->error, STATUS_INVALID,
                                   "%s/config.json: quantization.%s: found %d bits, wanted %d",
                                   loader->folder, module, found, bits);
        return;
    }
    struct quant_matrix matrix = {.count = count, .rows = rows, .columns = columns, .bits = bits};
    int groups = columns / GROUP_SIZE;
    matrix.weight = quant_part(loader, part, module, "weight", "U32", &matrix, columns * bits / 32);
    matrix.scales = quant_part(loader, part, module, "scales", "BF16", &matrix, groups);
    matrix.biases = quant_part(loader, part, module, "biases", "BF16", &matrix, groups);
    loader->checkpoint->parts[part].parameters += (int64_t)count * rows * columns;
    *out = matrix;
}

/* A plain tensor of n_dims dimensions; trailing ones of `dims` are not looked at. */
static void load_plain(struct loader *loader, enum part part, const char *suffix, int n_dims,
                       const int64_t *dims, bool may_be_float, struct vector *out)
{
    if (loader->status != STATUS_OK)
        return;
    char name[160];
    snprintf(name, sizeof name, "%s%s", loader->prefix, suffix);
    const struct tensor *tensor = take(loader, part, name);
    if (!tensor)
        return;
    bool is_float = may_be_float && strcmp(tensor->dtype, "F32") == 0;
    struct vector vector = {.length = 1, .bytes_per_value = is_float ? 4 : 2};
    for (int i = 0; i < n_dims; i++)
        vector.length *= dims[i];
    vector.data = data_of(loader, tensor, is_float ? "F32" : "BF16", n_dims, dims);
    loader->checkpoint->parts[part].parameters += vector.length;
    *out = vector;
}

static void load_vector(struct loader *loader, enum part part, const char *suffix, int length,
                        struct vector *out)
{
    const int64_t dims[1] = {length};
    load_plain(loader, part, suffix, 1, dims, false, out);
}

static void load_attention(struct loader *loader, const struct shape *shape,
                           struct layer_weights *layer)
{
    int hidden = shape->hidden_size, width = shape->num_attention_heads * shape->head_dim;
    int kv_width = shape->num_key_value_heads * shape->head_dim;
    load_quant(loader, PART_ATTENTION, "self_attn.q_proj", 1, 2 * width, hidden, 4,
               &layer->self_attn.q_proj);
    load_quant(loader, PART_ATTENTION, "self_attn.k_proj", 1, kv_width, hidden, 4,
               &layer->self_attn.k_proj);
    load_quant(loader, PART_ATTENTION, "self_attn.v_proj", 1, kv_width, hidden, 4,
               &layer->self_attn.v_proj);
    load_quant(loader, PART_ATTENTION, "self_attn.o_proj", 1, hidden, width, 4,
               &layer->self_attn.o_proj);
    load_vector(loader, PART_NORMS, "self_attn.q_norm.weight", shape->head_dim,
                &layer->self_attn.q_norm);
    load_vector(loader, PART_NORMS, "self_attn.k_norm.weight", shape->head_dim,
                &layer->self_attn.k_norm);
}

/* Converted files have the taps second to last: [channels][4][1]. The original's [channels][1][4]
 * comes with norms that lack their 1, so it must not be read as if it were the same. */
static void check_conv(struct loader *loader)
{
    if (loader->status != STATUS_OK)
        return;
    char name[160];
    snprintf(name, sizeof name, "%slinear_attn.conv1d.weight", loader->prefix);
    ptrdiff_t at = shard_set_find(&loader->checkpoint->set, name);
    const struct tensor *tensor = at < 0 ? NULL : loader->checkpoint->set.tensors[at];
    if (tensor && tensor->n_dims == 3 && tensor->dims[2] != 1) {
        char found[120];
        tensor_describe_shape(tensor->dims, tensor->n_dims, found, sizeof found);
        refuse(
            loader, tensor,
            "shape: found %s, wanted a last dimension of 1: the weights were not converted, this "
            "is not an MLX checkpoint",
            found);
    }
}

static void load_deltanet(struct loader *loader, const struct shape *shape,
                          struct layer_weights *layer)
{
    int hidden = shape->hidden_size, heads = shape->linear_num_value_heads;
    int channels = shape_conv_channels(shape), value_dim = shape_value_dim(shape);
    load_quant(loader, PART_DELTANET, "linear_attn.in_proj_qkv", 1, channels, hidden, 4,
               &layer->linear_attn.in_proj_qkv);
    load_quant(loader, PART_DELTANET, "linear_attn.in_proj_z", 1, value_dim, hidden, 4,
               &layer->linear_attn.in_proj_z);
    load_quant(loader, PART_DELTANET, "linear_attn.in_proj_b", 1, heads, hidden, 4,
               &layer->linear_attn.in_proj_b);
    load_quant(loader, PART_DELTANET, "linear_attn.in_proj_a", 1, heads, hidden, 4,
               &layer->linear_attn.in_proj_a);
    load_quant(loader, PART_DELTANET, "linear_attn.out_proj", 1, hidden, value_dim, 4,
               &layer->linear_attn.out_proj);
    check_conv(loader);
    const int64_t conv[3] = {channels, shape->linear_conv_kernel_dim, 1}, per_head[1] = {heads};
    load_plain(loader, PART_DELTANET, "linear_attn.conv1d.weight", 3, conv, false,
               &layer->linear_attn.conv1d);
    load_plain(loader, PART_DELTANET, "linear_attn.A_log", 1, per_head, true,
               &layer->linear_attn.A_log);
    load_plain(loader, PART_DELTANET, "linear_attn.dt_bias", 1, per_head, false,
               &layer->linear_attn.dt_bias);
    load_vector(loader, PART_NORMS, "linear_attn.norm.weight", shape->linear_value_head_dim,
                &layer->linear_attn.norm);
}

static void load_mlp(struct loader *loader, const struct shape *shape, struct layer_weights *layer)
{
    int hidden = shape->hidden_size, experts = shape->num_experts;
    int width = shape->moe_intermediate_size, shared = shape->shared_expert_intermediate_size;
    load_quant(loader, PART_ROUTER, "mlp.gate", 1, experts, hidden, 8, &layer->mlp.gate);
    load_quant(loader, PART_SHARED_EXPERT, "mlp.shared_expert_gate", 1, 1, hidden, 8,
               &layer->mlp.shared_expert_gate);
    load_quant(loader, PART_EXPERTS, "mlp.switch_mlp.gate_proj", experts, width, hidden, 4,
               &layer->mlp.gate_proj);
    load_quant(loader, PART_EXPERTS, "mlp.switch_mlp.up_proj", experts, width, hidden, 4,
               &layer->mlp.up_proj);
    load_quant(loader, PART_EXPERTS, "mlp.switch_mlp.down_proj", experts, hidden, width, 4,
               &layer->mlp.down_proj);
    load_quant(loader, PART_SHARED_EXPERT, "mlp.shared_expert.gate_proj", 1, shared, hidden, 4,
               &layer->mlp.shared_gate_proj);
    load_quant(loader, PART_SHARED_EXPERT, "mlp.shared_expert.up_proj", 1, shared, hidden, 4,
               &layer->mlp.shared_up_proj);
    load_quant(loader, PART_SHARED_EXPERT, "mlp.shared_expert.down_proj", 1, hidden, shared, 4,
               &layer->mlp.shared_down_proj);
}

static void load_weights(struct loader *loader, const struct shape *shape, struct weights *weights)
{
    weights->shape = shape;
    snprintf(loader->prefix, sizeof loader->prefix, "language_model.");
    load_quant(loader, PART_EMBEDDING, "model.embed_tokens", 1, shape->vocab_size,
               shape->hidden_size, 4, &weights->embed_tokens);
    for (int i = 0; i < shape->num_hidden_layers; i++) {
        struct layer_weights *layer = &weights->layers[i];
        snprintf(loader->prefix, sizeof loader->prefix, "language_model.model.layers.%d.", i);
        load_vector(loader, PART_NORMS, "input_layernorm.weight", shape->hidden_size,
                    &layer->input_layernorm);
        if (shape_is_full_attention(shape, i))
            load_attention(loader, shape, layer);
        else
            load_deltanet(loader, shape, layer);
        load_vector(loader, PART_NORMS, "post_attention_layernorm.weight", shape->hidden_size,
                    &layer->post_attention_layernorm);
        load_mlp(loader, shape, layer);
    }
    snprintf(loader->prefix, sizeof loader->prefix, "language_model.");
    load_vector(loader, PART_NORMS, "model.norm.weight", shape->hidden_size, &weights->norm);
    load_quant(loader, PART_HEAD, "lm_head", 1, shape->vocab_size, shape->hidden_size, 4,
               &weights->lm_head);
}

static bool begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Names that only an unconverted checkpoint has (spec 4.2). */
static void check_origin(struct loader *loader)
{
    const struct shard_set *set = &loader->checkpoint->set;
    for (size_t i = 0; i < set->n_tensors && loader->status == STATUS_OK; i++) {
        const char *name = set->tensors[i]->name;
        if (begins(name, "model.") || begins(name, "lm_head.") || begins(name, "mtp."))
            refuse(loader, set->tensors[i],
                   "a name of the original model, wanted language_model.…: this is not an MLX "
                   "checkpoint");
    }
}

/* Tensors that nobody took: parts that the text engine does without, or a mistake. */
static void count_skipped(struct loader *loader)
{
    struct checkpoint *checkpoint = loader->checkpoint;
    for (size_t i = 0; i < checkpoint->set.n_tensors && loader->status == STATUS_OK; i++) {
        const struct tensor *tensor = checkpoint->set.tensors[i];
        if (loader->used[i])
            continue;
        enum part part = PART_OTHER;
        if (begins(tensor->name, "language_model.mtp."))
            part = PART_MTP;
        else if (begins(tensor->name, "vision_tower."))
            part = PART_VISION;
        else if (begins(tensor->name, "language_model.")) {
            refuse(loader, tensor, "shape %s has no such tensor", checkpoint->config.shape->name);
            return;
        }
        checkpoint->parts[part].tensors++;
        checkpoint->parts[part].bytes += tensor->size;
    }
}

static enum status open_into(struct checkpoint *checkpoint, const char *folder, struct error *error)
{
    enum status status = config_open(folder, &checkpoint->config, error);
    if (status == STATUS_OK)
        status = shard_set_open(folder, &checkpoint->set, error);
    if (status != STATUS_OK)
        return status;
    struct loader loader = {.checkpoint = checkpoint, .folder = folder, .error = error};
    loader.used = calloc(checkpoint->set.n_tensors + 1, sizeof *loader.used);
    if (!loader.used)
        return error_no_memory(error, "the list of tensors");
    memcpy(checkpoint->parts, empty_parts, sizeof empty_parts);
    check_origin(&loader);
    load_weights(&loader, checkpoint->config.shape, &checkpoint->weights);
    count_skipped(&loader);
    free(loader.used);
    return loader.status;
}

enum status checkpoint_open(const char *folder, struct checkpoint **out, struct error *error)
{
    *out = NULL;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint)
        return error_no_memory(error, folder);
    enum status status = open_into(checkpoint, folder, error);
    if (status == STATUS_OK)
        *out = checkpoint;
    else
        checkpoint_close(checkpoint);
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    config_clear(&checkpoint->config);
    shard_set_close(&checkpoint->set);
    free(checkpoint);
}

const struct config *checkpoint_config(const struct checkpoint *checkpoint)
{
    return &checkpoint->config;
}

const struct weights *checkpoint_weights(const struct checkpoint *checkpoint)
{
    return &checkpoint->weights;
}

void checkpoint_preload(const struct checkpoint *checkpoint)
{
    for (int i = 0; i < checkpoint->set.n_shards; i++)
        file_map_preload(&checkpoint->set.shards[i]->map);
}

enum status checkpoint_lock(const struct checkpoint *checkpoint, struct error *error)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < checkpoint->set.n_shards && status == STATUS_OK; i++) {
        const struct safetensors *shard = checkpoint->set.shards[i];
        status = file_map_lock(&shard->map, shard->path, error);
    }
    return status;
}

int checkpoint_n_shards(const struct checkpoint *checkpoint)
{
    return checkpoint->set.n_shards;
}

const struct checkpoint_part *checkpoint_parts(const struct checkpoint *checkpoint)
{
    return checkpoint->parts;
}

#define SAMPLE 64 /* bytes, at the beginning, in the middle and at the end of a tensor */

enum status checkpoint_digest(const struct checkpoint *checkpoint, char hex[65],
                              struct error *error)
{
    struct bytes all = {0};
    for (size_t i = 0; i < checkpoint->set.n_tensors; i++) {
        const struct tensor *tensor = checkpoint->set.tensors[i];
        char shape[160];
        tensor_describe_shape(tensor->dims, tensor->n_dims, shape, sizeof shape);
        bytes_format(&all, "%s %s %s %lld\n", tensor->name, tensor->dtype, shape,
                     (long long)tensor->size);
        size_t size = (size_t)tensor->size, sample = size < SAMPLE ? size : SAMPLE;
        bytes_append(&all, tensor->data, sample);
        bytes_append(&all, tensor->data + (size - sample) / 2, sample);
        bytes_append(&all, tensor->data + (size - sample), sample);
    }
    if (!all.failed)
        sha256_bytes(all.data, all.length, hex);
    bool failed = all.failed;
    bytes_clear(&all);
    return failed ? error_no_memory(error, "the checkpoint's digest") : STATUS_OK;
}
