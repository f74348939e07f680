/* The memory plan against what a process really takes, each use of a backend in a process of its
 * own: never more than planned, whatever the prompt's length, and the plan not much above it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "support/sanitized.h"
#include "support/tiny.h"

/* Beside the plan: the stacks of THREADS threads, blocks' heads, pages of code. */
#define MARGIN ((int64_t)2 << 20)
#define THREADS 2
#define FEW 16
#define ROWS 64    /* max_rows of no backend is larger */
#define LONG 32768 /* contexts for which the whole workspace is needed */
#define MIB (1024.0 * 1024)

struct use {
    struct memory_plan plan;
    int64_t grown, anonymous; /* the peak, and what of it is mapped from no file */
};

/* ---- in a process of its own: no assertion, which would go on with the next test ------------- */

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct error error_;                                                                       \
        struct error *e = &error_;                                                                 \
        if ((call) != STATUS_OK) {                                                                 \
            fprintf(stderr, "%s\n", e->message);                                                   \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static int64_t memory_anonymous(void) /* 0 when unknown */
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long long kilobytes = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %lld", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* The test's own, written to before measuring. */
static unsigned char kv_rows[FEW * 16384], snapshot[8 << 20];

/* Fills the context: a first chunk with all its outputs, a prompt in chunks as large as can be, of
 * which ref, which is slow, reads one; then the same KV rows again and again; at the end a step of
 * few rows, which share the work in another way. */
static void fill_context(struct backend *b, struct sequence *sequence)
{
    int most = b->limits.max_chunk, prompt = b->ops == &backend_ref ? most : 2 * most;
    int end = sequence->capacity - FEW;
    struct ranked ranked[ROWS];
    if (b->limits.max_rows > ROWS || FEW * b->ops->kv_row_size(b) > sizeof kv_rows ||
        b->ops->state_size(b) > sizeof snapshot)
        _exit(4);
    MUST(b->ops->prefill_chunk(b, sequence, tiny_ids(), b->limits.max_rows, PREFILL_ALL, ranked,
                               NULL, e));
    prompt = prompt < end ? prompt : end;
    while (sequence->position < prompt) {
        int n = prompt - sequence->position < most ? prompt - sequence->position : most;
        MUST(b->ops->prefill_chunk(b, sequence, tiny_ids(), n, PREFILL_LAST, ranked, NULL, e));
    }
    MUST(b->ops->kv_read(b, sequence, 0, FEW, kv_rows, e));
    MUST(b->ops->state_read(b, sequence, snapshot, e));
    for (int at = prompt; at < end; at = sequence->kv_length)
        MUST(b->ops->kv_write(b, sequence, at, end - at < FEW ? end - at : FEW, kv_rows, e));
    MUST(b->ops->state_write(b, sequence, end, snapshot, e));
    MUST(b->ops->prefill_chunk(b, sequence, tiny_ids(), FEW, PREFILL_LAST, ranked, NULL, e));
    if (sequence->position != sequence->capacity)
        _exit(5);
}

static void use_memory(const struct backend_ops *ops, int context, int n_sequences, struct use *use)
{
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = context,
                                      .n_sequences = n_sequences,
                                      .threads = THREADS};
    ops->plan(&options, &use->plan);
    memset(kv_rows, 1, sizeof kv_rows);
    memset(snapshot, 1, sizeof snapshot);
    int64_t peak = memory_peak(), anonymous = memory_anonymous();
    struct backend *b;
    MUST(ops->open(&options, &b, e));
    for (int i = 0; i < n_sequences; i++) {
        struct sequence *sequence;
        MUST(b->ops->sequence_new(b, &sequence, e));
        fill_context(b, sequence);
    }
    use->grown = memory_peak() - peak;
    use->anonymous = memory_anonymous() - anonymous; /* nothing was given back */
}

/* ---- the tests ------------------------------------------------------------------------------- */

static struct use use_in_child(const struct backend_ops *ops, int context, int n_sequences)
{
    int ends[2], code;
    struct use use = {0};
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        use_memory(ops, context, n_sequences, &use);
        _exit(write(ends[1], &use, sizeof use) == sizeof use ? 0 : 2);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], &use, sizeof use);
    close(ends[0]);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_equal(got, sizeof use);
    return use;
}

static void check_use(const struct backend_ops *ops, int context, int n_sequences)
{
    struct use use = use_in_child(ops, context, n_sequences);
    int64_t total = use.plan.total, allocated = total - use.plan.weights;
    print_message(
        "    %s, %d of context %d: planned %.2f MiB, peak %.2f; without weights %.2f, %.2f\n",
        ops->name, n_sequences, context, (double)total / MIB, (double)use.grown / MIB,
        (double)allocated / MIB, (double)use.anonymous / MIB);
    assert_true(use.plan.kv_cache > context && use.plan.state > 0 && use.plan.workspace > 0);
    if (use.grown > total + MARGIN || use.anonymous > allocated + MARGIN)
        fail_msg("more memory than planned");
    if (context >= LONG && use.anonymous < allocated - allocated / 10 - MARGIN)
        fail_msg("much more memory planned than needed");
}

static void test_row_76_peak_is_as_planned(void **state)
{
    (void)state;
    if (SANITIZED || memory_anonymous() == 0) {
        print_message("%s\n", SANITIZED ? "sanitizers take memory of their own, in no plan"
                                        : "this system does not tell a process's memory");
        skip();
    }
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        check_use(*ops, 1000, 1);
        if (strcmp((*ops)->name, "ref") == 0)
            continue;
        check_use(*ops, 1500, 3);
        check_use(*ops, LONG, 1);
        check_use(*ops, 65536, 1);
    }
}

/* Refused at the start, with the figures, before anything is allocated. */
static void test_row_76_what_cannot_fit_is_refused(void **state)
{
    (void)state;
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        struct engine_options options = {.ops = *ops, .context = 2000000000, .n_sequences = 1};
        struct engine engine;
        struct error error;
        assert_int_equal(
            engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine, &error),
            STATUS_OK);
        assert_true(engine.plan.kv_cache > 2000000000LL * 4000);
        int64_t peak = memory_peak();
        assert_int_equal(engine_open(&engine, &error), STATUS_NO_MEMORY);
        assert_null(engine.backend);
        assert_in_range(memory_peak(), peak, peak + MARGIN);
        assert_null(strchr(error.message, '\n'));
        assert_non_null(strstr(error.message, "2000000000 tokens"));
        assert_non_null(strstr(error.message, "GiB"));
        assert_non_null(strstr(error.message, "choose a smaller context"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_76_peak_is_as_planned), /* first: it forks */
        cmocka_unit_test(test_row_76_what_cannot_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
