/* The float32 operations of every table of the cpu backend against the reference's ops of the same
 * name and double arithmetic, on the same inputs. Tolerances are in units of float32's last place
 * (2^-24) of the sizes that were added up. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef BACKEND_CPU
#include "backend/ref/ops.h"
#include "support/cpu_levels.h"

#define CANARY -12345.0f
#define EPSILON 0x1p-24

static struct vector float_vector(const float *values, int64_t n)
{
    return (struct vector){(const unsigned char *)values, n, 4};
}

static void fill(float *x, int n, float size)
{
    for (int i = 0; i < n; i++)
        x[i] = random_float() * size;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void test_rms_norm(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    static const int lengths[] = {64, 128, 256, 2048};
    static const float sizes[] = {1, 1e-4f, 1e4f, 1e-25f, 1e15f};
    struct worst worst = {0};
    for (int l = 0; l < 4; l++)
        for (int s = 0; s < 5; s++) {
            int n = lengths[l];
            float x[2048], weight[2048], y[2049], wanted[2048];
            fill(x, n, sizes[s]);
            fill(weight, n, 2);
            y[n] = CANARY;
            k->rms_norm(x, weight, n, 1e-6f, y);
            struct vector vector = float_vector(weight, n);
            ref_rms_norm(x, &vector, n, 1e-6f, wanted);
            for (int i = 0; i < n; i++)
                check_near(&worst, (double)y[i], (double)wanted[i],
                           fabs((double)wanted[i]) * 16 * EPSILON, "%d values of %g: %d", n,
                           (double)sizes[s], i);
            assert_true(y[n] == CANARY);
            k->rms_norm(x, weight, n, 1e-6f, x); /* in place */
            assert_memory_equal(x, y, (size_t)n * sizeof *x);
        }
    worst_report(&worst, "rms_norm");
}

static void test_l2_norm(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    static const float sizes[] = {0, 1e-4f, 1, 1e10f};
    struct worst worst = {0};
    for (int s = 0; s < 4; s++) {
        float x[LINEAR_HEAD_DIM + 1], wanted[LINEAR_HEAD_DIM];
        fill(x, LINEAR_HEAD_DIM, sizes[s]);
        memcpy(wanted, x, sizeof wanted);
        x[LINEAR_HEAD_DIM] = CANARY;
        k->l2_norm(x, LINEAR_HEAD_DIM, 0.25f);
        ref_l2_norm(wanted, LINEAR_HEAD_DIM, 0.25f);
        for (int i = 0; i < LINEAR_HEAD_DIM; i++)
            check_near(&worst, (double)x[i], (double)wanted[i],
                       fabs((double)wanted[i]) * 16 * EPSILON, "values of %g: %d", (double)sizes[s],
                       i);
        assert_true(x[LINEAR_HEAD_DIM] == CANARY);
    }
    worst_report(&worst, "l2_norm");
}

