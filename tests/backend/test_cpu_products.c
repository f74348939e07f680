/* The matrix products of every table of the cpu backend, and the rounding of their inputs.
 *
 * Inputs of the 4-bit products are chosen so that rounding leaves them as they are (whole codes
 * times a power of two): what is left is the noise of float32 sums, and the tolerance is as tight.
 * Rounding is then tested for itself, by way of products with the unit matrix, since the order of
 * codes in memory is the table's own business. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef BACKEND_CPU
#include "support/cpu_levels.h"

#define MAX_ROWS 64 /* of a matrix */
#define MAX_N 129   /* rows of x */
#define FIRST 3     /* the first row of x that takes part */
#define PADDING 32  /* of a row of codes, as the backend has it */
#define CANARY -12345.0f

/* ---- inputs ---------------------------------------------------------------------------------- */

static struct activations activations_new(int rows, int columns)
{
    struct activations x = {.columns = columns, .code_stride = columns + PADDING};
    size_t groups = (size_t)rows * (size_t)(columns / GROUP_SIZE);
    x.codes = aligned_alloc(64, (size_t)(rows * x.code_stride * 2 + 63) / 64 * 64);
    x.scales = malloc(groups * sizeof *x.scales);
    x.sums = malloc(groups * sizeof *x.sums);
    if (!x.codes || !x.scales || !x.sums)
        fail_msg("no memory");
    return x;
}

static void activations_free(struct activations *x)
{
    free(x->codes);
    free(x->scales);
    free(x->sums);
}

/* The largest code of a table: 32767, or what two int8 hold. */
static float largest_code(const struct kernels *k)
{
    struct activations x = activations_new(1, PAIR);
    float values[PAIR] = {1};
    k->quantize(values, 0, 2, &x, 0);
    float most = rintf(1 / x.scales[0]);
    activations_free(&x);
    if (most != 32767 && most != 32639)
        fail_msg("the largest code is %g", (double)most);
    return most;
}

/* One group whose codes are whole at a scale of 2^exponent. */
static void exact_group(float most, int exponent, float *values)
{
    for (int i = 0; i < GROUP_SIZE; i++)
        values[i] = ldexpf(rintf(random_float() * most), exponent);
    values[random_bits() % GROUP_SIZE] = ldexpf(random_bits() % 2 ? most : -most, exponent);
}

static void put_bf16(unsigned char *at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    at[0] = (unsigned char)(bits >> 16);
    at[1] = (unsigned char)(bits >> 24);
}

/* A matrix, its parts in bytes as in a file. */
struct parts {
    unsigned char *weight, *scales, *biases;
};
struct sizes {
    size_t weight, each; /* of scales, of biases */
};

static struct sizes sizes_of(int rows, int columns)
{
    return (struct sizes){(size_t)rows * (size_t)columns / 2,
                          (size_t)rows * (size_t)(columns / GROUP_SIZE) * 2};
}

/* Random codes; scales of both signs. Every fourth row is huge, every fourth tiny. */
static void fill_matrix(struct parts *parts, int rows, int columns)
{
    struct sizes sizes = sizes_of(rows, columns);
    for (size_t i = 0; i < sizes.weight; i++)
        parts->weight[i] = (unsigned char)random_bits();
    for (size_t i = 0; i < sizes.each; i += 2) {
        size_t row = i / 2 / (size_t)(columns / GROUP_SIZE);
        int exponent = row % 4 == 1 ? 60 : row % 4 == 2 ? -60 : 0;
        put_bf16(parts->scales + i, ldexpf(random_float(), exponent));
        put_bf16(parts->biases + i, ldexpf(8 * random_float(), exponent));
    }
}

static struct parts guarded_copy(const struct parts *all, int rows, int columns, size_t slack)
{
    struct sizes sizes = sizes_of(rows, columns);
    struct parts copy = {guarded_new(sizes.weight, slack), guarded_new(sizes.each, slack),
                         guarded_new(sizes.each, slack)};
    memcpy(copy.weight, all->weight, sizes.weight);
    memcpy(copy.scales, all->scales, sizes.each);
    memcpy(copy.biases, all->biases, sizes.each);
    return copy;
}

