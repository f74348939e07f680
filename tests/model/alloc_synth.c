/* Allocations fail one by one while synthetic weights are made in memory and written to a folder:
 * each is told, and no file stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/synth_write.h"
#include "support/alloc.h"

static enum status open_it(void *context, struct error *error)
{
    (void)context;
    struct synth *synth;
    enum status status = synth_open(&shape_tiny, 1, 2, &synth, error);
    synth_close(synth);
    return status;
}

static enum status write_it(void *context, struct error *error)
{
    static const char *const names[] = {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    };
    const char *folder = context;
    struct synth *synth;
    enum status status = synth_plan(&shape_tiny, 1, false, &synth, error);
    if (status != STATUS_OK)
        return status;
    struct synth_write_options options = {
        .tokenizer = "tokens", .tokenizer_length = 6, .n_threads = 2};
    status = synth_write(synth, folder, &options, error);
    synth_close(synth);
    if (status != STATUS_OK) /* the next run finds no folder, or this one fails again */
        return access(folder, F_OK) == 0 ? STATUS_IO : status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[100];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (unlink(path) != 0)
            return error_set(error, STATUS_IO, "%s is not there", path);
    }
    return rmdir(folder) == 0 ? STATUS_OK : STATUS_IO;
}

static void test_open(void **state)
{
    (void)state;
    assert_true(alloc_sweep(open_it, NULL, 0) > 2);
}

static void test_write(void **state)
{
    (void)state;
    char base[] = "/tmp/calla-XXXXXX", folder[40];
    assert_non_null(mkdtemp(base));
    snprintf(folder, sizeof folder, "%s/model", base);
    assert_true(alloc_sweep(write_it, folder, 0) > 30);
    assert_int_equal(rmdir(base), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
