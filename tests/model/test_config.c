/* model/config: both shapes accepted, every field that changes the computation refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "model/config.h"

#define LARGE "tests/model/35b-a3b"
#define TINY "models/tiny"

static json_t *load(const char *folder, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_t *value = json_load_file(path, 0, NULL);
    assert_non_null(value);
    return value;
}

static enum status parse(const json_t *root, const char *generation, struct config *config,
                         struct error *error)
{
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    enum status status =
        config_parse(text, strlen(text), "config.json", generation,
                     generation ? strlen(generation) : 0, "generation_config.json", config, error);
    free(text);
    return status;
}

/* Sets "a.b.c" (names without dots but for modules, which are the last step) to a JSON value, or
 * removes it for NULL. */
static void edit(json_t *root, const char *path, const char *value)
{
    json_t *object = root;
    char step[80];
    const char *at = path;
    for (const char *dot; (dot = strchr(at, '.')) != NULL; at = dot + 1) {
        snprintf(step, sizeof step, "%.*s", (int)(dot - at), at);
        json_t *next = json_object_get(object, step);
        if (!json_is_object(next))
            break;
        object = next;
    }
    if (!value) {
        assert_int_equal(json_object_del(object, at), 0);
        return;
    }
    json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(parsed);
    json_object_set_new(object, at, parsed);
}

static void test_target(void **state)
{
    (void)state;
    char hex[SHA256_HEX_SIZE];
    struct error error;
    assert_int_equal(sha256_file(LARGE "/config.json", hex, NULL, NULL, &error), STATUS_OK);
    assert_string_equal(hex, "a822a9e48b0aafbe3144ec37d4fb067e178ed96615ce6e4420b3149893cc5767");
    assert_int_equal(sha256_file(LARGE "/generation_config.json", hex, NULL, NULL, &error),
                     STATUS_OK);
    assert_string_equal(hex, "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e");
    struct config config;
    assert_int_equal(config_open(LARGE, &config, &error), STATUS_OK);
    assert_ptr_equal(config.shape, &shape_35b_a3b);
    assert_int_equal(config.max_position_embeddings, 262144);
    assert_int_equal(config.n_stop_ids, 2);
    assert_int_equal(config.stop_ids[0], 248046);
    assert_int_equal(config.stop_ids[1], 248044);
    assert_true(config.do_sample);
    assert_true(config.temperature == 1.0 && config.top_p == 0.95 && config.top_k == 20);
    int bits = 0;
    assert_int_equal(config_bits(&config, "language_model.model.layers.39.mlp.gate", &bits, &error),
                     STATUS_OK);
    assert_int_equal(bits, 8);
    assert_int_equal(config_bits(&config, "language_model.lm_head", &bits, &error), STATUS_OK);
    assert_int_equal(bits, 4);
    config_clear(&config);
}

static void test_tiny(void **state)
{
    (void)state;
    struct config config;
    struct error error;
    assert_int_equal(config_open(TINY, &config, &error), STATUS_OK);
    assert_ptr_equal(config.shape, &shape_tiny);
    assert_int_equal(config.max_position_embeddings, 32768);
    assert_int_equal(config.n_stop_ids, 2);
    assert_int_equal(config.stop_ids[0], 4052);
    config_clear(&config);
}

