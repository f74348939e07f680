#include "model/synth.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_THREADS 64
#define CHUNK ((int64_t)16 << 20) /* bytes that a thread fills before it asks for more */
/* Headers of real shards have any length, most of them odd, and the data begins right after. */
#define DATA_START 21

/* A matrix has a gain: inputs of variance 1 give outputs of variance gain^2. This one makes the
 * standard deviation of weights 0.02 where there are 2,048 inputs, as in a real model. */
#define GAIN 0.9
/* Tokens must stay apart through all layers, or all of them would go to the same few experts. So
 * the embedding outweighs what the layers add to the residual stream through these matrices. */
#define OUTPUT_GAIN 0.3
#define EMBEDDING_STD 1.0

struct synth {
    const struct shape *shape;
    const struct synth_vision *vision;
    struct synth_tensor *tensors;
    int n_tensors, capacity;
    int64_t bytes;
    unsigned char *mapping;
    size_t mapping_size;
    struct weights weights;
};

/* ---- numbers --------------------------------------------------------------------------------- */

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* The finaliser of splitmix64: a bijection that turns a counter into 64 random bits. */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static inline void store_word(unsigned char *out, uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(out, &word, sizeof word);
}

static uint16_t bf16_round(double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double bf16_value(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float single;
    memcpy(&single, &bits, sizeof single);
    return single;
}

/* ---- the list of tensors --------------------------------------------------------------------- */

/* FNV-1a: a tensor's bytes must not depend on which others there are. */
static uint64_t hash(const char *text)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001B3);
    return h;
}

/* Appends to the list; the first failure is kept, later calls then do nothing. */
struct builder {
    struct synth *synth;
    uint64_t seed;
    char prefix[48]; /* of the names */
    bool failed;
};

__attribute__((format(printf, 5, 6))) static struct synth_tensor *add(struct builder *builder,
                                                                      const char *dtype, int n_dims,
                                                                      const int64_t *dims,
                                                                      const char *format, ...)
{
    struct synth *synth = builder->synth;
    if (!builder->failed && synth->n_tensors == synth->capacity) {
        int capacity = synth->capacity ? 2 * synth->capacity : 256;
        struct synth_tensor *tensors =
            realloc(synth->tensors, (size_t)capacity * sizeof *synth->tensors);
        builder->failed = !tensors;
        if (tensors) {
            synth->tensors = tensors;
            synth->capacity = capacity;
        }
    }
    if (builder->failed)
        return NULL;
    struct synth_tensor *tensor = &synth->tensors[synth->n_tensors];
    *tensor = (struct synth_tensor){.dtype = dtype, .n_dims = n_dims, .offset = synth->bytes};
    int length = snprintf(tensor->name, sizeof tensor->name, "%s", builder->prefix);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tensor->name + length, sizeof tensor->name - (size_t)length, format, arguments);
    va_end(arguments);
    tensor->size = dtype[0] == 'U' ? 4 : 2;
    for (int i = 0; i < n_dims; i++)
        tensor->size *= tensor->dims[i] = dims[i];
    tensor->key = mix(builder->seed ^ hash(tensor->name));
    synth->bytes += tensor->size;
    synth->n_tensors++;
    return tensor;
}

/* Codes are uniform, so scale * code + bias has mean 0 with bias = -scale * (largest code / 2).
 * Scales have both signs and magnitudes from 0.75 to 1.25 times their mean, as spread as in
 * models/tiny. */
