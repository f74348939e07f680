/* The files of a synthetic checkpoint of the target's shape against the published ones: where those
 * are the same bytes, their SHA-256 is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "model/config.h"
#include "model/known_files.h"
#include "model/synth_files.h"

static struct synth *plan(const struct shape *shape, bool vision)
{
    struct synth *synth;
    assert_int_equal(synth_plan(shape, 0, vision, &synth, NULL), STATUS_OK);
    return synth;
}

/* Writes it to a folder of its own and lets `calla inspect --verify`'s check look. */
static void assert_published(const char *name, struct bytes *bytes)
{
    char folder[] = "/tmp/calla-XXXXXX", path[100];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes->data, 1, bytes->length, file), bytes->length);
    assert_int_equal(fclose(file), 0);
    const struct known_file *known = known_files;
    while (strcmp(known->name, name) != 0)
        known++;
    struct known_result result;
    known_file_check(folder, known, NULL, NULL, &result);
    unlink(path);
    rmdir(folder);
    if (result.state != KNOWN_OK)
        fail_msg("%s: %s", name, known_state_names[result.state]);
    bytes_clear(bytes);
}

static void test_published_files(void **state)
{
    (void)state;
    struct synth *synth = plan(&shape_35b_a3b, true);
    struct synth_layout layout;
    struct bytes bytes = {0};
    synth_cut(synth, &layout);
    synth_config(synth, &bytes);
    assert_published("config.json", &bytes);
    synth_generation_config(synth, &bytes);
    assert_published("generation_config.json", &bytes);
    synth_tokenizer_config(synth, &bytes);
    assert_published("tokenizer_config.json", &bytes);
    synth_index(synth, &layout, &bytes);
    assert_published("model.safetensors.index.json", &bytes);
    synth_close(synth);
}

/* The index proves which tensor is in which shard; within one the published order is not known, so
 * offsets, and the length of the header with them, differ by some digits. */
static void test_published_shards(void **state)
{
    (void)state;
    struct synth *synth = plan(&shape_35b_a3b, true);
    struct synth_layout layout;
    synth_cut(synth, &layout);
    assert_int_equal(layout.n, 4);
    for (int i = 0; i < 4; i++) {
        const struct synth_shard *shard = &layout.shards[i];
        const struct known_file *known = known_files;
        while (strcmp(known->name, shard->name) != 0)
            known++;
        struct bytes header = {0};
        synth_shard_header(synth, shard, &header);
        int64_t difference = (int64_t)header.length + shard->size - known->size;
        assert_true(llabs(difference) < 1000);
        bytes_clear(&header);
    }
    synth_close(synth);
}

/* What the JSON of a header says of each tensor, and that length and offsets fit. */
static void check_header(const struct synth *synth, const struct synth_shard *shard)
{
    struct bytes bytes = {0};
    synth_shard_header(synth, shard, &bytes);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)bytes.data[i];
    assert_int_equal(length, bytes.length - 8);
    json_t *header;
    assert_int_equal(json_parse_strict(bytes.data + 8, length, "header", &header, NULL), STATUS_OK);
    assert_int_equal(json_object_size(header), shard->n + 1);
    int n;
    const struct synth_tensor *tensors = synth_tensors(synth, &n);
    int64_t offset = 0;
    for (int i = shard->first; i < shard->first + shard->n; i++) {
        json_t *entry = json_object_get(header, tensors[i].name);
        json_t *offsets = json_object_get(entry, "data_offsets");
        const json_t *shape = json_object_get(entry, "shape");
        int64_t size = tensors[i].dtype[0] == 'U' ? 4 : 2;
        assert_int_equal(json_integer_value(json_array_get(offsets, 0)), offset);
        offset += tensors[i].size;
        assert_int_equal(json_integer_value(json_array_get(offsets, 1)), offset);
        assert_int_equal(json_array_size(shape), tensors[i].n_dims);
        for (size_t d = 0; d < json_array_size(shape); d++)
            size *= json_integer_value(json_array_get(shape, d));
        assert_int_equal(size, tensors[i].size);
    }
    assert_int_equal(offset, shard->size);
    json_decref(header);
    bytes_clear(&bytes);
}

static void test_headers(void **state)
{
    (void)state;
    const struct shape *const shapes[] = {&shape_tiny, &shape_35b_a3b};
    for (int i = 0; i < 4; i++) {
        struct synth *synth = plan(shapes[i / 2], i % 2);
        struct synth_layout layout;
        synth_cut(synth, &layout);
        assert_int_equal(layout.n, i / 2 ? 4 : 2);
        int64_t from = 0;
        for (int j = 0; j < layout.n; j++) { /* nothing left out, nothing twice */
            assert_int_equal(layout.shards[j].from, from);
            from += layout.shards[j].size;
            check_header(synth, &layout.shards[j]);
        }
        assert_int_equal(from, synth_bytes(synth));
        synth_close(synth);
    }
}

/* config.json without vision and for tiny: what the loader makes of it. */
static void test_config(void **state)
{
    (void)state;
    const struct shape *const shapes[] = {&shape_tiny, &shape_35b_a3b};
    for (int i = 0; i < 4; i++) {
        struct synth *synth = plan(shapes[i / 2], i % 2);
        struct bytes text = {0}, generation = {0};
        struct config config;
        struct error error;
        synth_config(synth, &text);
        synth_generation_config(synth, &generation);
        if (config_parse(text.data, text.length, "config.json", generation.data, generation.length,
                         "generation_config.json", &config, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_ptr_equal(config.shape, shapes[i / 2]);
        assert_int_equal(config.max_position_embeddings, i / 2 ? 262144 : 32768);
        assert_int_equal(config.n_stop_ids, 2);
        assert_int_equal(config.stop_ids[0], i / 2 ? 248046 : 4052);
        const char *terminated = bytes_terminate(&text);
        assert_true((strstr(terminated, "vision_config") != NULL) == i % 2);
        config_clear(&config);
        bytes_clear(&text);
        bytes_clear(&generation);
        synth_close(synth);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_files),
        cmocka_unit_test(test_published_shards),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
