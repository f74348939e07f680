/* `calla bench`: how fast a model reads prompts and decodes here, by context length and number of
 * sequences, on a checkpoint or on synthetic weights in memory. See bench.h for its parts. */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file_write.h"
#include "base/memory.h"
#include "cli/input.h"
#include "library/model.h"
#include "model/synth.h"

#define DEFAULT_LENGTHS "256,512,1K,2K,4K,8K,16K,32K,64K,128K"
#define DEFAULT_LIMIT 120        /* seconds, for the default lengths: long ones take hours */
#define SYNTHETIC_CONTEXT 262144 /* what the real model's config allows */
#define ROUTED_TOKENS 64         /* whose experts are counted; they warm up, too */
#define PLOT_MAX 16              /* CSV files */
#define AS_TEXT(value) #value
#define TEXT(macro) AS_TEXT(macro)

struct settings {
    struct device_options device;
    const char *model, *synthetic, *text, *csv, *plot;
    const char *lengths_text, *depths_text, *rows_text;
    const struct shape *shape; /* of synthetic weights */
    struct bench_list lengths, depths, rows;
    int64_t decode, repeat, seed;
    double time_limit; /* seconds; 0: none */
    bool time_limit_given;
    bool fill, json, no_bandwidth;
    struct bench_result *results; /* [BENCH_MAX_TESTS] */
    int n;
};

/* The weights, wherever they come from. */
struct source {
    struct model model;
    struct synth *synth;
    const struct weights *weights;
    struct token_list text;
    int32_t n_valid_ids, max_context;
};

/* ---- tests ----------------------------------------------------------------------------------- */

static enum status add_tests(struct settings *settings, const struct bench_list *lengths,
                             bool prefill, struct error *error)
{
    for (int i = 0; i < lengths->n; i++)
        for (int j = 0; j < settings->rows.n; j++) {
            if (settings->n == BENCH_MAX_TESTS)
                return error_set(error, STATUS_INVALID, "wanted at most %d tests", BENCH_MAX_TESTS);
            settings->results[settings->n++].test =
                (struct bench_test){lengths->values[i], settings->rows.values[j], prefill};
        }
    return STATUS_OK;
}