static void add_quant(struct builder *builder, const char *module, int count, int rows, int columns,
                      int bits, double std, struct quant_matrix *view)
{
    const char *const suffixes[3] = {"weight", "scales", "biases"};
    const unsigned char **const views[3] = {&view->weight, &view->scales, &view->biases};
    *view = (struct quant_matrix){.count = count, .rows = rows, .columns = columns, .bits = bits};
    double largest = (1 << bits) - 1;
    /* standard deviations: of uniform codes, and the root mean square of the magnitudes */
    double codes = sqrt((largest + 1) * (largest + 1) - 1) / sqrt(12),
           spread = sqrt(1 + 0.0625 / 3);
    uint64_t scales_key = 0;
    for (int part = 0; part < 3; part++) {
        int64_t dims[3] = {count, rows, part == 0 ? columns * bits / 32 : columns / GROUP_SIZE};
        int skip = count > 1 ? 0 : 1; /* only experts have the first dimension */
        struct synth_tensor *tensor = add(builder, part == 0 ? "U32" : "BF16", 3 - skip,
                                          dims + skip, "%s.%s", module, suffixes[part]);
        if (!tensor)
            return;
        tensor->view = views[part];
        for (int i = 0; i < 256 && part > 0; i++) {
            double magnitude = std / codes / spread * (0.75 + 0.5 * ((i >> 1) + 0.5) / 128);
            uint16_t scale = bf16_round(i & 1 ? -magnitude : magnitude);
            tensor->values[i] = part == 1 ? scale : bf16_round(-bf16_value(scale) * largest / 2);
        }
        if (part == 1)
            scales_key = tensor->key;
        if (part == 2)
            tensor->key = scales_key; /* a bias belongs to its scale */
    }
}

static void add_matrix(struct builder *builder, const char *module, int count, int rows,
                       int columns, int bits, struct quant_matrix *view)
{
    add_quant(builder, module, count, rows, columns, bits, GAIN / sqrt(columns), view);
}

/* One whose outputs are added to the residual stream. */
static void add_output(struct builder *builder, const char *module, int count, int rows,
                       int columns, struct quant_matrix *view)
{
    add_quant(builder, module, count, rows, columns, 4, OUTPUT_GAIN / sqrt(columns), view);
}

/* Values spread evenly from low to high. */
static void add_plain(struct builder *builder, const char *name, int n_dims, const int64_t *dims,
                      double low, double high, struct vector *view)
{
    struct synth_tensor *tensor = add(builder, "BF16", n_dims, dims, "%s", name);
    if (!tensor)
        return;
    for (int i = 0; i < 256; i++)
        tensor->values[i] = bf16_round(low + (high - low) * (i + 0.5) / 256);
    if (view) {
        *view = (struct vector){.length = tensor->size / 2, .bytes_per_value = 2};
        tensor->view = &view->data;
    }
}

static void add_vector(struct builder *builder, const char *name, int length, double low,
                       double high, struct vector *view)
{
    const int64_t dims[1] = {length};
    add_plain(builder, name, 1, dims, low, high, view);
}

static void add_norm(struct builder *builder, const char *name, int length, struct vector *view)
{
    add_vector(builder, name, length, 0.75, 1.25, view);
}

static void add_attention(struct builder *builder, const struct shape *shape,
                          struct layer_weights *layer)
{
    int hidden = shape->hidden_size, width = shape->num_attention_heads * shape->head_dim;
    int kv_width = shape->num_key_value_heads * shape->head_dim;
    add_matrix(builder, "self_attn.q_proj", 1, 2 * width, hidden, 4, &layer->self_attn.q_proj);
    add_matrix(builder, "self_attn.k_proj", 1, kv_width, hidden, 4, &layer->self_attn.k_proj);
    add_matrix(builder, "self_attn.v_proj", 1, kv_width, hidden, 4, &layer->self_attn.v_proj);
    add_output(builder, "self_attn.o_proj", 1, hidden, width, &layer->self_attn.o_proj);
    add_norm(builder, "self_attn.q_norm.weight", shape->head_dim, &layer->self_attn.q_norm);
    add_norm(builder, "self_attn.k_norm.weight", shape->head_dim, &layer->self_attn.k_norm);
}

