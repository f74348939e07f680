/* Prefixes on disk: what comes back is what was written, bit for bit, or nothing; whatever lies in
 * the folder, the budget is held and bad files go. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/prefix_cache.h"
#include "support/ok.h"
#include "support/tiny.h"

#define CONTEXT 700
#define LENGTH 300 /* of the prefix: more than one block */
#define SPARE_STEPS 3

static struct engine engine;
static struct sequence *sequence;
static char folder[] = "/tmp/calla-disk-XXXXXX";
static char log_text[4096];
static const char *weights = "0123";

static void note(void *context, const char *line)
{
    (void)context;
    strncat(log_text, line, sizeof log_text - strlen(log_text) - 2);
    strcat(log_text, "\n");
}

static enum status open_disk(int64_t budget, struct disk_cache **disk, struct error *error)
{
    const struct disk_cache_options options = {
        .folder = folder, .budget = budget, .weights = weights, .log = note};
    log_text[0] = '\0';
    return disk_cache_open(&engine, &options, disk, error);
}

static struct prefix_cache *new_cache(struct disk_cache *disk)
{
    struct prefix_cache *cache;
    const struct prefix_cache_options options = {.budget = (int64_t)1 << 30, .disk = disk};
    OK(prefix_cache_new(&engine, &options, &cache, e));
    return cache;
}

/* The files of the cache in the folder; the last one's path. */
static int count_files(char *path, size_t size)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *file; (file = readdir(dir));)
        if (strstr(file->d_name, DISK_SUFFIX)) {
            n++;
            if (path)
                snprintf(path, size, "%s/%s", folder, file->d_name);
        }
    closedir(dir);
    return n;
}

static void empty_folder(void)
{
    char path[512];
    while (count_files(path, sizeof path) > 0)
        assert_int_equal(unlink(path), 0);
}

static void read_tokens(const int32_t *tokens, int32_t n)
{
    struct ranked ranked;
    while (n > 0) {
        int chunk = n < 64 ? n : 64;
        OK(engine.ops->prefill_chunk(engine.backend, sequence, tokens, chunk, PREFILL_LAST, &ranked,
                                     NULL, e));
        tokens += chunk;
        n -= chunk;
    }
}

/* What a sequence gives for the tokens behind a prefix. */
static void go_on(const int32_t *tokens, struct ranked ranked[SPARE_STEPS])
{
    for (int i = 0; i < SPARE_STEPS; i++) {
        struct row row = {sequence, tokens[i]};
        memset(&ranked[i], 0, sizeof ranked[i]);
        OK(engine.ops->decode_step(engine.backend, &row, 1, &ranked[i], e));
    }
}

/* The first n tokens into an empty sequence, their prefix into memory and to the disk. */
static void read_and_store(struct prefix_cache *cache, int32_t n)
{
    read_tokens(tiny_ids(), n);
    prefix_cache_save(cache, sequence, tiny_ids(), PREFIX_END);
    prefix_cache_store(cache, tiny_ids(), n);
}