static enum status list_tests(struct settings *settings, struct error *error)
{
    const char *lengths = settings->lengths_text;
    if (!lengths && !settings->depths_text) {
        lengths = DEFAULT_LENGTHS;
        if (!settings->time_limit_given)
            settings->time_limit = DEFAULT_LIMIT;
    }
    const char *rows = settings->rows_text ? settings->rows_text : "1";
    enum status status = bench_list_parse("rows", rows, 1, BENCH_MAX_ROWS, &settings->rows, error);
    if (status == STATUS_OK && lengths)
        status = bench_list_parse("prompt-lengths", lengths, 1, 1 << 24, &settings->lengths, error);
    if (status == STATUS_OK && settings->depths_text)
        status =
            bench_list_parse("depth", settings->depths_text, 0, 1 << 24, &settings->depths, error);
    if (status == STATUS_OK)
        status = add_tests(settings, &settings->lengths, true, error);
    if (status == STATUS_OK)
        status = add_tests(settings, &settings->depths, false, error);
    if (status == STATUS_OK && settings->decode == 0 && settings->depths.n)
        status = error_set(error, STATUS_INVALID,
                           "--decode: found 0 with --depth, which measures nothing but decoding");
    if (status == STATUS_OK && settings->fill && !settings->depths.n)
        status = error_set(error, STATUS_INVALID, "--fake-depth wants --depth LIST");
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum status read_text(const char *path, const struct tokenizer *tokenizer,
                             struct token_list *ids, struct error *error)
{
    struct bytes text = {0};
    enum status status = input_read(path, &text, error);
    const struct text_span span = {text.data, text.length, false};
    if (status == STATUS_OK)
        status = tokenizer_encode(tokenizer, &span, 1, ids, error);
    if (status == STATUS_OK && ids->failed)
        status = error_no_memory(error, path);
    if (status == STATUS_OK && ids->length == 0)
        status = error_set(error, STATUS_INVALID, "%s: found no text", path);
    bytes_clear(&text);
    return status;
}

static enum status source_open(const struct settings *settings, struct source *source,
                               struct error *error)
{
    enum status status;
    if (settings->synthetic) {
        status = synth_open(settings->shape, (uint64_t)settings->seed,
                            device_threads(&settings->device), &source->synth, error);
        if (status != STATUS_OK)
            return status;
        source->weights = synth_weights(source->synth);
        source->n_valid_ids = settings->shape->vocab_size;
        source->max_context = SYNTHETIC_CONTEXT;
        return STATUS_OK;
    }
    status = model_open(settings->model, &source->model, error);
    if (status != STATUS_OK)
        return status;
    source->weights = checkpoint_weights(source->model.checkpoint);
    source->n_valid_ids = tokenizer_size(source->model.tokenizer);
    source->max_context = checkpoint_config(source->model.checkpoint)->max_position_embeddings;
    if (settings->text)
        status = read_text(settings->text, source->model.tokenizer, &source->text, error);
    return status;
}

static void source_close(struct source *source)
{
    token_list_clear(&source->text);
    if (source->synth)
        synth_close(source->synth);
    model_close(&source->model);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Plans for all tests that are not cut: the longest context and the most rows. False: none is. */
static bool largest(const struct settings *settings, int32_t *context, int *rows)
{
    int n = 0;
    *context = ROUTED_TOKENS;
    *rows = 1;
    for (int i = 0; i < settings->n; i++) {
        const struct bench_result *result = &settings->results[i];
        int64_t wanted = result->test.length + settings->decode;
        if (result->cut)
            continue;
        *context = wanted > *context ? (int32_t)wanted : *context;
        *rows = result->test.rows > *rows ? result->test.rows : *rows;
        n++;
    }
    return n > 0;
}

/* Cuts the tests that need the most, so that the rest may fit. */
static void cut_largest(struct settings *settings, int32_t context, const char *why)
{
    for (int i = 0; i < settings->n; i++) {
        struct bench_result *result = &settings->results[i];
        if (!result->cut && result->test.length + settings->decode >= context)
            result->cut = why;
    }
}

/* The engine for as many of the tests as fit. */
static enum status plan_tests(struct settings *settings, const struct source *source,
                              struct engine *engine, struct error *error)
{
    struct engine_options options = {0};
    struct error problem = {0};
    enum status status = device_choose(&settings->device, &options, error);
    while (status == STATUS_OK) {
        if (!largest(settings, &options.context, &options.n_sequences))
            return error_set(error, STATUS_NO_MEMORY, "no test fits: %s", problem.message);
        const char *why = NULL;
        if (options.context > source->max_context) {
            error_set(&problem, STATUS_INVALID, "the model takes %d tokens at most",
                      source->max_context);
            why = "the model's longest context";
        } else {
            status = engine_plan(source->weights, source->n_valid_ids, &options, engine, error);
            if (status == STATUS_OK &&
                memory_plan_check(&engine->plan, options.context, options.n_sequences, &problem) ==
                    STATUS_OK)
                return STATUS_OK;
            why = "memory";
        }
        if (options.context == ROUTED_TOKENS)
            return error_set(error, STATUS_NO_MEMORY, "no test fits: %s", problem.message);
        cut_largest(settings, options.context, why);
    }
    return status;
}

/* Whether the time that is left is too short for a test, by the speed of those before it. */
static bool too_long(const struct bench *bench, const struct settings *settings, int i)
{
    const struct bench_test *test = &settings->results[i].test;
    double rate = 0;
    if (bench->deadline == 0)
        return false;
    for (int j = 0; j < i; j++)
        if (settings->results[j].prefill.n)
            rate = settings->results[j].prefill.median;
    bool reads = test->prefill || !settings->fill;
    double seconds = rate > 0 && reads ? (double)test->length * test->rows / rate : 0;
    return clock_seconds() + seconds > bench->deadline;
}

/* All that is known so far, again after each test: a run that is broken off keeps its results. */
static enum status write_csv(const struct settings *settings, const struct bench_run *run, int n,
                             struct error *error)
{
    const char *path = settings->csv;
    struct bytes csv = {0};
    if (!path)
        return STATUS_OK;
    bench_csv(&(struct bench_report){run, settings->results, n}, &csv);
    enum status status = csv.failed ? error_no_memory(error, path)
                                    : file_write(path, 0, csv.data, csv.length, error);
    bytes_clear(&csv);
    return status;
}

static enum status run_tests(struct settings *settings, struct bench *bench,
                             const struct bench_run *run, struct error *error)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < settings->n && status == STATUS_OK; i++) {
        struct bench_result *result = &settings->results[i];
        int max_rows = bench->engine.backend->limits.max_rows;
        const struct bench_test test = result->test;
        if (!result->cut && test.rows > max_rows)
            return error_set(error, STATUS_INVALID,
                             "--rows: found %d, wanted at most %d with the "
                             "backend %s",
                             test.rows, max_rows, bench->engine.ops->name);
        if (!result->cut && too_long(bench, settings, i))
            result->cut = "--time-limit";
        if (!result->cut)
            status = bench_measure(bench, &test, result, error);
        if (status == STATUS_OK && !settings->json)
            bench_print_result(result);
        if (status == STATUS_OK)
            status = write_csv(settings, run, i + 1, error);
    }
    return status;
}

