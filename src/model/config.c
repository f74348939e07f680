/* config.h: the shape, proven field by field, and the defaults of generation. What concerns the
 * quantization object is in config_quantization.c. */
#include "model/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file_map.h"
#include "base/json.h"
#include "model/config_fields.h"
#include "model/folder.h"

#define MAX_FILE_SIZE (16 << 20) /* bytes; the target's config.json has 24 KB */

enum status field_refuse(const struct fields *fields, const char *field, const json_t *found,
                         struct error *error, const char *format, ...)
{
    char wanted[200], text[81] = "nothing";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    if (found) {
        struct bytes printed = {0};
        json_print(found, &printed);
        const char *whole = bytes_terminate(&printed);
        size_t length = whole ? strnlen(whole, sizeof text) : 0;
        bool cut = length == sizeof text;
        if (cut)
            for (length = sizeof text - 4; length && (whole[length] & 0xc0) == 0x80;)
                length--; /* not inside a character */
        snprintf(text, sizeof text, "%.*s%s", (int)length, whole ? whole : "?", cut ? "…" : "");
        bytes_clear(&printed);
    }
    return error_set(error, STATUS_INVALID, "%s: %s%s: found %s, wanted %s", fields->file,
                     fields->prefix, field, text, wanted);
}

static bool read_text(const char **at, const char *text, size_t length)
{
    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

/* Reads `value` from the JSON at `*at`. Nothing is printed to memory for it: where that ran out, a
 * field would seem to be wrong. */
static bool read_value(const char **at, const json_t *value)
{
    char number[24];
    switch (json_typeof(value)) {
    case JSON_STRING: /* none that is wanted holds an escape */
        return !strchr(json_string_value(value), '"') && read_text(at, "\"", 1) &&
               read_text(at, json_string_value(value), json_string_length(value)) &&
               read_text(at, "\"", 1);
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return read_text(at, number, strlen(number));
    case JSON_ARRAY:
        if (!read_text(at, "[", 1))
            return false;
        for (size_t i = 0; i < json_array_size(value); i++)
            if ((i > 0 && !read_text(at, ", ", 2)) || !read_value(at, json_array_get(value, i)))
                return false;
        return read_text(at, "]", 1);
    case JSON_TRUE:
        return read_text(at, "true", 4);
    case JSON_FALSE:
        return read_text(at, "false", 5);
    case JSON_NULL:
        return read_text(at, "null", 4);
    default:
        return false;
    }
}

bool field_is(const json_t *value, const char *wanted)
{
    return value && wanted && read_value(&wanted, value) && *wanted == '\0';
}

/* The integers that make a shape, in the order in which a difference is named. */
static const struct {
    const char *name;
    size_t offset; /* in struct shape */
} integers[] = {
    {"hidden_size", offsetof(struct shape, hidden_size)},
    {"num_hidden_layers", offsetof(struct shape, num_hidden_layers)},
    {"vocab_size", offsetof(struct shape, vocab_size)},
    {"num_attention_heads", offsetof(struct shape, num_attention_heads)},
    {"num_key_value_heads", offsetof(struct shape, num_key_value_heads)},
    {"head_dim", offsetof(struct shape, head_dim)},
    {"linear_num_key_heads", offsetof(struct shape, linear_num_key_heads)},
    {"linear_num_value_heads", offsetof(struct shape, linear_num_value_heads)},
    {"linear_key_head_dim", offsetof(struct shape, linear_key_head_dim)},
    {"linear_value_head_dim", offsetof(struct shape, linear_value_head_dim)},
    {"linear_conv_kernel_dim", offsetof(struct shape, linear_conv_kernel_dim)},
    {"num_experts", offsetof(struct shape, num_experts)},
    {"num_experts_per_tok", offsetof(struct shape, num_experts_per_tok)},
    {"moe_intermediate_size", offsetof(struct shape, moe_intermediate_size)},
    {"shared_expert_intermediate_size", offsetof(struct shape, shared_expert_intermediate_size)},
};
#define N_INTEGERS (sizeof integers / sizeof *integers)

static int shape_integer(const struct shape *shape, size_t i)
{
    int value;
    memcpy(&value, (const char *)shape + integers[i].offset, sizeof value);
    return value;
}

static bool same_integer(const json_t *found, int wanted)
{
    return json_is_integer(found) && json_integer_value(found) == wanted;
}

/* The shape that shares most integers with the file. */
static const struct shape *nearest_shape(const json_t *text)
{
    int score[2] = {0};
    for (size_t i = 0; i < N_INTEGERS; i++) {
        const json_t *found = json_object_get(text, integers[i].name);
        score[0] += same_integer(found, shape_integer(&shape_35b_a3b, i));
        score[1] += same_integer(found, shape_integer(&shape_tiny, i));
    }
    return score[1] > score[0] ? &shape_tiny : &shape_35b_a3b;
}

static enum status check_integers(const struct fields *text, const struct shape *shape,
                                  struct error *error)
{
    for (size_t i = 0; i < N_INTEGERS; i++) {
        const json_t *found = json_object_get(text->object, integers[i].name);
        int wanted = shape_integer(shape, i);
        if (same_integer(found, wanted))
            continue;
        int large = shape_integer(&shape_35b_a3b, i), small = shape_integer(&shape_tiny, i);
        if (large == small)
            return field_refuse(text, integers[i].name, found, error, "%d", wanted);
        if (same_integer(found, large) || same_integer(found, small))
            return field_refuse(text, integers[i].name, found, error,
                                "%d as in shape %s, which the other fields fit best", wanted,
                                shape->name);
        return field_refuse(text, integers[i].name, found, error, "%d (shape %s) or %d (shape %s)",
                            large, shape_35b_a3b.name, small, shape_tiny.name);
    }
    return STATUS_OK;
}

static enum status check_layer_types(const struct fields *text, const struct shape *shape,
                                     struct error *error)
{
    const json_t *interval = json_object_get(text->object, "full_attention_interval");
    const json_t *types = json_object_get(text->object, "layer_types");
    if (interval && !same_integer(interval, shape->full_attention_interval))
        return field_refuse(text, "full_attention_interval", interval, error, "%d",
                            shape->full_attention_interval);
    if (!types && interval)
        return STATUS_OK; /* one of the two says it all */
    if (!json_is_array(types) || json_array_size(types) != (size_t)shape->num_hidden_layers)
        return field_refuse(text, "layer_types", types, error, "an array of %d strings",
                            shape->num_hidden_layers);
    for (int i = 0; i < shape->num_hidden_layers; i++) {
        const json_t *found = json_array_get(types, (size_t)i);
        const char *wanted =
            shape_is_full_attention(shape, i) ? "\"full_attention\"" : "\"linear_attention\"";
        char field[40];
        snprintf(field, sizeof field, "layer_types[%d]", i);
        if (!field_is(found, wanted))
            return field_refuse(text, field, found, error, "%s", wanted);
    }
    return STATUS_OK;
}

/* Fields that have one good value (or two), as JSON prints it; absent is good too. */
struct constant {
    const char *name, *wanted, *also;
};

static const struct constant text_constants[] = {
    {"attn_output_gate", "true", NULL},
    {"attention_bias", "false", NULL},
    {"hidden_act", "\"silu\"", NULL},
    {"dtype", "\"bfloat16\"", "null"},
    {"torch_dtype", "\"bfloat16\"", "null"},
    {"mamba_ssm_dtype", "\"float32\"", NULL},
    {"tie_word_embeddings", "false", NULL},
    {"norm_topk_prob", "true", NULL},
    {"mlp_only_layers", "[]", "null"},
    {"decoder_sparse_step", "1", NULL},
    {"rope_scaling", "null", NULL},
    {"output_gate_type", "\"swish\"", "\"silu\""},
    {NULL, NULL, NULL},
};
static const struct constant root_constants[] = {
    {"architectures", "[\"Qwen3_5MoeForConditionalGeneration\"]", "[\"Qwen3_5MoeForCausalLM\"]"},
    {"tie_word_embeddings", "false", NULL},
    {NULL, NULL, NULL},
};
static const struct constant rope_constants[] = {
    {"rope_type", "\"default\"", NULL},
    {"type", "\"default\"", NULL},
    {"mrope_interleaved", "true", NULL},
    {"mrope_section", "[11, 11, 10]", NULL},
    {NULL, NULL, NULL},
};

static enum status check_constants(const struct fields *fields, const struct constant *constants,
                                   struct error *error)
{
    for (const struct constant *constant = constants; constant->name; constant++) {
        const json_t *found = json_object_get(fields->object, constant->name);
        if (found && !field_is(found, constant->wanted) && !field_is(found, constant->also))
            return field_refuse(fields, constant->name, found, error, "%s", constant->wanted);
    }
    return STATUS_OK;
}

static enum status check_real(const struct fields *fields, const char *field, double wanted,
                              struct error *error)
{
    const json_t *found = json_object_get(fields->object, field);
    if (json_is_number(found) && json_number_value(found) == wanted)
        return STATUS_OK;
    return field_refuse(fields, field, found, error, "%g", wanted);
}

static enum status check_rope(const struct fields *text, const struct shape *shape,
                              struct error *error)
{
    json_t *object = json_object_get(text->object, "rope_parameters");
    char prefix[40];
    snprintf(prefix, sizeof prefix, "%srope_parameters.", text->prefix);
    struct fields rope = {text->file, prefix, object};
    if (object && !json_is_object(object))
        return field_refuse(text, "rope_parameters", object, error, "an object");
    enum status status = check_constants(&rope, rope_constants, error);
    const char *const names[] = {"rope_theta", "partial_rotary_factor"};
    const double wanted[] = {shape->rope_theta, (double)shape->rotary_dims / shape->head_dim};
    for (int i = 0; i < 2 && status == STATUS_OK; i++) /* rope_parameters first, else the text's */
        status = check_real(json_object_get(object, names[i]) ? &rope : text, names[i], wanted[i],
                            error);
    return status;
}

static enum status check_model_type(const struct fields *root, const struct fields *text,
                                    struct error *error)
{
    const char *wanted = "\"qwen3_5_moe_text\"";
    const json_t *found = json_object_get(root->object, "model_type");
    if (text->object != root->object) {
        if (!field_is(found, "\"qwen3_5_moe\""))
            return field_refuse(root, "model_type", found, error, "\"qwen3_5_moe\"");
        found = json_object_get(text->object, "model_type");
    }
    if (!field_is(found, wanted))
        return field_refuse(text, "model_type", found, error, "%s", wanted);
    return STATUS_OK;
}

static enum status read_max_position(const struct fields *text, struct config *config,
                                     struct error *error)
{
    const json_t *found = json_object_get(text->object, "max_position_embeddings");
    if (!json_is_integer(found) || json_integer_value(found) < 1 ||
        json_integer_value(found) > INT32_MAX)
        return field_refuse(text, "max_position_embeddings", found, error, "a positive integer");
    config->max_position_embeddings = (int)json_integer_value(found);
    return STATUS_OK;
}

/* An id or a list of them; absent and null leave the list empty. */
static enum status read_stop_ids(const struct fields *fields, struct config *config,
                                 struct error *error)
{
    json_t *found = json_object_get(fields->object, "eos_token_id");
    config->n_stop_ids = 0;
    if (!found || json_is_null(found))
        return STATUS_OK;
    size_t n = json_is_array(found) ? json_array_size(found) : 1;
    if (n > MAX_STOP_IDS)
        return field_refuse(fields, "eos_token_id", found, error, "at most %d ids", MAX_STOP_IDS);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(found) ? json_array_get(found, i) : found;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= config->shape->vocab_size)
            return field_refuse(fields, "eos_token_id", id, error, "a token id, 0 to %d",
                                config->shape->vocab_size - 1);
        config->stop_ids[config->n_stop_ids++] = (int32_t)json_integer_value(id);
    }
    return STATUS_OK;
}