static void add_deltanet(struct builder *builder, const struct shape *shape,
                         struct layer_weights *layer)
{
    int hidden = shape->hidden_size, heads = shape->linear_num_value_heads;
    int channels = shape_conv_channels(shape), value_dim = shape_value_dim(shape);
    const int64_t conv[3] = {channels, shape->linear_conv_kernel_dim, 1};
    add_plain(builder, "linear_attn.conv1d.weight", 3, conv, -0.55, 0.55,
              &layer->linear_attn.conv1d);
    add_matrix(builder, "linear_attn.in_proj_qkv", 1, channels, hidden, 4,
               &layer->linear_attn.in_proj_qkv);
    add_matrix(builder, "linear_attn.in_proj_z", 1, value_dim, hidden, 4,
               &layer->linear_attn.in_proj_z);
    add_matrix(builder, "linear_attn.in_proj_b", 1, heads, hidden, 4,
               &layer->linear_attn.in_proj_b);
    add_matrix(builder, "linear_attn.in_proj_a", 1, heads, hidden, 4,
               &layer->linear_attn.in_proj_a);
    /* the ranges of models/tiny: memories of a few tokens to some thousand */
    add_vector(builder, "linear_attn.dt_bias", heads, -6.5, -1.3, &layer->linear_attn.dt_bias);
    add_vector(builder, "linear_attn.A_log", heads, 0.4, 2.8, &layer->linear_attn.A_log);
    add_norm(builder, "linear_attn.norm.weight", shape->linear_value_head_dim,
             &layer->linear_attn.norm);
    add_output(builder, "linear_attn.out_proj", 1, hidden, value_dim, &layer->linear_attn.out_proj);
}

static void add_mlp(struct builder *builder, const struct shape *shape, struct layer_weights *layer)
{
    int hidden = shape->hidden_size, experts = shape->num_experts;
    int width = shape->moe_intermediate_size, shared = shape->shared_expert_intermediate_size;
    add_matrix(builder, "mlp.gate", 1, experts, hidden, 8, &layer->mlp.gate);
    add_matrix(builder, "mlp.switch_mlp.gate_proj", experts, width, hidden, 4,
               &layer->mlp.gate_proj);
    add_matrix(builder, "mlp.switch_mlp.up_proj", experts, width, hidden, 4, &layer->mlp.up_proj);
    add_output(builder, "mlp.switch_mlp.down_proj", experts, hidden, width, &layer->mlp.down_proj);
    add_matrix(builder, "mlp.shared_expert.gate_proj", 1, shared, hidden, 4,
               &layer->mlp.shared_gate_proj);
    add_output(builder, "mlp.shared_expert.down_proj", 1, hidden, shared,
               &layer->mlp.shared_down_proj);
    add_matrix(builder, "mlp.shared_expert.up_proj", 1, shared, hidden, 4,
               &layer->mlp.shared_up_proj);
    add_matrix(builder, "mlp.shared_expert_gate", 1, 1, hidden, 8, &layer->mlp.shared_expert_gate);
}

static void add_text(struct builder *builder, const struct shape *shape, struct weights *weights)
{
    weights->shape = shape;
    snprintf(builder->prefix, sizeof builder->prefix, "language_model.");
    add_quant(builder, "model.embed_tokens", 1, shape->vocab_size, shape->hidden_size, 4,
              EMBEDDING_STD, &weights->embed_tokens);
    for (int i = 0; i < shape->num_hidden_layers; i++) {
        struct layer_weights *layer = &weights->layers[i];
        snprintf(builder->prefix, sizeof builder->prefix, "language_model.model.layers.%d.", i);
        if (shape_is_full_attention(shape, i))
            add_attention(builder, shape, layer);
        else
            add_deltanet(builder, shape, layer);
        add_norm(builder, "input_layernorm.weight", shape->hidden_size, &layer->input_layernorm);
        add_norm(builder, "post_attention_layernorm.weight", shape->hidden_size,
                 &layer->post_attention_layernorm);
        add_mlp(builder, shape, layer);
    }
    snprintf(builder->prefix, sizeof builder->prefix, "language_model.");
    add_norm(builder, "model.norm.weight", shape->hidden_size, &weights->norm);
    add_matrix(builder, "lm_head", 1, shape->vocab_size, shape->hidden_size, 4, &weights->lm_head);
}

static const struct synth_vision vision_35b_a3b = {27, 1152, 4304, 2304, 16};
static const struct synth_vision vision_small = {27, 64, 128, 64, 4}; /* as many tensors */

/* A layer with weight and bias, [out][in] and [out]. */
static void add_biased(struct builder *builder, const char *name, int out, int in)
{
    char full[64];
    const int64_t dims[2] = {out, in};
    double limit = GAIN * sqrt(3.0 / in);
    snprintf(full, sizeof full, "%s.weight", name);
    add_plain(builder, full, 2, dims, -limit, limit, NULL);
    snprintf(full, sizeof full, "%s.bias", name);
    add_vector(builder, full, out, -0.1, 0.1, NULL);
}