/* Each edit of the target's config.json, and what the message must hold. The field is the path. */
static const struct refusal {
    const char *path, *value, *wanted;
} refusals[] = {
    {"model_type", "\"qwen3_moe\"", "found \"qwen3_moe\", wanted \"qwen3_5_moe\""},
    {"model_type", NULL, "found nothing"},
    {"architectures", "[\"LlamaForCausalLM\"]", "wanted [\"Qwen3_5MoeFor"},
    {"tie_word_embeddings", "true", "found true, wanted false"},
    {"text_config", "3", "wanted an object"},
    {"text_config.model_type", "\"qwen3_next\"", "wanted \"qwen3_5_moe_text\""},
    {"text_config.hidden_size", "4096",
     "found 4096, wanted 2048 (shape 35b-a3b) or 256 (shape "
     "tiny)"},
    {"text_config.hidden_size", "256", "found 256, wanted 2048 as in shape 35b-a3b"},
    {"text_config.hidden_size", "2048.0", "found 2048.0"},
    {"text_config.hidden_size", "\"2048\"", "found \"2048\""},
    {"text_config.hidden_size", NULL, "found nothing"},
    {"text_config.num_hidden_layers", "48", "found 48, wanted 40 (shape 35b-a3b) or 8"},
    {"text_config.vocab_size", "151936", "found 151936, wanted 248320 (shape 35b-a3b) or 4096"},
    {"text_config.num_attention_heads", "32", "found 32, wanted 16"},
    {"text_config.num_key_value_heads", "4", "found 4, wanted 2"},
    {"text_config.head_dim", "128", "found 128, wanted 256"},
    {"text_config.linear_num_key_heads", "8", "found 8, wanted 16 (shape 35b-a3b) or 4"},
    {"text_config.linear_num_value_heads", "64", "found 64, wanted 32 (shape 35b-a3b) or 8"},
    {"text_config.linear_key_head_dim", "64", "found 64, wanted 128"},
    {"text_config.linear_value_head_dim", "64", "found 64, wanted 128"},
    {"text_config.linear_conv_kernel_dim", "3", "found 3, wanted 4"},
    {"text_config.num_experts", "512", "found 512, wanted 256 (shape 35b-a3b) or 32"},
    {"text_config.num_experts_per_tok", "10", "found 10, wanted 8"},
    {"text_config.moe_intermediate_size", "768", "found 768, wanted 512 (shape 35b-a3b) or 128"},
    {"text_config.shared_expert_intermediate_size", "768", "found 768, wanted 512"},
    {"text_config.full_attention_interval", "2", "found 2, wanted 4"},
    {"text_config.layer_types", "[\"full_attention\"]", "wanted an array of 40 strings"},
    {"text_config.rms_norm_eps", "1e-05", "found 1e-05, wanted 1e-06"},
    {"text_config.rope_parameters.rope_theta", "10000", "found 10000, wanted 1e+07"},
    {"text_config.rope_parameters.partial_rotary_factor", "1.0", "found 1.0, wanted 0.25"},
    {"text_config.rope_parameters.rope_type", "\"yarn\"", "found \"yarn\", wanted \"default\""},
    {"text_config.rope_parameters.type", "\"linear\"", "wanted \"default\""},
    {"text_config.rope_parameters.mrope_interleaved", "false", "wanted true"},
    {"text_config.rope_parameters.mrope_section", "[24, 20, 20]", "wanted [11, 11, 10]"},
    {"text_config.rope_parameters", "[]", "wanted an object"},
    {"text_config.attn_output_gate", "false", "wanted true"},
    {"text_config.attention_bias", "true", "wanted false"},
    {"text_config.hidden_act", "\"gelu\"", "wanted \"silu\""},
    {"text_config.dtype", "\"float16\"", "wanted \"bfloat16\""},
    {"text_config.torch_dtype", "\"float16\"", "wanted \"bfloat16\""},
    {"text_config.mamba_ssm_dtype", "\"bfloat16\"", "wanted \"float32\""},
    {"text_config.tie_word_embeddings", "true", "wanted false"},
    {"text_config.norm_topk_prob", "false", "wanted true"},
    {"text_config.mlp_only_layers", "[0]", "wanted []"},
    {"text_config.decoder_sparse_step", "2", "wanted 1"},
    {"text_config.rope_scaling", "{\"type\": \"yarn\", \"factor\": 4.0}", "wanted null"},
    {"text_config.output_gate_type", "\"sigmoid\"", "wanted \"swish\""},
    {"text_config.max_position_embeddings", "0", "wanted a positive integer"},
    {"text_config.max_position_embeddings", "4294967296", "wanted a positive integer"},
    {"text_config.max_position_embeddings", NULL, "found nothing"},
    {"quantization", NULL, "found nothing, wanted an object: the checkpoint must be quantised"},
    {"quantization", "\"mxfp4\"", "wanted an object"},
    {"quantization.group_size", "32", "found 32, wanted 64"},
    {"quantization.bits", "3", "found 3, wanted 4"},
    {"quantization.bits", "8", "found 8, wanted 4"},
    {"quantization.mode", "\"mxfp4\"", "found \"mxfp4\", wanted \"affine\""},
    {"quantization.language_model.model.layers.7.mlp.gate", "{\"group_size\": 64, \"bits\": 6}",
     "\"bits\": 6"},
    {"quantization.language_model.model.layers.7.mlp.gate", "{\"group_size\": 32, \"bits\": 8}",
     "\"group_size\": 32"},
    {"quantization.language_model.lm_head", "false", "found false"},
    {"quantization.language_model.lm_head",
     "{\"group_size\": 64, \"bits\": 4, \"mode\": \"nvfp4\"}", "nvfp4"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *refusal = &refusals[i];
        json_t *root = load(LARGE, "config.json");
        edit(root, refusal->path, refusal->value);
        /* its copy must not be what is refused */
        if (strncmp(refusal->path, "quantization", 12) == 0)
            edit(root, "quantization_config", NULL);
        struct config config;
        struct error error = {.message = "accepted"};
        enum status status = parse(root, NULL, &config, &error);
        if (status != STATUS_INVALID || !strstr(error.message, refusal->path) ||
            !strstr(error.message, refusal->wanted) || strncmp(error.message, "config.json: ", 13))
            fail_msg("%s = %s: %s", refusal->path, refusal->value, error.message);
        assert_null(config.quantization);
        json_decref(root);
    }
}

