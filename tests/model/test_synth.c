#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "model/quant.h"
#include "model/synth.h"

#define N_TOKENS 64
#define MAX_EXPERTS 256

static struct synth *open_synth(const struct shape *shape, uint64_t seed, int n_threads)
{
    struct synth *synth = NULL;
    struct error error;
    if (synth_open(shape, seed, n_threads, &synth, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return synth;
}

/* The first tensor's bytes; the others follow without gaps. */
static const unsigned char *data_of(const struct synth *synth)
{
    return synth_weights(synth)->embed_tokens.weight;
}

static void test_same_seed_same_bytes(void **state)
{
    (void)state;
    struct synth *one = open_synth(&shape_tiny, 7, 1), *two = open_synth(&shape_tiny, 7, 3);
    struct synth *other = open_synth(&shape_tiny, 8, 0);
    size_t size = (size_t)synth_bytes(one);
    assert_int_equal(size, weights_bytes(synth_weights(one)));
    assert_memory_equal(data_of(one), data_of(two), size);
    const struct synth_tensor *tensors;
    int n, equal = 0;
    tensors = synth_tensors(one, &n);
    assert_int_equal(n, 6 * (3 * 13 + 6) + 2 * (3 * 12 + 4) + 2 * 3 + 1);
    for (int i = 0; i < n; i++)
        equal += memcmp(data_of(one) + tensors[i].offset, data_of(other) + tensors[i].offset,
                        (size_t)tensors[i].size) == 0;
    assert_int_equal(equal, 0);
    for (int i = 0; i < n; i++) /* no two alike within the model */
        for (int j = 0; j < i; j++)
            if (tensors[i].size == tensors[j].size)
                assert_memory_not_equal(data_of(one) + tensors[i].offset,
                                        data_of(one) + tensors[j].offset, (size_t)tensors[i].size);
    synth_close(one);
    synth_close(two);
    synth_close(other);
}

/* The vision tower stands before the others and changes none of them. */
static void test_vision(void **state)
{
    (void)state;
    struct synth *text, *both;
    assert_int_equal(synth_plan(&shape_35b_a3b, 7, false, &text, NULL), STATUS_OK);
    assert_int_equal(synth_plan(&shape_35b_a3b, 7, true, &both, NULL), STATUS_OK);
    int n_text, n_both;
    const struct synth_tensor *texts = synth_tensors(text, &n_text);
    const struct synth_tensor *all = synth_tensors(both, &n_both);
    assert_int_equal(n_both, 2090); /* spec 4.3 */
    assert_int_equal(n_both - n_text, 333);
    assert_int_equal(synth_bytes(both), 20401929952);
    assert_int_equal(synth_bytes(text), 19508787456);
    for (int i = 0; i < n_text; i++) {
        unsigned char left[30], right[30];
        const struct synth_tensor *tensor = &all[i + 333];
        assert_string_equal(texts[i].name, tensor->name);
        assert_int_equal(texts[i].size, tensor->size);
        synth_fill(text, texts[i].offset, 30, left);
        synth_fill(both, tensor->offset, 30, right);
        assert_memory_equal(left, right, 30);
    }
    synth_close(text);
    synth_close(both);
}

/* Every way to cut the bytes gives the same ones. */
static void test_any_range(void **state)
{
    (void)state;
    struct synth *synth = open_synth(&shape_tiny, 7, 2), *plan;
    assert_int_equal(synth_plan(&shape_tiny, 7, false, &plan, NULL), STATUS_OK);
    assert_null(synth_weights(plan)->embed_tokens.weight);
    assert_true(weights_bytes(synth_weights(plan)) > 20000000);
    const struct synth_tensor *tensors;
    int n;
    tensors = synth_tensors(plan, &n);
    unsigned char bytes[200];
    for (int i = 1; i < n; i++) { /* around each boundary, and beyond a small tensor */
        for (int before = 0; before < 20; before += 3) {
            for (int length = 1; length < 200; length += 33) {
                int64_t from = tensors[i].offset - before;
                memset(bytes, 0xAA, sizeof bytes);
                synth_fill(plan, from, length, bytes);
                assert_memory_equal(bytes, data_of(synth) + from, (size_t)length);
                assert_int_equal(bytes[length], 0xAA);
            }
        }
    }
    int64_t all = synth_bytes(plan);
    synth_fill(plan, all - 5, 5, bytes);
    assert_memory_equal(bytes, data_of(synth) + all - 5, 5);
    synth_close(synth);
    synth_close(plan);
}

/* Mean and deviation of a matrix; scales of both signs, each bias the middle of its codes. */
static void check_matrix(const struct quant_matrix *matrix, double std)
{
    int64_t rows = (int64_t)matrix->count * matrix->rows, groups = matrix->columns / GROUP_SIZE;
    double sum = 0, squares = 0;
    float *row = malloc(sizeof *row * (size_t)matrix->columns);
    assert_non_null(row);
    int64_t counted = rows < 2000 ? rows : 2000, negative = 0;
    for (int64_t r = 0; r < counted; r++) {
        quant_row_load(matrix, (int)(r / matrix->rows), (int)(r % matrix->rows), row);
        for (int c = 0; c < matrix->columns; c++) {
            sum += row[c];
            squares += (double)row[c] * row[c];
        }
        for (int64_t g = 0; g < groups; g++) {
            float scale = bf16_load(matrix->scales + (r * groups + g) * 2);
            float bias = bf16_load(matrix->biases + (r * groups + g) * 2);
            float middle = -scale * (float)((1 << matrix->bits) - 1) / 2;
            assert_true(fabsf(bias - middle) <= fabsf(middle) / 256);
            negative += scale < 0;
        }
    }
    free(row);
    double n = (double)counted * matrix->columns, found = sqrt(squares / n);
    double slack = 6 / sqrt(2 * n) + 2 / sqrt((double)(counted * groups));
    if (fabs(found / std - 1) > slack || fabs(sum / n) > std * 6 / sqrt(n) + std * 0.002)
        fail_msg("mean %g, deviation %g, wanted 0 and %g", sum / n, found, std);
    double share = (double)negative / (double)(counted * groups);
    assert_true(fabs(share - 0.5) < 3 / sqrt((double)(counted * groups)));
}

static void check_vector(const struct vector *vector, double low, double high)
{
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < vector->length; i++) {
        least = fmin(least, vector_load(vector, i));
        most = fmax(most, vector_load(vector, i));
    }
    assert_true(vector->length > 0 && least >= low && most <= high);
    assert_true(most - least > (high - low) * (vector->length < 100 ? 0.3 : 0.9));
}

static void test_ranges(void **state)
{
    (void)state;
    struct synth *synth = open_synth(&shape_tiny, 3, 0);
    const struct weights *w = synth_weights(synth);
    check_matrix(&w->embed_tokens, 1);
    check_matrix(&w->lm_head, 0.9 / 16);
    check_vector(&w->norm, 0.75, 1.25);
    for (int i = 0; i < shape_tiny.num_hidden_layers; i++) {
        const struct layer_weights *layer = &w->layers[i];
        check_vector(&layer->input_layernorm, 0.75, 1.25);
        check_vector(&layer->post_attention_layernorm, 0.75, 1.25);
        check_matrix(&layer->mlp.gate, 0.9 / 16);
        check_matrix(&layer->mlp.up_proj, 0.9 / 16);
        check_matrix(&layer->mlp.down_proj, 0.3 / sqrt(128));
        if (shape_is_full_attention(&shape_tiny, i)) {
            check_matrix(&layer->self_attn.q_proj, 0.9 / 16);
            check_matrix(&layer->self_attn.o_proj, 0.3 / 64);
            check_vector(&layer->self_attn.q_norm, 0.75, 1.25);
        } else {
            check_matrix(&layer->linear_attn.in_proj_a, 0.9 / 16);
            check_vector(&layer->linear_attn.conv1d, -0.55, 0.55);
            check_vector(&layer->linear_attn.A_log, 0.4, 2.8);
            check_vector(&layer->linear_attn.dt_bias, -6.5, -1.3);
            check_vector(&layer->linear_attn.norm, 0.75, 1.25);
        }
    }
    synth_close(synth);
}

/* What a step shows: which experts each layer's routers choose, and that all is finite. */
struct watch {
    int experts_per_token;
    bool used[MAX_LAYERS][MAX_EXPERTS];
    int n_finite;
    double largest_rms; /* of the residual stream */
};

static void mark_best(const float *logits, int n, int k, bool *used)
{
    bool taken[MAX_EXPERTS] = {false};
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        taken[best] = used[best] = true;
    }
}