static void guarded_parts_free(struct parts *parts, int rows, int columns, size_t slack)
{
    struct sizes sizes = sizes_of(rows, columns);
    guarded_free(parts->weight, sizes.weight, slack);
    guarded_free(parts->scales, sizes.each, slack);
    guarded_free(parts->biases, sizes.each, slack);
}

/* ---- 4-bit products -------------------------------------------------------------------------- */

struct product_test {
    const struct level *level;
    int columns;
    struct parts parts; /* MAX_ROWS rows */
    struct activations x;
    double (*wanted)[MAX_ROWS], (*size)[MAX_ROWS]; /* [MAX_N]; size: the sum of all magnitudes */
    float *y, *first_bits;                         /* the same product's results at the largest n */
    struct worst worst;
};

static void product_wanted(struct product_test *t, const float *x)
{
    int groups = t->columns / GROUP_SIZE;
    for (int r = 0; r < MAX_N; r++)
        for (int row = 0; row < MAX_ROWS; row++) {
            double sum = 0, size = 0;
            for (int g = 0; g < groups; g++) {
                size_t at = ((size_t)row * (size_t)groups + (size_t)g);
                const unsigned char *packed = t->parts.weight + at * (GROUP_SIZE / 2);
                const float *values = x + (size_t)(FIRST + r) * (size_t)t->columns + g * GROUP_SIZE;
                double dot = 0, total = 0;
                for (int i = 0; i < GROUP_SIZE; i++) {
                    dot += (packed[i / 2] >> (i % 2 * 4) & 15) * (double)values[i];
                    total += (double)values[i];
                }
                double product = dot * (double)bf16_load(t->parts.scales + at * 2);
                double offset = total * (double)bf16_load(t->parts.biases + at * 2);
                sum += product + offset;
                size += fabs(product) + fabs(offset);
            }
            t->wanted[r][row] = sum;
            t->size[r][row] = size;
        }
}

static void multiply(const struct kernels *k, bool matmul, const struct q4_rows *w,
                     const struct activations *x, int64_t first, int n, float *y, int64_t stride)
{
    (matmul ? k->matmul_q4 : k->matvec_q4)(w, x, first, n, y, stride, dirty_scratch());
}

/* One call; `stride` leaves room that must stay untouched. */
static void check_product(struct product_test *t, bool matmul, const struct parts *parts, int rows,
                          int n)
{
    const char *name = matmul ? "matmul_q4" : "matvec_q4";
    const int64_t stride = MAX_ROWS + 5;
    struct q4_rows w = {parts->weight, parts->scales, parts->biases, rows, t->columns};
    for (int64_t i = 0; i < MAX_N * stride; i++)
        t->y[i] = CANARY;
    multiply(t->level->kernels, matmul, &w, &t->x, FIRST, n, t->y, stride);
    /* a group's sum is exact; then some roundings a group, and the sums of the groups */
    double epsilon = ldexp(8 + t->columns / GROUP_SIZE, -24);
    for (int r = 0; r < MAX_N; r++)
        for (int row = 0; row < stride; row++) {
            float found = t->y[r * stride + row];
            if (r >= n || row >= rows) {
                if (found != CANARY)
                    fail_msg("%s wrote row %d, %d of %d, %d", name, r, row, n, rows);
                continue;
            }
            check_near(&t->worst, (double)found, t->wanted[r][row], epsilon * t->size[r][row],
                       "%s %s, %d columns, %d rows, %d rows of x: [%d][%d]", t->level->label, name,
                       t->columns, rows, n, r, row);
            float *bits = &t->first_bits[r * MAX_ROWS + row];
            if (isnan(*bits))
                *bits = found;
            else if (found != *bits)
                fail_msg("%s, %d columns: [%d][%d] depends on its neighbours at %d, %d", name,
                         t->columns, r, row, n, rows);
        }
}

/* All numbers of rows and of rows of x, the matrix before a guard page, at even and odd addresses.
 */
