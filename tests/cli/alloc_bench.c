/* Allocations fail one by one while `calla bench` measures, reports and draws. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/bench.h"
#include "support/alloc.h"
#include "support/tiny.h"

static enum status measure(void *context, struct error *error)
{
    const struct bench_test *tests = context;
    struct bench bench = {.decode = 2, .repeat = 2, .seed = 1, .fill = true};
    const struct engine_options options = {.ops = &backend_ref, .context = 300, .n_sequences = 2};
    struct bench_routing routing;
    struct bench_result result;
    enum status status =
        engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &bench.engine, error);
    if (status == STATUS_OK)
        status = engine_open(&bench.engine, error);
    if (status != STATUS_OK)
        return status;
    status = bench_init(&bench, 2, error);
    if (status == STATUS_OK)
        status = bench_count_experts(&bench, 2, &routing, error);
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = bench_measure(&bench, &tests[i], &result, error);
    bench_clear(&bench);
    engine_close(&bench.engine);
    return status;
}

static void measuring(void **state)
{
    (void)state;
    struct bench_test tests[] = {{2, 2, true}, {260, 1, false}};
    assert_true(alloc_sweep(measure, tests, 20) > 20);
}

static enum status print(void *context, struct error *error)
{
    struct bytes csv = {0}, json = {0};
    bench_csv(context, &csv);
    bench_json(context, &json);
    bool failed = csv.failed || json.failed;
    bytes_clear(&csv);
    bytes_clear(&json);
    return failed ? error_no_memory(error, "the report") : STATUS_OK;
}

static void printing(void **state)
{
    (void)state;
    const struct bench_run run = {.cpu = "X",
                                  .model = "a,\"b\"",
                                  .shape = "tiny",
                                  .backend = "ref",
                                  .routing = {.tokens = 1}};
    const struct bench_figure figure = {1, 2, 2, 2};
    const struct bench_result results[] = {
        {.test = {4, 1, true}, .prefill = figure, .decode = figure, .digest = "12", .share = 0.5},
        {.test = {8, 2, false}, .cut = "memory"}};
    struct bench_report report = {&run, results, 2};
    assert_true(alloc_sweep(print, &report, 0) > 30);
}

struct drawing {
    char csv[64], svg[64];
};

static enum status draw(void *context, struct error *error)
{
    const struct drawing *drawing = context;
    const char *path = drawing->csv;
    unlink(drawing->svg); /* each run makes it anew */
    return plot_csv(drawing->svg, &path, 1, error);
}

static void drawing(void **state)
{
    (void)state;
    struct drawing drawing = {"/tmp/calla-test-plot-XXXXXX", ""};
    int descriptor = mkstemp(drawing.csv);
    assert_true(descriptor >= 0);
    static const char text[] = "engine,context_tokens,decode_tok_per_s\na,1,2\n\"b\",4,5\n";
    assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
    close(descriptor);
    snprintf(drawing.svg, sizeof drawing.svg, "%s.svg", drawing.csv);
    assert_true(alloc_sweep(draw, &drawing, 0) > 3);
    unlink(drawing.csv);
    unlink(drawing.svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measuring),
        cmocka_unit_test(printing),
        cmocka_unit_test(drawing),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
