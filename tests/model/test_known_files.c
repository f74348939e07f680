/* base/sha256 and model/known_files: each state a file can be in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "model/known_files.h"
#include "support/checkpoint_writer.h"

#define FOLDER "tests/model/35b-a3b"

static const struct known_file *known(const char *name)
{
    const struct known_file *file = known_files;
    while (file->name && strcmp(file->name, name) != 0)
        file++;
    assert_non_null(file->name);
    return file;
}

static void note_progress(void *context, int64_t done)
{
    *(int64_t *)context = done;
}

static void test_hash(void **state)
{
    (void)state;
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    char path[400], hex[SHA256_HEX_SIZE];
    snprintf(path, sizeof path, "%s/file", writer.folder);
    struct error error;
    writer_write_file(&writer, "file", "", 0); /* the two vectors of FIPS 180-4 that all know */
    assert_int_equal(sha256_file(path, hex, NULL, NULL, &error), STATUS_OK);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    writer_write_file(&writer, "file", "abc", 3);
    int64_t done = 0;
    assert_int_equal(sha256_file(path, hex, note_progress, &done, &error), STATUS_OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(done, 3);
    writer_truncate(&writer, "file", 3 << 20); /* several reads */
    assert_int_equal(sha256_file(path, hex, note_progress, &done, &error), STATUS_OK);
    assert_int_equal(done, 3 << 20);
    assert_int_equal(sha256_file(writer.folder, hex, NULL, NULL, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, writer.folder));
    writer_remove(&writer, "file");
    assert_int_equal(sha256_file(path, hex, NULL, NULL, &error), STATUS_IO);
    assert_non_null(strstr(error.message, path));
    writer_clear(&writer);
}

static void test_table(void **state)
{
    (void)state;
    int n = 0;
    int64_t shards = 0;
    for (const struct known_file *file = known_files; file->name; file++, n++) {
        assert_int_equal(strlen(file->sha256), 64);
        assert_int_equal(strspn(file->sha256, "0123456789abcdef"), 64);
        shards += strncmp(file->name, "model-", 6) == 0 ? file->size : 0;
    }
    assert_int_equal(n, 11);
    /* the tensors of the spec's sum, and four headers that have less than 1 MB in all */
    assert_true(shards > 20401929952 && shards < 20401929952 + 1000000);
}

static void test_states(void **state)
{
    (void)state;
    struct known_result result;
    int64_t done = 0;
    known_file_check(FOLDER, known("config.json"), note_progress, &done, &result);
    assert_int_equal(result.state, KNOWN_OK);
    assert_int_equal(known_file_work(FOLDER, known("config.json")), 23591);
    assert_int_equal(known_file_work("models/tiny", known("config.json")), 0);
    assert_int_equal(result.size, 23591);
    assert_int_equal(done, 23591);
    known_file_check(FOLDER, known("generation_config.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_OK);
    known_file_check(FOLDER, known("tokenizer.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_MISSING);
    assert_int_equal(result.size, -1);
    known_file_check(FOLDER "/config.json", known("tokenizer.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_MISSING);
    known_file_check("models/tiny", known("config.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_SIZE);
    assert_int_equal(result.size, 7012);
    assert_string_equal(result.sha256, "");

    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    writer_write_file(&writer, "config.json", "", 0);
    writer_truncate(&writer, "config.json", 23591);
    known_file_check(writer.folder, known("config.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_DIFFERENT);
    assert_int_equal(strlen(result.sha256), 64);
    char path[400];
    snprintf(path, sizeof path, "%s/config.json", writer.folder);
    writer_remove(&writer, "config.json");
    assert_int_equal(mkdir(path, 0700), 0);
    known_file_check(writer.folder, known("config.json"), NULL, NULL, &result);
    assert_int_equal(result.state, KNOWN_UNREADABLE);
    assert_non_null(strstr(result.error.message, path));
    writer_clear(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