static void check_sizes(struct product_test *t, bool matmul, const int *sizes, size_t n_sizes)
{
    static const int rows[] = {64, 33, 32, 31, 16, 8, 1};
    for (int i = 0; i < MAX_N * MAX_ROWS; i++)
        t->first_bits[i] = NAN;
    for (size_t slack = 0; slack < 2; slack++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            if (slack && rows[i] % 32 == 0)
                continue; /* alignment matters to loads, not to counts */
            struct parts parts = guarded_copy(&t->parts, rows[i], t->columns, slack);
            for (size_t s = n_sizes; s-- > 0;)
                check_product(t, matmul, &parts, rows[i], sizes[s]);
            guarded_parts_free(&parts, rows[i], t->columns, slack);
        }
}

static void product_test_new(struct product_test *t, int columns)
{
    struct sizes sizes = sizes_of(MAX_ROWS, columns);
    size_t rows = FIRST + MAX_N;
    float most = largest_code(t->level->kernels);
    t->columns = columns;
    t->parts = (struct parts){malloc(sizes.weight), malloc(sizes.each), malloc(sizes.each)};
    t->x = activations_new((int)rows, columns);
    t->wanted = calloc(MAX_N, sizeof *t->wanted);
    t->size = calloc(MAX_N, sizeof *t->size);
    t->y = malloc(MAX_N * (MAX_ROWS + 5) * sizeof *t->y);
    t->first_bits = malloc(MAX_N * MAX_ROWS * sizeof *t->first_bits);
    float *x = malloc(rows * (size_t)columns * sizeof *x);
    if (!t->parts.weight || !t->parts.scales || !t->parts.biases || !t->wanted || !t->size ||
        !t->y || !t->first_bits || !x)
        fail_msg("no memory");
    fill_matrix(&t->parts, MAX_ROWS, columns);
    for (size_t r = 0; r < rows; r++) {
        float *row = x + r * (size_t)columns;
        for (int g = 0; g < columns / GROUP_SIZE; g++)
            exact_group(most, (int)(random_bits() % 9) - 20 + (r % 5 == 1 ? 30 : 0),
                        row + g * GROUP_SIZE);
        t->level->kernels->quantize(row, 0, columns / GROUP_SIZE, &t->x, (int64_t)r);
    }
    product_wanted(t, x);
    free(x);
}

static void product_test_free(struct product_test *t)
{
    free(t->parts.weight);
    free(t->parts.scales);
    free(t->parts.biases);
    activations_free(&t->x);
    free(t->wanted);
    free(t->size);
    free(t->y);
    free(t->first_bits);
}

static void test_products(void **state)
{
    struct product_test t = {.level = LEVEL(state)};
    static const int columns[] = {128, 256, 512, 1024, 2048, 4096};
    static const int many[] = {1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129};
    int few[MATVEC_ROWS];
    for (int i = 0; i < MATVEC_ROWS; i++)
        few[i] = i + 1;
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
        product_test_new(&t, columns[c]);
        check_sizes(&t, false, few, MATVEC_ROWS);
        check_sizes(&t, true, many, sizeof many / sizeof many[0]);
        product_test_free(&t);
    }
    worst_report(&t.worst, "products");
}

/* A matrix of fewer columns than the inputs have room for: scales and sums lie further apart. Both
 * ways through a matrix round alike. */