static void test_layer_types(void **state)
{
    (void)state;
    json_t *root = load(TINY, "config.json");
    json_t *types = json_object_get(json_object_get(root, "text_config"), "layer_types");
    json_array_set_new(types, 3, json_string("linear_attention"));
    struct config config;
    struct error error;
    assert_int_equal(parse(root, NULL, &config, &error), STATUS_INVALID);
    assert_string_equal(error.message, "config.json: text_config.layer_types[3]: found "
                                       "\"linear_attention\", wanted \"full_attention\"");
    edit(root, "text_config.layer_types", NULL);
    assert_int_equal(parse(root, NULL, &config, &error), STATUS_OK);
    config_clear(&config);
    edit(root, "text_config.full_attention_interval", NULL);
    assert_int_equal(parse(root, NULL, &config, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "layer_types: found nothing"));
    json_decref(root);
}

/* Edits that leave the computation as it is. */
static const struct refusal accepted[] = {
    {"architectures", NULL, ""},
    {"vision_config", NULL, ""},
    {"vision_config.hidden_size", "1", ""},
    {"image_token_id", "1", ""},
    {"transformers_version", "\"9\"", ""},
    {"quantization_config", NULL, ""},
    {"quantization_config", "null", ""},
    {"quantization.mode", NULL, ""},
    {"quantization.vision_tower.x", "{\"group_size\": 32, \"bits\": 3}", ""},
    {"quantization.language_model.lm_head", "{}", ""},
    {"quantization.language_model.lm_head", "true", ""},
    {"text_config.attention_dropout", "0.5", ""},
    {"text_config.initializer_range", "0.5", ""},
    {"text_config.router_aux_loss_coef", "0.5", ""},
    {"text_config.use_cache", "false", ""},
    {"text_config.mtp_num_hidden_layers", "0", ""},
    {"text_config.max_position_embeddings", "1000", ""},
    {"text_config.intermediate_size", "5632", ""},
    {"text_config.norm_topk_prob", "true", ""},
    {"text_config.mlp_only_layers", "[]", ""},
    {"text_config.decoder_sparse_step", "1", ""},
    {"text_config.rope_scaling", "null", ""},
    {"text_config.output_gate_type", "\"swish\"", ""},
    {"text_config.attn_output_gate", NULL, ""},
    {"text_config.partial_rotary_factor", NULL, ""},
    {"text_config.rope_theta", "10000", ""}, /* rope_parameters comes first */
    {"text_config.rope_parameters.rope_theta", "1e7", ""},
    {"text_config.rope_parameters.partial_rotary_factor", NULL, ""}, /* then the text config */
};

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        json_t *root = load(LARGE, "config.json");
        edit(root, accepted[i].path, accepted[i].value);
        if (strncmp(accepted[i].path, "quantization.", 13) == 0)
            edit(root, "quantization_config", NULL);
        struct config config;
        struct error error;
        if (parse(root, NULL, &config, &error) != STATUS_OK)
            fail_msg("%s = %s: %s", accepted[i].path, accepted[i].value, error.message);
        assert_ptr_equal(config.shape, &shape_35b_a3b);
        config_clear(&config);
        json_decref(root);
    }
}

