/* The delta rule of every table of the cpu backend, token by token and in chunks, against the
 * reference's op and the same rule in double (spec 2.6). */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef BACKEND_CPU
#include "backend/ref/ops.h"
#include "support/cpu_levels.h"

#define D LINEAR_HEAD_DIM
#define TOKENS 200
#define QK_STRIDE (D + 3) /* neither is aligned */
#define V_STRIDE (2 * D + 5)

/* How decay and beta of the tokens are drawn. */
enum decays { USUAL, NONE, STRONG, STRONG_AMONG_WEAK, TINY, N_DECAYS };
enum betas { BETA_USUAL, BETA_ZERO, BETA_ONE, N_BETAS };
static const char *const decay_names[N_DECAYS] = {"usual", "none", "strong", "strong among weak",
                                                  "tiny"};
static const char *const beta_names[N_BETAS] = {"usual", "0", "1"};

struct deltanet_test {
    float q[TOKENS * QK_STRIDE], k[TOKENS * QK_STRIDE], v[TOKENS * V_STRIDE];
    float g[TOKENS], beta[TOKENS];
    float state[D * D], found[D * D], o[TOKENS][D];
    double wanted_state[D * D], wanted_o[TOKENS][D], ref_error; /* of the reference's op */
};

/* Keys of length 1 and queries of length 1 / sqrt(128), as the layer makes them. */
static void unit_vector(float *x, float length)
{
    for (int i = 0; i < D; i++)
        x[i] = random_float();
    ref_l2_norm(x, D, length);
}

static float draw_decay(enum decays decays, int t)
{
    switch (decays) {
    case NONE:
        return 0;
    case STRONG:
        return -50;
    case STRONG_AMONG_WEAK: /* some tokens wipe the state, the others nearly keep it */
        return t % 5 == 1 ? -50 : -1e-3f;
    case TINY:
        return -1e-6f;
    default:
        return -expf(3 * random_float());
    }
}

static void draw(struct deltanet_test *x, enum decays decays, enum betas betas, bool zero_state)
{
    float *row = NULL;
    for (int t = 0; t < TOKENS; t++) {
        unit_vector(x->q + t * QK_STRIDE, 1 / sqrtf(D));
        unit_vector(row = x->k + t * QK_STRIDE, 1);
        if (t % 7 == 3) /* keys that come again make the rule more than a sum */
            memcpy(row, row - 2 * QK_STRIDE, D * sizeof *row);
        for (int i = 0; i < D; i++)
            x->v[t * V_STRIDE + i] = 2 * random_float();
        x->g[t] = draw_decay(decays, t);
        x->beta[t] = betas == BETA_ZERO ? 0 : betas == BETA_ONE ? 1 : 0.5f + 0.5f * random_float();
    }
    for (int i = 0; i < D * D; i++)
        x->state[i] = zero_state ? 0 : random_float();
}

static void step_in_double(double *s, const float *q, const float *k, const float *v, double g,
                           double beta, double *o)
{
    double delta[D];
    for (int j = 0; j < D; j++) {
        double read = 0;
        for (int i = 0; i < D; i++)
            read += (s[i * D + j] *= exp(g)) * (double)k[i];
        delta[j] = beta * ((double)v[j] - read);
        o[j] = 0;
    }
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++)
            o[j] += (s[i * D + j] += (double)k[i] * delta[j]) * (double)q[i];
}

/* n tokens by the rule; also how far the reference's float32 comes from it. */
static void want(struct deltanet_test *x, int n)
{
    float ref_state[D * D], o[D];
    x->ref_error = 0;
    memcpy(ref_state, x->state, sizeof ref_state);
    for (int i = 0; i < D * D; i++)
        x->wanted_state[i] = (double)x->state[i];
    for (int t = 0; t < n; t++) {
        const float *q = x->q + t * QK_STRIDE, *k = x->k + t * QK_STRIDE, *v = x->v + t * V_STRIDE;
        step_in_double(x->wanted_state, q, k, v, (double)x->g[t], (double)x->beta[t],
                       x->wanted_o[t]);
        ref_deltanet_step(ref_state, q, k, v, x->g[t], x->beta[t], D, D, o);
        for (int j = 0; j < D; j++)
            x->ref_error = fmax(x->ref_error, fabs((double)o[j] - x->wanted_o[t][j]));
    }
    for (int i = 0; i < D * D; i++)
        x->ref_error = fmax(x->ref_error, fabs((double)ref_state[i] - x->wanted_state[i]));
}

/* Values are of the order of 1; a sum has 128 terms, and errors are carried from token to token.
 * Step by step, 200 decays near 1 are rounded one after the other. */
#define TOLERANCE 3e-6
#define REF_TOLERANCE 2e-5

