/* model/checkpoint: models/tiny and a checkpoint of the target's shape open with the right views
 * and sums; every kind of damage gives one line that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "model/checkpoint.h"
#include "model/quant.h"
#include "support/checkpoint_writer.h"

#define LAYER "language_model.model.layers."
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

static const struct checkpoint_part *part_of(const struct checkpoint *checkpoint, const char *name)
{
    const struct checkpoint_part *part = checkpoint_parts(checkpoint);
    for (; part->name; part++)
        if (strcmp(part->name, name) == 0)
            return part;
    fail_msg("no part %s", name);
    return part;
}

static void test_tiny(void **state)
{
    (void)state;
    struct checkpoint *checkpoint;
    struct error error;
    assert_int_equal(checkpoint_open("models/tiny", &checkpoint, &error), STATUS_OK);
    const struct weights *weights = checkpoint_weights(checkpoint);
    assert_ptr_equal(weights->shape, &shape_tiny);
    assert_ptr_equal(checkpoint_config(checkpoint)->shape, &shape_tiny);
    assert_int_equal(checkpoint_n_shards(checkpoint), 3);
    assert_int_equal(weights->lm_head.rows, 4096);
    assert_int_equal(weights->lm_head.columns, 256);
    const struct quant_matrix *down = &weights->layers[7].mlp.down_proj;
    assert_int_equal(down->count, 32);
    assert_int_equal(down->rows, 256);
    assert_int_equal(down->columns, 128);
    assert_int_equal(down->bits, 4);
    assert_int_equal(weights->layers[0].mlp.gate.bits, 8);
    assert_null(weights->layers[0].self_attn.q_proj.weight);
    assert_null(weights->layers[3].linear_attn.out_proj.weight);
    assert_int_equal(weights->layers[0].linear_attn.conv1d.length, 2048 * 4);
    assert_int_equal(weights->layers[0].linear_attn.A_log.bytes_per_value, 2);
    assert_int_equal(part_of(checkpoint, "experts")->tensors, 72);
    assert_int_equal(part_of(checkpoint, "MTP (skipped)")->tensors, 46);
    assert_true(part_of(checkpoint, "MTP (skipped)")->skipped);
    int64_t bytes = 0, tensors = 0;
    for (const struct checkpoint_part *part = checkpoint_parts(checkpoint); part->name; part++) {
        bytes += part->bytes;
        tensors += part->tensors;
    }
    assert_int_equal(bytes, 27240528); /* the index's total_size */
    assert_int_equal(tensors, 403);
    assert_int_equal(weights_bytes(weights), bytes - part_of(checkpoint, "MTP (skipped)")->bytes);
    checkpoint_close(checkpoint);
}