static void test_products_of_narrow_matrices(void **state)
{
    enum { ROOM = 512, COLUMNS = 256, ROWS = 33, N = 9 };
    const struct level *level = LEVEL(state);
    struct activations x = activations_new(N, ROOM), y = activations_new(N, COLUMNS);
    struct sizes sizes = sizes_of(ROWS, COLUMNS);
    struct parts parts = {malloc(sizes.weight), malloc(sizes.each), malloc(sizes.each)};
    fill_matrix(&parts, ROWS, COLUMNS);
    for (int r = 0; r < N; r++) {
        float values[COLUMNS];
        for (int i = 0; i < COLUMNS; i++)
            values[i] = random_float();
        level->kernels->quantize(values, 0, COLUMNS / GROUP_SIZE, &x, r);
        level->kernels->quantize(values, 0, COLUMNS / GROUP_SIZE, &y, r);
    }
    struct q4_rows w = {parts.weight, parts.scales, parts.biases, ROWS, COLUMNS};
    float wide[N * ROWS], narrow[N * ROWS];
    multiply(level->kernels, true, &w, &x, 0, N, wide, ROWS);
    multiply(level->kernels, true, &w, &y, 0, N, narrow, ROWS);
    assert_memory_equal(wide, narrow, sizeof wide);
    for (int n = 1; n <= MATVEC_ROWS; n++) { /* the same bits whatever the way */
        multiply(level->kernels, false, &w, &x, 1, n, wide, ROWS);
        assert_memory_equal(wide, narrow + ROWS, (size_t)n * ROWS * sizeof *wide);
    }
    free(parts.weight);
    free(parts.scales);
    free(parts.biases);
    activations_free(&x);
    activations_free(&y);
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* The unit matrix of PAIR columns: products with it are the rounded values. */
struct unit {
    unsigned char weight[PAIR * PAIR / 2], scales[PAIR * 2 * 2], biases[PAIR * 2 * 2];
};

static struct q4_rows unit_rows(struct unit *unit)
{
    memset(unit, 0, sizeof *unit);
    for (int i = 0; i < PAIR; i++) {
        unit->weight[i * PAIR / 2 + i / 2] = (unsigned char)(1 << i % 2 * 4);
        put_bf16(unit->scales + i * 4, 1);
        put_bf16(unit->scales + i * 4 + 2, 1);
    }
    return (struct q4_rows){unit->weight, unit->scales, unit->biases, PAIR, PAIR};
}

static void test_rounding(void **state)
{
    const struct level *level = LEVEL(state);
    const struct kernels *k = level->kernels;
    struct unit unit;
    struct q4_rows w = unit_rows(&unit);
    struct activations x = activations_new(2, PAIR);
    struct worst worst = {0}, sums = {0};
    double most = (double)largest_code(k);
    for (int round = 0; round < 200; round++) {
        float values[PAIR], y[2][PAIR];
        for (int i = 0; i < PAIR; i++) /* magnitudes from 2^-86 to 2^100, within 2^±4 in a group */
            values[i] = ldexpf(random_float(), (int)(random_bits() % 9) - 4 + round % 94 * 2 - 82);
        if (round % 10 == 3) /* a group of zeros, of both signs */
            for (int i = 0; i < GROUP_SIZE; i++)
                values[i] = i % 2 ? 0.0f : -0.0f;
        k->quantize(values, 0, 2, &x, 1);
        multiply(k, false, &w, &x, 1, 1, y[0], PAIR);
        multiply(k, true, &w, &x, 1, 1, y[1], PAIR);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        for (int g = 0; g < 2; g++) {
            double largest = 0, sum = 0, size = 0;
            for (int i = g * GROUP_SIZE; i < (g + 1) * GROUP_SIZE; i++) {
                largest = fmax(largest, fabs((double)values[i]));
                sum += (double)y[0][i];
                size += fabs((double)y[0][i]);
            }
            for (int i = g * GROUP_SIZE; i < (g + 1) * GROUP_SIZE; i++)
                check_near(&worst, (double)y[0][i], (double)values[i],
                           largest / most * 0.501 + largest * 0x1p-22, "rounded value %d", i);
            check_near(&sums, (double)x.sums[2 + g], sum, size * 0x1p-22, "sum of group %d", g);
        }
    }
    activations_free(&x);
    worst_report(&worst, "rounded values");
    worst_report(&sums, "their sums");
}

/* What rounding leaves out, to be multiplied as a second term. */
static void test_rounding_error(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct unit unit;
    struct q4_rows w = unit_rows(&unit);
    struct activations x = activations_new(1, PAIR);
    struct worst worst = {0};
    for (int round = 0; round < 100; round++) {
        float values[PAIR], y[PAIR], rest[PAIR];
        for (int i = 0; i < PAIR; i++)
            values[i] = ldexpf(random_float(), round - 60);
        k->quantize(values, 0, 2, &x, 0);
        multiply(k, false, &w, &x, 0, 1, y, PAIR);
        k->rounding_error(values, 2, rest);
        for (int i = 0; i < PAIR; i++)
            check_near(&worst, (double)rest[i], (double)values[i] - (double)y[i],
                       ldexp(2, round - 60 - 24), "2^%d: what %d lost", round - 60, i);
    }
    float values[PAIR] = {0}, rest[PAIR];
    values[70] = NAN;
    k->rounding_error(values, 2, rest);
    assert_true(isnan(rest[70]) && rest[3] == 0);
    activations_free(&x);
    worst_report(&worst, "rounding_error");
}

/* Numbers too small for their scale to have an inverse become zeros or themselves, nothing else. */
static void test_rounding_tiny(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    struct unit unit;
    struct q4_rows w = unit_rows(&unit);
    struct activations x = activations_new(1, PAIR);
    for (int exponent = -148; exponent < -90; exponent++) {
        float values[PAIR] = {0}, y[PAIR];
        for (int i = 0; i < PAIR; i++)
            values[i] = ldexpf(random_float(), exponent);
        k->quantize(values, 0, 2, &x, 0);
        multiply(k, false, &w, &x, 0, 1, y, PAIR);
        for (int i = 0; i < PAIR; i++)
            if (!(fabsf(y[i] - values[i]) <= 1e-30f))
                fail_msg("2^%d: %g became %g", exponent, (double)values[i], (double)y[i]);
        for (int g = 0; g < 2; g++)
            assert_true(fabsf(x.sums[g]) <= 64 * ldexpf(1, exponent) + 1e-30f);
    }
    activations_free(&x);
}

/* One NaN or infinity among the inputs makes every product with its row no number, and no other. */
static void test_rounding_keeps_what_is_no_number(void **state)
{
    const struct kernels *k = LEVEL(state)->kernels;
    const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY};
    struct unit unit;
    struct q4_rows w = unit_rows(&unit);
    struct activations x = activations_new(3, PAIR);
    memset(unit.weight, 0, PAIR / 2); /* a row of zeros */
    for (int place = 0; place < PAIR; place++)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            float values[PAIR], y[3 * PAIR];
            for (int r = 0; r < 3; r++) {
                for (int c = 0; c < PAIR; c++)
                    values[c] = random_float();
                for (int c = place; r == 1 && c < PAIR && c < place + 5; c++)
                    values[c] = wrong[i];
                k->quantize(values, 0, 2, &x, r);
            }
            for (int way = 0; way < 2; way++) {
                multiply(k, way, &w, &x, 0, 3, y, PAIR);
                for (int c = 0; c < 3 * PAIR; c++)
                    if ((isfinite(y[c]) != 0) != (c / PAIR != 1))
                        fail_msg("%g at %d: row %d, product %d is %g", (double)wrong[i], place,
                                 c / PAIR, c % PAIR, (double)y[c]);
            }
        }
    activations_free(&x);
}