static enum status print_json(const struct bench_report *report, struct error *error)
{
    struct bytes json = {0};
    bench_json(report, &json);
    enum status status = json.failed ? error_no_memory(error, "the answer") : STATUS_OK;
    if (status == STATUS_OK)
        fwrite(json.data, 1, json.length, stdout);
    bytes_clear(&json);
    return status;
}

/* From the opened weights to the last table row. */
static enum status measure(struct settings *settings, const struct source *source,
                           struct bench *bench, struct bench_run *run, struct error *error)
{
    double begun = clock_seconds();
    enum status status = plan_tests(settings, source, &bench->engine, error);
    if (status == STATUS_OK)
        status = engine_open(&bench->engine, error);
    if (status != STATUS_OK)
        return status;
    run->load_seconds += clock_seconds() - begun;
    const char *level = settings->device.cpu;
    snprintf(run->backend, sizeof run->backend, "%s%s%s", bench->engine.ops->name, level ? "/" : "",
             level ? level : "");
    run->plan = bench->engine.plan;
    run->context = bench->engine.options.context;
    run->n_sequences = bench->engine.options.n_sequences;
    bench->tokenizer = source->model.tokenizer;
    bench->text = &source->text;
    bench->decode = (int32_t)settings->decode;
    bench->repeat = (int)settings->repeat;
    bench->seed = (uint64_t)settings->seed;
    bench->fill = settings->fill;
    bench->bandwidth = run->bandwidth.median;
    bench->deadline = settings->time_limit > 0 ? clock_seconds() + settings->time_limit : 0;
    status = bench_init(bench, run->n_sequences, error);
    if (status == STATUS_OK)
        status = bench_count_experts(bench, ROUTED_TOKENS, &run->routing, error);
    if (status == STATUS_OK)
        status = bench_warm_up(bench, error);
    if (status == STATUS_OK && !settings->json) {
        bench_print_model(run);
        bench_print_columns();
    }
    if (status == STATUS_OK)
        status = run_tests(settings, bench, run, error);
    return status;
}

