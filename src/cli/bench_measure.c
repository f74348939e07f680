/* One test of `calla bench`: contexts are read or filled, tokens decoded, both timed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "engine/random.h"

/* Real rows that a filled context is made of. Their keys carry the positions of the first ones:
 * attention costs the same, what it says means nothing. */
#define FILL_ROWS 256
#define WARM_UP_STEPS 3

enum status bench_init(struct bench *bench, int n_sequences, struct error *error)
{
    struct backend *backend = bench->engine.backend;
    size_t context = (size_t)bench->engine.options.context;
    bench->tokens = malloc(context * sizeof *bench->tokens);
    bench->answers =
        malloc((size_t)n_sequences * (size_t)(bench->decode + 1) * sizeof *bench->answers);
    bench->ranked = malloc((size_t)n_sequences * sizeof *bench->ranked);
    if (!bench->tokens || !bench->answers || !bench->ranked)
        return error_no_memory(error, "prompts and answers");
    while (bench->n_sequences < n_sequences) {
        enum status status =
            backend->ops->sequence_new(backend, &bench->sequences[bench->n_sequences], error);
        if (status != STATUS_OK)
            return status;
        bench->n_sequences++;
    }
    return STATUS_OK;
}

void bench_clear(struct bench *bench)
{
    struct backend *backend = bench->engine.backend;
    for (int i = 0; i < bench->n_sequences; i++) {
        backend->ops->sequence_free(backend, bench->sequences[i]);
        free(bench->states[i]);
    }
    bench->n_sequences = 0;
    free(bench->tokens);
    free(bench->answers);
    free(bench->ranked);
}

int32_t bench_token(const struct bench *bench, int row, int32_t i)
{
    const struct token_list *text = bench->text;
    if (text && text->length) /* rows begin at different places of it */
        return text->data[((size_t)i + (size_t)row * 7919) % text->length];
    for (uint64_t attempt = 0;; attempt++) {
        uint64_t position = (uint64_t)row << 40 | attempt << 32 | (uint32_t)i;
        int32_t id = (int32_t)(random_uniform(bench->seed, position) * bench->engine.n_valid_ids);
        size_t length;
        if (attempt == 100 || !bench->tokenizer ||
            (!tokenizer_is_special(bench->tokenizer, id) &&
             tokenizer_bytes(bench->tokenizer, id, &length)))
            return id;
    }
}

bool bench_is_late(const struct bench *bench)
{
    return bench->deadline > 0 && clock_seconds() > bench->deadline;
}

