/* Written checkpoints are whole and the same bytes as in memory, or not there at all. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/checkpoint.h"
#include "model/synth_write.h"

static char base[200], folder[256];
static struct synth *synth;
static struct error error;

static int count_entries(const char *path)
{
    DIR *stream = opendir(path);
    if (!stream)
        return -1;
    int n = -2;
    while (readdir(stream))
        n++;
    closedir(stream);
    return n;
}

static void remove_folder(void)
{
    DIR *stream = opendir(folder);
    if (!stream)
        return;
    for (const struct dirent *entry; (entry = readdir(stream));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    closedir(stream);
    rmdir(folder);
}

static int setup(void **state)
{
    (void)state;
    const char *temporary = getenv("TMPDIR");
    snprintf(base, sizeof base, "%s/calla-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(base))
        return -1;
    snprintf(folder, sizeof folder, "%s/model", base);
    return synth_plan(&shape_tiny, 5, true, &synth, &error) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder();
    synth_close(synth);
    return rmdir(base);
}

static enum status write_it(const struct synth_write_options *options)
{
    struct synth_write_options all = *options;
    all.tokenizer = "tokens";
    all.tokenizer_length = 6;
    return synth_write(synth, folder, &all, &error);
}

static void compare_matrix(const struct quant_matrix *a, const struct quant_matrix *b)
{
    size_t values = (size_t)a->count * (size_t)a->rows * (size_t)a->columns;
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->bits, b->bits);
    assert_memory_equal(a->weight, b->weight, values * (size_t)a->bits / 8);
    assert_memory_equal(a->scales, b->scales, values / GROUP_SIZE * 2);
    assert_memory_equal(a->biases, b->biases, values / GROUP_SIZE * 2);
}

static void compare_vector(const struct vector *a, const struct vector *b)
{
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->data, b->data, (size_t)(a->length * a->bytes_per_value));
}

static void compare_layer(const struct layer_weights *a, const struct layer_weights *b, bool full)
{
    compare_vector(&a->input_layernorm, &b->input_layernorm);
    compare_vector(&a->post_attention_layernorm, &b->post_attention_layernorm);
    if (full) {
        compare_matrix(&a->self_attn.q_proj, &b->self_attn.q_proj);
        compare_matrix(&a->self_attn.k_proj, &b->self_attn.k_proj);
        compare_matrix(&a->self_attn.v_proj, &b->self_attn.v_proj);
        compare_matrix(&a->self_attn.o_proj, &b->self_attn.o_proj);
        compare_vector(&a->self_attn.q_norm, &b->self_attn.q_norm);
        compare_vector(&a->self_attn.k_norm, &b->self_attn.k_norm);
    } else {
        compare_matrix(&a->linear_attn.in_proj_qkv, &b->linear_attn.in_proj_qkv);
        compare_matrix(&a->linear_attn.in_proj_z, &b->linear_attn.in_proj_z);
        compare_matrix(&a->linear_attn.in_proj_b, &b->linear_attn.in_proj_b);
        compare_matrix(&a->linear_attn.in_proj_a, &b->linear_attn.in_proj_a);
        compare_matrix(&a->linear_attn.out_proj, &b->linear_attn.out_proj);
        compare_vector(&a->linear_attn.conv1d, &b->linear_attn.conv1d);
        compare_vector(&a->linear_attn.A_log, &b->linear_attn.A_log);
        compare_vector(&a->linear_attn.dt_bias, &b->linear_attn.dt_bias);
        compare_vector(&a->linear_attn.norm, &b->linear_attn.norm);
    }
    compare_matrix(&a->mlp.gate, &b->mlp.gate);
    compare_matrix(&a->mlp.shared_expert_gate, &b->mlp.shared_expert_gate);
    compare_matrix(&a->mlp.gate_proj, &b->mlp.gate_proj);
    compare_matrix(&a->mlp.up_proj, &b->mlp.up_proj);
    compare_matrix(&a->mlp.down_proj, &b->mlp.down_proj);
    compare_matrix(&a->mlp.shared_gate_proj, &b->mlp.shared_gate_proj);
    compare_matrix(&a->mlp.shared_up_proj, &b->mlp.shared_up_proj);
    compare_matrix(&a->mlp.shared_down_proj, &b->mlp.shared_down_proj);
}

static void note_progress(void *context, int64_t done)
{
    *(int64_t *)context = done;
}

static void test_same_as_in_memory(void **state)
{
    (void)state;
    struct synth *memory;
    assert_int_equal(synth_open(&shape_tiny, 5, 0, &memory, NULL), STATUS_OK);
    for (int n_threads = 1; n_threads <= 4; n_threads += 3) {
        int64_t done = 0;
        struct checkpoint *checkpoint;
        if (write_it(&(struct synth_write_options){
                .n_threads = n_threads, .progress = note_progress, .context = &done}) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_true(done > 0 && (n_threads > 1 || done == synth_bytes(synth)));
        assert_int_equal(count_entries(folder), 7);
        if (checkpoint_open(folder, &checkpoint, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        const struct weights *a = checkpoint_weights(checkpoint), *b = synth_weights(memory);
        compare_matrix(&a->embed_tokens, &b->embed_tokens);
        for (int i = 0; i < shape_tiny.num_hidden_layers; i++)
            compare_layer(&a->layers[i], &b->layers[i], shape_is_full_attention(&shape_tiny, i));
        compare_vector(&a->norm, &b->norm);
        compare_matrix(&a->lm_head, &b->lm_head);
        checkpoint_close(checkpoint);
        remove_folder();
    }
    synth_close(memory);
}

static void test_an_empty_folder_will_do(void **state)
{
    (void)state;
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(write_it(&(struct synth_write_options){0}), STATUS_OK);
    assert_int_equal(count_entries(folder), 7);
    /* and now it is not empty */
    assert_int_equal(write_it(&(struct synth_write_options){0}), STATUS_INVALID);
    assert_non_null(strstr(error.message, folder));
    assert_non_null(strstr(error.message, "not empty"));
    assert_int_equal(count_entries(folder), 7);
    remove_folder();
}

