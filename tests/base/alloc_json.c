/* Allocations fail one by one while JSON is printed; and the gate itself is shown to count, to fail
 * and to track. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "support/alloc.h"

static enum status read_and_print(void *context, struct error *error)
{
    const char *text = context;
    json_t *value;
    enum status status = json_parse(text, strlen(text), "text", &value, error);
    if (status != STATUS_OK)
        return status;
    struct bytes out = {0};
    json_print(value, &out);
    if (!bytes_terminate(&out))
        status = error_no_memory(error, "the printed text");
    bytes_clear(&out);
    json_decref(value);
    return status;
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    size_t n = alloc_sweep(read_and_print,
                           "{\"names\": [\"a\", \"b\", {\"c\": 1.5e300}], \"n\": 7, \"long\": "
                           "\"more than sixty-four bytes, so that the buffer has to grow while it "
                           "is being printed and a second allocation of it can fail\"}",
                           0);
    assert_true(n > 1);
}

/* Ten allocations; notes which of them failed. */
static enum status take_ten(void *context, struct error *error)
{
    bool *refused = context, any = false;
    for (int i = 0; i < 10; i++) {
        char *block = malloc(10);
        refused[i] |= !block;
        any |= !block;
        free(block);
    }
    return any ? error_no_memory(error, "ten blocks") : STATUS_OK;
}

static enum status take_first(void *context, struct error *error)
{
    int *first = context;
    char *block = malloc(10);
    if (!block)
        return error_no_memory(error, "a block");
    for (int i = 1; i < 10; i++) {
        char *other = malloc(10);
        if (!other)
            *first = *first * 10 + i;
        free(other);
        if (!other) {
            free(block);
            return error_no_memory(error, "a block");
        }
    }
    free(block);
    return STATUS_OK;
}

static void points_are_spread(void **state)
{
    (void)state;
    bool refused[10] = {0};
    assert_int_equal(alloc_sweep(take_ten, refused, 0), 10);
    for (int i = 0; i < 10; i++)
        assert_true(refused[i]);
    int first = 0; /* each point twice, as digits: the 1st (unnoted), 4th and 7th allocation */
    assert_int_equal(alloc_sweep(take_first, &first, 3), 10);
    assert_int_equal(first, 3366);
}

static void gate_counts_fails_and_tracks(void **state)
{
    (void)state;
    alloc_start(2, 3);
    char *first = malloc(10), *second = malloc(10), *third = calloc(1, 10), *fourth = malloc(10);
    char *grown = first ? realloc(first, 100) : NULL;
    size_t live = alloc_live();
    free(grown);
    free(fourth);
    size_t left = alloc_live(), count = alloc_stop();
    assert_true(first && !second && !third && fourth && grown);
    assert_int_equal(live, 2);
    assert_int_equal(left, 0);
    assert_int_equal(count, 5);
}

static void failed_realloc_keeps_the_block(void **state)
{
    (void)state;
    alloc_start(2, 2);
    char *block = malloc(10);
    char *grown = block ? realloc(block, 100) : NULL;
    size_t live = alloc_live();
    if (!grown)
        free(block);
    size_t left = alloc_live();
    alloc_stop();
    assert_null(grown);
    assert_int_equal(live, 1);
    assert_int_equal(left, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_counts_fails_and_tracks),
        cmocka_unit_test(failed_realloc_keeps_the_block),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(points_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
