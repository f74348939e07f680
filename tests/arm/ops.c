/* Every table of the cpu backend that this CPU can run against the reference's operations, at both
 * sides of each route's threshold. A plain program without libraries, so that it can be built for
 * another architecture and run under an emulator:
 *
 *     ops TABLE…     the tables that must be usable here, all of them, best first
 *
 * Prints each operation's largest error as a share of what is allowed; ends with counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/kernels.h"
#include "backend/ref/ops.h"

#define PAGE 65536 /* or a part of it */

static int n_passed, n_failed;

/* ---- random inputs --------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static float uniform(float low, float high)
{
    return low + (high - low) * (float)random_bits() * 0x1p-31f;
}

static void fill(float *x, int64_t n, float low, float high)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform(low, high);
}

static void *allocate(size_t size)
{
    void *p = calloc(1, size);
    if (!p) {
        fprintf(stderr, "ops: out of memory\n");
        exit(2);
    }
    return p;
}

static float *floats(int64_t n, float low, float high)
{
    float *x = allocate((size_t)n * sizeof *x);
    fill(x, n, low, high);
    return x;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The largest |found - wanted| / allowed so far of one operation; NaN counts as infinite. */
struct check {
    const char *table, *op;
    double worst;
};

static void compare(struct check *check, double found, double wanted, double allowed)
{
    double share = fabs(found - wanted) / allowed;
    check->worst = fmax(check->worst, isnan(share) ? INFINITY : share);
}

/* Errors relative to the largest wanted value. */
static void compare_all(struct check *check, const float *found, const float *wanted, int64_t n,
                        double tolerance)
{
    double largest = 1e-30;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(wanted[i]));
    for (int64_t i = 0; i < n; i++)
        compare(check, found[i], wanted[i], largest * tolerance);
}

static void require(struct check *check, bool fact)
{
    if (!fact)
        check->worst = INFINITY;
}