static void compare(const struct deltanet_test *x, int n, const char *words, struct worst *worst)
{
    if (!(x->ref_error <= REF_TOLERANCE))
        fail_msg("the reference itself is wrong by %.2g", x->ref_error);
    for (int t = 0; t < n; t++)
        for (int j = 0; j < D; j++)
            check_near(worst, (double)x->o[t][j], x->wanted_o[t][j], TOLERANCE,
                       "%s, %d tokens: o[%d][%d]", words, n, t, j);
    for (int i = 0; i < D * D; i++)
        check_near(worst, (double)x->found[i], x->wanted_state[i], TOLERANCE,
                   "%s, %d tokens: state[%d][%d]", words, n, i / D, i % D);
}

static void by_steps(const struct kernels *k, struct deltanet_test *x, int n)
{
    memcpy(x->found, x->state, sizeof x->found);
    for (int t = 0; t < n; t++)
        k->deltanet_step(x->found, x->q + t * QK_STRIDE, x->k + t * QK_STRIDE, x->v + t * V_STRIDE,
                         x->g[t], x->beta[t], x->o[t]);
}

/* In chunks of at most `most` tokens, the state carried over. */
static void by_chunks(const struct kernels *k, struct deltanet_test *x, int n, int most)
{
    memcpy(x->found, x->state, sizeof x->found);
    memset(x->o, 0xFF, sizeof x->o);
    for (int t = 0; t < n; t += most)
        k->deltanet_chunk(x->found, x->q + t * QK_STRIDE, x->k + t * QK_STRIDE, x->v + t * V_STRIDE,
                          QK_STRIDE, V_STRIDE, x->g + t, x->beta + t, n - t < most ? n - t : most,
                          x->o[t], dirty_scratch());
    for (int t = n; t < TOKENS; t++) /* nothing beyond the tokens is written */
        for (int j = 0; j < D; j++)
            assert_true(isnan(x->o[t][j]));
}

static struct deltanet_test *test_new(void)
{
    struct deltanet_test *x = aligned_alloc(64, (sizeof *x + 63) / 64 * 64);
    assert_non_null(x);
    return x;
}

static void test_steps(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct deltanet_test *x = test_new();
    struct worst worst = {0};
    for (int decays = 0; decays < N_DECAYS; decays++)
        for (int betas = 0; betas < N_BETAS; betas++) {
            draw(x, decays, betas, betas == BETA_ONE);
            want(x, 20);
            by_steps(k, x, 20);
            compare(x, 20, decay_names[decays], &worst);
        }
    free(x);
    worst_report(&worst, "deltanet_step");
}

/* All lengths of one chunk. */
static void test_chunk_lengths(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct deltanet_test *x = test_new();
    struct worst worst = {0};
    for (int n = 1; n <= CHUNK_TOKENS; n++) {
        draw(x, USUAL, BETA_USUAL, n % 2);
        want(x, n);
        by_chunks(k, x, n, CHUNK_TOKENS);
        compare(x, n, "one chunk", &worst);
    }
    free(x);
    worst_report(&worst, "deltanet_chunk");
}

static void test_chunk_extremes(void **state)
{
    const struct level *level = LEVEL(state);
    static const int most[] = {CHUNK_TOKENS, 17, 33};
    struct deltanet_test *x = test_new();
    for (int decays = 0; decays < N_DECAYS; decays++)
        for (int betas = 0; betas < N_BETAS; betas++) {
            struct worst worst = {0};
            char words[100];
            snprintf(words, sizeof words, "decays %s, beta %s", decay_names[decays],
                     beta_names[betas]);
            draw(x, decays, betas, false);
            want(x, TOKENS);
            for (int i = 0; i < 3; i++) {
                by_chunks(level->kernels, x, TOKENS, most[i]);
                compare(x, TOKENS, words, &worst);
            }
            worst_report(&worst, words);
        }
    free(x);
}

/* One value that is no number shows in the outputs from there on, and in the state. */
static void test_nan_shows(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct deltanet_test *x = test_new();
    for (int way = 0; way < 2; way++)
        for (int side = 0; side < 5; side++) {
            const int n = 40, t = 21;
            draw(x, USUAL, BETA_USUAL, false);
            *(side == 0   ? &x->q[t * QK_STRIDE + 5]
              : side == 1 ? &x->k[t * QK_STRIDE + 5]
              : side == 2 ? &x->v[t * V_STRIDE + 5]
              : side == 3 ? &x->g[t]
                          : &x->beta[t]) = NAN;
            if (way)
                by_chunks(k, x, n, CHUNK_TOKENS);
            else
                by_steps(k, x, n);
            assert_true(isnan(x->o[t][5]));
            for (int i = 0; side > 0 && i < D; i++) /* q is in no state */
                assert_true(isnan(x->found[i * D + 5]));
        }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_chunk_lengths),
        cmocka_unit_test(test_chunk_extremes),
        cmocka_unit_test(test_nan_shows),
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
