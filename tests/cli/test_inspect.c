/* `calla inspect` as a user runs it: the program, its exit code, its two streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/checkpoint_writer.h"

static char out[20000];

/* Runs "calla inspect ARGUMENTS", stderr into stdout where `streams` says "2>&1". */
static int inspect(const char *arguments, const char *streams)
{
    const char *program = getenv("CALLA");
    char command[1000];
    snprintf(command, sizeof command, "%s inspect %s %s", program ? program : "build/calla",
             arguments, streams);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(out, 1, sizeof out - 1, pipe);
    out[n] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void wants(const char *text)
{
    if (!strstr(out, text))
        fail_msg("no \"%s\" in: %s", text, out);
}

static void wants_one_line(void)
{
    const char *end = strchr(out, '\n');
    assert_non_null(end);
    assert_string_equal(end, "\n");
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(inspect("models/tiny --max-context 100", "2>&1"), 0);
    wants("shape        tiny: hidden 256, 8 layers (2 with full attention), 32 experts");
    wants("max context  32768 tokens");
    wants("stop ids     4052 4050\n");
    wants("MTP (skipped)");
    wants("memory for one sequence of 100 tokens, backend ");
}

static void test_json(void **state)
{
    (void)state;
    assert_int_equal(inspect("models/tiny --json --max-context 100 --backend ref", "2>&1"), 0);
    wants_one_line();
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    const char *shape;
    json_int_t context, kv, per_token, state_bytes, tensors, bytes;
    int fits;
    assert_int_equal(json_unpack(object, "{s:s, s:{s:I, s:I, s:I, s:I, s:b}, s:{s:I, s:I}}",
                                 "shape", &shape, "memory", "context", &context, "kv_cache", &kv,
                                 "kv_bytes_per_token", &per_token, "state", &state_bytes, "fits",
                                 &fits, "total", "tensors", &tensors, "bytes", &bytes),
                     0);
    assert_string_equal(shape, "tiny");
    assert_int_equal(context, 100);
    assert_int_equal(per_token, 2 * 2 * 2 * 256 * 4); /* layers, K and V, heads, width, float32 */
    assert_int_equal(kv, 256 * per_token);            /* whole pages */
    assert_int_equal(state_bytes, 6 * (8 * 128 * 128 + 3 * 2048) * 4);
    assert_int_equal(tensors, 357);
    assert_int_equal(bytes, 23347008);
    assert_true(fits);
    json_decref(object);
}

static void test_errors(void **state)
{
    (void)state;
    assert_int_equal(inspect("", "2>&1"), 2);
    assert_int_equal(inspect("models/tiny --max-context 0", "2>&1"), 2);
    assert_int_equal(inspect("models/tiny --max-context 32769", "2>&1"), 1);
    wants("--max-context: found 32769, wanted 0 to 32768");
    wants_one_line();
    assert_int_equal(inspect("models/tiny --backend abacus", "2>&1"), 2);
    wants("--backend: found 'abacus', wanted");
    wants_one_line();
    assert_int_equal(inspect("does/not/exist", "2>&1"), 1);
    wants("calla: does/not/exist: No such file or directory; wanted the folder of an MLX");
    wants_one_line();
    assert_int_equal(inspect("Makefile", "2>&1"), 1);
    wants_one_line();
}

static void test_verify(void **state)
{
    (void)state;
    assert_int_equal(inspect("--verify models/tiny", "2>&1"), 1);
    wants("nothing is known about the files of a checkpoint of shape tiny");
    wants_one_line();
    assert_int_equal(inspect("--verify does/not/exist", "2>&1"), 1);
    wants("does/not/exist: found nothing, wanted the folder");
    assert_int_equal(inspect("--verify Makefile", "2>&1"), 1);
    wants("Makefile: found a file, wanted the folder");
    assert_int_equal(inspect("--verify tests/model/35b-a3b", "2>&1"), 1);
    wants("config.json                        ok\n");
    wants("model-00004-of-00004.safetensors   missing\n");
    wants("2 of 11 files are those of mlx-community/Qwen3.6-35B-A3B-4bit\n");
    assert_int_equal(inspect("--verify --json tests/model/35b-a3b", "2>&1"), 1);
    wants_one_line();
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    assert_int_equal(json_array_size(json_object_get(object, "files")), 11);
    assert_true(json_is_false(json_object_get(object, "ok")));
    json_decref(object);
}

static void test_other_template(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    writer_write(&writer);
    writer_write_file(&writer, "chat_template.jinja", "abc", 3);
    assert_int_equal(inspect(writer.folder, "2>&1 >/dev/null"), 0);
    wants("found another chat template");
    wants_one_line();
    assert_int_equal(inspect(writer.folder, "2>/dev/null"), 0);
    wants("max context");
    writer_clear(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),          cmocka_unit_test(test_json),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_verify),
        cmocka_unit_test(test_other_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
