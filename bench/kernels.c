/* Speed of the cpu backend's matrix kernels, each level beside the machine's read bandwidth:
 *
 *   make bench && build/bench/kernels [threads] [level…]
 *
 * decode: GB/s of 4-bit weights streamed once for 1 to 8 rows; prefill: products (10^9 a second)
 * of an expert's matrix with 4 to 512 rows of inputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "base/clock.h"
#include "base/threads.h"

#define COLUMNS 2048
#define GROUPS (COLUMNS / GROUP_SIZE)
#define ROW_BYTES (COLUMNS / 2 + GROUPS * 4)
#define UNIT_ROWS 64
#define MAX_TOKENS 512

static unsigned char *memory; /* [rows] weights, then scales, then biases */
static int64_t n_rows;
static struct activations x;
#define SCRATCH (KERNEL_SCRATCH + 4096)
static unsigned char *scratch; /* [threads][SCRATCH] */
static float *y;               /* [MAX_TOKENS][rows of a unit, per unit] */

struct job {
    const struct kernels *kernels;
    int n;
    int matmul; /* 1: matmul_q4, 0: matvec_q4 */
    int64_t first;
};

static struct q4_rows unit_rows(int64_t first)
{
    return (struct q4_rows){
        .weight = memory + first * (COLUMNS / 2),
        .scales = memory + n_rows * (COLUMNS / 2) + first * GROUPS * 2,
        .biases = memory + n_rows * (COLUMNS / 2 + GROUPS * 2) + first * GROUPS * 2,
        .rows = UNIT_ROWS,
        .columns = COLUMNS,
    };
}

static void multiply(void *context, int unit, int thread)
{
    struct job *job = context;
    int64_t first = (job->first + (int64_t)unit * UNIT_ROWS) % n_rows;
    struct q4_rows w = unit_rows(first);
    float *out = y + (int64_t)(unit % 64) * UNIT_ROWS;
    (job->matmul ? job->kernels->matmul_q4 : job->kernels->matvec_q4)(
        &w, &x, 0, job->n, out, 64 * UNIT_ROWS,
        scratch + (size_t)thread * SCRATCH + 2048); /* as cpu.h has it */
}

static float sink;
static void read_all(void *context, int unit, int thread)
{
    (void)context, (void)thread;
    const int64_t size = UNIT_ROWS * ROW_BYTES;
    typedef int64_t wide __attribute__((vector_size(64), aligned(1)));
    wide a = {0}, b = {0}, c = {0}, d = {0};
    const wide *p = (const wide *)(memory + (int64_t)unit * size);
    for (int64_t i = 0; i < size / 64; i += 4) {
        a ^= p[i];
        b ^= p[i + 1];
        c ^= p[i + 2];
        d ^= p[i + 3];
    }
    a ^= b ^ c ^ d;
    if (a[0] == 42)
        sink += 1;
}

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

static double median_seconds(struct threads *threads, thread_work *work, void *context, int units)
{
    double seconds[5];
    for (int i = 0; i < 5; i++) {
        double start = clock_seconds();
        threads_run(threads, work, context, units);
        seconds[i] = clock_seconds() - start;
    }
    qsort(seconds, 5, sizeof *seconds, by_size);
    return seconds[2];
}

static void bench(struct threads *threads, const struct kernels *kernels, double bandwidth)
{
    printf("%s:\n", kernels->name);
    for (int r = 0; r < MAX_TOKENS; r++) {
        float values[COLUMNS];
        for (int i = 0; i < COLUMNS; i++)
            values[i] = (float)((i * 37 + r * 11) % 101) - 50;
        kernels->quantize(values, 0, GROUPS, &x, r);
    }
    int all = (int)(n_rows / UNIT_ROWS);
    for (int n = 1; n <= MATVEC_ROWS; n *= 2) {
        struct job job = {kernels, n, 0, 0};
        double seconds = median_seconds(threads, multiply, &job, all);
        double rate = (double)n_rows * ROW_BYTES / seconds * 1e-9;
        printf("  matvec %d rows: %6.2f GB/s, %3.0f %% of the read bandwidth\n", n, rate,
               100 * rate / bandwidth);
    }
    for (int n = 1; n <= MAX_TOKENS; n *= 2) {
        int units = 2048 / n > 64 ? 2048 / n : 64;
        struct job job = {kernels, n, 1, 0};
        double seconds = median_seconds(threads, multiply, &job, units);
        printf("  matmul %3d rows: %7.1f G products/s", n,
               (double)units * UNIT_ROWS * COLUMNS * n / seconds * 1e-9);
        if (n <= MATVEC_ROWS) {
            job.matmul = 0;
            seconds = median_seconds(threads, multiply, &job, units);
            printf("   matvec %7.1f", (double)units * UNIT_ROWS * COLUMNS * n / seconds * 1e-9);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    struct error error;
    struct threads *threads;
    if (threads_new(argc > 1 ? atoi(argv[1]) : 2, &threads, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    n_rows = ((int64_t)1 << 30) / ROW_BYTES / UNIT_ROWS * UNIT_ROWS;
    memory = malloc((size_t)(n_rows * ROW_BYTES));
    y = malloc((size_t)MAX_TOKENS * 64 * UNIT_ROWS * sizeof *y);
    x = (struct activations){.columns = COLUMNS, .code_stride = COLUMNS + 32};
    x.codes = aligned_alloc(64, (size_t)MAX_TOKENS * (size_t)x.code_stride * sizeof *x.codes);
    x.scales = malloc((size_t)MAX_TOKENS * GROUPS * sizeof *x.scales);
    x.sums = malloc((size_t)MAX_TOKENS * GROUPS * sizeof *x.sums);
    scratch = aligned_alloc(64, (size_t)threads_count(threads) * SCRATCH);
    if (!memory || !y || !scratch || !x.codes || !x.scales || !x.sums)
        return 1;
    uint64_t state = 1;
    for (int64_t i = 0; i + 8 <= n_rows * ROW_BYTES; i += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t value = state ^ state >> 33;
        if (i >= n_rows * (COLUMNS / 2)) /* bf16 of a middle size */
            value = (value & 0x807F807F807F807F) | 0x3C003C003C003C00;
        memcpy(memory + i, &value, sizeof value);
    }
    double seconds = median_seconds(threads, read_all, NULL, (int)(n_rows / UNIT_ROWS));
    double bandwidth = (double)n_rows * ROW_BYTES / seconds * 1e-9;
    printf("%d threads, read bandwidth %.2f GB/s\n", threads_count(threads), bandwidth);
    for (const struct kernels *const *table = kernels_tables; *table; table++) {
        int wanted = argc < 3;
        for (int i = 2; i < argc; i++)
            wanted |= strcmp(argv[i], (*table)->name) == 0;
        if (wanted && kernels_usable(*table))
            bench(threads, *table, bandwidth);
    }
    threads_free(threads);
    return 0;
}
