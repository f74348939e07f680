/* cli/bench: lists of numbers, and experts counted as the backend routes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/bench.h"
#include "support/tiny.h"

static void lists(void **state)
{
    (void)state;
    struct bench_list list;
    struct error error;
    assert_int_equal(bench_list_parse("x", "256,1K,2k,0", 0, 4096, &list, &error), STATUS_OK);
    const int32_t wanted[] = {256, 1024, 2048, 0};
    assert_int_equal(list.n, 4);
    assert_memory_equal(list.values, wanted, sizeof wanted);
    static const char *const wrong[] = {
        "",     ",",           "1,",  ",1",       "1 ",
        "+1",   "-1",          "1M",  "1KK",      "0x1",
        "4097", "5K",          "1;2", "K",        "1,a",
        " 1",   "9999999999K", "1.5", "2097152K", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        error.message[0] = '\0';
        assert_int_equal(bench_list_parse("x", wrong[i], 0, 4096, &list, &error), STATUS_INVALID);
        assert_memory_equal(error.message, "--x: ", 5);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

#define LAYERS 8
#define EXPERTS 32
#define TOKENS 5

static float logits[LAYERS][TOKENS][EXPERTS];
static int n_rows[LAYERS];

static void keep(void *context, const char *name, const float *values, int64_t rows,
                 int64_t columns)
{
    (void)context;
    if (!strstr(name, ".router"))
        return;
    int layer = atoi(name + 6);
    assert_int_equal(columns, EXPERTS);
    assert_in_range(n_rows[layer] + rows, 1, TOKENS);
    memcpy(logits[layer][n_rows[layer]], values, (size_t)(rows * columns) * sizeof *values);
    n_rows[layer] += (int)rows;
}

/* An expert is chosen when fewer than 8 are better. */
static int distinct(int layer)
{
    int n = 0;
    for (int expert = 0; expert < EXPERTS; expert++) {
        bool chosen = false;
        for (int token = 0; token < TOKENS; token++) {
            int better = 0;
            for (int other = 0; other < EXPERTS; other++)
                better += logits[layer][token][other] > logits[layer][token][expert];
            chosen |= better < 8;
        }
        n += chosen;
    }
    return n;
}

static void counts_experts(void **state)
{
    (void)state;
    struct error error;
    struct bench bench = {.decode = 1, .repeat = 1, .seed = 3};
    const struct engine_options options = {.ops = &backend_ref, .context = 64, .n_sequences = 1};
    assert_int_equal(
        engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &bench.engine, &error),
        STATUS_OK);
    assert_int_equal(engine_open(&bench.engine, &error), STATUS_OK);
    assert_int_equal(bench_init(&bench, 1, &error), STATUS_OK);
    struct bench_routing routing;
    assert_int_equal(bench_count_experts(&bench, TOKENS, &routing, &error), STATUS_OK);

    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = bench_token(&bench, 0, i);
        assert_in_range(tokens[i], 0, TINY_N_VALID_IDS - 1);
    }
    struct backend *backend = bench.engine.backend;
    struct ranked ranked;
    const struct probe probe = {.tensor = keep};
    backend->ops->set_probe(backend, &probe);
    backend->ops->sequence_reset(backend, bench.sequences[0]);
    assert_int_equal(backend->ops->prefill_chunk(backend, bench.sequences[0], tokens, TOKENS,
                                                 PREFILL_LAST, &ranked, NULL, &error),
                     STATUS_OK);
    int least = EXPERTS, most = 0, sum = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        int n = distinct(layer);
        assert_int_equal(n_rows[layer], TOKENS);
        least = n < least ? n : least;
        most = n > most ? n : most;
        sum += n;
    }
    assert_int_equal(routing.tokens, TOKENS);
    assert_int_equal(routing.n_experts, EXPERTS);
    assert_int_equal(routing.least, least);
    assert_int_equal(routing.most, most);
    assert_true(routing.mean == sum / (double)LAYERS);
    assert_in_range(most, 8, EXPERTS);
    bench_clear(&bench);
    engine_close(&bench.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(counts_experts),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
