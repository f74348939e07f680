#include "model/synth_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_LIMIT ((int64_t)5 << 30)

void synth_cut(const struct synth *synth, struct synth_layout *layout)
{
    int n;
    const struct synth_tensor *tensors = synth_tensors(synth, &n);
    int64_t bytes = synth_bytes(synth), limit = bytes > SHARD_LIMIT ? SHARD_LIMIT : bytes / 5 * 3;
    *layout = (struct synth_layout){.n = 1};
    struct synth_shard *shard = layout->shards;
    for (int i = 0; i < n; i++) {
        if (shard->n > 0 && shard->size + tensors[i].size > limit && layout->n < SYNTH_MAX_SHARDS) {
            layout->n++;
            *++shard = (struct synth_shard){.first = i, .from = tensors[i].offset};
        }
        shard->n++;
        shard->size += tensors[i].size;
    }
    for (int i = 0; i < layout->n; i++)
        snprintf(layout->shards[i].name, sizeof layout->shards[i].name,
                 "model-%05d-of-%05d.safetensors", i + 1, layout->n);
}

/* ---- lists of tensors ------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    const struct synth_tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* The tensors of a range by name; NULL, and `out` failed, when memory runs out. Freed by caller. */
static const struct synth_tensor **sorted(const struct synth *synth, int first, int n,
                                          struct bytes *out)
{
    int all;
    const struct synth_tensor *tensors = synth_tensors(synth, &all);
    const struct synth_tensor **list = malloc((size_t)n * sizeof(const struct synth_tensor *));
    if (!list) {
        out->failed = true;
        return NULL;
    }
    for (int i = 0; i < n; i++)
        list[i] = &tensors[first + i];
    qsort(list, (size_t)n, sizeof *list, by_name);
    return list;
}