static enum status read_real(const struct fields *fields, const char *field, double low,
                             double high, double *value, struct error *error)
{
    const json_t *found = json_object_get(fields->object, field);
    if (!found || json_is_null(found))
        return STATUS_OK;
    double real = json_number_value(found);
    if (!json_is_number(found) || !(real >= low && real <= high))
        return field_refuse(fields, field, found, error, "a number, %g to %g", low, high);
    *value = real;
    return STATUS_OK;
}

/* fields->object may be NULL: no such file. */
static enum status read_generation(const struct fields *fields, struct config *config,
                                   struct error *error)
{
    config->do_sample = true; /* spec 1.2 */
    config->temperature = 1.0;
    config->top_p = 0.95;
    double top_k = 20;
    if (!fields->object)
        return STATUS_OK;
    const json_t *sample = json_object_get(fields->object, "do_sample");
    if (sample && !json_is_null(sample)) {
        if (!json_is_boolean(sample))
            return field_refuse(fields, "do_sample", sample, error, "true or false");
        config->do_sample = json_is_true(sample);
    }
    enum status status = read_real(fields, "temperature", 0, 100, &config->temperature, error);
    if (status == STATUS_OK)
        status = read_real(fields, "top_p", TOP_P_MIN, 1, &config->top_p, error);
    if (status == STATUS_OK)
        status = read_real(fields, "top_k", 0, INT32_MAX, &top_k, error);
    if (status == STATUS_OK && top_k != floor(top_k))
        status = field_refuse(fields, "top_k", json_object_get(fields->object, "top_k"), error,
                              "an integer");
    config->top_k = (int)top_k;
    return status == STATUS_OK ? read_stop_ids(fields, config, error) : status;
}

