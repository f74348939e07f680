/* The reference operations against the golden vectors of the spec, and the details that no vector
 * of a whole model can show: epsilons, thresholds, ties. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ref/ops.h"

static void assert_near(double found, double wanted, double tolerance)
{
    if (!(fabs(found - wanted) <= tolerance))
        fail_msg("found %.9g, wanted %.9g within %g", found, wanted, tolerance);
}

static struct vector float_vector(const float *values, int64_t n)
{
    return (struct vector){(const unsigned char *)values, n, 4};
}

/* spec 2.4: cos and sin at position 1000 for the first two pairs; the rest of the head untouched */
static void test_rope(void **state)
{
    (void)state;
    float head[256];
    for (int i = 0; i < 256; i++)
        head[i] = i < 32 ? 1.0f : i < 64 ? 0.0f : (float)i;
    ref_rope(head, 64, 1e7, 1000);
    assert_near(head[0], 0.5623790763, 1e-7);
    assert_near(head[32], 0.8268795405, 1e-7);
    assert_near(head[1], 0.4441233465, 1e-7);
    assert_near(head[33], 0.8959656540, 1e-7);
    assert_near(head[31], cos(1000 * 1.6548170999e-07), 1e-7);
    assert_near(head[63], sin(1000 * 1.6548170999e-07), 1e-9);
    for (int i = 64; i < 256; i++)
        assert_true(head[i] == (float)i);
    float far[64] = {1.0f}; /* the last position of the model's context */
    ref_rope(far, 64, 1e7, 262143);
    assert_near(far[0], cos(262143.0), 1e-7);
    assert_near(far[32], sin(262143.0), 1e-7);
}

/* spec 2.5 step 2: the taps run from the oldest input to the newest, then SiLU */
static void test_conv_step(void **state)
{
    (void)state;
    const float taps[4] = {0.1f, -0.2f, 0.3f, 0.4f};
    const float inputs[4] = {0.5f, -0.25f, 1.0f, 2.0f};
    struct vector vector = float_vector(taps, 4);
    float conv_state[3] = {0}, x = 0;
    for (int t = 0; t < 4; t++) {
        x = inputs[t];
        ref_conv_step(&vector, 1, conv_state, &x);
    }
    assert_near(x, 0.92222974, 1e-6);
    for (int i = 0; i < 3; i++) /* the state holds the inputs, not the outputs */
        assert_true(conv_state[i] == inputs[i + 1]);
}

/* spec 2.6: two value heads that share one key head, three tokens, then the gated norm */
static void test_deltanet_step(void **state)
{
    (void)state;
    const float q[3][2] = {{.2f, -.4f}, {.6f, .3f}, {-.3f, .8f}};
    const float k[3][2] = {{-.5f, .6f}, {.25f, -.8f}, {.9f, -.2f}};
    const float v[2][3][2] = {{{.25f, -.75f}, {-.35f, .4f}, {-.2f, .9f}},
                              {{.5f, .1f}, {.8f, -.2f}, {.3f, -.6f}}};
    const float a[3][2] = {{-.3f, .2f}, {.7f, -.5f}, {1.1f, -1.2f}};
    const float b[3][2] = {{-1.2f, 1.1f}, {.3f, -.7f}, {1.5f, -1.f}};
    const float exp_a_log[2] = {.5f, 1.2f}, dt_bias[2] = {.1f, -.2f};
    const double wanted_g[3][2] = {
        {-.29906943, -.83177662}, {-.58555033, -.48382326}, {-.73164123, -.26450089}};
    const double wanted_o[2][3][2] = {
        {{-.03983154, .11949461}, {.01560222, -.00454396}, {.11815912, -.35056799}},
        {{-.25820486, -.05164097}, {-.07552205, -.00158393}, {-.09616437, .10927304}}};
    const double wanted_state[2][4] = {{-.15095771, .71015462, .12185625, -.26318352},
                                       {.04525755, -.17957843, -.12827333, .09770210}};
    float s[2][4] = {{0}}, o[2];
    for (int t = 0; t < 3; t++)
        for (int h = 1; h >= 0; h--) {
            float qn[2] = {q[t][0], q[t][1]}, kn[2] = {k[t][0], k[t][1]};
            ref_l2_norm(qn, 2, 1 / sqrtf(2));
            ref_l2_norm(kn, 2, 1);
            float g = -exp_a_log[h] * ref_softplus(a[t][h] + dt_bias[h]);
            assert_near(g, wanted_g[t][h], 1e-6);
            ref_deltanet_step(s[h], qn, kn, v[h][t], g, ref_sigmoid(b[t][h]), 2, 2, o);
            for (int j = 0; j < 2; j++)
                assert_near(o[j], wanted_o[h][t][j], 1e-6);
        }
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 4; i++)
            assert_near(s[h][i], wanted_state[h][i], 1e-6);
    const float norm[2] = {.8f, 1.2f}, z[2] = {-1, .5f}; /* o still is that of t2, h0 */
    struct vector weight = float_vector(norm, 2);
    ref_gated_norm(o, &weight, z, 2, 1e-6f);
    assert_near(o[0], -.09718278, 1e-6);
    assert_near(o[1], -.50050549, 1e-6);
}