static void report(const struct check *check)
{
    bool ok = check->worst <= 1;
    *(ok ? &n_passed : &n_failed) += 1;
    printf("%-6s %-10s %-16s %.3f of what is allowed\n", ok ? "ok" : "FAILED", check->table,
           check->op, check->worst);
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* A random matrix at an odd address, whose last byte but one ends a page: the next page is not
 * there, so that reading past the end is seen. */
struct matrix {
    struct quant_matrix view;
    unsigned char *memory;
    size_t size;     /* of the memory */
    float *expanded; /* [rows][columns] */
};

static void put_bf16(unsigned char *p, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    p[0] = (unsigned char)(bits >> 16);
    p[1] = (unsigned char)(bits >> 24);
}

static struct matrix matrix_new(int rows, int columns, int bits)
{
    int64_t weights = (int64_t)rows * columns * bits / 8, groups = (int64_t)rows * columns / 64;
    size_t bytes = (size_t)(weights + 4 * groups), pages = bytes / PAGE + 1;
    struct matrix m = {.size = (pages + 1) * PAGE};
    m.memory = mmap(NULL, m.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.memory == MAP_FAILED || mprotect(m.memory + pages * PAGE, PAGE, PROT_NONE) != 0) {
        perror("ops: mmap");
        exit(2);
    }
    unsigned char *p = m.memory + pages * PAGE - 1 - bytes;
    m.view =
        (struct quant_matrix){p, p + weights, p + weights + 2 * groups, 1, rows, columns, bits};
    for (int64_t i = 0; i < weights; i++)
        p[i] = (unsigned char)random_bits();
    for (int64_t i = 0; i < groups; i++) {
        float scale = uniform(-0.01f, 0.02f);
        put_bf16(p + weights + 2 * i, scale);
        put_bf16(p + weights + 2 * (groups + i), scale * uniform(-12, -4));
    }
    m.expanded = allocate((size_t)rows * (size_t)columns * sizeof *m.expanded);
    for (int row = 0; row < rows; row++)
        quant_row_load(&m.view, 0, row, m.expanded + (int64_t)row * columns);
    return m;
}

static void matrix_free(struct matrix *m)
{
    munmap(m->memory, m->size);
    free(m->expanded);
}

#define CODE_PADDING 32

static struct activations activations_new(int rows, int columns)
{
    int64_t groups = (int64_t)rows * columns / 64;
    struct activations x = {.columns = columns, .code_stride = columns + CODE_PADDING};
    x.codes = allocate((size_t)rows * (size_t)x.code_stride * sizeof *x.codes);
    x.scales = floats(groups, 0, 0);
    x.sums = floats(groups, 0, 0);
    return x;
}

static void activations_free(struct activations *x)
{
    free(x->codes);
    free(x->scales);
    free(x->sums);
}

/* Row by row in double; rounding an input moves it by half a step at most, each sum by float32's
 * rounding. */
static void compare_product(struct check *check, const struct matrix *m, const float *x,
                            const float *x_scales, const float *y)
{
    int columns = m->view.columns;
    for (int row = 0; row < m->view.rows; row++) {
        double sum = 0, size = 0, step = 0;
        for (int i = 0; i < columns; i++) {
            double w = m->expanded[(int64_t)row * columns + i];
            sum += w * x[i];
            size += fabs(w * x[i]);
            step += x_scales ? fabs(w) * x_scales[i / 64] : 0;
        }
        compare(check, y[row], sum, 0.51 * step + 2e-6 * size + 1e-30);
    }
}

/* Kernels find anything there. */
static void *dirty_scratch(void)
{
    static _Alignas(64) unsigned char scratch[KERNEL_SCRATCH];
    return memset(scratch, 0xFF, sizeof scratch);
}

static void multiply(const struct kernels *k, bool matvec, const struct q4_rows *w,
                     const struct activations *x, int64_t first, int n, float *y, int64_t stride)
{
    (matvec ? k->matvec_q4 : k->matmul_q4)(w, x, first, n, y, stride, dirty_scratch());
}

/* n rows of x from row `first` on times a matrix. */
static void check_q4(const struct kernels *k, struct check *check, int rows, int columns, int first,
                     int n, bool matvec)
{
    struct matrix m = matrix_new(rows, columns, 4);
    struct activations a = activations_new(first + n, columns);
    float *x = floats((int64_t)(first + n) * columns, -3, 3);
    int stride = rows + 3;
    float *y = floats((int64_t)n * stride, 7, 7), *alone = floats(rows, 0, 0);
    for (int r = 0; r < first + n; r++) {
        float *row = x + (int64_t)r * columns;
        for (int i = 0; i < 64; i++) /* groups of different sizes; one of zeros */
            row[i] *= 1e-4f;
        memset(row + 64, 0, 64 * sizeof *row);
        row[100] = r % 2 ? 0 : -1e4f;
        k->quantize(row, 0, columns / 64 - 1, &a, r);
        k->quantize(row + columns - 64, columns / 64 - 1, 1, &a, r);
    }
    const struct q4_rows w = {m.view.weight, m.view.scales, m.view.biases, rows, columns};
    multiply(k, matvec, &w, &a, first, n, y, stride);
    for (int r = 0; r < n; r++) {
        int at = first + r;
        const float *found = y + (int64_t)r * stride;
        compare_product(check, &m, x + (int64_t)at * columns, a.scales + at * (columns / 64),
                        found);
        for (int i = rows; i < stride; i++) /* nothing beyond a row */
            require(check, found[i] == 7);
        /* the other rows change no bit */
        multiply(k, matvec, &w, &a, at, 1, alone, rows);
        require(check, memcmp(alone, found, (size_t)rows * sizeof *alone) == 0);
    }
    free(alone);
    free(y);
    free(x);
    activations_free(&a);
    matrix_free(&m);
}

static void test_matvec_q4(const struct kernels *k)
{
    static const int rows[] = {1, 2, 3, 4, 5, 7, 64, 65}, columns[] = {128, 256, 512, 2048, 4096};
    struct check check = {k->name, "matvec_q4", 0};
    for (int n = 1; n <= MATVEC_ROWS; n++)
        for (int i = 0; i < 8; i++)
            check_q4(k, &check, rows[i], columns[(n + i) % 5], i % 3, n, true);
    report(&check);
}

static void test_matmul_q4(const struct kernels *k)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129};
    static const int rows[] = {64, 33, 16, 5, 130}, columns[] = {128, 512, 256, 2048};
    struct check check = {k->name, "matmul_q4", 0};
    for (int i = 0; i < 15; i++)
        check_q4(k, &check, rows[i % 5], columns[i % 4], i % 3, counts[i], false);
    check_q4(k, &check, 8, 4096, 0, 10, false);
    report(&check);
}

