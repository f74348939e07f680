/* The mailbox: a queue in which nothing changes places, and that is full when it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/mailbox.h"

static struct generated make(int32_t token, int n_top)
{
    struct generated generated = {.token = token, .n_top = n_top, .logprob = (float)-token};
    for (int i = 0; i < n_top; i++) {
        generated.top[i].token = token + i;
        generated.top[i].logprob = (float)-i;
    }
    return generated;
}

static void check(const struct generated *found, int32_t token, int n_top)
{
    assert_int_equal(found->token, token);
    assert_int_equal(found->n_top, n_top);
    assert_true(found->logprob == (float)-token);
    for (int i = 0; i < n_top; i++) {
        assert_int_equal(found->top[i].token, token + i);
        assert_true(found->top[i].logprob == (float)-i);
    }
}

/* Put and taken in uneven portions, around the end of the memory many times. */
static void test_order(void **state)
{
    (void)state;
    const int tops[] = {-1, 0, 3, TOP_MAX};
    for (int t = 0; t < 4; t++) {
        struct mailbox mailbox;
        struct generated taken[8];
        int32_t put = 0, got = 0;
        assert_int_equal(mailbox_init(&mailbox, 7, tops[t], NULL), STATUS_OK);
        for (int round = 0; round < 50; round++) {
            for (int i = 0; i < 1 + round % 5; i++) {
                struct generated generated = make(put, tops[t]);
                bool full = put - got == 7;
                assert_int_equal(mailbox_put(&mailbox, &generated), !full);
                put += !full;
            }
            int wanted = round % 4, n = mailbox_take(&mailbox, taken, wanted);
            assert_int_equal(n, wanted < put - got ? wanted : put - got);
            for (int i = 0; i < n; i++)
                check(&taken[i], got++, tops[t]);
        }
        assert_true(put > 40);
        int rest = mailbox_take(&mailbox, taken, 8);
        assert_int_equal(rest, put - got);
        assert_int_equal(mailbox_take(&mailbox, taken, 8), 0);
        mailbox_clear(&mailbox);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
