/* KL and softmax arithmetic on logits made by hand, against values that follow from the
 * definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/divergence.h"

static void assert_near(double found, double wanted, double relative)
{
    if (!(fabs(found - wanted) <= relative * fabs(wanted)))
        fail_msg("found %.17g, wanted %.17g", found, wanted);
}

/* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL(p||q) = ln 2 / 4, whatever is added to the logits.
 */
static void test_known_value(void **state)
{
    (void)state;
    const float p[] = {(float)log(2) + 7, 7, 7}, q[] = {-3, -3, (float)log(2) - 3};
    struct divergence found;
    divergence_measure(p, q, 3, &found);
    assert_near(found.kl, log(2) / 4, 1e-6); /* ln 2 in float */
    assert_near(found.p.logsumexp, 7 + log(4), 1e-7);
    assert_near(found.q.logsumexp, -3 + log(4), 1e-7);
    assert_int_equal(found.p.best, 0);
    assert_int_equal(found.q.best, 2);
}

static void test_it_is_not_symmetric(void **state)
{
    (void)state;
    const float p[] = {0, 0}, q[] = {2, 0}; /* q = (s, 1-s) with s = 1/(1+e^-2) */
    double s = 1 / (1 + exp(-2.0));
    struct divergence found;
    divergence_measure(p, q, 2, &found);
    assert_near(found.kl, 0.5 * log(0.5 / s) + 0.5 * log(0.5 / (1 - s)), 1e-14);
    divergence_measure(q, p, 2, &found);
    assert_near(found.kl, s * log(2 * s) + (1 - s) * log(2 * (1 - s)), 1e-14);
}

static void test_same_rows_give_exactly_zero(void **state)
{
    (void)state;
    float row[1000];
    for (int i = 0; i < 1000; i++)
        row[i] = (float)(25 * sin(i * 0.7) - 0.01 * i);
    struct divergence found;
    divergence_measure(row, row, 1000, &found);
    assert_true(found.kl == 0);
    assert_true(found.p.logsumexp == found.q.logsumexp && found.p.best == found.q.best);
}

/* Two ids of 1/2 whose logits differ by e: KL = ln cosh(e/2) = e²/8 - e⁴/192 …, here far below the
 * rounding of a plain sum of p·ln(p/q). */
static void test_small_differences_keep_their_digits(void **state)
{
    (void)state;
    const double sizes[] = {1e-2, 1e-4, 1e-6, 1e-9};
    for (int i = 0; i < 4; i++) {
        const float p[] = {0, 0}, q[] = {(float)sizes[i], 0};
        double e = q[0];
        struct divergence found;
        divergence_measure(p, q, 2, &found);
        assert_near(found.kl, e * e / 8 - e * e * e * e / 192, 1e-5);
    }
}

/* Both sides of the change of formula. */
static void test_formulas_meet(void **state)
{
    (void)state;
    for (float x = 0.9f; x < 1.1f; x += 0.01f) { /* d crosses 0.5 */
        const float p[] = {0, 0}, q[] = {x, 0};
        struct divergence found;
        divergence_measure(p, q, 2, &found);
        assert_near(found.kl, log(cosh((double)x / 2)), 1e-13);
    }
}

static void test_far_apart(void **state)
{
    (void)state;
    const float p[] = {0, -2000, -INFINITY}, q[] = {-2000, 0, -1000};
    struct divergence found;
    divergence_measure(p, q, 3, &found);
    assert_near(found.kl, 2000, 1e-12);
    const float r[] = {-INFINITY, 0, 0};
    divergence_measure(p, r, 3, &found);
    assert_true(found.kl == (double)INFINITY);
    const float with[] = {0, -INFINITY}, without[] = {0, -INFINITY};
    divergence_measure(with, without, 2, &found);
    assert_true(found.kl == 0);
}

static void test_ties_go_to_the_lowest_id(void **state)
{
    (void)state;
    const float p[] = {1, 3, 3, 3}, q[] = {5, 5, 5, 5};
    struct divergence found;
    divergence_measure(p, q, 4, &found);
    assert_int_equal(found.p.best, 1);
    assert_int_equal(found.q.best, 0);
    divergence_measure(p, q, 1, &found); /* one id is certain */
    assert_true(found.kl == 0 && found.p.logsumexp == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_value),
        cmocka_unit_test(test_it_is_not_symmetric),
        cmocka_unit_test(test_same_rows_give_exactly_zero),
        cmocka_unit_test(test_small_differences_keep_their_digits),
        cmocka_unit_test(test_formulas_meet),
        cmocka_unit_test(test_far_apart),
        cmocka_unit_test(test_ties_go_to_the_lowest_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
