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
#include "support/sanitized.h"

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

/* ---- a long sequence ------------------------------------------------------------------------- */

#define LONG_TOKENS (SANITIZED ? 4096 : 65536)
/* Of the largest value. Found are 6e-6; a state rounded to float16 or bfloat16 once a chunk has
 * 1e-3 and 8e-3 already after 1,024 tokens. */
#define LONG_LIMIT 2e-5

/* Tokens that leave nearly all of the state as it is, so that errors of 10,000 of them add up. */
static void draw_slow(struct deltanet_test *x)
{
    for (int t = 0; t < CHUNK_TOKENS; t++) {
        unit_vector(x->q + t * QK_STRIDE, 1 / sqrtf(D));
        unit_vector(x->k + t * QK_STRIDE, 1);
        for (int i = 0; i < D; i++)
            x->v[t * V_STRIDE + i] = 2 * random_float();
        x->g[t] = -1e-6f * (1 + random_float());
        x->beta[t] = 0.01f * (1 + random_float());
    }
}

/* step_in_double with sums in another order, which compilers make fast code of. */
static void quick_step(double *s, const float *q, const float *k, const float *v, double decay,
                       double beta, double *o)
{
    double delta[D], read[D] = {0};
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++)
            read[j] += s[i * D + j] * (double)k[i];
    for (int j = 0; j < D; j++) {
        delta[j] = beta * ((double)v[j] - decay * read[j]);
        o[j] = 0;
    }
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            s[i * D + j] = decay * s[i * D + j] + (double)k[i] * delta[j];
            o[j] += s[i * D + j] * (double)q[i];
        }
}

static void larger(double *worst, double x)
{
    if (!(x <= *worst)) /* NaN stays */
        *worst = x;
}

/* The error of state and last outputs as a part of the largest value. */
static double part_wrong(const struct deltanet_test *x)
{
    double wrong[2] = {0}, largest[2] = {0};
    for (int i = 0; i < D * D; i++) {
        larger(&largest[0], fabs(x->wanted_state[i]));
        larger(&wrong[0], fabs((double)x->found[i] - x->wanted_state[i]));
    }
    for (int t = 0; t < CHUNK_TOKENS; t++)
        for (int j = 0; j < D; j++) {
            larger(&largest[1], fabs(x->wanted_o[t][j]));
            larger(&wrong[1], fabs((double)x->o[t][j] - x->wanted_o[t][j]));
        }
    double worst = 0;
    larger(&worst, wrong[0] / largest[0]);
    larger(&worst, wrong[1] / largest[1]);
    return worst;
}

/* Each level's state through 16K tokens, the best level's through all, a quarter of them one by
 * one, beside the rule in double; the levels one beside the other, as that takes most of the time.
 */
static void test_row_68_state_holds_with_length(void **state)
{
    (void)state;
    size_t n_levels, best = 0;
    const struct level *levels = cpu_levels(&n_levels);
    while (!levels[best].usable)
        best++;
    struct deltanet_test *x = test_new();
    float(*states)[D * D] = calloc(n_levels, sizeof *states);
    assert_non_null(states);
    memset(x->wanted_state, 0, sizeof x->wanted_state);
    random_seed(1);
    for (int n = CHUNK_TOKENS; n <= LONG_TOKENS; n += CHUNK_TOKENS) {
        draw_slow(x);
        for (int t = 0; t < CHUNK_TOKENS; t++)
            quick_step(x->wanted_state, x->q + t * QK_STRIDE, x->k + t * QK_STRIDE,
                       x->v + t * V_STRIDE, exp((double)x->g[t]), (double)x->beta[t],
                       x->wanted_o[t]);
        for (size_t i = 0; i < n_levels; i++) {
            if (!levels[i].usable || levels[i].emulated || (n > 16384 && i != best))
                continue;
            memcpy(x->state, states[i], sizeof x->state);
            if (n / CHUNK_TOKENS % 4 == 0)
                by_steps(levels[i].kernels, x, CHUNK_TOKENS);
            else
                by_chunks(levels[i].kernels, x, CHUNK_TOKENS, CHUNK_TOKENS);
            memcpy(states[i], x->found, sizeof x->state);
            if (n != 1024 && n != 16384 && n != LONG_TOKENS)
                continue;
            double wrong = part_wrong(x);
            print_message("    %s, %d tokens: wrong by %.1e, limit %.0e\n", levels[i].label, n,
                          wrong, LONG_LIMIT);
            if (!(wrong <= LONG_LIMIT))
                fail_msg("%s, %d tokens: wrong by %.2e", levels[i].label, n, wrong);
        }
    }
    free(states);
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
    const struct CMUnitTest together[] = {cmocka_unit_test(test_row_68_state_holds_with_length)};
    return cpu_levels_run(tests, sizeof tests / sizeof tests[0]) +
           cmocka_run_group_tests(together, NULL, NULL);
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