/* A root that is the text config itself, with the old places of the rope's numbers. */
static void test_text_root(void **state)
{
    (void)state;
    json_t *root = load(TINY, "config.json");
    json_t *text = json_deep_copy(json_object_get(root, "text_config"));
    json_object_set(text, "quantization", json_object_get(root, "quantization"));
    json_object_del(text, "rope_parameters");
    json_object_set_new(text, "rope_theta", json_integer(10000000));
    struct config config;
    struct error error;
    assert_int_equal(parse(text, NULL, &config, &error), STATUS_OK);
    assert_ptr_equal(config.shape, &shape_tiny);
    assert_int_equal(config.n_stop_ids, 0); /* its eos_token_id is not what ends a turn */
    config_clear(&config);
    json_object_set_new(text, "rope_theta", json_integer(10000));
    assert_int_equal(parse(text, NULL, &config, &error), STATUS_INVALID);
    assert_string_equal(error.message, "config.json: rope_theta: found 10000, wanted 1e+07");
    json_object_del(text, "rope_theta");
    assert_int_equal(parse(text, NULL, &config, &error), STATUS_INVALID);
    assert_string_equal(error.message, "config.json: rope_theta: found nothing, wanted 1e+07");
    json_decref(text);
    json_decref(root);
}

static void test_copy_differs(void **state)
{
    (void)state;
    static const struct refusal copies[] = {
        {"quantization_config.bits", "8", "quantization_config.bits: found 8"},
        {"quantization_config.mode", NULL, "quantization_config.mode: found nothing"},
        {"quantization_config.x", "1", "quantization_config.x: found 1, wanted nothing"},
        {"quantization_config", "5", "quantization_config"},
    };
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        json_t *root = load(TINY, "config.json");
        edit(root, copies[i].path, copies[i].value);
        struct config config;
        struct error error = {.message = "accepted"};
        if (parse(root, NULL, &config, &error) != STATUS_INVALID ||
            !strstr(error.message, copies[i].wanted))
            fail_msg("%s: %s", copies[i].path, error.message);
        json_decref(root);
    }
}

static void test_bits(void **state)
{
    (void)state;
    json_t *root = load(TINY, "config.json");
    edit(root, "quantization_config", NULL);
    edit(root, "quantization.language_model.lm_head", "{\"group_size\": 64}");
    edit(root, "quantization.language_model.mtp.fc", "{\"bits\": \"many\"}");
    struct config config;
    struct error error;
    assert_int_equal(parse(root, NULL, &config, &error), STATUS_OK);
    int bits = 0;
    assert_int_equal(config_bits(&config, "language_model.lm_head", &bits, &error), STATUS_OK);
    assert_int_equal(bits, 4);
    assert_int_equal(config_bits(&config, "language_model.mtp.fc", &bits, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "language_model.mtp.fc"));
    config_clear(&config);
    json_decref(root);
}