/* A NaN anywhere makes all of a norm's output NaN. */
static void test_norms_spread_nan(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    enum { N = LINEAR_HEAD_DIM };
    for (int place = 0; place < N; place++) {
        float x[3][N], ones[N];
        for (int i = 0; i < N; i++)
            ones[i] = 1;
        for (int i = 0; i < 3; i++) {
            fill(x[i], N, 1);
            x[i][place] = NAN;
        }
        k->rms_norm(x[0], ones, N, 1e-6f, x[0]);
        k->l2_norm(x[1], N, 1);
        k->gated_norm(x[2], ones, ones, N, 1e-6f);
        for (int i = 0; i < 3 * N; i++)
            assert_true(isnan(x[i / N][i % N]));
    }
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* x at the extremes and between them; `n` of them, a multiple of 16. */
static void fill_gates(float *x, int n)
{
    static const float extremes[] = {100, -100, 0, -0.0f, 88, -88, 87.3f, -87.3f, 1e-20f, -1e30f};
    for (int i = 0; i < n; i++)
        x[i] = i < 10 ? extremes[i] : i < n / 2 ? random_float() * 100 : random_float() * 4;
}

/* sigmoid is no smaller than 4.5e-39, so what it gates keeps as much. */
static double gate_tolerance(double wanted, double gated)
{
    return fabs(wanted) * 12 * EPSILON + fabs(gated) * 5e-39 + 1e-37;
}

static void test_gates(void **state)
{
    enum { N = 512 };
    const struct kernels *k = LEVEL(state)->kernels;
    struct worst worst[3] = {{0}};
    float gate[N], x[N], weight[N], found[N + 1], normed[N];
    fill_gates(gate, N);
    fill(x, N, 3);
    fill(weight, N, 2);
    found[N] = CANARY;

    memcpy(found, gate, sizeof gate);
    k->swiglu(found, x, N);
    for (int i = 0; i < N; i++) {
        double wanted = (double)gate[i] * sigmoid((double)gate[i]) * (double)x[i];
        check_near(&worst[0], (double)found[i], wanted,
                   gate_tolerance(wanted, (double)gate[i] * (double)x[i]), "silu(%g) * %g",
                   (double)gate[i], (double)x[i]);
    }
    memcpy(found, x, sizeof x);
    k->sigmoid_gate(found, gate, N);
    for (int i = 0; i < N; i++) {
        double wanted = sigmoid((double)gate[i]) * (double)x[i];
        check_near(&worst[1], (double)found[i], wanted, gate_tolerance(wanted, (double)x[i]),
                   "sigmoid(%g) * %g", (double)gate[i], (double)x[i]);
    }
    memcpy(found, x, sizeof x);
    k->gated_norm(found, weight, gate, N, 1e-6f);
    struct vector vector = float_vector(weight, N);
    ref_rms_norm(x, &vector, N, 1e-6f, normed);
    for (int i = 0; i < N; i++) {
        double wanted = (double)normed[i] * (double)gate[i] * sigmoid((double)gate[i]);
        check_near(&worst[2], (double)found[i], wanted,
                   3 * gate_tolerance(wanted, (double)normed[i] * (double)gate[i]),
                   "gated_norm at %g", (double)gate[i]);
    }
    assert_true(found[N] == CANARY);
    worst_report(&worst[0], "swiglu");
    worst_report(&worst[1], "sigmoid_gate");
    worst_report(&worst[2], "gated_norm");
}

/* NaN in the gate or in what is gated comes out as NaN, there and nowhere else. */
static void test_gates_keep_nan(void **state)
{
    enum { N = 64 };
    const struct kernels *k = LEVEL(state)->kernels;
    for (int place = 0; place < N; place++)
        for (int side = 0; side < 2; side++) {
            float x[N], gate[N];
            for (int way = 0; way < 2; way++) {
                fill(x, N, 3);
                fill(gate, N, 3);
                (side ? x : gate)[place] = place % 2 ? NAN : -NAN;
                if (way)
                    k->swiglu(x, gate, N);
                else
                    k->sigmoid_gate(x, gate, N);
                for (int i = 0; i < N; i++)
                    assert_int_equal(isnan(x[i]) != 0, i == place);
            }
        }
}

static void test_add_scaled(void **state)
{
    enum { N = 192 };
    const struct kernels *k = LEVEL(state)->kernels;
    struct worst worst = {0};
    float x[N], y[N + 1], before[N];
    fill(x, N, 5);
    fill(before, N, 5);
    memcpy(y, before, sizeof before);
    y[N] = CANARY;
    k->add_scaled(y, -0.3f, x, N);
    for (int i = 0; i < N; i++)
        check_near(&worst, (double)y[i], (double)before[i] + (double)-0.3f * (double)x[i],
                   (fabs((double)before[i]) + 1.5) * 2 * EPSILON, "add_scaled %d", i);
    assert_true(y[N] == CANARY);
    k->add_scaled(before, 1, x, N); /* the residual stream: one rounding, as anywhere */
    k->add_scaled(before, 0, x, N);
    worst_report(&worst, "add_scaled");
}

/* ---- the sum of exponentials ----------------------------------------------------------------- */

static void test_sum_exp(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct worst worst = {0};
    for (int n = 1; n <= 1024; n = n < 70 ? n + 1 : n * 2 - 29) {
        size_t bytes = (size_t)n * sizeof(float);
        float *x = (float *)guarded_new(bytes, 0), max = -INFINITY;
        double wanted = 0;
        fill(x, n, n % 3 == 0 ? 200 : 10);
        for (int i = 0; i < n; i++)
            max = x[i] > max ? x[i] : max;
        for (int i = 0; i < n; i++)
            wanted += exp((double)x[i] - (double)max);
        check_near(&worst, k->sum_exp(x, n, max), wanted, wanted * 8 * EPSILON + 1e-30,
                   "sum_exp of %d", n);
        for (int place = 0; place < n; place++) {
            float kept = x[place];
            x[place] = NAN;
            assert_true(isnan(k->sum_exp(x, n, max)));
            x[place] = kept;
        }
        guarded_free((unsigned char *)x, bytes, 0);
    }
    worst_report(&worst, "sum_exp");
}

/* ---- convolution ----------------------------------------------------------------------------- */

static void test_conv(void **state)
{
    enum { CHANNELS = 96, X_STRIDE = 130, TAP_STRIDE = 112, STATE_STRIDE = 101, MOST = 65 };
    const struct kernels *k = LEVEL(state)->kernels;
    static float x[MOST * X_STRIDE], out[(MOST + 1) * CHANNELS];
    float taps[4 * TAP_STRIDE], by_channel[CHANNELS * 4], found[3 * STATE_STRIDE];
    float wanted[3 * CHANNELS];
    struct vector vector = float_vector(by_channel, CHANNELS * 4);
    struct worst worst = {0};
    fill(taps, 4 * TAP_STRIDE, 1);
    for (int c = 0; c < CHANNELS; c++)
        for (int tap = 0; tap < 4; tap++)
            by_channel[c * 4 + tap] = taps[tap * TAP_STRIDE + c];
    for (int i = 0; i < 3 * STATE_STRIDE; i++)
        found[i] = CANARY;
    fill(wanted, 3 * CHANNELS, 2);
    for (int i = 0; i < 3; i++)
        memcpy(found + i * STATE_STRIDE, wanted + i * CHANNELS, CHANNELS * sizeof *found);
    for (int n = 1; n <= MOST; n = n < 9 ? n + 1 : n * 2 - 1) { /* the state goes on */
        fill(x, MOST * X_STRIDE, n == 4 ? 60 : 2);
        for (int i = 0; i < (MOST + 1) * CHANNELS; i++)
            out[i] = CANARY;
        k->conv(x, X_STRIDE, n, taps, TAP_STRIDE, found, STATE_STRIDE, CHANNELS, out);
        for (int t = 0; t < n; t++) {
            float row[CHANNELS];
            memcpy(row, x + t * X_STRIDE, sizeof row);
            ref_conv_step(&vector, CHANNELS, wanted, row);
            double size = n == 4 || n == 5 ? 240 : 8; /* of four products */
            for (int c = 0; c < CHANNELS; c++)
                check_near(&worst, (double)out[t * CHANNELS + c], (double)row[c],
                           size * 8 * EPSILON, "token %d of %d, channel %d", t, n, c);
        }
        assert_true(out[n * CHANNELS] == CANARY);
        for (int i = 0; i < 3; i++) { /* the inputs themselves, and nothing beside them */
            assert_memory_equal(found + i * STATE_STRIDE, wanted + i * CHANNELS,
                                CHANNELS * sizeof *found);
            for (int c = CHANNELS; c < STATE_STRIDE; c++)
                assert_true(found[i * STATE_STRIDE + c] == CANARY);
        }
    }
    worst_report(&worst, "conv");
}

/* ---- attention ------------------------------------------------------------------------------- */

#define MAX_POSITIONS 1024

/* The keys and values of one KV head, in both forms. What is not there yet is no number. */
struct cache {
    int16_t keys[MAX_POSITIONS * HEAD_DIM], values[MAX_POSITIONS * HEAD_DIM];
    float key_scales[MAX_POSITIONS], value_scales[MAX_POSITIONS];
    float plain_keys[MAX_POSITIONS][HEAD_DIM], plain_values[MAX_POSITIONS][HEAD_DIM];
};

static void fill_cache(const struct kernels *k, struct cache *cache, int n, float size)
{
    memset(cache->keys, 0x7F, sizeof cache->keys);
    memset(cache->values, 0x7F, sizeof cache->values);
    memset(cache->key_scales, 0xFF, sizeof cache->key_scales);
    memset(cache->value_scales, 0xFF, sizeof cache->value_scales);
    for (int s = 0; s < n; s++) {
        float key[HEAD_DIM], value[HEAD_DIM];
        int16_t codes[HEAD_DIM];
        fill(key, HEAD_DIM, size);
        fill(value, HEAD_DIM, 3);
        cache->key_scales[s] = k->round_head(key, codes);
        cache->value_scales[s] = k->round_head(value, cache->values + s * HEAD_DIM);
        for (int d = 0; d < HEAD_DIM; d++) {
            cache->keys[(s / KV_BLOCK * HEAD_DIM + d) * KV_BLOCK + s % KV_BLOCK] = codes[d];
            cache->plain_keys[s][d] = (float)codes[d] * cache->key_scales[s];
            cache->plain_values[s][d] =
                (float)cache->values[s * HEAD_DIM + d] * cache->value_scales[s];
        }
    }
}

/* n positions, in blocks of `block` of them, which is a multiple of KV_BLOCK. */
static void check_attention(const struct kernels *k, const struct cache *cache, int n, int block,
                            float size, struct worst *worst)
{
    float queries[QUERIES][HEAD_DIM], scaled[QUERIES][HEAD_DIM];
    for (int q = 0; q < QUERIES; q++)
        for (int d = 0; d < HEAD_DIM; d++)
            scaled[q][d] = (queries[q][d] = random_float() * size) / 16;
    struct attention_state state = {.sum = {0}};
    for (int q = 0; q < QUERIES; q++)
        state.max[q] = -INFINITY;
    for (int from = 0; from < n; from += block) {
        struct kv_block kv = {cache->keys + from * HEAD_DIM, cache->values + from * HEAD_DIM,
                              cache->key_scales + from, cache->value_scales + from};
        k->attention_block(scaled[0], &kv, n - from < block ? n - from : block, &state);
    }
    for (int q = 0; q < QUERIES; q++) {
        float scores[MAX_POSITIONS], wanted[HEAD_DIM];
        const struct ref_rows keys = {cache->plain_keys[0], HEAD_DIM, NULL, 0};
        const struct ref_rows values = {cache->plain_values[0], HEAD_DIM, NULL, 0};
        ref_attention(queries[q], &keys, &values, n, HEAD_DIM, scores, wanted);
        /* a score's error is a part of the products it is made of; values are up to 3 */
        double score = 256 * (double)(size * size) / 16 / 4, tolerance = 3 * (score + 8) * EPSILON;
        for (int d = 0; d < HEAD_DIM; d++)
            check_near(worst, (double)(state.out[q][d] / state.sum[q]), (double)wanted[d],
                       4 * tolerance, "%d positions by %d, size %g, query %d", n, block,
                       (double)size, q);
    }
}

static void test_attention(void **state)
{
    const struct level *level = LEVEL(state);
    static const int lengths[] = {65, 79, 80, 81, 127, 128, 129, 192, 193, 1000};
    static const float sizes[] = {1, 0, 8};
    struct cache *cache = malloc(sizeof *cache);
    struct worst worst = {0};
    assert_non_null(cache);
    for (int s = 0; s < 3; s++) {
        for (int n = 1; n <= SCORE_BLOCK; n++) {
            fill_cache(level->kernels, cache, n, sizes[s]);
            check_attention(level->kernels, cache, n, SCORE_BLOCK, sizes[s], &worst);
        }
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            fill_cache(level->kernels, cache, lengths[l], sizes[s]);
            for (int block = KV_BLOCK; block <= SCORE_BLOCK; block += KV_BLOCK)
                check_attention(level->kernels, cache, lengths[l], block, sizes[s], &worst);
        }
    }
    free(cache);
    worst_report(&worst, "attention_block");
}