void synth_shard_header(const struct synth *synth, const struct synth_shard *shard,
                        struct bytes *out)
{
    size_t start = out->length;
    bytes_append(out, "\0\0\0\0\0\0\0\0", 8);
    const struct synth_tensor **list = sorted(synth, shard->first, shard->n, out);
    if (!list)
        return;
    bytes_append_text(out, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (int i = 0; i < shard->n; i++) {
        int64_t offset = list[i]->offset - shard->from;
        bytes_format(out, ",\"%s\":{\"data_offsets\":[%" PRId64 ",%" PRId64 "],\"dtype\":\"%s\"",
                     list[i]->name, offset, offset + list[i]->size, list[i]->dtype);
        for (int d = 0; d < list[i]->n_dims; d++)
            bytes_format(out, "%s%" PRId64, d ? "," : ",\"shape\":[", list[i]->dims[d]);
        bytes_append_text(out, "]}");
    }
    bytes_append_text(out, "}");
    free(list);
    for (int i = 0; i < 8 && !out->failed; i++)
        out->data[start + (size_t)i] = (char)((out->length - start - 8) >> 8 * i);
}

void synth_index(const struct synth *synth, const struct synth_layout *layout, struct bytes *out)
{
    int n, shard = 0;
    const struct synth_tensor *tensors = synth_tensors(synth, &n);
    const struct synth_tensor **list = sorted(synth, 0, n, out);
    if (!list)
        return;
    bytes_format(out,
                 "{\n    \"metadata\": {\n        \"total_size\": %" PRId64
                 "\n    },\n    \"weight_map\": {",
                 synth_bytes(synth));
    for (int i = 0; i < n; i++) {
        int at = (int)(list[i] - tensors);
        for (shard = layout->n - 1; at < layout->shards[shard].first;)
            shard--;
        bytes_format(out, "%s\n        \"%s\": \"%s\"", i ? "," : "", list[i]->name,
                     layout->shards[shard].name);
    }
    bytes_append_text(out, "\n    }\n}");
    free(list);
}

/* ---- configuration (spec 1.1, 1.2, 7.1) ------------------------------------------------------ */

static const struct {
    const struct shape *shape;
    int first_added_id;
    int max_positions;
} tokens[] = {{&shape_35b_a3b, 248044, 262144}, {&shape_tiny, 4050, 32768}};

int32_t synth_first_added_id(const struct shape *shape)
{
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (tokens[i].shape == shape)
            return tokens[i].first_added_id;
    return -1;
}

static int max_positions(const struct shape *shape)
{
    return shape == tokens[0].shape ? tokens[0].max_positions : tokens[1].max_positions;
}

/* The places of some added tokens, counted from the first. */
enum { IM_END = 2, VISION_START = 9, VISION_END = 10, IMAGE_PAD = 12, VIDEO_PAD = 13 };

static void quantization(const struct shape *shape, const char *key, struct bytes *out)
{
    bytes_format(out,
                 "    \"%s\": {\n"
                 "        \"group_size\": %d,\n"
                 "        \"bits\": 4,\n"
                 "        \"mode\": \"affine\"",
                 key, GROUP_SIZE);
    for (int i = 0; i < 2 * shape->num_hidden_layers; i++)
        bytes_format(out,
                     ",\n        \"language_model.model.layers.%d.mlp.%s\": {\n"
                     "            \"group_size\": %d,\n"
                     "            \"bits\": 8\n"
                     "        }",
                     i / 2, i % 2 ? "shared_expert_gate" : "gate", GROUP_SIZE);
    bytes_append_text(out, "\n    },\n");
}

static void text_config(const struct shape *shape, struct bytes *out)
{
    int first = synth_first_added_id(shape);
    bytes_format(out,
                 "    \"text_config\": {\n"
                 "        \"attention_bias\": false,\n"
                 "        \"attention_dropout\": 0.0,\n"
                 "        \"attn_output_gate\": true,\n"
                 "        \"bos_token_id\": %d,\n"
                 "        \"dtype\": \"bfloat16\",\n"
                 "        \"eos_token_id\": %d,\n"
                 "        \"full_attention_interval\": %d,\n"
                 "        \"head_dim\": %d,\n"
                 "        \"hidden_act\": \"silu\",\n"
                 "        \"hidden_size\": %d,\n"
                 "        \"initializer_range\": 0.02,\n"
                 "        \"layer_types\": [",
                 first, first, shape->full_attention_interval, shape->head_dim, shape->hidden_size);
    for (int i = 0; i < shape->num_hidden_layers; i++)
        bytes_format(out, "%s\n            \"%s_attention\"", i ? "," : "",
                     shape_is_full_attention(shape, i) ? "full" : "linear");
    bytes_format(out,
                 "\n        ],\n"
                 "        \"linear_conv_kernel_dim\": %d,\n"
                 "        \"linear_key_head_dim\": %d,\n"
                 "        \"linear_num_key_heads\": %d,\n"
                 "        \"linear_num_value_heads\": %d,\n"
                 "        \"linear_value_head_dim\": %d,\n"
                 "        \"mamba_ssm_dtype\": \"float32\",\n"
                 "        \"max_position_embeddings\": %d,\n"
                 "        \"model_type\": \"qwen3_5_moe_text\",\n"
                 "        \"moe_intermediate_size\": %d,\n"
                 "        \"mtp_num_hidden_layers\": 1,\n"
                 "        \"mtp_use_dedicated_embeddings\": false,\n"
                 "        \"num_attention_heads\": %d,\n"
                 "        \"num_experts\": %d,\n"
                 "        \"num_experts_per_tok\": %d,\n"
                 "        \"num_hidden_layers\": %d,\n"
                 "        \"num_key_value_heads\": %d,\n",
                 shape->linear_conv_kernel_dim, shape->linear_key_head_dim,
                 shape->linear_num_key_heads, shape->linear_num_value_heads,
                 shape->linear_value_head_dim, max_positions(shape), shape->moe_intermediate_size,
                 shape->num_attention_heads, shape->num_experts, shape->num_experts_per_tok,
                 shape->num_hidden_layers, shape->num_key_value_heads);
    double rotary = (double)shape->rotary_dims / shape->head_dim;
    bytes_format(out,
                 "        \"output_router_logits\": false,\n"
                 "        \"pad_token_id\": null,\n"
                 "        \"partial_rotary_factor\": %g,\n"
                 "        \"rms_norm_eps\": %g,\n"
                 "        \"rope_parameters\": {\n"
                 "            \"mrope_interleaved\": true,\n"
                 "            \"mrope_section\": [\n"
                 "                11,\n"
                 "                11,\n"
                 "                10\n"
                 "            ],\n"
                 "            \"partial_rotary_factor\": %g,\n"
                 "            \"rope_theta\": %.0f,\n"
                 "            \"rope_type\": \"default\"\n"
                 "        },\n"
                 "        \"router_aux_loss_coef\": 0.001,\n"
                 "        \"shared_expert_intermediate_size\": %d,\n"
                 "        \"tie_word_embeddings\": false,\n"
                 "        \"use_cache\": true,\n"
                 "        \"vocab_size\": %d\n"
                 "    },\n",
                 rotary, shape->rms_norm_eps, rotary, shape->rope_theta,
                 shape->shared_expert_intermediate_size, shape->vocab_size);
}

static void vision_config(const struct synth_vision *vision, int out_hidden_size, struct bytes *out)
{
    bytes_format(out,
                 "    \"vision_config\": {\n"
                 "        \"deepstack_visual_indexes\": [],\n"
                 "        \"depth\": %d,\n"
                 "        \"hidden_act\": \"gelu_pytorch_tanh\",\n"
                 "        \"hidden_size\": %d,\n"
                 "        \"in_channels\": 3,\n"
                 "        \"initializer_range\": 0.02,\n"
                 "        \"intermediate_size\": %d,\n"
                 "        \"model_type\": \"qwen3_5_moe\",\n"
                 "        \"num_heads\": %d,\n"
                 "        \"num_position_embeddings\": %d,\n"
                 "        \"out_hidden_size\": %d,\n"
                 "        \"patch_size\": 16,\n"
                 "        \"spatial_merge_size\": 2,\n"
                 "        \"temporal_patch_size\": 2\n"
                 "    },\n",
                 vision->depth, vision->hidden_size, vision->intermediate_size, vision->num_heads,
                 vision->num_position_embeddings, out_hidden_size);
}

void synth_config(const struct synth *synth, struct bytes *out)
{
    const struct shape *shape = synth_shape(synth);
    int first = synth_first_added_id(shape);
    bytes_format(out,
                 "{\n"
                 "    \"architectures\": [\n"
                 "        \"Qwen3_5MoeForConditionalGeneration\"\n"
                 "    ],\n"
                 "    \"eos_token_id\": [\n"
                 "        %d,\n"
                 "        %d\n"
                 "    ],\n"
                 "    \"image_token_id\": %d,\n"
                 "    \"model_type\": \"qwen3_5_moe\",\n",
                 first + IM_END, first, first + IMAGE_PAD);
    quantization(shape, "quantization", out);
    quantization(shape, "quantization_config", out);
    text_config(shape, out);
    bytes_format(out,
                 "    \"tie_word_embeddings\": false,\n"
                 "    \"transformers_version\": \"4.57.1\",\n"
                 "    \"video_token_id\": %d,\n",
                 first + VIDEO_PAD);
    if (synth_vision(synth))
        vision_config(synth_vision(synth), shape->hidden_size, out);
    bytes_format(out,
                 "    \"vision_end_token_id\": %d,\n"
                 "    \"vision_start_token_id\": %d\n"
                 "}",
                 first + VISION_END, first + VISION_START);
}

void synth_generation_config(const struct synth *synth, struct bytes *out)
{
    int first = synth_first_added_id(synth_shape(synth));
    bytes_format(out,
                 "{\n"
                 "    \"bos_token_id\": %d,\n"
                 "    \"do_sample\": true,\n"
                 "    \"eos_token_id\": [\n"
                 "        %d,\n"
                 "        %d\n"
                 "    ],\n"
                 "    \"pad_token_id\": %d,\n"
                 "    \"temperature\": 1.0,\n"
                 "    \"top_k\": 20,\n"
                 "    \"top_p\": 0.95\n"
                 "}\n",
                 first, first + IM_END, first, first);
}

/* Twice in the file, once inside an object. */
static void special_tokens(const char *indent, const char *const (*pairs)[2], int n,
                           const char *last, struct bytes *out)
{
    for (int i = 0; i < n; i++)
        bytes_format(out, "%s\"%s\": \"%s\"%s", indent, pairs[i][0], pairs[i][1],
                     i < n - 1 ? ",\n" : last);
}

void synth_tokenizer_config(const struct synth *synth, struct bytes *out)
{
    static const char *const pairs[7][2] = {
        {"audio_bos_token", "<|audio_start|>"}, {"audio_eos_token", "<|audio_end|>"},
        {"audio_token", "<|audio_pad|>"},       {"image_token", "<|image_pad|>"},
        {"video_token", "<|video_pad|>"},       {"vision_bos_token", "<|vision_start|>"},
        {"vision_eos_token", "<|vision_end|>"},
    };
    bytes_append_text(out, "{\n  \"add_prefix_space\": false,\n");
    special_tokens("  ", pairs, 3, ",\n", out);
    bytes_append_text(out, "  \"backend\": \"tokenizers\",\n"
                           "  \"bos_token\": null,\n"
                           "  \"clean_up_tokenization_spaces\": false,\n"
                           "  \"eos_token\": \"<|im_end|>\",\n"
                           "  \"errors\": \"replace\",\n");
    special_tokens("  ", pairs + 3, 1, ",\n", out);
    bytes_format(out,
                 "  \"is_local\": true,\n"
                 "  \"model_max_length\": %d,\n"
                 "  \"model_specific_special_tokens\": {\n",
                 max_positions(synth_shape(synth)));
    special_tokens("    ", pairs, 7, "\n  },\n", out);
    bytes_append_text(
        out, "  \"pad_token\": \"<|endoftext|>\",\n"
             "  \"pretokenize_regex\": "
             "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|"
             "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
             "\\\\s+(?!\\\\S)|\\\\s+\",\n"
             "  \"processor_class\": \"Qwen3VLProcessor\",\n"
             "  \"split_special_tokens\": false,\n"
             "  \"tokenizer_class\": \"TokenizersBackend\",\n"
             "  \"unk_token\": null,\n");
    special_tokens("  ", pairs + 4, 3, "\n}\n", out);
}
