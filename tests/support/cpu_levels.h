/* The levels of the cpu backend's kernels for tests of single ops: each table by name, natively
 * and, where the Makefile found SIMDe, the AVX tables once more in plain instructions, so that they
 * run on every machine. A level that cannot run here is skipped, and counted so.
 *
 * A test begins with LEVEL(state): the table under test, whose name is asserted and printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "backend/cpu/kernels.h"

struct level {
    const char *name;  /* that the table must have */
    const char *label; /* for messages */
    const struct kernels *kernels;
    bool usable, emulated;
};

/* All levels of this architecture, `*n` of them. Fails the test when a table is missing or new. */
const struct level *cpu_levels(size_t *n);

const struct level *level_begin(void **state);
#define LEVEL(state) level_begin(state)

/* Runs the tests once for each level; gives the number of failures. */
struct CMUnitTest;
int cpu_levels_run(const struct CMUnitTest *tests, size_t n);

/* Memory of `size` bytes that ends `slack` bytes before a page that cannot be read. */
unsigned char *guarded_new(size_t size, size_t slack);
void guarded_free(unsigned char *memory, size_t size, size_t slack);

/* KERNEL_SCRATCH bytes between guard pages, filled with NaN anew: kernels find anything there. */
void *dirty_scratch(void);

/* Numbers that are the same in every run: uniform in [-1, 1), and 64 bits. */
void random_seed(uint64_t seed);
uint64_t random_bits(void);
float random_float(void);

/* The largest of some errors, each as a part of its tolerance. */
struct worst {
    double error, tolerance; /* of the one that is nearest to its tolerance or above */
    long n;
};
/* Fails the test with the words when found is not within the tolerance of wanted. */
__attribute__((format(printf, 5, 6))) void check_near(struct worst *worst, double found,
                                                      double wanted, double tolerance,
                                                      const char *format, ...);
void worst_report(const struct worst *worst, const char *what);