static void start_run(const struct settings *settings, struct bench_run *run)
{
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(run->date, sizeof run->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cpu_name(run->cpu, sizeof run->cpu);
    run->threads = device_threads(&settings->device);
    run->model = settings->synthetic ? settings->synthetic : settings->model;
    run->synthetic = settings->synthetic != NULL;
    run->repeat = (int)settings->repeat;
    run->time_limit = settings->time_limit;
}

static enum status bench_all(struct settings *settings, struct error *error)
{
    struct bench_run run = {0};
    struct bench bench = {0};
    struct source source = {0};
    start_run(settings, &run);
    enum status status = write_csv(settings, &run, 0, error); /* told now, not after an hour */
    /* before the weights, while there is memory */
    if (status == STATUS_OK && !settings->no_bandwidth)
        status = bandwidth_measure(run.threads, 0, 0, &run.bandwidth, error);
    if (status == STATUS_OK && !settings->json)
        bench_print_machine(&run); /* the weights may take a while */
    memory_peak_reset();           /* the peak is that of the model */
    double begun = clock_seconds();
    if (status == STATUS_OK)
        status = source_open(settings, &source, error);
    if (status == STATUS_OK) {
        *(run.synthetic ? &run.make_seconds : &run.load_seconds) = clock_seconds() - begun;
        run.shape = source.weights->shape->name;
        run.weights = weights_bytes(source.weights);
        status = measure(settings, &source, &bench, &run, error);
    }
    if (bench.engine.backend)
        bench_clear(&bench);
    engine_close(&bench.engine);
    source_close(&source);
    if (status == STATUS_OK && !settings->no_bandwidth)
        status = bandwidth_measure(run.threads, 0, 0, &run.bandwidth_after, error);
    const struct bench_report report = {&run, settings->results, settings->n};
    if (status == STATUS_OK && settings->json)
        status = print_json(&report, error);
    else if (status == STATUS_OK)
        bench_print_end(&report);
    return status;
}

static int run(int argc, char **argv)
{
    const char *positionals[PLOT_MAX] = {0};
    struct settings settings = {.decode = 64, .repeat = 3, .seed = 1};
    const struct option options[] = {
        {"synthetic", OPTION_SHAPE, &settings.synthetic, 0, 0, NULL, "SHAPE",
         "weights made in memory instead of MODEL"},
        {"prompt-lengths", OPTION_TEXT, &settings.lengths_text, 0, 0, NULL, "LIST",
         "prompts to read, then decode (" DEFAULT_LENGTHS ")"},
        {"depth", OPTION_TEXT, &settings.depths_text, 0, 0, NULL, "LIST",
         "decode only, after this many tokens"},
        {"fake-depth", OPTION_FLAG, &settings.fill, 0, 0, NULL, NULL,
         "fill depths with copies of a few real KV rows"},
        {"decode", OPTION_SIZE, &settings.decode, 0, 1 << 20, NULL, "N",
         "tokens to decode in each repetition (64)"},
        {"rows", OPTION_TEXT, &settings.rows_text, 0, 0, NULL, "LIST",
         "sequences decoded at once (1)"},
        {"repeat", OPTION_INTEGER, &settings.repeat, 1, BENCH_MAX_REPEAT, NULL, "N",
         "repetitions of each test (3)"},
        {"time-limit", OPTION_REAL, &settings.time_limit, 0, 1e9, &settings.time_limit_given,
         "SECONDS",
         "measure no longer (" TEXT(DEFAULT_LIMIT) " for the default lengths, else 0: no limit)"},
        {"text", OPTION_TEXT, &settings.text, 0, 0, NULL, "FILE",
         "prompts from this text instead of random tokens"},
        {"seed", OPTION_INTEGER, &settings.seed, 0, INT32_MAX, NULL, "N",
         "of synthetic weights and random tokens (1)"},
        DEVICE_OPTIONS(settings.device),
        {"no-bandwidth", OPTION_FLAG, &settings.no_bandwidth, 0, 0, NULL, NULL,
         "do not measure the read bandwidth"},
        {"csv", OPTION_TEXT, &settings.csv, 0, 0, NULL, "FILE", "also write a CSV file"},
        {"json", OPTION_FLAG, &settings.json, 0, 0, NULL, NULL, "one JSON object, no table"},
        {"plot", OPTION_TEXT, &settings.plot, 0, 0, NULL, "FILE",
         "measure nothing: draw CSV files as an SVG with two charts"},
        {0},
    };
    int code = options_parse(&command_bench, argc, argv, options, positionals, 0, PLOT_MAX);
    if (code >= 0)
        return code;
    int n = 0;
    while (n < PLOT_MAX && positionals[n])
        n++;
    struct error error;
    if (settings.plot) {
        if (n == 0)
            return options_usage(&command_bench, "--plot: found no CSV file, wanted at least one");
        const char *end = strrchr(settings.plot, '.');
        if (end && strcmp(end, ".csv") == 0) /* figures that took hours would be lost */
            return options_usage(&command_bench, "--plot: found a CSV file's name for the chart, "
                                                 "wanted FILE.svg first");
        return plot_csv(settings.plot, positionals, n, &error) == STATUS_OK
                   ? EXIT_DONE
                   : command_failed(&error);
    }
    if (n + !!settings.synthetic != 1)
        return options_usage(&command_bench, "wanted either one MODEL or --synthetic SHAPE");
    if (settings.synthetic && settings.text)
        return options_usage(&command_bench,
                             "--text wants a MODEL: synthetic weights have no tokenizer");
    settings.shape = settings.synthetic ? shape_find(settings.synthetic) : NULL;
    settings.model = positionals[0];
    settings.results = calloc(BENCH_MAX_TESTS, sizeof *settings.results);
    if (!settings.results) {
        error_no_memory(&error, "the tests");
        return command_failed(&error);
    }
    if (list_tests(&settings, &error) != STATUS_OK) {
        code = options_usage(&command_bench, "%s", error.message);
    } else {
        code = device_check(&command_bench, &settings.device, "");
        if (code < 0)
            code = bench_all(&settings, &error) == STATUS_OK ? EXIT_DONE : command_failed(&error);
    }
    free(settings.results);
    return code;
}

const struct command command_bench = {
    .name = "bench",
    .arguments = "MODEL",
    .summary = "prefill and decode speed by context length; charts",
    .run = run,
    .details =
        "  calla bench --synthetic SHAPE       needs no files\n"
        "  calla bench --plot FILE.svg CSV…    draws what --csv wrote\n"
        "A row is printed as soon as it is measured. The default lengths stop after two minutes, "
        "in the\n"
        "middle of a row if need be; lengths that are given, or --time-limit 0, are measured to "
        "the end.\n",
};