/* A value that is not finite must not be lost; what is too small to round must not become it. */
static void test_quantize(const struct kernels *k)
{
    struct check check = {k->name, "quantize", 0};
    struct matrix m = matrix_new(4, 128, 4);
    struct activations a = activations_new(1, 128);
    const struct q4_rows w = {m.view.weight, m.view.scales, m.view.biases, 4, 128};
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0f};
    for (int i = 0; i < 5; i++) {
        float x[128], y[4];
        fill(x, 128, -1, 1);
        x[5 + 20 * i] = odd[i];
        k->quantize(x, 0, 2, &a, 0);
        multiply(k, true, &w, &a, 0, 1, y, 4);
        require(&check, i < 3 ? !isfinite(y[0]) && !isfinite(y[3]) : isfinite(y[0]));
    }
    for (int i = 0; i < 200; i++) { /* the largest input becomes the largest code, either sign */
        float x[128], y[4], size = powf(10, uniform(-20, 20));
        fill(x, 128, -size, size);
        x[i % 64] = i % 2 ? size : -size;
        x[127 - i % 64] = i % 2 ? -size : size;
        k->quantize(x, 0, 2, &a, 0);
        multiply(k, true, &w, &a, 0, 1, y, 4);
        compare_product(&check, &m, x, a.scales, y);
        compare(&check, a.scales[0], size / 32767, size / 32767 * 0.005); /* int16's precision */
        compare(&check, a.scales[1], size / 32767, size / 32767 * 0.005);
    }
    report(&check);
    activations_free(&a);
    matrix_free(&m);
}