/* Reads `n` bytes of a tensor of models/tiny by its name, by another way than the loader's. */
static void check_bytes(const struct checkpoint_writer *writer, const char *name,
                        const unsigned char *view)
{
    int shard = 0;
    const json_t *entry = writer_tensor(writer, name, &shard);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t size = json_integer_value(json_array_get(offsets, 1)) - begin;
    char path[200];
    snprintf(path, sizeof path, "models/tiny/%s", writer->shards[shard].name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    assert_int_equal(fseek(file, ftell(file) - writer->shards[shard].data_size + begin, SEEK_SET),
                     0);
    unsigned char *bytes = malloc((size_t)size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
    fclose(file);
    assert_non_null(view);
    if (memcmp(bytes, view, (size_t)size) != 0)
        fail_msg("%s: the view shows other bytes", name);
    free(bytes);
}

static void check_quant(const struct checkpoint_writer *writer, int layer, const char *module,
                        const struct quant_matrix *matrix)
{
    char name[160];
    snprintf(name, sizeof name, LAYER "%d.%s.weight", layer, module);
    check_bytes(writer, name, matrix->weight);
    snprintf(name, sizeof name, LAYER "%d.%s.scales", layer, module);
    check_bytes(writer, name, matrix->scales);
    snprintf(name, sizeof name, LAYER "%d.%s.biases", layer, module);
    check_bytes(writer, name, matrix->biases);
}

static void check_vector(const struct checkpoint_writer *writer, int layer, const char *suffix,
                         const struct vector *vector)
{
    char name[160];
    snprintf(name, sizeof name, LAYER "%d.%s", layer, suffix);
    check_bytes(writer, name, vector->data);
}

static void check_layer(const struct checkpoint_writer *w, const struct layer_weights *layer, int i)
{
    if (i % 4 == 3) {
        check_quant(w, i, "self_attn.q_proj", &layer->self_attn.q_proj);
        check_quant(w, i, "self_attn.k_proj", &layer->self_attn.k_proj);
        check_quant(w, i, "self_attn.v_proj", &layer->self_attn.v_proj);
        check_quant(w, i, "self_attn.o_proj", &layer->self_attn.o_proj);
        check_vector(w, i, "self_attn.q_norm.weight", &layer->self_attn.q_norm);
        check_vector(w, i, "self_attn.k_norm.weight", &layer->self_attn.k_norm);
    } else {
        check_quant(w, i, "linear_attn.in_proj_qkv", &layer->linear_attn.in_proj_qkv);
        check_quant(w, i, "linear_attn.in_proj_z", &layer->linear_attn.in_proj_z);
        check_quant(w, i, "linear_attn.in_proj_a", &layer->linear_attn.in_proj_a);
        check_quant(w, i, "linear_attn.in_proj_b", &layer->linear_attn.in_proj_b);
        check_quant(w, i, "linear_attn.out_proj", &layer->linear_attn.out_proj);
        check_vector(w, i, "linear_attn.conv1d.weight", &layer->linear_attn.conv1d);
        check_vector(w, i, "linear_attn.A_log", &layer->linear_attn.A_log);
        check_vector(w, i, "linear_attn.dt_bias", &layer->linear_attn.dt_bias);
        check_vector(w, i, "linear_attn.norm.weight", &layer->linear_attn.norm);
    }
    check_vector(w, i, "input_layernorm.weight", &layer->input_layernorm);
    check_vector(w, i, "post_attention_layernorm.weight", &layer->post_attention_layernorm);
    check_quant(w, i, "mlp.gate", &layer->mlp.gate);
    check_quant(w, i, "mlp.shared_expert_gate", &layer->mlp.shared_expert_gate);
    check_quant(w, i, "mlp.switch_mlp.gate_proj", &layer->mlp.gate_proj);
    check_quant(w, i, "mlp.switch_mlp.up_proj", &layer->mlp.up_proj);
    check_quant(w, i, "mlp.switch_mlp.down_proj", &layer->mlp.down_proj);
    check_quant(w, i, "mlp.shared_expert.gate_proj", &layer->mlp.shared_gate_proj);
    check_quant(w, i, "mlp.shared_expert.up_proj", &layer->mlp.shared_up_proj);
    check_quant(w, i, "mlp.shared_expert.down_proj", &layer->mlp.shared_down_proj);
}

static void test_views(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    struct checkpoint *checkpoint;
    struct error error;
    assert_int_equal(checkpoint_open("models/tiny", &checkpoint, &error), STATUS_OK);
    const struct weights *weights = checkpoint_weights(checkpoint);
    for (int i = 0; i < 8; i++)
        check_layer(&writer, &weights->layers[i], i);
    check_bytes(&writer, "language_model.model.embed_tokens.weight", weights->embed_tokens.weight);
    check_bytes(&writer, "language_model.lm_head.scales", weights->lm_head.scales);
    check_bytes(&writer, "language_model.model.norm.weight", weights->norm.data);
    checkpoint_close(checkpoint);
    writer_clear(&writer);
}

/* The sums that the spec gives for the target (head, 1.3, 4.3), from a checkpoint of its shape. */
static void test_target_shape(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_shape(&writer, &shape_35b_a3b, "tests/model/35b-a3b", 4, 333, 893142496);
    writer_write(&writer);
    struct checkpoint *checkpoint;
    struct error error = {.message = ""};
    if (checkpoint_open(writer.folder, &checkpoint, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    int64_t tensors = 0, bytes = 0, text_bytes = 0, parameters = 0;
    for (const struct checkpoint_part *part = checkpoint_parts(checkpoint); part->name; part++) {
        tensors += part->tensors;
        bytes += part->bytes;
        text_bytes += part->skipped ? 0 : part->bytes;
        parameters += part->parameters;
    }
    assert_int_equal(tensors, 2090);
    assert_int_equal(bytes, 20401929952);
    assert_int_equal(text_bytes, 19508787456);
    assert_int_equal(parameters, 34660610688);
    assert_int_equal(weights_bytes(checkpoint_weights(checkpoint)), text_bytes);
    assert_int_equal(part_of(checkpoint, "vision (skipped)")->tensors, 333);
    assert_int_equal(part_of(checkpoint, "router")->tensors, 120);
    checkpoint_close(checkpoint);
    writer_clear(&writer);
}

/* Opens what the writer has written and wants this in the message; NULL: wants it to open. */
static void expect(struct checkpoint_writer *writer, const char *name, const char *wanted)
{
    struct checkpoint *checkpoint;
    struct error error = {.message = "opened"};
    enum status status = checkpoint_open(writer->folder, &checkpoint, &error);
    if (!wanted && status != STATUS_OK)
        fail_msg("%s: %s", name, error.message);
    if (wanted && (status == STATUS_OK || !strstr(error.message, wanted)))
        fail_msg("%s: %s", name, error.message);
    if (wanted)
        assert_null(checkpoint);
    checkpoint_close(checkpoint);
    writer_clear(writer);
}

static void set_offsets(json_t *entry, int64_t begin, int64_t end)
{
    json_object_set_new(entry, "data_offsets",
                        json_pack("[I, I]", (json_int_t)begin, (json_int_t)end));
}

static const int64_t eight[1] = {8}, sixteen[1] = {16}, whole[1] = {256};
static const int64_t conv_original[3] = {2048, 1, 4}, conv_flat[2] = {2048, 4};
static const int64_t lm_rows[2] = {4095, 32}, lm_8bit[2] = {4096, 64}, half[2] = {4096, 2};

/* Another dtype or shape of one tensor, with offsets that fit it. */
static const struct {
    const char *tensor, *dtype;
    const int64_t *dims;
    int n_dims, bytes_per_value;
    const char *wanted; /* NULL: fine */
} replacements[] = {
    {LAYER "0.linear_attn.A_log", "F32", eight, 1, 4, NULL},
    {LAYER "0.linear_attn.A_log", "F16", eight, 1, 2,
     "tensor " LAYER "0.linear_attn.A_log: dtype: found F16, wanted BF16"},
    {LAYER "0.linear_attn.A_log", "F32", sixteen, 1, 4, "A_log: shape: found [16], wanted [8]"},
    {LAYER "0.linear_attn.dt_bias", "F32", eight, 1, 4, "dt_bias: dtype: found F32, wanted BF16"},
    {LAYER "0.input_layernorm.weight", "F16", whole, 1, 2,
     "input_layernorm.weight: dtype: found F16"},
    {LAYER "0.input_layernorm.weight", "BF16", eight, 1, 2, "found [8], wanted [256]"},
    {LAYER "1.linear_attn.conv1d.weight", "BF16", conv_original, 3, 2,
     "found [2048, 1, 4], wanted a last dimension of 1: the weights were not converted, this is "
     "not "
     "an MLX checkpoint"},
    {LAYER "1.linear_attn.conv1d.weight", "BF16", conv_flat, 2, 2,
     "found [2048, 4], wanted [2048, 4, 1]"},
    {"language_model.lm_head.weight", "U32", lm_rows, 2, 4, "found [4095, 32], wanted [4096, 32]"},
    {"language_model.lm_head.weight", "I32", lm_8bit, 2, 4, "dtype: found I32, wanted U32"},
    {"language_model.lm_head.weight", "U32", lm_8bit, 2, 4, "found [4096, 64], wanted [4096, 32]"},
    {"language_model.lm_head.scales", "F16", half, 2, 2, "dtype: found F16, wanted BF16"},
    {"language_model.lm_head.biases", "BF16", half, 2, 2, "found [4096, 2], wanted [4096, 4]"},
};

static void test_replacements(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++) {
        struct checkpoint_writer writer;
        writer_init_tiny(&writer);
        writer_replace(&writer, replacements[i].tensor, replacements[i].dtype, replacements[i].dims,
                       replacements[i].n_dims, replacements[i].bytes_per_value);
        writer_write(&writer);
        expect(&writer, replacements[i].tensor, replacements[i].wanted);
    }
}

static void test_float_decay(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    writer_replace(&writer, LAYER "0.linear_attn.A_log", "F32", eight, 1, 4);
    writer_write(&writer);
    struct checkpoint *checkpoint;
    struct error error;
    assert_int_equal(checkpoint_open(writer.folder, &checkpoint, &error), STATUS_OK);
    const struct layer_weights *layers = checkpoint_weights(checkpoint)->layers;
    assert_int_equal(layers[0].linear_attn.A_log.bytes_per_value, 4);
    assert_int_equal(layers[1].linear_attn.A_log.bytes_per_value, 2);
    assert_true(vector_load(&layers[0].linear_attn.A_log, 7) == 0);
    checkpoint_close(checkpoint);
    writer_clear(&writer);
}

/* Damage by hand: each edits the writer before (true) or the folder after (false) writing. */
static void no_damage(struct checkpoint_writer *w)
{
    (void)w;
}
static void missing_tensor(struct checkpoint_writer *w)
{
    writer_drop(w, LAYER "5.mlp.gate.scales");
}
static void not_in_index(struct checkpoint_writer *w)
{
    json_object_del(json_object_get(w->index, "weight_map"), LAYER "5.mlp.gate.scales");
}
static void not_in_shard(struct checkpoint_writer *w)
{
    json_object_del(w->shards[1].header, LAYER "5.mlp.gate.scales");
}
static void other_shard(struct checkpoint_writer *w)
{
    json_object_set_new(json_object_get(w->index, "weight_map"), LAYER "5.mlp.gate.scales",
                        json_string(SHARD_1));
}
static void in_two_shards(struct checkpoint_writer *w)
{
    writer_add(w, 0, LAYER "5.mlp.gate.scales", "BF16", eight, 1, 2);
}
static void map_value(struct checkpoint_writer *w, json_t *value)
{
    json_object_set_new(json_object_get(w->index, "weight_map"), LAYER "5.mlp.gate.scales", value);
}
static void map_slash(struct checkpoint_writer *w)
{
    map_value(w, json_string("../x.safetensors"));
}
static void map_absolute(struct checkpoint_writer *w)
{
    map_value(w, json_string("/etc/passwd"));
}
static void map_dots(struct checkpoint_writer *w)
{
    map_value(w, json_string(".."));
}
static void map_number(struct checkpoint_writer *w)
{
    map_value(w, json_integer(1));
}
static void map_missing_file(struct checkpoint_writer *w)
{
    map_value(w, json_string("model-00009-of-00009.safetensors"));
}
static void no_map(struct checkpoint_writer *w)
{
    json_object_del(w->index, "weight_map");
}
static void empty_map(struct checkpoint_writer *w)
{
    json_object_clear(json_object_get(w->index, "weight_map"));
}
static void index_array(struct checkpoint_writer *w)
{
    json_decref(w->index);
    w->index = json_array();
}
static void no_index(struct checkpoint_writer *w)
{
    json_decref(w->index);
    w->index = NULL;
}
static void no_shard(struct checkpoint_writer *w)
{
    writer_remove(w, SHARD_2);
}
static void no_mtp_file(struct checkpoint_writer *w)
{
    writer_remove(w, "model-mtp.safetensors");
}
static void cut_shard(struct checkpoint_writer *w)
{
    writer_truncate(w, SHARD_2, 5590148);
}
static void cut_one_byte(struct checkpoint_writer *w)
{
    int64_t end = 0;
    char path[400];
    snprintf(path, sizeof path, "%s/%s", w->folder, SHARD_2);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    end = info.st_size - 1;
    writer_truncate(w, SHARD_2, end);
}
static void cut_header(struct checkpoint_writer *w)
{
    writer_truncate(w, SHARD_1, 1000);
}
static void empty_shard(struct checkpoint_writer *w)
{
    writer_truncate(w, SHARD_1, 0);
}
static void folder_for_shard(struct checkpoint_writer *w)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", w->folder, SHARD_1);
    writer_remove(w, SHARD_1);
    assert_int_equal(mkdir(path, 0700), 0);
}
static void empty_index(struct checkpoint_writer *w)
{
    writer_truncate(w, INDEX, 0);
}
static void cut_index(struct checkpoint_writer *w)
{
    writer_truncate(w, INDEX, 5000);
}
static void no_config(struct checkpoint_writer *w)
{
    writer_remove(w, "config.json");
}
static void cut_config(struct checkpoint_writer *w)
{
    writer_truncate(w, "config.json", 100);
}
static void huge_config(struct checkpoint_writer *w)
{
    writer_truncate(w, "config.json", (int64_t)1 << 40);
}
static void no_generation(struct checkpoint_writer *w)
{
    writer_remove(w, "generation_config.json");
}
static void overlap(struct checkpoint_writer *w)
{
    set_offsets(writer_tensor(w, LAYER "5.mlp.gate.scales", NULL), 0, 256);
}
static void past_end(struct checkpoint_writer *w)
{
    w->shards[1].data_size -= 2;
}
static void wrong_size(struct checkpoint_writer *w)
{
    set_offsets(writer_tensor(w, LAYER "5.mlp.gate.scales", NULL), 0, 128);
}
static void original_name(struct checkpoint_writer *w)
{
    writer_drop(w, "language_model.model.norm.weight");
    writer_add(w, 0, "model.language_model.norm.weight", "BF16", whole, 1, 2);
}
static void stray_bias(struct checkpoint_writer *w)
{
    writer_add(w, 0, LAYER "0.mlp.gate.bias", "BF16", eight, 1, 2);
}
static void ninth_layer(struct checkpoint_writer *w)
{
    writer_add(w, 0, LAYER "8.input_layernorm.weight", "BF16", whole, 1, 2);
}
static void vision_and_other(struct checkpoint_writer *w)
{
    writer_add(w, 0, "vision_tower.blocks.0.norm1.weight", "BF16", eight, 1, 2);
    writer_add(w, 1, "audio_tower.x", "F32", eight, 1, 4);
}
static void parts_apart(struct checkpoint_writer *w)
{
    writer_drop(w, "language_model.lm_head.scales"); /* from shard 0 to shard 2, unaligned */
    w->shards[2].data_size += 1;
    static const int64_t dims[2] = {4096, 4};
    writer_add(w, 2, "language_model.lm_head.scales", "BF16", dims, 2, 2);
}
static json_t *quantization(struct checkpoint_writer *w)
{
    json_object_del(w->config, "quantization_config");
    return json_object_get(w->config, "quantization");
}
static void gate_of_4_bits(struct checkpoint_writer *w)
{
    json_object_del(quantization(w), LAYER "6.mlp.gate");
}
static void expert_of_8_bits(struct checkpoint_writer *w)
{
    json_object_set_new(quantization(w), LAYER "6.mlp.switch_mlp.up_proj",
                        json_pack("{s:i, s:i}", "group_size", 64, "bits", 8));
}
static void unquantised(struct checkpoint_writer *w)
{
    quantization(w);
    json_object_del(w->config, "quantization");
}

static const struct {
    const char *name;
    void (*before)(struct checkpoint_writer *);
    void (*after)(struct checkpoint_writer *);
    const char *wanted; /* NULL: opens */
} damages[] = {
    {"none", no_damage, no_damage, NULL},
    {"missing tensor", missing_tensor, no_damage, "tensor " LAYER "5.mlp.gate.scales is missing"},
    {"not in index", not_in_index, no_damage,
     LAYER "5.mlp.gate.scales of " SHARD_2 " is not in weight_map"},
    {"not in shard", not_in_shard, no_damage, LAYER "5.mlp.gate.scales is missing from " SHARD_2},
    {"other shard", other_shard, no_damage, "found in " SHARD_2 ", but the index says " SHARD_1},
    {"in two shards", in_two_shards, no_damage, LAYER "5.mlp.gate.scales is in "},
    {"map: slash", map_slash, no_damage, "found ../x.safetensors, wanted the name of"},
    {"map: absolute", map_absolute, no_damage, "found /etc/passwd, wanted the name of"},
    {"map: dots", map_dots, no_damage, "found .., wanted the name of"},
    {"map: number", map_number, no_damage, "found no string"},
    {"map: missing file", map_missing_file, no_damage,
     "model-00009-of-00009.safetensors: No such file or directory (named by " INDEX ")"},
    {"no weight_map", no_map, no_damage, INDEX ": weight_map: wanted an object"},
    {"empty weight_map", empty_map, no_damage, INDEX ": weight_map: wanted an object"},
    {"index is an array", index_array, no_damage, INDEX ": weight_map: wanted an object"},
    {"no index, no single file", no_index, no_damage,
     "found neither model.safetensors.index.json nor model.safetensors"},
    {"no shard", no_damage, no_shard, SHARD_2 ": No such file or directory"},
    {"no MTP file", no_damage, no_mtp_file, "model-mtp.safetensors: No such file or directory"},
    {"cut shard", no_damage, cut_shard, SHARD_2 ": tensor language_model.model"},
    {"cut by a byte", no_damage, cut_one_byte, "(is the file complete?)"},
    {"cut header", no_damage, cut_header, SHARD_1 ": header length"},
    {"empty shard", no_damage, empty_shard, SHARD_1 ": found 0 bytes, wanted a safetensors file"},
    {"a folder for a shard", no_damage, folder_for_shard, SHARD_1 ": found a folder"},
    {"empty index", no_damage, empty_index, INDEX ": not JSON"},
    {"cut index", no_damage, cut_index, INDEX ": not JSON"},
    {"no config", no_damage, no_config, "found no config.json, only generation_config.json, "},
    {"cut config", no_damage, cut_config, "config.json: not JSON"},
    {"huge config", no_damage, huge_config, "config.json: found 1099511627776 bytes"},
    {"no generation_config", no_damage, no_generation, NULL},
    {"overlap", overlap, no_damage, "shares bytes with tensor"},
    {"past the end", past_end, no_damage, "(is the file complete?)"},
    {"wrong size", wrong_size, no_damage, "found 128 bytes, wanted 256 for BF16 [32, 4]"},
    {"original name", original_name, no_damage, "this is not an MLX checkpoint"},
    {"stray bias", stray_bias, no_damage, "mlp.gate.bias: shape tiny has no such tensor"},
    {"ninth layer", ninth_layer, no_damage, "layers.8.input_layernorm.weight: shape tiny has no"},
    {"vision and other", vision_and_other, no_damage, NULL},
    {"parts in different shards", parts_apart, no_damage, NULL},
    {"router of 4 bits", gate_of_4_bits, no_damage,
     "quantization." LAYER "6.mlp.gate: found 4 bits, wanted 8"},
    {"expert of 8 bits", expert_of_8_bits, no_damage,
     "quantization." LAYER "6.mlp.switch_mlp.up_proj: found 8 bits, wanted 4"},
    {"unquantised", unquantised, no_damage, "the checkpoint must be quantised by MLX"},
};

static void test_damages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        struct checkpoint_writer writer;
        writer_init_tiny(&writer);
        damages[i].before(&writer);
        writer_write(&writer);
        damages[i].after(&writer);
        expect(&writer, damages[i].name, damages[i].wanted);
    }
}