/* Reads LENGTH tokens of `tokens` with a state at `early` too, and puts both on the disk. */
static void write_prefix(const int32_t *tokens, int32_t early, int64_t budget)
{
    struct disk_cache *disk;
    OK(open_disk(budget, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    engine.ops->sequence_reset(engine.backend, sequence);
    read_tokens(tokens, early);
    prefix_cache_save(cache, sequence, tokens, PREFIX_SYSTEM);
    read_tokens(tokens + early, LENGTH - early);
    prefix_cache_save(cache, sequence, tokens, PREFIX_END);
    prefix_cache_store(cache, tokens, LENGTH);
    prefix_cache_free(cache);
    disk_cache_close(disk);
}

#define PLENTY ((int64_t)1 << 30)

static void test_comes_back(void **state)
{
    (void)state;
    const int32_t *tokens = tiny_ids();
    struct ranked wanted[SPARE_STEPS], found[SPARE_STEPS];
    struct disk_cache *disk;
    engine.ops->sequence_reset(engine.backend, sequence);
    read_tokens(tokens, 140);
    read_tokens(tokens + 140, LENGTH - 140);
    go_on(tokens + LENGTH, wanted);
    empty_folder();
    write_prefix(tokens, 140, PLENTY);
    assert_int_equal(count_files(NULL, 0), 1);
    assert_string_equal(log_text, "");
    OK(open_disk(PLENTY, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    assert_int_equal(disk_cache_match(disk, tokens, CONTEXT), LENGTH);
    assert_int_equal(prefix_cache_begin(cache, sequence, tokens, LENGTH + SPARE_STEPS), LENGTH);
    go_on(tokens + LENGTH, found);
    assert_memory_equal(wanted, found, sizeof wanted);
    /* now it is in memory; another path turns off after the first state */
    struct disk_cache_figures figures;
    disk_cache_read_figures(disk, &figures);
    assert_int_equal(figures.loads, 1);
    assert_int_equal(prefix_cache_begin(cache, sequence, tokens, LENGTH + 1), LENGTH);
    disk_cache_read_figures(disk, &figures);
    assert_int_equal(figures.loads, 1);
    int32_t other[CONTEXT];
    memcpy(other, tokens, sizeof other);
    other[200]++;
    engine.ops->sequence_reset(engine.backend, sequence);
    read_tokens(other, 140);
    go_on(other + 140, wanted);
    assert_int_equal(prefix_cache_begin(cache, sequence, other, LENGTH), 140);
    go_on(other + 140, found);
    assert_memory_equal(wanted, found, sizeof wanted);
    other[139]++;
    assert_int_equal(prefix_cache_begin(cache, sequence, other, LENGTH), 0);
    prefix_cache_free(cache);
    disk_cache_close(disk);
    /* written once, not again */
    write_prefix(tokens, 140, PLENTY);
    assert_int_equal(count_files(NULL, 0), 1);
}

/* One process at a time. */
static void test_locked(void **state)
{
    (void)state;
    struct disk_cache *first, *second;
    struct error error;
    OK(open_disk(PLENTY, &first, e));
    assert_int_equal(open_disk(PLENTY, &second, &error), STATUS_BUSY);
    assert_null(second);
    assert_non_null(strstr(error.message, folder));
    disk_cache_close(first);
    OK(open_disk(PLENTY, &first, e));
    disk_cache_close(first);
}

/* Opens the cache once, which must remove the one file that is there and say why. */
static void assert_refused(const char *why)
{
    struct disk_cache *disk;
    OK(open_disk(PLENTY, &disk, e));
    if (!strstr(log_text, why))
        fail_msg("found '%s', wanted '%s' in it", log_text, why);
    assert_int_equal(count_files(NULL, 0), 0);
    assert_int_equal(disk_cache_match(disk, tiny_ids(), CONTEXT), 0);
    disk_cache_close(disk);
}

static void test_row_15_of_another_kind(void **state)
{
    (void)state;
    empty_folder();
    write_prefix(tiny_ids(), 140, PLENTY);
    weights = "4567";
    assert_refused("another model");
    weights = "0123";
    write_prefix(tiny_ids(), 140, PLENTY);
    engine.options.context--;
    assert_refused("another context size");
    engine.options.context++;
}

static long size_of(const char *path)
{
    struct stat there;
    assert_int_equal(stat(path, &there), 0);
    return (long)there.st_size;
}

/* A file's bytes, to be put back after it was damaged. */
struct copy {
    char path[512];
    long size;
    unsigned char *bytes;
};

static struct copy copy_of_one(void)
{
    struct copy copy;
    empty_folder();
    write_prefix(tiny_ids(), 140, PLENTY);
    assert_int_equal(count_files(copy.path, sizeof copy.path), 1);
    copy.size = size_of(copy.path);
    copy.bytes = malloc((size_t)copy.size);
    int file = open(copy.path, O_RDONLY);
    assert_int_equal(read(file, copy.bytes, (size_t)copy.size), copy.size);
    close(file);
    return copy;
}

/* The first `keep` bytes of it, with byte `at` changed if that is one of them. */
static void put_back(struct copy *copy, long keep, long at)
{
    int file = open(copy->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (at < keep)
        copy->bytes[at] ^= 0x10;
    assert_int_equal(write(file, copy->bytes, (size_t)keep), keep);
    if (at < keep)
        copy->bytes[at] ^= 0x10;
    close(file);
}

static void test_torn(void **state)
{
    (void)state;
    struct copy copy = copy_of_one();
    char part[540];
    for (long keep = 0; keep < copy.size; keep += copy.size / 50) {
        put_back(&copy, keep, copy.size);
        assert_refused("removed");
    }
    /* what a killed process leaves, and what is not ours */
    snprintf(part, sizeof part, "%s" DISK_PART, copy.path);
    close(open(part, O_CREAT | O_WRONLY, 0600));
    char foreign[512];
    snprintf(foreign, sizeof foreign, "%s/README", folder);
    close(open(foreign, O_CREAT | O_WRONLY, 0600));
    struct disk_cache *disk;
    OK(open_disk(PLENTY, &disk, e));
    disk_cache_close(disk);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(foreign, F_OK), 0);
    unlink(foreign);
    free(copy.bytes);
}

/* Whichever byte is not what was written, nothing wrong is used. */
static void test_damaged(void **state)
{
    (void)state;
    struct ranked wanted[SPARE_STEPS], found[SPARE_STEPS];
    struct copy copy = copy_of_one();
    engine.ops->sequence_reset(engine.backend, sequence);
    read_tokens(tiny_ids(), 140);
    read_tokens(tiny_ids() + 140, LENGTH - 140);
    go_on(tiny_ids() + LENGTH, wanted);
    for (long at = 0; at < copy.size; at += at < 200 ? 7 : copy.size / 61) {
        struct disk_cache *disk;
        put_back(&copy, copy.size, at);
        OK(open_disk(PLENTY, &disk, e));
        struct prefix_cache *cache = new_cache(disk);
        int32_t length = prefix_cache_begin(cache, sequence, tiny_ids(), LENGTH + 1);
        if (length == 0) {
            assert_int_equal(sequence->position, 0);
            assert_false(sequence->broken);
            assert_int_equal(count_files(NULL, 0), 0);
            assert_non_null(strstr(log_text, "removed"));
        } else { /* it was the other state's byte */
            assert_int_equal(length, LENGTH);
            go_on(tiny_ids() + LENGTH, found);
            assert_memory_equal(wanted, found, sizeof wanted);
        }
        prefix_cache_free(cache);
        disk_cache_close(disk);
    }
    free(copy.bytes);
}

static void test_budget(void **state)
{
    (void)state;
    char path[512];
    int32_t tokens[3][CONTEXT];
    struct disk_cache *disk;
    for (int i = 0; i < 3; i++) {
        memcpy(tokens[i], tiny_ids(), sizeof tokens[i]);
        tokens[i][0] += i;
    }
    empty_folder();
    write_prefix(tokens[0], 140, PLENTY);
    count_files(path, sizeof path);
    int64_t size = size_of(path);
    write_prefix(tokens[1], 140, 2 * size + 100);
    write_prefix(tokens[2], 140, 2 * size + 100);
    assert_int_equal(count_files(NULL, 0), 2);
    OK(open_disk(2 * size + 100, &disk, e));
    assert_int_equal(disk_cache_match(disk, tokens[0], CONTEXT), 0); /* the oldest has gone */
    assert_int_equal(disk_cache_match(disk, tokens[2], CONTEXT), LENGTH);
    struct disk_cache_figures figures;
    disk_cache_read_figures(disk, &figures);
    assert_int_equal(figures.files, 2);
    assert_true(figures.used <= figures.budget);
    disk_cache_close(disk);
    OK(open_disk(size, &disk, e)); /* a smaller one now */
    assert_int_equal(count_files(NULL, 0), 1);
    disk_cache_close(disk);
    empty_folder();
    write_prefix(tokens[0], 140, size - 1);
    assert_int_equal(count_files(NULL, 0), 0);
}

/* A conversation's next turn takes the place of the one before. */
static void test_covered(void **state)
{
    (void)state;
    struct disk_cache *disk;
    empty_folder();
    OK(open_disk(PLENTY, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    engine.ops->sequence_reset(engine.backend, sequence);
    for (int i = 0; i < 3; i++) {
        read_tokens(tiny_ids() + i * 150, 150);
        prefix_cache_save(cache, sequence, tiny_ids(), PREFIX_END);
        prefix_cache_store(cache, tiny_ids(), (i + 1) * 150);
        disk_cache_drain(disk);
    }
    assert_int_equal(count_files(NULL, 0), 1);
    assert_int_equal(disk_cache_match(disk, tiny_ids(), 200), 150);
    assert_int_equal(disk_cache_match(disk, tiny_ids(), 400), 300);
    assert_int_equal(disk_cache_match(disk, tiny_ids(), 500), 450);
    prefix_cache_free(cache);
    disk_cache_close(disk);
}

static enum status reserve_and_drain(void *context, struct sequence *one, int32_t rows)
{
    disk_cache_drain(context);
    return engine.ops->kv_reserve(engine.backend, one, rows, NULL);
}

/* While room is made for a file's rows, another one takes its place. */
static void test_covered_while_it_is_read(void **state)
{
    (void)state;
    struct disk_cache *disk;
    empty_folder();
    OK(open_disk(PLENTY, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    engine.ops->sequence_reset(engine.backend, sequence);
    read_and_store(cache, 150);
    disk_cache_drain(disk);
    read_tokens(tiny_ids() + 150, 50);
    prefix_cache_save(cache, sequence, tiny_ids(), PREFIX_END);
    prefix_cache_store(cache, tiny_ids(), 200);
    engine.ops->sequence_reset(engine.backend, sequence);
    assert_int_equal(disk_cache_load(disk, sequence, tiny_ids(), 190, reserve_and_drain, disk),
                     150);
    assert_int_equal(sequence->position, 150);
    assert_int_equal(count_files(NULL, 0), 1);
    prefix_cache_free(cache);
    disk_cache_close(disk);
}

/* A disk that fails costs the files and a line, and nothing else. */
static void test_no_disk(void **state)
{
    (void)state;
    struct disk_cache *disk;
    struct error error;
    char saved[sizeof folder];
    memcpy(saved, folder, sizeof folder);
    strcpy(folder, "/nowhere/at-all");
    assert_int_equal(open_disk(PLENTY, &disk, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/nowhere/at-all"));
    memcpy(folder, saved, sizeof folder);
    empty_folder();
    OK(open_disk(PLENTY, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    char lock[512];
    snprintf(lock, sizeof lock, "%s/lock", folder);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(folder), 0); /* under its feet */
    engine.ops->sequence_reset(engine.backend, sequence);
    read_and_store(cache, LENGTH);
    disk_cache_drain(disk);
    assert_non_null(strstr(log_text, "cannot be written"));
    assert_int_equal(prefix_cache_begin(cache, sequence, tiny_ids(), LENGTH + 1), LENGTH);
    prefix_cache_free(cache);
    disk_cache_close(disk);
    assert_int_equal(mkdir(folder, 0700), 0);
}

/* Rows that somebody needs are not kept for the disk's sake. */
static void test_given_up(void **state)
{
    (void)state;
    struct disk_cache *disk;
    empty_folder();
    OK(open_disk(PLENTY, &disk, e));
    struct prefix_cache *cache = new_cache(disk);
    engine.ops->sequence_reset(engine.backend, sequence);
    read_and_store(cache, LENGTH);
    engine.ops->sequence_reset(engine.backend, sequence);
    OK(prefix_cache_reserve(cache, sequence, CONTEXT, e)); /* the pool is one context */
    assert_int_equal(prefix_cache_match(cache, tiny_ids(), LENGTH + 1), 0);
    disk_cache_drain(disk);
    assert_int_equal(count_files(NULL, 0), 0);
    prefix_cache_free(cache);
    disk_cache_close(disk);
}

static int setup(void **state)
{
    struct error error;
    struct engine_options options = {.ops = backends[0], .context = CONTEXT, .n_sequences = 1};
    if (tiny_setup(state) != 0 || !mkdtemp(folder) ||
        engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine, &error) ||
        engine_open(&engine, &error) || engine.ops->sequence_new(engine.backend, &sequence, &error))
        return -1;
    return 0;
}

static int teardown(void **state)
{
    char lock[512];
    empty_folder();
    snprintf(lock, sizeof lock, "%s/lock", folder);
    unlink(lock);
    rmdir(folder);
    engine.ops->sequence_free(engine.backend, sequence);
    engine_close(&engine);
    return tiny_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_row_15_of_another_kind),
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_covered),
        cmocka_unit_test(test_covered_while_it_is_read),
        cmocka_unit_test(test_no_disk),
        cmocka_unit_test(test_given_up),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