static void see_tensor(void *context, const char *name, const float *values, int64_t rows,
                       int64_t columns)
{
    struct watch *watch = context;
    int layer = -1, end = 0;
    if (sscanf(name, "layer.%d.router%n", &layer, &end) == 1 && end > 0) {
        for (int64_t r = 0; r < rows; r++)
            mark_best(values + r * columns, (int)columns, watch->experts_per_token,
                      watch->used[layer]);
    } else if (sscanf(name, "layer.%d%n", &layer, &end) == 1 && name[end] == '\0') {
        double sum = 0;
        for (int64_t i = 0; i < rows * columns; i++)
            sum += (double)values[i] * values[i];
        watch->largest_rms = fmax(watch->largest_rms, sqrt(sum / (double)(rows * columns)));
        watch->n_finite += isfinite(sum) != 0;
    }
}

/* Reads 64 random tokens on ref; returns the fewest experts that any layer used. */
static int run_ref(const struct shape *shape, struct watch *watch)
{
    struct synth *synth = open_synth(shape, 1, 0);
    struct backend_options options = {.weights = synth_weights(synth),
                                      .n_valid_ids = shape->vocab_size,
                                      .context = N_TOKENS,
                                      .n_sequences = 1};
    struct backend *backend;
    struct sequence *sequence;
    struct ranked ranked;
    struct probe probe = {.tensor = see_tensor, .context = watch};
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)shape->vocab_size);
    *watch = (struct watch){.experts_per_token = shape->num_experts_per_tok};
    assert_int_equal(backend_ref.open(&options, &backend, NULL), STATUS_OK);
    assert_int_equal(backend_ref.sequence_new(backend, &sequence, NULL), STATUS_OK);
    backend_ref.set_probe(backend, &probe);
    assert_int_equal(backend_ref.prefill_chunk(backend, sequence, tokens, N_TOKENS, PREFILL_LAST,
                                               &ranked, NULL, NULL),
                     STATUS_OK);
    assert_true(isfinite(ranked.logsumexp) && isfinite(ranked.logit[0]));
    assert_true(ranked.logit[0] > ranked.logit[63] && ranked.logit[0] < 50);
    assert_int_equal(watch->n_finite, shape->num_hidden_layers);
    backend_ref.sequence_free(backend, sequence);
    backend_ref.close(backend);
    synth_close(synth);
    int fewest = MAX_EXPERTS;
    for (int i = 0; i < shape->num_hidden_layers; i++) {
        int used = 0;
        for (int e = 0; e < shape->num_experts; e++)
            used += watch->used[i][e];
        fewest = used < fewest ? used : fewest;
    }
    return fewest;
}

static void test_tiny_on_ref(void **state)
{
    (void)state;
    struct watch watch;
    assert_int_equal(run_ref(&shape_tiny, &watch), 32);
    assert_true(watch.largest_rms < 2);
}

/* As many layers and experts as the real shape has, narrower. */
static void test_deep_on_ref(void **state)
{
    (void)state;
    struct shape shape = shape_35b_a3b;
    shape.name = "deep";
    shape.vocab_size = 1024;
    shape.hidden_size = 512;
    shape.moe_intermediate_size = shape.shared_expert_intermediate_size = 64;
    shape.linear_num_key_heads = 2;
    shape.linear_num_value_heads = 4;
    shape.num_attention_heads = 4;
    struct watch watch;
    int fewest = run_ref(&shape, &watch);
    if (fewest < 200)
        fail_msg("%d of 256 experts used, wanted 200", fewest);
    assert_true(watch.largest_rms < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_bytes),
        cmocka_unit_test(test_vision),
        cmocka_unit_test(test_any_range),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_tiny_on_ref),
        cmocka_unit_test(test_deep_on_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