static void test_matmul_q8(const struct kernels *k)
{
    static const int counts[] = {1, 2, 4, 5, 9, 64};
    struct check check = {k->name, "matmul_q8", 0};
    for (int i = 0; i < 6; i++) {
        int n = counts[i], columns = i % 2 ? 256 : 2048, rows = 32;
        struct matrix m = matrix_new(rows, columns, 8);
        float *x = floats((int64_t)n * columns, -3, 3), *y = floats((int64_t)n * rows, 0, 0);
        k->matmul_q8(&m.view, 0, 7, x, n, y, rows, dirty_scratch());
        k->matmul_q8(&m.view, 7, rows, x, n, y, rows, dirty_scratch());
        for (int r = 0; r < n; r++)
            compare_product(&check, &m, x + r * columns, NULL, y + r * rows);
        free(x);
        free(y);
        matrix_free(&m);
    }
    report(&check);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_norms(const struct kernels *k)
{
    struct check rms = {k->name, "rms_norm", 0}, l2 = {k->name, "l2_norm", 0},
                 gated = {k->name, "gated_norm", 0};
    for (int n = 128; n <= 2048; n *= 2) {
        float *x = floats(n, -5, 5), *weight = floats(n, 0, 2), *z = floats(n, -100, 30);
        float *found = floats(n, 0, 0), *wanted = floats(n, 0, 0);
        struct vector view = {(const unsigned char *)weight, n, 4};
        size_t size = (size_t)n * sizeof *x;
        k->rms_norm(x, weight, n, 1e-6f, found);
        ref_rms_norm(x, &view, n, 1e-6f, wanted);
        compare_all(&rms, found, wanted, n, 1e-6);
        memcpy(found, x, size);
        memcpy(wanted, x, size);
        k->l2_norm(found, n, 0.25f);
        ref_l2_norm(wanted, n, 0.25f);
        compare_all(&l2, found, wanted, n, 1e-6);
        memcpy(found, x, size);
        memcpy(wanted, x, size);
        k->gated_norm(found, weight, z, n, 1e-6f);
        ref_gated_norm(wanted, &view, z, n, 1e-6f);
        compare_all(&gated, found, wanted, n, 2e-6);
        free(x);
        free(weight);
        free(z);
        free(found);
        free(wanted);
    }
    report(&rms);
    report(&l2);
    report(&gated);
}

static void test_values(const struct kernels *k)
{
    enum { N = 512 };
    struct check check[] = {{k->name, "swiglu", 0},
                            {k->name, "sigmoid_gate", 0},
                            {k->name, "add_scaled", 0},
                            {k->name, "sum_exp", 0}};
    float gate[N], up[N], x[N], y[N];
    fill(gate, N, -120, 120);
    fill(up, N, -2, 2);
    memcpy(x, gate, sizeof x);
    k->swiglu(x, up, N);
    for (int i = 0; i < N; i++) {
        double wanted = (double)gate[i] / (1 + exp(-gate[i])) * up[i];
        compare(&check[0], x[i], wanted, 1e-6 * fabs(wanted) + 1e-30);
    }
    memcpy(x, up, sizeof x);
    k->sigmoid_gate(x, gate, N);
    for (int i = 0; i < N; i++) {
        double wanted = up[i] / (1 + exp(-gate[i]));
        compare(&check[1], x[i], wanted, 1e-6 * fabs(wanted) + 1e-30);
    }
    memcpy(x, up, sizeof x);
    k->add_scaled(x, 1.5f, gate, N);
    for (int i = 0; i < N; i++)
        compare(&check[2], x[i], up[i] + 1.5 * gate[i], 2e-5);
    memcpy(y, gate, sizeof y);
    y[77] = -INFINITY; /* a masked logit */
    for (int n = 1; n <= N; n += n < 70 ? 1 : 61) {
        double sum = 0;
        float max = -INFINITY;
        for (int i = 0; i < n; i++)
            max = fmaxf(max, y[i]);
        for (int i = 0; i < n; i++)
            sum += exp((double)y[i] - max);
        compare(&check[3], k->sum_exp(y, n, max), sum, 1e-6 * sum);
    }
    for (int i = 0; i < 4; i++)
        report(&check[i]);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void test_conv(const struct kernels *k)
{
    enum { C = 256, X = 300 };
    static const int counts[] = {1, 2, 3, 4, 64};
    struct check check = {k->name, "conv", 0};
    float *taps = floats(4 * C, -1, 1), *turned = floats(4 * C, 0, 0);
    for (int c = 0; c < C; c++)
        for (int i = 0; i < 4; i++)
            turned[4 * c + i] = taps[i * C + c];
    struct vector view = {(const unsigned char *)turned, 4 * C, 4};
    float *found_state = floats(3 * C, -1, 1), *state = floats(3 * C, 0, 0);
    memcpy(state, found_state, 3 * C * sizeof *state);
    for (int i = 0; i < 5; i++) {
        float *x = floats(counts[i] * X, -3, 3), *out = floats(counts[i] * C, 0, 0);
        k->conv(x, X, counts[i], taps, C, found_state, C, C, out);
        for (int t = 0; t < counts[i]; t++) {
            ref_conv_step(&view, C, state, x + t * X);
            compare_all(&check, out + t * C, x + t * X, C, 1e-6);
        }
        compare_all(&check, found_state, state, 3 * C, 1e-9);
        free(x);
        free(out);
    }
    report(&check);
    free(taps);
    free(turned);
    free(state);
    free(found_state);
}

static void test_deltanet(const struct kernels *k)
{
    enum { D = LINEAR_HEAD_DIM, S = D + 16 };
    static const int counts[] = {1, 2, 15, 16, 17, 31, 33, 48, 63, 64};
    struct check step = {k->name, "deltanet_step", 0}, chunk = {k->name, "deltanet_chunk", 0};
    for (int i = 0; i < 10; i++) {
        int n = counts[i];
        float *q = floats(n * S, -1, 1), *key = floats(n * S, -1, 1), *v = floats(n * S, -2, 2);
        float *g = floats(n, i % 2 ? -3 : -0.2f, 0), *beta = floats(n, 0, 1);
        float *state = floats(D * D, -1, 1), *one = floats(D * D, 0, 0), *all = floats(D * D, 0, 0);
        float *o = floats(n * D, 0, 0), *wanted = floats(n * D, 0, 0);
        memcpy(one, state, D * D * sizeof *one);
        memcpy(all, state, D * D * sizeof *all);
        for (int t = 0; t < n; t++) {
            ref_l2_norm(q + t * S, D, 1 / sqrtf(D));
            ref_l2_norm(key + t * S, D, 1);
            ref_deltanet_step(state, q + t * S, key + t * S, v + t * S, g[t], beta[t], D, D,
                              wanted + t * D);
            k->deltanet_step(one, q + t * S, key + t * S, v + t * S, g[t], beta[t], o + t * D);
        }
        compare_all(&step, o, wanted, n * D, 5e-6);
        compare_all(&step, one, state, D * D, 5e-6);
        k->deltanet_chunk(all, q, key, v, S, S, g, beta, n, o, dirty_scratch());
        compare_all(&chunk, o, wanted, n * D, 2e-5);
        compare_all(&chunk, all, state, D * D, 2e-5);
        float *parts[] = {q, key, v, g, beta, state, one, all, o, wanted};
        for (int p = 0; p < 10; p++)
            free(parts[p]);
    }
    report(&step);
    report(&chunk);
}

/* Blocks of counts[] positions one after the other, as the backend stores them. */
static void test_attention(const struct kernels *k)
{
    enum { D = HEAD_DIM, MAX = 4 * SCORE_BLOCK };
    static const int counts[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 129, 200};
    struct check round = {k->name, "round_head", 0}, check = {k->name, "attention_block", 0};
    float *keys = floats(MAX * D, -1, 1), *values = floats(MAX * D, -2, 2);
    float *queries = floats(QUERIES * D, -1, 1), *scaled = floats(QUERIES * D, 0, 0);
    float *key_scales = floats(MAX, NAN, NAN), *value_scales = floats(MAX, NAN, NAN);
    int16_t *key_codes = allocate(MAX * D * sizeof *key_codes);
    int16_t *value_codes = allocate(MAX * D * sizeof *value_codes), codes[D];
    struct attention_state *state = allocate(sizeof *state);
    for (int s = 0; s < MAX; s++) {
        key_scales[s] = k->round_head(keys + s * D, codes);
        for (int d = 0; d < D; d++) {
            key_codes[s / KV_BLOCK * KV_BLOCK * D + d * KV_BLOCK + s % KV_BLOCK] = codes[d];
            compare(&round, codes[d] * key_scales[s], keys[s * D + d], key_scales[s] * 0.51);
        }
        value_scales[s] = k->round_head(values + s * D, value_codes + s * D);
    }
    for (int i = 0; i < QUERIES * D; i++)
        scaled[i] = queries[i] / 16;
    for (int i = 0; i < 11; i++) {
        memset(state, 0, sizeof *state);
        for (int q = 0; q < QUERIES; q++)
            state->max[q] = -INFINITY;
        for (int s = 0; s < counts[i]; s += SCORE_BLOCK) {
            struct kv_block kv = {key_codes + s * D, value_codes + s * D, key_scales + s,
                                  value_scales + s};
            int n = counts[i] - s < SCORE_BLOCK ? counts[i] - s : SCORE_BLOCK;
            k->attention_block(scaled, &kv, n, state);
        }
        for (int q = 0; q < QUERIES; q++) {
            float scores[MAX], wanted[D];
            const struct ref_rows key_rows = {keys, D, NULL, 0}, value_rows = {values, D, NULL, 0};
            ref_attention(queries + q * D, &key_rows, &value_rows, counts[i], D, scores, wanted);
            for (int d = 0; d < D; d++)
                compare(&check, state->out[q][d] / state->sum[q], wanted[d], 1e-4);
        }
    }
    report(&round);
    report(&check);
    void *parts[] = {keys,         values,    queries,     scaled, key_scales,
                     value_scales, key_codes, value_codes, state};
    for (int p = 0; p < 9; p++)
        free(parts[p]);
}

/* ---------------------------------------------------------------------------------------------- */

/* The usable tables must be the ones named, in that order. */
static void test_tables(int n, char **names)
{
    int i = 0;
    bool same = true;
    for (const struct kernels *const *table = kernels_tables; *table; table++)
        if (kernels_usable(*table))
            same = i < n && strcmp(names[i++], (*table)->name) == 0 && same;
    same = same && i == n;
    *(same ? &n_passed : &n_failed) += 1;
    printf("%-6s the usable tables are%s", same ? "ok" : "FAILED", same ? "" : " not");
    for (i = 0; i < n; i++)
        printf(" %s", names[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_tables(argc - 1, argv + 1);
    for (const struct kernels *const *table = kernels_tables; *table; table++) {
        if (!kernels_usable(*table))
            continue;
        random_state = 1;
        test_quantize(*table);
        test_matvec_q4(*table);
        test_matmul_q4(*table);
        test_matmul_q8(*table);
        test_norms(*table);
        test_values(*table);
        test_conv(*table);
        test_deltanet(*table);
        test_attention(*table);
    }
    printf("%d passed, %d failed, 0 skipped\n", n_passed, n_failed);
    return n_failed > 0;
}
