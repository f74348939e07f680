#include "support/checkpoint_writer.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY "models/tiny"

static void make_folder(struct checkpoint_writer *writer)
{
    const char *base = getenv("TMPDIR");
    snprintf(writer->folder, sizeof writer->folder, "%s/calla-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(writer->folder));
}

static json_t *read_json(const char *folder, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_t *value = json_load_file(path, 0, NULL);
    if (!value)
        fail_msg("cannot read %s", path);
    return value;
}

static void read_shard(struct writer_shard *shard, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, TINY "/%s", name);
    snprintf(shard->name, sizeof shard->name, "%s", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char length[8];
    assert_int_equal(fread(length, 1, 8, file), 8);
    size_t n = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16;
    char *text = malloc(n);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, file), n);
    shard->header = json_loadb(text, n, 0, NULL);
    assert_non_null(shard->header);
    fseek(file, 0, SEEK_END);
    shard->data_size = ftell(file) - 8 - (int64_t)n;
    free(text);
    fclose(file);
}

void writer_init_tiny(struct checkpoint_writer *writer)
{
    *writer = (struct checkpoint_writer){.n_shards = 3};
    make_folder(writer);
    writer->config = read_json(TINY, "config.json");
    writer->generation = read_json(TINY, "generation_config.json");
    writer->index = read_json(TINY, "model.safetensors.index.json");
    read_shard(&writer->shards[0], "model-00001-of-00002.safetensors");
    read_shard(&writer->shards[1], "model-00002-of-00002.safetensors");
    read_shard(&writer->shards[2], "model-mtp.safetensors");
}

/* Adds one tensor to the next shard in turn. */
struct spread {
    struct checkpoint_writer *writer;
    int next;
};

static void add_next(struct spread *spread, const char *name, const char *dtype,
                     const int64_t *dims, int n_dims, int bytes_per_value)
{
    writer_add(spread->writer, spread->next, name, dtype, dims, n_dims, bytes_per_value);
    spread->next = (spread->next + 1) % spread->writer->n_shards;
}

/* A quantised module; count 0: two dimensions. */
static void add_quant(struct spread *spread, const char *prefix, const char *module, int count,
                      int rows, int columns, int bits)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    for (int i = 0; i < 3; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s%s.%s", prefix, module, parts[i]);
        int64_t dims[3] = {count, rows, i == 0 ? columns * bits / 32 : columns / 64};
        int skip = count ? 0 : 1;
        add_next(spread, name, i == 0 ? "U32" : "BF16", dims + skip, 3 - skip, i == 0 ? 4 : 2);
    }
}

static void add_bf16(struct spread *spread, const char *prefix, const char *name, int a, int b,
                     int c)
{
    char full[200];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const int64_t dims[3] = {a, b, c};
    add_next(spread, full, "BF16", dims, b ? 3 : 1, 2);
}

static void add_layer(struct spread *spread, const struct shape *shape, int layer)
{
    char p[80];
    snprintf(p, sizeof p, "language_model.model.layers.%d.", layer);
    int hidden = shape->hidden_size, width = shape->moe_intermediate_size;
    int heads = shape->linear_num_value_heads, value = heads * shape->linear_value_head_dim;
    int channels = 2 * shape->linear_num_key_heads * shape->linear_key_head_dim + value;
    add_bf16(spread, p, "input_layernorm.weight", hidden, 0, 0);
    add_bf16(spread, p, "post_attention_layernorm.weight", hidden, 0, 0);
    if (layer % 4 == 3) {
        add_quant(spread, p, "self_attn.q_proj", 0, 8192, hidden, 4);
        add_quant(spread, p, "self_attn.k_proj", 0, 512, hidden, 4);
        add_quant(spread, p, "self_attn.v_proj", 0, 512, hidden, 4);
        add_quant(spread, p, "self_attn.o_proj", 0, hidden, 4096, 4);
        add_bf16(spread, p, "self_attn.q_norm.weight", 256, 0, 0);
        add_bf16(spread, p, "self_attn.k_norm.weight", 256, 0, 0);
    } else {
        add_quant(spread, p, "linear_attn.in_proj_qkv", 0, channels, hidden, 4);
        add_quant(spread, p, "linear_attn.in_proj_z", 0, value, hidden, 4);
        add_quant(spread, p, "linear_attn.in_proj_a", 0, heads, hidden, 4);
        add_quant(spread, p, "linear_attn.in_proj_b", 0, heads, hidden, 4);
        add_quant(spread, p, "linear_attn.out_proj", 0, hidden, value, 4);
        add_bf16(spread, p, "linear_attn.conv1d.weight", channels, 4, 1);
        add_bf16(spread, p, "linear_attn.A_log", heads, 0, 0);
        add_bf16(spread, p, "linear_attn.dt_bias", heads, 0, 0);
        add_bf16(spread, p, "linear_attn.norm.weight", 128, 0, 0);
    }
    add_quant(spread, p, "mlp.gate", 0, shape->num_experts, hidden, 8);
    add_quant(spread, p, "mlp.shared_expert_gate", 0, 1, hidden, 8);
    add_quant(spread, p, "mlp.switch_mlp.gate_proj", shape->num_experts, width, hidden, 4);
    add_quant(spread, p, "mlp.switch_mlp.up_proj", shape->num_experts, width, hidden, 4);
    add_quant(spread, p, "mlp.switch_mlp.down_proj", shape->num_experts, hidden, width, 4);
    add_quant(spread, p, "mlp.shared_expert.gate_proj", 0, width, hidden, 4);
    add_quant(spread, p, "mlp.shared_expert.up_proj", 0, width, hidden, 4);
    add_quant(spread, p, "mlp.shared_expert.down_proj", 0, hidden, width, 4);
}