/* A key or value that is no number does not vanish. */
static void test_attention_keeps_nan(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct cache *cache = malloc(sizeof *cache);
    assert_non_null(cache);
    for (int place = 0; place < 20; place++)
        for (int side = 0; side < 3; side++) {
            float queries[QUERIES * HEAD_DIM];
            struct attention_state found = {.sum = {0}};
            fill_cache(k, cache, 20, 1);
            fill(queries, QUERIES * HEAD_DIM, 1);
            if (side == 2)
                queries[place] = NAN;
            else
                (side ? cache->key_scales : cache->value_scales)[place] = NAN;
            for (int q = 0; q < QUERIES; q++)
                found.max[q] = -INFINITY;
            struct kv_block kv = {cache->keys, cache->values, cache->key_scales,
                                  cache->value_scales};
            k->attention_block(queries, &kv, 20, &found);
            for (int q = 0; q < (side == 2 ? 1 : QUERIES); q++)
                for (int d = 0; d < HEAD_DIM; d++)
                    assert_true(isnan(found.out[q][d] / found.sum[q]));
        }
    free(cache);
}

static void test_round_head(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct worst worst = {0};
    for (int exponent = -80; exponent < 100; exponent += 3) {
        float x[HEAD_DIM];
        int16_t codes[HEAD_DIM + 1];
        fill(x, HEAD_DIM, ldexpf(1, exponent));
        codes[HEAD_DIM] = 77;
        double scale = (double)k->round_head(x, codes);
        int largest = 0;
        for (int i = 0; i < HEAD_DIM; i++) {
            check_near(&worst, scale * codes[i], (double)x[i], scale * 0.504, "2^%d: value %d",
                       exponent, i);
            largest = abs(codes[i]) > largest ? abs(codes[i]) : largest;
        }
        assert_int_equal(largest, INT16_MAX);
        assert_int_equal(codes[HEAD_DIM], 77);
    }
    float x[HEAD_DIM] = {0};
    int16_t codes[HEAD_DIM];
    assert_true(k->round_head(x, codes) == 0);
    for (int i = 0; i < HEAD_DIM; i++) {
        assert_int_equal(codes[i], 0);
        x[i] = i % 2 ? NAN : INFINITY;
        assert_false(isfinite(k->round_head(x, codes)));
        x[i] = 0;
    }
    worst_report(&worst, "round_head");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),         cmocka_unit_test(test_l2_norm),
        cmocka_unit_test(test_norms_spread_nan), cmocka_unit_test(test_gates),
        cmocka_unit_test(test_gates_keep_nan),   cmocka_unit_test(test_add_scaled),
        cmocka_unit_test(test_sum_exp),          cmocka_unit_test(test_conv),
        cmocka_unit_test(test_attention),        cmocka_unit_test(test_attention_keeps_nan),
        cmocka_unit_test(test_round_head),
    };
    return cpu_levels_run(tests, sizeof tests / sizeof tests[0]);
}
#else
static void test_cpu_backend(void **state)
{
    (void)state;
    print_message("the cpu backend is not compiled in\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu_backend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