/* A group alone: the others stay. */
static void test_rounding_of_some_groups(void **state)
{
    enum { GROUPS = 6, COLUMNS = GROUPS * GROUP_SIZE };
    const struct kernels *k = LEVEL(state)->kernels;
    struct activations all = activations_new(2, COLUMNS), some = activations_new(2, COLUMNS);
    size_t bytes = 2 * (COLUMNS + PADDING) * sizeof(int16_t);
    float values[COLUMNS];
    for (int i = 0; i < COLUMNS; i++)
        values[i] = random_float();
    memset(all.codes, 7, bytes);
    memset(some.codes, 7, bytes);
    k->quantize(values, 0, GROUPS, &all, 1);
    static const int from[] = {3, 0, 5, 1}, n[] = {2, 1, 1, 2};
    for (int i = 0; i < 4; i++)
        k->quantize(values + from[i] * GROUP_SIZE, from[i], n[i], &some, 1);
    assert_memory_equal(all.codes, some.codes, bytes);
    assert_memory_equal(all.scales + GROUPS, some.scales + GROUPS, GROUPS * sizeof(float));
    assert_memory_equal(all.sums + GROUPS, some.sums + GROUPS, GROUPS * sizeof(float));
    activations_free(&all);
    activations_free(&some);
}

/* ---- 8-bit products -------------------------------------------------------------------------- */