static void add_layer_norm(struct builder *builder, const char *name, int length)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    add_norm(builder, full, length, NULL);
    snprintf(full, sizeof full, "%s.bias", name);
    add_vector(builder, full, length, -0.1, 0.1, NULL);
}

/* Spec 9; nothing here reads it. */
static void add_vision(struct builder *builder, const struct synth_vision *vision, int out)
{
    int width = vision->hidden_size, merged = 4 * width;
    const int64_t patch[5] = {width, 2, 16, 16, 3};
    const int64_t positions[2] = {vision->num_position_embeddings, width};
    snprintf(builder->prefix, sizeof builder->prefix, "vision_tower.");
    add_plain(builder, "patch_embed.proj.weight", 5, patch, -0.04, 0.04, NULL);
    add_vector(builder, "patch_embed.proj.bias", width, -0.1, 0.1, NULL);
    add_plain(builder, "pos_embed.weight", 2, positions, -0.1, 0.1, NULL);
    for (int i = 0; i < vision->depth; i++) {
        snprintf(builder->prefix, sizeof builder->prefix, "vision_tower.blocks.%d.", i);
        add_layer_norm(builder, "norm1", width);
        add_layer_norm(builder, "norm2", width);
        add_biased(builder, "attn.qkv", 3 * width, width);
        add_biased(builder, "attn.proj", width, width);
        add_biased(builder, "mlp.linear_fc1", vision->intermediate_size, width);
        add_biased(builder, "mlp.linear_fc2", width, vision->intermediate_size);
    }
    snprintf(builder->prefix, sizeof builder->prefix, "vision_tower.merger.");
    add_layer_norm(builder, "norm", width);
    add_biased(builder, "linear_fc1", merged, merged);
    add_biased(builder, "linear_fc2", out, merged);
}

