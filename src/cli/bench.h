/* The parts of `calla bench`: bench.c opens the model and runs the list of tests, bench_measure.c
 * measures one, bench_routing.c counts experts, bench_report.c prints, plot.c draws. Stands below
 * the library, on engine and backend: it times single steps of several sequences and watches the
 * router, which no user of calla.h needs. */
#pragma once

#include <stdatomic.h>

#include "base/bandwidth.h"
#include "base/sha256.h"
#include "cli/device.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

#define BENCH_MAX_LIST 32   /* lengths, depths, numbers of rows */
#define BENCH_MAX_ROWS 64   /* sequences of one step */
#define BENCH_MAX_TESTS 256 /* a test: one length or depth with one number of rows */
#define BENCH_MAX_REPEAT 1000

struct bench_list {
    int32_t values[BENCH_MAX_LIST];
    int n;
};

/* Reads "256,512,1K,128K", sizes as options_read_size takes them. Errors name the option. */
enum status bench_list_parse(const char *option, const char *text, int32_t low, int32_t high,
                             struct bench_list *list, struct error *error);

/* What is measured: reading `length` tokens and, after them, decoding with `rows` sequences. */
struct bench_test {
    int32_t length;
    int rows;
    bool prefill; /* else `length` is only the depth at which decoding begins */
};

struct bench_figure {
    int n; /* repetitions; 0: not measured */
    double median, min, max;
};

struct bench_result {
    struct bench_test test;
    struct bench_figure prefill;    /* tokens a second */
    double first_token;             /* seconds from the prompt to the first token, median */
    struct bench_figure decode;     /* tokens a second of all rows together */
    int32_t decoded;                /* tokens of a row in each repetition */
    bool filled;                    /* the context was filled with copies of a few real rows */
    bool varied;                    /* repetitions gave different tokens */
    double weight_bytes, all_bytes; /* read for a token: weights; with states and KV rows */
    double share;                   /* of the read bandwidth, by all_bytes; 0: unknown */
    int64_t peak_memory;            /* so far */
    char digest[SHA256_HEX_SIZE];   /* of the greedy tokens of all rows; "" without */
    const char *cut;                /* why it is not or only partly measured; NULL: it is */
};

/* Distinct experts that some tokens chose, over the layers. */
struct bench_routing {
    int tokens, n_experts;
    int least, most;
    double mean;
};

/* Everything about a run that is the same for its tests. */
struct bench_run {
    char date[32], cpu[64];
    char backend[48]; /* "cpu", or "cpu/avx2" where a level was asked for */
    const char *model, *shape;
    bool synthetic;
    int threads;
    int repeat;
    int64_t weights;                   /* bytes */
    double make_seconds, load_seconds; /* make: synthetic weights */
    struct bandwidth bandwidth;        /* measured before; median 0: not measured */
    struct bandwidth bandwidth_after;
    struct memory_plan plan;
    int32_t context;
    int n_sequences;
    struct bench_routing routing; /* tokens 0: unknown */
    double time_limit;            /* seconds; 0: none */
};

/* What a measurement works with. */
struct bench {
    struct engine engine;
    const struct tokenizer *tokenizer; /* NULL for synthetic weights */
    const struct token_list *text;     /* prompts are taken from it; NULL or empty: random ids */
    struct sequence *sequences[BENCH_MAX_ROWS];
    int n_sequences;
    void *states[BENCH_MAX_ROWS]; /* to repeat decoding at a depth */
    int32_t *tokens;              /* [context] a prompt */
    int32_t *answers;             /* [rows][decode + 1] greedy tokens */
    struct ranked *ranked;        /* [rows] */
    int32_t decode;               /* tokens to decode in each repetition */
    int repeat;
    uint64_t seed;
    bool fill;       /* fill depths with copies */
    double deadline; /* clock_seconds; 0: none */
    double bandwidth;
    atomic_bool cancel;
};

/* The engine is opened; allocates the rest for n_sequences. */
enum status bench_init(struct bench *bench, int n_sequences, struct error *error);
void bench_clear(struct bench *bench);
/* Some steps with all sequences, untimed: threads, pages and caches are there afterwards. */
enum status bench_warm_up(struct bench *bench, struct error *error);
/* A test that meets the deadline is no error: it says so in `cut`. */
enum status bench_measure(struct bench *bench, const struct bench_test *test,
                          struct bench_result *result, struct error *error);
/* The i-th token of the prompt of sequence `row`: never a control token. */
int32_t bench_token(const struct bench *bench, int row, int32_t i);
bool bench_is_late(const struct bench *bench);
/* Reads n_tokens, untimed, and counts what the router chose. Leaves routing->tokens 0 where the
 * backend cannot show it. */
enum status bench_count_experts(struct bench *bench, int n_tokens, struct bench_routing *routing,
                                struct error *error);

/* ---- reports --------------------------------------------------------------------------------- */

struct bench_report {
    const struct bench_run *run;
    const struct bench_result *results; /* [n] */
    int n;
};

void bench_print_machine(const struct bench_run *run);
void bench_print_model(const struct bench_run *run);
void bench_print_columns(void);
void bench_print_result(const struct bench_result *result);
void bench_print_end(const struct bench_report *report);
void bench_json(const struct bench_report *report, struct bytes *out);
/* One line for each test that was measured, below a line with the names of the columns. */
void bench_csv(const struct bench_report *report, struct bytes *out);

/* Draws CSV files as two charts. */
enum status plot_csv(const char *svg_path, const char *const *csv_paths, int n,
                     struct error *error);