static void check_q8(struct worst *worst, const struct kernels *k, const struct quant_matrix *w,
                     int from, int to, const float *x, int n)
{
    enum { STRIDE = 71 };
    float *y = malloc((size_t)n * STRIDE * sizeof *y), row[MAX_GROUPS * GROUP_SIZE];
    for (int i = 0; i < n * STRIDE; i++)
        y[i] = CANARY;
    k->matmul_q8(w, from, to, x, n, y, STRIDE, dirty_scratch());
    for (int i = 0; i < STRIDE; i++) {
        if (i >= from && i < to)
            quant_row_load(w, 0, i, row);
        for (int r = 0; r < n; r++) {
            double sum = 0, size = 0;
            for (int c = 0; i >= from && i < to && c < w->columns; c++) {
                double product = (double)row[c] * (double)x[r * w->columns + c];
                sum += product;
                size += fabs(product);
            }
            if (i < from || i >= to)
                assert_true(y[r * STRIDE + i] == CANARY);
            else
                check_near(worst, (double)y[r * STRIDE + i], sum,
                           ldexp(size, -24) * (w->columns / 8 + 8), "rows %d to %d, n %d: [%d][%d]",
                           from, to, n, r, i);
        }
    }
    free(y);
}

static void test_q8_products(void **state)
{
    const struct level *level = LEVEL(state);
    static const int columns[] = {128, 256, 2048}, ns[] = {1, 2, 3, 4, 5, 8, 9, 17};
    static const int from[] = {0, 0, 32, 3, 60}, to[] = {1, 32, 64, 9, 64};
    struct worst worst = {0};
    for (size_t c = 0; c < 3; c++) {
        size_t size = 64 * (size_t)columns[c], each = size / GROUP_SIZE * 2;
        struct parts parts = {guarded_new(size, c % 2), guarded_new(each, c % 2),
                              guarded_new(each, c % 2)};
        for (size_t i = 0; i < size; i++)
            parts.weight[i] = (unsigned char)random_bits();
        for (size_t i = 0; i < each; i += 2) {
            put_bf16(parts.scales + i, random_float() / 64);
            put_bf16(parts.biases + i, random_float());
        }
        struct quant_matrix w = {parts.weight, parts.scales, parts.biases, 1, 64, columns[c], 8};
        for (size_t s = 0; s < sizeof ns / sizeof ns[0]; s++) {
            size_t bytes = (size_t)ns[s] * (size_t)columns[c] * sizeof(float);
            float *x = (float *)guarded_new(bytes, 0);
            for (int i = 0; i < ns[s] * columns[c]; i++)
                x[i] = random_float();
            for (size_t i = 0; i < sizeof from / sizeof from[0]; i++)
                check_q8(&worst, level->kernels, &w, from[i], to[i], x, ns[s]);
            guarded_free((unsigned char *)x, bytes, 0);
        }
        guarded_free(parts.weight, size, c % 2);
        guarded_free(parts.scales, each, c % 2);
        guarded_free(parts.biases, each, c % 2);
    }
    worst_report(&worst, "8-bit products");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_products_of_narrow_matrices),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_rounding_error),
        cmocka_unit_test(test_rounding_tiny),
        cmocka_unit_test(test_rounding_keeps_what_is_no_number),
        cmocka_unit_test(test_rounding_of_some_groups),
        cmocka_unit_test(test_q8_products),
    };
    return cpu_levels_run(tests, sizeof tests / sizeof tests[0]);
}
#else
static void test_cpu_backend(void **state)
{
    (void)state;
    print_message("the cpu backend is not compiled in\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu_backend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