static enum status read_root(const struct fields *root, const struct fields *generation,
                             struct config *config, struct error *error)
{
    json_t *inner = json_object_get(root->object, "text_config");
    if (inner && !json_is_object(inner))
        return field_refuse(root, "text_config", inner, error, "an object");
    struct fields text = {root->file, inner ? "text_config." : "", inner ? inner : root->object};
    config->shape = nearest_shape(text.object);
    enum status status = check_model_type(root, &text, error);
    if (status == STATUS_OK)
        status = check_constants(root, root_constants, error);
    if (status == STATUS_OK)
        status = check_integers(&text, config->shape, error);
    if (status == STATUS_OK)
        status = check_layer_types(&text, config->shape, error);
    if (status == STATUS_OK)
        status = check_real(&text, "rms_norm_eps", config->shape->rms_norm_eps, error);
    if (status == STATUS_OK)
        status = check_rope(&text, config->shape, error);
    if (status == STATUS_OK)
        status = check_constants(&text, text_constants, error);
    if (status == STATUS_OK)
        status = read_max_position(&text, config, error);
    if (status == STATUS_OK)
        status = config_read_quantization(root, config, error);
    if (status == STATUS_OK)
        status = read_generation(generation, config, error);
    /* a text config's own eos_token_id is not what ends a turn (spec 1.2) */
    if (status == STATUS_OK && config->n_stop_ids == 0 && inner)
        status = read_stop_ids(root, config, error);
    return status;
}

