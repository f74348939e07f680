/* model/weights: bytes that a step reads, for the shape whose sums are known (spec 4.3). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/tiny.h"

static void step_of_tiny(void **state)
{
    (void)state;
    const struct weights *w = checkpoint_weights(tiny);
    double embedding = 4096 * 256 / 2.0 + 4096 * 256 / 64 * 4.0;
    double experts = 8 * 3 * 32 * (128 * 256 / 2.0 + 128 * 256 / 64 * 4.0); /* 8 layers */
    assert_int_equal(w->shape->moe_intermediate_size, 128);
    double rest = (double)weights_bytes(w) - embedding - experts;
    assert_float_equal(weights_step_bytes(w, 1), rest + embedding / 4096 + experts / 4, 1e-3);
    assert_float_equal(weights_step_bytes(w, 2),
                       rest + embedding / 4096 * 2 + experts * (1 - 0.75 * 0.75), 1e-3);
    /* more rows never read more than there is */
    assert_true(weights_step_bytes(w, 4096) <= (double)weights_bytes(w) + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_of_tiny),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