enum status synth_plan(const struct shape *shape, uint64_t seed, bool vision, struct synth **out,
                       struct error *error)
{
    *out = NULL;
    struct synth *synth = calloc(1, sizeof *synth);
    if (!synth)
        return error_no_memory(error, "the synthetic weights");
    synth->shape = shape;
    struct builder builder = {.synth = synth, .seed = mix(seed)};
    if (vision) {
        bool small = shape->hidden_size < shape_35b_a3b.hidden_size;
        synth->vision = small ? &vision_small : &vision_35b_a3b;
        add_vision(&builder, synth->vision, shape->hidden_size);
    }
    add_text(&builder, shape, &synth->weights);
    if (builder.failed) {
        synth_close(synth);
        return error_no_memory(error, "the list of synthetic tensors");
    }
    *out = synth;
    return STATUS_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A block is what one random word makes: 8 bytes of codes, or 8 chosen values of 2 bytes. */
static void fill_blocks(const struct synth_tensor *tensor, int64_t block, int64_t n,
                        unsigned char *out)
{
    uint64_t counter = tensor->key + (uint64_t)block * GOLDEN;
    if (tensor->dtype[0] == 'U') {
        for (int64_t i = 0; i < n; i++)
            store_word(out + 8 * i, mix(counter + (uint64_t)i * GOLDEN));
        return;
    }
    const uint16_t *values = tensor->values;
    for (int64_t i = 0; i < n; i++, out += 16) {
        uint64_t random = mix(counter + (uint64_t)i * GOLDEN), half[2];
        for (int j = 0; j < 2; j++, random >>= 32)
            half[j] = values[random & 255] | (uint64_t)values[random >> 8 & 255] << 16 |
                      (uint64_t)values[random >> 16 & 255] << 32 |
                      (uint64_t)values[random >> 24 & 255] << 48;
        store_word(out, half[0]);
        store_word(out + 8, half[1]);
    }
}

/* Bytes [from, from + n) of one tensor: whole blocks at once, parts of blocks through a copy. */
static void fill_tensor(const struct synth_tensor *tensor, int64_t from, int64_t n,
                        unsigned char *out)
{
    int size = tensor->dtype[0] == 'U' ? 8 : 16;
    while (n > 0) {
        int64_t block = from / size, skip = from % size, done;
        if (skip == 0 && n >= size) {
            done = n - n % size;
            fill_blocks(tensor, block, done / size, out);
        } else {
            unsigned char bytes[16];
            fill_blocks(tensor, block, 1, bytes);
            done = size - skip < n ? size - skip : n;
            memcpy(out, bytes + skip, (size_t)done);
        }
        from += done;
        out += done;
        n -= done;
    }
}

void synth_fill(const struct synth *synth, int64_t from, int64_t n, unsigned char *out)
{
    int low = 0, high = synth->n_tensors; /* the first tensor that ends after `from` */
    while (low < high) {
        int middle = (low + high) / 2;
        if (synth->tensors[middle].offset + synth->tensors[middle].size <= from)
            low = middle + 1;
        else
            high = middle;
    }
    for (const struct synth_tensor *tensor = synth->tensors + low; n > 0; tensor++) {
        int64_t skip = from - tensor->offset;
        int64_t done = tensor->size - skip < n ? tensor->size - skip : n;
        fill_tensor(tensor, skip, done, out);
        from += done;
        out += done;
        n -= done;
    }
}

/* ---- in memory ------------------------------------------------------------------------------- */

struct filling {
    const struct synth *synth;
    unsigned char *data;
    _Atomic int64_t next; /* first byte that nobody took */
};

static void *fill_chunks(void *context)
{
    struct filling *filling = context;
    int64_t bytes = filling->synth->bytes, from;
    while ((from = atomic_fetch_add(&filling->next, CHUNK)) < bytes)
        synth_fill(filling->synth, from, bytes - from < CHUNK ? bytes - from : CHUNK,
                   filling->data + from);
    return NULL;
}

/* The calling thread works too, so a thread that cannot be had costs time only. */
static void fill_all(const struct synth *synth, unsigned char *data, int n_threads)
{
    struct filling filling = {.synth = synth, .data = data};
    pthread_t threads[MAX_THREADS];
    int n = 0;
    while (n < n_threads - 1 && pthread_create(&threads[n], NULL, fill_chunks, &filling) == 0)
        n++;
    fill_chunks(&filling);
    while (n > 0)
        pthread_join(threads[--n], NULL);
}

static enum status map_weights(struct synth *synth, int n_threads, struct error *error)
{
    size_t size = (size_t)synth->bytes + DATA_START;
    unsigned char *mapping =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return error_set(error, STATUS_NO_MEMORY,
                         "cannot get %.2f GiB for synthetic weights of shape %s: %s",
                         (double)size / (1 << 30), synth->shape->name, strerror(errno));
#ifdef MADV_NOHUGEPAGE
    madvise(mapping, size, MADV_NOHUGEPAGE); /* where they are always on; best effort */
#endif
    synth->mapping = mapping;
    synth->mapping_size = size;
    long processors = n_threads ? n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    n_threads = processors < 1 ? 1 : processors > MAX_THREADS ? MAX_THREADS : (int)processors;
    fill_all(synth, mapping + DATA_START, n_threads);
    for (int i = 0; i < synth->n_tensors; i++)
        *synth->tensors[i].view = mapping + DATA_START + synth->tensors[i].offset;
    mprotect(mapping, size, PROT_READ); /* weights are read-only; best effort */
    return STATUS_OK;
}

enum status synth_open(const struct shape *shape, uint64_t seed, int n_threads, struct synth **out,
                       struct error *error)
{
    enum status status = synth_plan(shape, seed, false, out, error);
    if (status != STATUS_OK)
        return status;
    status = map_weights(*out, n_threads, error);
    if (status != STATUS_OK) {
        synth_close(*out);
        *out = NULL;
    }
    return status;
}

void synth_close(struct synth *synth)
{
    if (!synth)
        return;
    if (synth->mapping)
        munmap(synth->mapping, synth->mapping_size);
    free(synth->tensors);
    free(synth);
}

const struct shape *synth_shape(const struct synth *synth)
{
    return synth->shape;
}

const struct synth_vision *synth_vision(const struct synth *synth)
{
    return synth->vision;
}

const struct weights *synth_weights(const struct synth *synth)
{
    return &synth->weights;
}

const struct synth_tensor *synth_tensors(const struct synth *synth, int *n)
{
    *n = synth->n_tensors;
    return synth->tensors;
}

int64_t synth_bytes(const struct synth *synth)
{
    return synth->bytes;
}