static void test_generation(void **state)
{
    (void)state;
    static const struct {
        const char *text, *refused; /* NULL: accepted */
        int n_stop_ids, first;
        bool do_sample;
        double temperature, top_p;
        int top_k;
    } cases[] = {
        {"{}", NULL, 2, 4052, true, 1.0, 0.95, 20},
        {"{\"eos_token_id\": null, \"top_k\": null}", NULL, 2, 4052, true, 1.0, 0.95, 20},
        {"{\"eos_token_id\": 7}", NULL, 1, 7, true, 1.0, 0.95, 20},
        {"{\"eos_token_id\": [1, 2, 3], \"do_sample\": false, \"temperature\": 0.5, \"top_p\": 1, "
         "\"top_k\": 0}",
         NULL, 3, 1, false, 0.5, 1.0, 0},
        {"{\"eos_token_id\": 4096}", "eos_token_id: found 4096, wanted a token id, 0 to 4095", 0, 0,
         0, 0, 0, 0},
        {"{\"eos_token_id\": [1, -1]}", "eos_token_id: found -1", 0, 0, 0, 0, 0, 0},
        {"{\"eos_token_id\": \"<|im_end|>\"}", "eos_token_id", 0, 0, 0, 0, 0, 0},
        {"{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "at most 16", 0, 0, 0,
         0, 0, 0},
        {"{\"temperature\": -1}", "temperature: found -1", 0, 0, 0, 0, 0, 0},
        {"{\"temperature\": \"hot\"}", "temperature: found \"hot\"", 0, 0, 0, 0, 0, 0},
        {"{\"top_p\": 1.5}", "top_p: found 1.5, wanted a number, 1e-09 to 1", 0, 0, 0, 0, 0, 0},
        {"{\"top_p\": 0}", "top_p: found 0, wanted a number, 1e-09 to 1", 0, 0, 0, 0, 0, 0},
        {"{\"top_k\": 2.5}", "top_k: found 2.5, wanted an integer", 0, 0, 0, 0, 0, 0},
        {"{\"top_k\": -1}", "top_k: found -1", 0, 0, 0, 0, 0, 0},
        {"{\"do_sample\": 1}", "do_sample: found 1", 0, 0, 0, 0, 0, 0},
        {"[]", "generation_config.json: wanted a JSON object", 0, 0, 0, 0, 0, 0},
        {"", "generation_config.json: not JSON", 0, 0, 0, 0, 0, 0},
    };
    json_t *root = load(TINY, "config.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct error error = {.message = "accepted"};
        enum status status = parse(root, cases[i].text, &config, &error);
        if (cases[i].refused) {
            if (status != STATUS_INVALID || !strstr(error.message, cases[i].refused))
                fail_msg("%s: %s", cases[i].text, error.message);
            continue;
        }
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(config.n_stop_ids, cases[i].n_stop_ids);
        assert_int_equal(config.stop_ids[0], cases[i].first);
        assert_int_equal(config.do_sample, cases[i].do_sample);
        assert_true(config.temperature == cases[i].temperature);
        assert_true(config.top_p == cases[i].top_p);
        assert_int_equal(config.top_k, cases[i].top_k);
        config_clear(&config);
    }
    edit(root, "eos_token_id", NULL);
    struct config config;
    struct error error;
    assert_int_equal(parse(root, NULL, &config, &error), STATUS_OK);
    assert_int_equal(config.n_stop_ids, 0); /* never the text config's 4050 alone */
    config_clear(&config);
    json_decref(root);
}

static void test_not_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{\"model_type\": 1, \"model_type\": 2}",
                                        "{\"text_config\": {}} x",
                                        "\xff",
                                        "{}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct config config;
        struct error error;
        assert_int_equal(
            config_parse(texts[i], strlen(texts[i]), "config.json", NULL, 0, "", &config, &error),
            STATUS_INVALID);
        assert_int_equal(strncmp(error.message, "config.json: ", 13), 0);
    }
}

static void test_paths(void **state)
{
    (void)state;
    struct config config;
    struct error error;
    assert_int_equal(config_open("does/not/exist", &config, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "does/not/exist"));
    assert_int_equal(config_open("Makefile", &config, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "Makefile: found a file, wanted the folder"));
    assert_int_equal(config_open("src", &config, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "src: found no config.json, only backend, base, cli, "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target),       cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_layer_types),
        cmocka_unit_test(test_accepted),     cmocka_unit_test(test_text_root),
        cmocka_unit_test(test_copy_differs), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_generation),   cmocka_unit_test(test_not_json),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