void writer_init_shape(struct checkpoint_writer *writer, const struct shape *shape,
                       const char *config_folder, int n_shards, int n_vision, int64_t vision_bytes)
{
    *writer = (struct checkpoint_writer){.n_shards = n_shards};
    make_folder(writer);
    writer->config = read_json(config_folder, "config.json");
    writer->generation = read_json(config_folder, "generation_config.json");
    writer->index = json_pack("{s:{}, s:{}}", "metadata", "weight_map");
    for (int i = 0; i < n_shards; i++) {
        snprintf(writer->shards[i].name, sizeof writer->shards[i].name,
                 "model-%05d-of-%05d.safetensors", i + 1, n_shards);
        writer->shards[i].header = json_pack("{s:{s:s}}", "__metadata__", "format", "mlx");
    }
    struct spread spread = {.writer = writer};
    const char *p = "language_model.";
    add_quant(&spread, p, "model.embed_tokens", 0, shape->vocab_size, shape->hidden_size, 4);
    for (int i = 0; i < shape->num_hidden_layers; i++)
        add_layer(&spread, shape, i);
    add_bf16(&spread, p, "model.norm.weight", shape->hidden_size, 0, 0);
    add_quant(&spread, p, "lm_head", 0, shape->vocab_size, shape->hidden_size, 4);
    for (int i = 0; i < n_vision; i++) {
        char name[64];
        snprintf(name, sizeof name, "vision_tower.blocks.%d.weight", i);
        int64_t share = vision_bytes / 2 / n_vision;
        const int64_t dims[1] = {i ? share : vision_bytes / 2 - share * (n_vision - 1)};
        add_next(&spread, name, "BF16", dims, 1, 2);
    }
}

void writer_clear(struct checkpoint_writer *writer)
{
    static const char *const others[] = {
        "config.json",       "generation_config.json", "model.safetensors.index.json",
        "model.safetensors", "chat_template.jinja",    "file"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        writer_remove(writer, others[i]);
    for (int i = 0; i < writer->n_shards; i++) {
        writer_remove(writer, writer->shards[i].name);
        json_decref(writer->shards[i].header);
    }
    assert_int_equal(rmdir(writer->folder), 0);
    json_decref(writer->config);
    json_decref(writer->generation);
    json_decref(writer->index);
}

static void path_of(const struct checkpoint_writer *writer, const char *name, char path[400])
{
    snprintf(path, 400, "%s/%s", writer->folder, name);
}

void writer_write_file(const struct checkpoint_writer *writer, const char *name, const void *data,
                       size_t length)
{
    char path[400];
    path_of(writer, name, path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

void writer_truncate(const struct checkpoint_writer *writer, const char *name, int64_t size)
{
    char path[400];
    path_of(writer, name, path);
    assert_int_equal(truncate(path, size), 0);
}

void writer_remove(const struct checkpoint_writer *writer, const char *name)
{
    char path[400];
    path_of(writer, name, path);
    if (unlink(path) != 0)
        rmdir(path);
}

static void write_json(const struct checkpoint_writer *writer, const char *name,
                       const json_t *value)
{
    if (!value)
        return;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    assert_non_null(text);
    writer_write_file(writer, name, text, strlen(text));
    free(text);
}

static void write_shard(const struct checkpoint_writer *writer, const struct writer_shard *shard)
{
    if (!shard->header)
        return;
    char *text = json_dumps(shard->header, JSON_ENCODE_ANY | JSON_COMPACT);
    assert_non_null(text);
    size_t n = strlen(text);
    unsigned char *bytes = malloc(8 + n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, text, n);
    writer_write_file(writer, shard->name, bytes, 8 + n);
    writer_truncate(writer, shard->name, 8 + (int64_t)n + shard->data_size);
    free(bytes);
    free(text);
}

void writer_write(const struct checkpoint_writer *writer)
{
    write_json(writer, "config.json", writer->config);
    write_json(writer, "generation_config.json", writer->generation);
    write_json(writer, "model.safetensors.index.json", writer->index);
    for (int i = 0; i < writer->n_shards; i++)
        write_shard(writer, &writer->shards[i]);
}

json_t *writer_tensor(const struct checkpoint_writer *writer, const char *name, int *shard)
{
    for (int i = 0; i < writer->n_shards; i++) {
        json_t *entry = json_object_get(writer->shards[i].header, name);
        if (!entry)
            continue;
        if (shard)
            *shard = i;
        return entry;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

void writer_add(struct checkpoint_writer *writer, int shard, const char *name, const char *dtype,
                const int64_t *dims, int n_dims, int bytes_per_value)
{
    struct writer_shard *file = &writer->shards[shard];
    json_t *shape = json_array();
    int64_t size = bytes_per_value;
    for (int i = 0; i < n_dims; i++) {
        json_array_append_new(shape, json_integer(dims[i]));
        size *= dims[i];
    }
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                  (json_int_t)file->data_size, (json_int_t)(file->data_size + size));
    assert_non_null(entry);
    file->data_size += size;
    json_object_set_new(file->header, name, entry);
    json_object_set_new(json_object_get(writer->index, "weight_map"), name,
                        json_string(file->name));
}

void writer_drop(struct checkpoint_writer *writer, const char *name)
{
    int shard = 0;
    writer_tensor(writer, name, &shard);
    json_object_del(writer->shards[shard].header, name);
    json_object_del(json_object_get(writer->index, "weight_map"), name);
}

void writer_replace(struct checkpoint_writer *writer, const char *name, const char *dtype,
                    const int64_t *dims, int n_dims, int bytes_per_value)
{
    int shard = 0;
    writer_tensor(writer, name, &shard);
    writer_add(writer, shard, name, dtype, dims, n_dims, bytes_per_value);
}
