#ifdef BACKEND_CPU
#include "support/cpu_levels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#if defined __x86_64__ && defined __linux__ /* there where the Makefile found SIMDe */
extern const struct kernels simde_amx __attribute__((weak));
extern const struct kernels simde_avx512vnni __attribute__((weak));
extern const struct kernels simde_avx512 __attribute__((weak)), simde_avx2 __attribute__((weak));
#define SIMDE(table) &table
#else
#define SIMDE(table) NULL
#endif

static struct level levels[] = {
#if defined __x86_64__
    {"amx", "amx", NULL, false, false},
    {"avx512vnni", "avx512vnni", NULL, false, false},
    {"avx512", "avx512", NULL, false, false},
    {"avx2", "avx2", NULL, false, false},
    {"amx", "amx (simde)", SIMDE(simde_amx), false, true},
    {"avx512vnni", "avx512vnni (simde)", SIMDE(simde_avx512vnni), false, true},
    {"avx512", "avx512 (simde)", SIMDE(simde_avx512), false, true},
    {"avx2", "avx2 (simde)", SIMDE(simde_avx2), false, true},
#elif defined __aarch64__ /* not run yet: tests/run_arm.sh has programs of its own */
    {"i8mm", "i8mm", NULL, false, false},
    {"dotprod", "dotprod", NULL, false, false},
    {"neon", "neon", NULL, false, false},
#endif
    {"portable", "portable", NULL, false, false},
};
#define N_LEVELS (sizeof levels / sizeof levels[0])

const struct level *cpu_levels(size_t *n)
{
    for (const struct kernels *const *table = kernels_tables; *table; table++) {
        struct level *level = NULL;
        for (size_t i = 0; i < N_LEVELS; i++)
            if (!levels[i].emulated && strcmp(levels[i].name, (*table)->name) == 0)
                level = &levels[i];
        if (!level)
            fail_msg("table '%s' is not in tests/support/cpu_levels.c", (*table)->name);
        level->kernels = *table;
        level->usable = kernels_usable(*table);
    }
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (levels[i].emulated)
            levels[i].usable = levels[i].kernels != NULL;
        else if (!levels[i].kernels)
            fail_msg("no table '%s' is compiled in", levels[i].name);
    }
    *n = N_LEVELS;
    return levels;
}

const struct level *level_begin(void **state)
{
    const struct level *level = *state;
    if (!level->usable) {
        print_message("    %s: not run, %s\n", level->label,
                      level->emulated ? "SIMDe is not here" : "this CPU lacks it");
        skip();
    }
    assert_string_equal(level->kernels->name, level->name);
    print_message("    %s\n", level->label);
    random_seed(1);
    return level;
}

int cpu_levels_run(const struct CMUnitTest *tests, size_t n)
{
    size_t n_levels;
    const struct level *all = cpu_levels(&n_levels);
    struct CMUnitTest *each = calloc(n_levels * n, sizeof *each);
    char(*names)[100] = calloc(n_levels * n, sizeof *names);
    int failed = 1;
    for (size_t i = 0; each && names && i < n_levels * n; i++) {
        each[i] = tests[i % n];
        each[i].initial_state = (void *)&all[i / n];
        snprintf(names[i], sizeof names[i], "%s, %s", tests[i % n].name, all[i / n].label);
        each[i].name = names[i];
    }
    if (each && names)
        failed = _cmocka_run_group_tests("levels", each, n_levels * n, NULL, NULL);
    free(each);
    free(names);
    return failed;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t pages_of(size_t size, size_t slack)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + slack + page - 1) / page * page;
}

unsigned char *guarded_new(size_t size, size_t slack)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = pages_of(size, slack);
    unsigned char *start = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (start == MAP_FAILED || mprotect(start + page, bytes, PROT_READ | PROT_WRITE) != 0)
        fail_msg("no memory between guard pages");
    return start + page + bytes - slack - size;
}

void guarded_free(unsigned char *memory, size_t size, size_t slack)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = pages_of(size, slack);
    munmap(memory + size + slack - bytes - page, bytes + 2 * page);
}

void *dirty_scratch(void)
{
    static unsigned char *scratch;
    if (!scratch)
        scratch = guarded_new(KERNEL_SCRATCH, 0);
    return memset(scratch, 0xFF, KERNEL_SCRATCH);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t random_state;

void random_seed(uint64_t seed)
{
    random_state = seed;
}

uint64_t random_bits(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

float random_float(void)
{
    return (float)(int32_t)(random_bits() >> 32) * 0x1p-31f;
}

void check_near(struct worst *worst, double found, double wanted, double tolerance,
                const char *format, ...)
{
    double error = fabs(found - wanted);
    if (!(error <= tolerance)) {
        char words[200];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(words, sizeof words, format, arguments);
        va_end(arguments);
        fail_msg("%s: found %.9g, wanted %.9g within %.2g", words, found, wanted, tolerance);
    }
    if (worst->n++ == 0 || error * worst->tolerance > worst->error * tolerance) {
        worst->error = error;
        worst->tolerance = tolerance;
    }
}

void worst_report(const struct worst *worst, const char *what)
{
    print_message("      %s: %ld values, worst error %.2g of tolerance %.2g (%.0f %%)\n", what,
                  worst->n, worst->error, worst->tolerance,
                  worst->tolerance > 0 ? 100 * worst->error / worst->tolerance : 0.0);
}
#else
typedef int nothing_here; /* ISO C wants something in a file */
#endif