/* One model.safetensors without an index. */
static void test_single_file(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_shape(&writer, &shape_tiny, "models/tiny", 1, 3, 600);
    json_decref(writer.index);
    writer.index = NULL;
    snprintf(writer.shards[0].name, sizeof writer.shards[0].name, "model.safetensors");
    writer_write(&writer);
    expect(&writer, "single file", NULL);
}

static void test_counts_skipped(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    vision_and_other(&writer);
    writer_write(&writer);
    struct checkpoint *checkpoint;
    struct error error;
    assert_int_equal(checkpoint_open(writer.folder, &checkpoint, &error), STATUS_OK);
    assert_int_equal(part_of(checkpoint, "vision (skipped)")->bytes, 16);
    assert_int_equal(part_of(checkpoint, "other (skipped)")->bytes, 32);
    assert_int_equal(part_of(checkpoint, "other (skipped)")->tensors, 1);
    checkpoint_close(checkpoint);
    writer_clear(&writer);
}

static void test_paths(void **state)
{
    (void)state;
    struct checkpoint *checkpoint;
    struct error error;
    assert_int_equal(checkpoint_open("does/not/exist", &checkpoint, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "does/not/exist: No such file or directory; wanted"));
    assert_int_equal(checkpoint_open("models/tiny/config.json", &checkpoint, &error),
                     STATUS_INVALID);
    assert_non_null(strstr(error.message, "wanted the folder of an MLX checkpoint"));
    assert_int_equal(checkpoint_open("", &checkpoint, &error), STATUS_INVALID);
    checkpoint_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),         cmocka_unit_test(test_views),
        cmocka_unit_test(test_target_shape), cmocka_unit_test(test_replacements),
        cmocka_unit_test(test_float_decay),  cmocka_unit_test(test_damages),
        cmocka_unit_test(test_single_file),  cmocka_unit_test(test_counts_skipped),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