static enum status parse_object(const char *text, size_t length, const char *name, json_t **out,
                                struct error *error)
{
    enum status status = json_parse_strict(text, length, name, out, error);
    if (status == STATUS_OK && !json_is_object(*out))
        status = error_set(error, STATUS_INVALID, "%s: wanted a JSON object", name);
    return status;
}

enum status config_parse(const char *config_json, size_t config_length, const char *config_name,
                         const char *generation_json, size_t generation_length,
                         const char *generation_name, struct config *config, struct error *error)
{
    *config = (struct config){.top_k = 20};
    json_t *root = NULL, *generation = NULL;
    enum status status = parse_object(config_json, config_length, config_name, &root, error);
    if (status == STATUS_OK && generation_json)
        status =
            parse_object(generation_json, generation_length, generation_name, &generation, error);
    if (status == STATUS_OK)
        status = read_root(&(struct fields){config_name, "", root},
                           &(struct fields){generation_name, "", generation}, config, error);
    if (status != STATUS_OK)
        config_clear(config);
    json_decref(root);
    json_decref(generation);
    return status;
}

static char *path_join(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

static enum status map_small(const char *path, struct file_map *map, struct error *error)
{
    enum status status = file_map_open(path, map, error);
    if (status == STATUS_OK && map->size > MAX_FILE_SIZE) {
        status = error_set(error, STATUS_INVALID, "%s: found %zu bytes, wanted at most %d", path,
                           map->size, MAX_FILE_SIZE);
        file_map_close(map);
    }
    return status;
}

enum status config_open(const char *folder, struct config *config, struct error *error)
{
    *config = (struct config){0};
    enum status status = folder_check(folder, error);
    if (status != STATUS_OK)
        return status;
    char *path = path_join(folder, "config.json");
    char *generation_path = path_join(folder, "generation_config.json");
    struct file_map map = {0}, generation = {0};
    if (!path || !generation_path)
        status = error_no_memory(error, folder);
    if (status == STATUS_OK)
        status = map_small(path, &map, error);
    bool has_generation = generation_path && !file_is_absent(generation_path);
    if (status == STATUS_OK && has_generation)
        status = map_small(generation_path, &generation, error);
    const char *generation_json = generation.data ? (const char *)generation.data : "";
    if (status == STATUS_OK)
        status = config_parse(map.data ? (const char *)map.data : "", map.size, path,
                              has_generation ? generation_json : NULL, generation.size,
                              generation_path, config, error);
    file_map_close(&map);
    file_map_close(&generation);
    free(path);
    free(generation_path);
    return status;
}

void config_clear(struct config *config)
{
    json_decref(config->quantization);
    *config = (struct config){0};
}