enum status bench_warm_up(struct bench *bench, struct error *error)
{
    struct backend *backend = bench->engine.backend;
    struct row rows[BENCH_MAX_ROWS];
    for (int i = 0; i < bench->n_sequences; i++) {
        backend->ops->sequence_reset(backend, bench->sequences[i]);
        rows[i] = (struct row){bench->sequences[i], bench_token(bench, i, 0)};
    }
    enum status status = STATUS_OK;
    for (int step = 0; step < WARM_UP_STEPS && status == STATUS_OK; step++) {
        status = backend->ops->decode_step(backend, rows, bench->n_sequences, bench->ranked, error);
        for (int i = 0; i < bench->n_sequences && status == STATUS_OK; i++)
            rows[i].token = bench->ranked[i].id[0];
    }
    return status;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void watch_time(void *context, int32_t read, int32_t total)
{
    struct bench *bench = context;
    (void)read, (void)total;
    if (bench_is_late(bench))
        atomic_store(&bench->cancel, true);
}

/* Reads the first n tokens of the row's prompt into its empty sequence; *next: the best token. */
static enum status read_prompt(struct bench *bench, int row, int32_t n, int32_t *next,
                               struct error *error)
{
    struct sequence *sequence = bench->sequences[row];
    struct backend *backend = bench->engine.backend;
    backend->ops->sequence_reset(backend, sequence);
    *next = bench_token(bench, row, 0);
    if (n == 0)
        return STATUS_OK;
    atomic_store(&bench->cancel, false);
    const struct prefill_watch watch = {&bench->cancel, watch_time, bench};
    enum status status =
        engine_prefill(&bench->engine, sequence, bench->tokens, n, bench->ranked, &watch, error);
    if (status == STATUS_OK)
        *next = bench->ranked[0].id[0];
    return status;
}

/* Brings the row's sequence to `depth` with copies of its first rows and the state after them. */
static enum status fill(struct bench *bench, int row, int32_t depth, int32_t *next,
                        struct error *error)
{
    struct sequence *sequence = bench->sequences[row];
    struct backend *backend = bench->engine.backend;
    int32_t real = depth < FILL_ROWS ? depth : FILL_ROWS;
    enum status status = read_prompt(bench, row, real, next, error);
    if (status != STATUS_OK || real == depth)
        return status;
    void *rows = malloc((size_t)real * backend->ops->kv_row_size(backend));
    void *state = malloc(backend->ops->state_size(backend));
    if (!rows || !state)
        status = error_no_memory(error, "rows to fill the context with");
    if (status == STATUS_OK)
        status = backend->ops->kv_read(backend, sequence, 0, real, rows, error);
    if (status == STATUS_OK)
        status = backend->ops->state_read(backend, sequence, state, error);
    for (int32_t at = real; at < depth && status == STATUS_OK; at += real)
        status = backend->ops->kv_write(backend, sequence, at,
                                        depth - at < real ? depth - at : real, rows, error);
    if (status == STATUS_OK)
        status = backend->ops->state_write(backend, sequence, depth, state, error);
    free(rows);
    free(state);
    return status;
}

/* ---- one test -------------------------------------------------------------------------------- */

struct samples {
    const struct bench_test *test;
    struct bench_result *result;
    double *prefill, *decode; /* seconds, [repeat] */
    int n_prefill, n_decode;
    int32_t first[BENCH_MAX_ROWS]; /* the first token to decode with */
};

/* Brings a row to where decoding begins; timed for the first row when reading is what is tested.
 * Repetitions go back to the state that the first one kept. */
static enum status prepare_row(struct bench *bench, struct samples *samples, int repetition,
                               int row, struct error *error)
{
    const struct bench_test *test = samples->test;
    struct backend *backend = bench->engine.backend;
    struct sequence *sequence = bench->sequences[row];
    bool timed = test->prefill && row == 0;
    if (repetition > 0 && !timed)
        return backend->ops->state_write(backend, sequence, test->length, bench->states[row],
                                         error);
    for (int32_t i = 0; i < test->length; i++)
        bench->tokens[i] = bench_token(bench, row, i);
    double begun = clock_seconds();
    enum status status = bench->fill && !test->prefill
                             ? fill(bench, row, test->length, &samples->first[row], error)
                             : read_prompt(bench, row, test->length, &samples->first[row], error);
    if (status != STATUS_OK)
        return status;
    if (timed)
        samples->prefill[samples->n_prefill++] = clock_seconds() - begun;
    if (timed || bench->repeat == 1 || bench->decode == 0)
        return STATUS_OK;
    if (!bench->states[row])
        bench->states[row] = malloc(backend->ops->state_size(backend));
    if (!bench->states[row])
        return error_no_memory(error, "a sequence's state");
    return backend->ops->state_read(backend, sequence, bench->states[row], error);
}

static void digest_answers(struct bench *bench, const struct samples *samples)
{
    struct bench_result *result = samples->result;
    size_t n = (size_t)samples->test->rows * (size_t)(bench->decode + 1);
    char digest[SHA256_HEX_SIZE];
    unsigned char *bytes = (unsigned char *)bench->answers;
    for (size_t i = 0; i < n; i++) { /* little-endian on every machine */
        uint32_t id = (uint32_t)bench->answers[i];
        for (int j = 0; j < 4; j++)
            bytes[4 * i + (size_t)j] = (unsigned char)(id >> 8 * j);
    }
    sha256_bytes(bytes, 4 * n, digest);
    if (result->digest[0] && strcmp(result->digest, digest) != 0)
        result->varied = true;
    memcpy(result->digest, digest, sizeof digest);
}

/* STATUS_CANCELLED when the time is over: steps that were timed for some rows count no more. */
static enum status decode(struct bench *bench, struct samples *samples, struct error *error)
{
    struct backend *backend = bench->engine.backend;
    int n = samples->test->rows;
    struct row rows[BENCH_MAX_ROWS];
    int32_t stride = bench->decode + 1;
    for (int row = 0; row < n; row++) {
        rows[row] = (struct row){bench->sequences[row], samples->first[row]};
        bench->answers[row * stride] = samples->first[row];
    }
    double begun = clock_seconds();
    for (int32_t i = 1; i <= bench->decode; i++) {
        enum status status = backend->ops->decode_step(backend, rows, n, bench->ranked, error);
        if (status != STATUS_OK)
            return status;
        for (int row = 0; row < n; row++)
            bench->answers[row * stride + i] = rows[row].token = bench->ranked[row].id[0];
        if (i < bench->decode && bench_is_late(bench))
            return error_set(error, STATUS_CANCELLED, "--time-limit");
    }
    samples->decode[samples->n_decode++] = clock_seconds() - begun;
    digest_answers(bench, samples);
    return STATUS_OK;
}

static enum status repeat(struct bench *bench, struct samples *samples, struct error *error)
{
    for (int i = 0; i < bench->repeat; i++) {
        for (int row = 0; row < samples->test->rows; row++) {
            if (bench_is_late(bench))
                return error_set(error, STATUS_CANCELLED, "--time-limit");
            enum status status = prepare_row(bench, samples, i, row, error);
            if (status != STATUS_OK)
                return status;
            if (bench->decode == 0) /* only the first row is timed */
                break;
        }
        enum status status = bench->decode ? decode(bench, samples, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds to tokens a second. Gives the median of the seconds. */
static double summarise(double *seconds, int n, double tokens, struct bench_figure *figure)
{
    *figure = (struct bench_figure){.n = n};
    if (n == 0)
        return 0;
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    double median = n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
    figure->median = tokens / median;
    figure->min = tokens / seconds[n - 1];
    figure->max = tokens / seconds[0];
    return median;
}

/* Bytes for each token: the weights are read once a step for all rows; each row reads and writes
 * its recurrent state and reads the KV rows before it. */
static void count_bytes(const struct bench *bench, struct bench_result *result)
{
    struct backend *backend = bench->engine.backend;
    int rows = result->test.rows;
    double depth = result->test.length + (bench->decode + 1) / 2.0;
    result->weight_bytes = weights_step_bytes(bench->engine.options.weights, rows) / rows;
    result->all_bytes = result->weight_bytes + 2.0 * (double)bench->engine.plan.state +
                        depth * (double)backend->ops->kv_row_size(backend);
    if (bench->bandwidth > 0)
        result->share = result->decode.median * result->all_bytes / bench->bandwidth;
}

enum status bench_measure(struct bench *bench, const struct bench_test *test,
                          struct bench_result *result, struct error *error)
{
    *result = (struct bench_result){
        .test = *test,
        .decoded = bench->decode,
        .filled = bench->fill && !test->prefill && test->length > FILL_ROWS,
    };
    struct samples samples = {.test = test, .result = result};
    samples.prefill = calloc((size_t)bench->repeat, sizeof *samples.prefill);
    samples.decode = calloc((size_t)bench->repeat, sizeof *samples.decode);
    enum status status = samples.prefill && samples.decode ? repeat(bench, &samples, error)
                                                           : error_no_memory(error, "samples");
    if (status == STATUS_CANCELLED) {
        result->cut = "--time-limit";
        status = STATUS_OK;
    }
    if (status == STATUS_OK) {
        result->first_token =
            summarise(samples.prefill, samples.n_prefill, test->length, &result->prefill);
        summarise(samples.decode, samples.n_decode, (double)test->rows * bench->decode,
                  &result->decode);
        count_bytes(bench, result);
        result->peak_memory = memory_peak();
    }
    free(samples.prefill);
    free(samples.decode);
    return status;
}