/* spec 2.5 step 4: the epsilon stands inside the root, with the sum and not with the mean */
static void test_l2_norm_epsilon(void **state)
{
    (void)state;
    float x[128] = {1e-3f}; /* sum of squares 1e-6: as large as the epsilon */
    ref_l2_norm(x, 128, 1);
    assert_near(x[0], 1 / sqrt(2), 1e-6);
}

static void test_rms_norm_epsilon(void **state)
{
    (void)state;
    const float ones[4] = {1, 1, 1, 2};
    float x[4] = {2e-3f, 0, 0, 0}, y[4]; /* mean of squares 1e-6 */
    struct vector weight = float_vector(ones, 4);
    ref_rms_norm(x, &weight, 4, 1e-6f, y);
    assert_near(y[0], 2 / sqrt(2), 1e-6);
}

static void test_softplus(void **state)
{
    (void)state;
    assert_near(ref_softplus(0), log(2), 1e-7);
    assert_near(ref_softplus(20), log1p(exp(20)), 1e-6);
    assert_true(ref_softplus(20.5f) == 20.5f);
    assert_true(ref_softplus(200) == 200); /* e^200 overflows float32 */
    assert_near(ref_softplus(-30), exp(-30), 1e-19);
}

/* spec 2.7: ties go to the lowest index, weights are renormalised over the chosen */
static void test_moe_route(void **state)
{
    (void)state;
    const float logits[6] = {1, 3, 3, 0, 3, 2};
    int experts[3];
    float weights[3];
    ref_moe_route(logits, 6, 3, experts, weights);
    assert_int_equal(experts[0], 1);
    assert_int_equal(experts[1], 2);
    assert_int_equal(experts[2], 4);
    for (int i = 0; i < 3; i++)
        assert_near(weights[i], 1.0 / 3, 1e-7);
    ref_moe_route(logits, 6, 2, experts, weights);
    assert_near(weights[0] + weights[1], 1, 1e-7);
    const float wide[3] = {-200, 100, -100}; /* no overflow, no division by zero */
    ref_moe_route(wide, 3, 2, experts, weights);
    assert_int_equal(experts[0], 1);
    assert_int_equal(experts[1], 2);
    assert_near(weights[0], 1, 1e-7);
}

static void test_attention(void **state)
{
    (void)state;
    const float query[4] = {4, 0, 0, 0}; /* scale 1/2: scores 2k */
    const float keys[2][8] = {{1, 0, 0, 0, 9, 9, 9, 9}, {0, 0, 0, 0, 9, 9, 9, 9}};
    const float values[2][8] = {{1, 2, 3, 4, 9, 9, 9, 9}, {5, 6, 7, 8, 9, 9, 9, 9}};
    float scores[2], out[4];
    const struct ref_rows key_rows = {keys[0], 8, NULL, 0}, value_rows = {values[0], 8, NULL, 0};
    ref_attention(query, &key_rows, &value_rows, 2, 4, scores, out);
    double p = exp(2) / (exp(2) + 1);
    for (int i = 0; i < 4; i++)
        assert_near(out[i], p * values[0][i] + (1 - p) * values[1][i], 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_conv_step),
        cmocka_unit_test(test_deltanet_step),
        cmocka_unit_test(test_l2_norm_epsilon),
        cmocka_unit_test(test_rms_norm_epsilon),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_moe_route),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