static void test_places_that_cannot_be(void **state)
{
    (void)state;
    char usual[sizeof folder];
    snprintf(usual, sizeof usual, "%s", folder);
    fclose(fopen(folder, "w"));
    assert_int_equal(write_it(&(struct synth_write_options){0}), STATUS_IO);
    assert_non_null(strstr(error.message, "Not a directory"));
    assert_int_equal(unlink(folder), 0);
    snprintf(folder, sizeof folder, "%s/no/model", base);
    assert_int_equal(write_it(&(struct synth_write_options){0}), STATUS_IO);
    assert_non_null(strstr(error.message, folder));
    snprintf(folder, sizeof folder, "%s", usual);
    assert_int_equal(count_entries(base), 0);
}

static void test_other_shapes(void **state)
{
    (void)state;
    struct synth *usual = synth;
    struct shape shape = shape_tiny;
    shape.name = "other";
    assert_int_equal(synth_plan(&shape, 5, false, &synth, NULL), STATUS_OK);
    assert_int_equal(write_it(&(struct synth_write_options){0}), STATUS_UNSUPPORTED);
    assert_int_equal(count_entries(base), 0);
    synth_close(synth);
    synth = usual;
}

static void cancel_now(void *context, int64_t done)
{
    (void)done;
    atomic_store((atomic_bool *)context, true);
}

/* A folder that was there stays, empty; one that was made goes. */
static void assert_nothing_left(bool folder_stays)
{
    assert_int_equal(count_entries(folder), folder_stays ? 0 : -1);
    assert_int_equal(count_entries(base), folder_stays ? 1 : 0);
}

static void test_cancel(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        bool before = i & 1, folder_stays = i & 2;
        atomic_bool cancel = before; /* or after the first piece */
        if (folder_stays)
            assert_int_equal(mkdir(folder, 0755), 0);
        assert_int_equal(write_it(&(struct synth_write_options){.n_threads = i & 4 ? 3 : 1,
                                                                .progress = cancel_now,
                                                                .context = &cancel,
                                                                .cancel = &cancel}),
                         STATUS_CANCELLED);
        assert_non_null(strstr(error.message, folder));
        assert_nothing_left(folder_stays);
        rmdir(folder);
    }
}

/* As on a disk that is full: writes fail from the 3rd megabyte of a shard, or at once. */
static void test_writes_that_fail(void **state)
{
    (void)state;
    struct rlimit usual, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    small = usual;
    for (int i = 0; i < 4; i++) {
        small.rlim_cur = i & 1 ? 3000000 : 100;
        setrlimit(RLIMIT_FSIZE, &small);
        enum status status = write_it(&(struct synth_write_options){.n_threads = i & 2 ? 3 : 1});
        setrlimit(RLIMIT_FSIZE, &usual);
        assert_int_equal(status, STATUS_IO);
        assert_non_null(strstr(error.message, ".safetensors: File too large"));
        assert_nothing_left(false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_as_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_empty_folder_will_do, setup, teardown),
        cmocka_unit_test_setup_teardown(test_places_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_shapes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writes_that_fail, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
