#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"

#if defined(__x86_64__) || defined(__i386__)
#define IS_X86 1
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <sys/auxv.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

/* ---- features -------------------------------------------------------------------------------- */

static bool bit(uint64_t word, int index)
{
    return word >> index & 1;
}

struct cpu_features cpu_features_x86(const struct cpu_words *w)
{
    struct cpu_features f = {0};
    const uint64_t vector = 0x6, wide = 0xe6, tiles = 0x60000; /* XCR0: what the system saves */
    if ((w->xcr0 & vector) == vector && bit(w->leaf1_ecx, 28)) {
        f.fma = bit(w->leaf1_ecx, 12);
        f.f16c = bit(w->leaf1_ecx, 29);
        f.avx2 = bit(w->leaf7_ebx, 5);
        f.avx_vnni = bit(w->leaf7_1_eax, 4);
    }
    if ((w->xcr0 & wide) == wide && bit(w->leaf7_ebx, 16)) {
        f.avx512f = true;
        f.avx512dq = bit(w->leaf7_ebx, 17);
        f.avx512bw = bit(w->leaf7_ebx, 30);
        f.avx512vl = bit(w->leaf7_ebx, 31);
        f.avx512vbmi = bit(w->leaf7_ecx, 1);
        f.avx512vnni = bit(w->leaf7_ecx, 11);
        f.avx512bf16 = bit(w->leaf7_1_eax, 5);
        f.avx512fp16 = bit(w->leaf7_edx, 23);
    }
    if ((w->xcr0 & tiles) == tiles && bit(w->leaf7_edx, 24)) {
        f.amx_tile = true;
        f.amx_bf16 = bit(w->leaf7_edx, 22);
        f.amx_int8 = bit(w->leaf7_edx, 25);
    }
    return f;
}

#if defined(IS_X86)
struct cpu_features cpu_features(void)
{
    struct cpu_words w = {0};
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        w.leaf1_ecx = c;
        if (bit(c, 27)) { /* OSXSAVE: xgetbv may be executed */
            unsigned low, high;
            __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            w.xcr0 = (uint64_t)high << 32 | low;
        }
    }
    unsigned subleaves = 0;
    if (__get_cpuid_count(7, 0, &subleaves, &b, &c, &d)) {
        w.leaf7_ebx = b;
        w.leaf7_ecx = c;
        w.leaf7_edx = d;
    }
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        w.leaf7_1_eax = a;
    return cpu_features_x86(&w);
}
#elif defined(__aarch64__) && defined(__linux__)
struct cpu_features cpu_features(void)
{
    unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    return (struct cpu_features){/* HWCAP_ASIMD, _ASIMDDP; HWCAP2_I8MM, _BF16 */
                                 .neon = bit(one, 1),
                                 .dotprod = bit(one, 20),
                                 .i8mm = bit(two, 13),
                                 .bf16 = bit(two, 14)};
}
#elif defined(__aarch64__) && defined(__APPLE__)
static bool system_has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}

struct cpu_features cpu_features(void)
{
    return (struct cpu_features){.neon = true,
                                 .dotprod = system_has("hw.optional.arm.FEAT_DotProd"),
                                 .i8mm = system_has("hw.optional.arm.FEAT_I8MM"),
                                 .bf16 = system_has("hw.optional.arm.FEAT_BF16")};
}
#else
struct cpu_features cpu_features(void)
{
    return (struct cpu_features){0};
}
#endif

const char *cpu_feature_name(const struct cpu_features *f, int i, bool *has)
{
    const struct {
        const char *name;
        bool has;
    } table[] = {
#ifdef __aarch64__
        {"NEON", f->neon},
        {"dotprod", f->dotprod},
        {"i8mm", f->i8mm},
        {"bf16", f->bf16},
#else
        {"AVX2", f->avx2},
        {"FMA", f->fma},
        {"F16C", f->f16c},
        {"AVX-VNNI", f->avx_vnni},
        {"AVX-512 F", f->avx512f},
        {"AVX-512 BW", f->avx512bw},
        {"AVX-512 VL", f->avx512vl},
        {"AVX-512 DQ", f->avx512dq},
        {"AVX-512 VBMI", f->avx512vbmi},
        {"AVX-512 VNNI", f->avx512vnni},
        {"AVX-512 BF16", f->avx512bf16},
        {"AVX-512 FP16", f->avx512fp16},
        {"AMX tile", f->amx_tile},
        {"AMX int8", f->amx_int8},
        {"AMX bf16", f->amx_bf16},
#endif
    };
    if (i < 0 || i >= (int)(sizeof table / sizeof *table))
        return NULL;
    *has = table[i].has;
    return table[i].name;
}

/* ---- name ------------------------------------------------------------------------------------ */

/* Copies one line: control characters and runs of spaces become one space, none at either end. */
static void copy_name(const char *from, char *name, size_t size)
{
    size_t n = 0;
    for (; *from && n + 1 < size; from++) {
        unsigned char c = (unsigned char)*from;
        bool space = c <= ' ' || c >= 0x7f;
        if (!space)
            name[n++] = (char)c;
        else if (n > 0 && name[n - 1] != ' ')
            name[n++] = ' ';
    }
    while (n > 0 && name[n - 1] == ' ')
        n--;
    name[n] = '\0';
}

#if defined(IS_X86)
static void read_name(char *text, size_t size)
{
    unsigned words[12];
    memset(text, 0, size);
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * i;
        if (!__get_cpuid(0x80000002 + i, &w[0], &w[1], &w[2], &w[3]))
            return;
    }
    memcpy(text, words, sizeof words < size ? sizeof words : size - 1);
}
#elif defined(__APPLE__)
static void read_name(char *text, size_t size)
{
    if (sysctlbyname("machdep.cpu.brand_string", text, &size, NULL, 0) != 0)
        text[0] = '\0';
}
#else
/* The model's name; on arm64, which gives none there, who made the core and its number. */
static void read_name(char *text, size_t size)
{
    char line[256], implementer[16] = "", part[16] = "";
    text[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !text[0] && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon)
            continue;
        if (strncmp(line, "model name", 10) == 0)
            snprintf(text, size, "%s", colon + 1);
        sscanf(line, "CPU implementer : %15s", implementer);
        sscanf(line, "CPU part : %15s", part);
    }
    if (file)
        fclose(file);
    if (!text[0] && part[0])
        snprintf(text, size, "CPU implementer %s part %s", implementer, part);
}
#endif

void cpu_name(char *name, size_t size)
{
    char text[128];
    read_name(text, sizeof text);
    copy_name(text[0] ? text : "unknown CPU", name, size);
}

/* ---- cores ----------------------------------------------------------------------------------- */

/* The first of the hardware threads that share a core with `id`, which stands for the core; -1
 * when the system does not say. The list is "0,64" or "0-1". */
static int first_sibling(const char *root, int id)
{
    static const char *const names[] = {"core_cpus_list", "thread_siblings_list"}; /* new, old */
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, id,
                 names[i]);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        int first = -1;
        if (fscanf(file, "%d", &first) != 1)
            first = -1;
        fclose(file);
        if (first >= 0)
            return first;
    }
    return -1;
}

static int compare(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int cpu_count_cores(const char *root, const int *ids, int n)
{
    int *first = malloc((size_t)n * sizeof *first);
    if (!first)
        return n;
    int cores = 0;
    for (int i = 0; i < n; i++)
        if ((first[i] = first_sibling(root, ids[i])) < 0) {
            free(first);
            return n;
        }
    qsort(first, (size_t)n, sizeof *first, compare);
    for (int i = 0; i < n; i++)
        cores += i == 0 || first[i] != first[i - 1];
    free(first);
    return cores;
}

#ifdef __linux__
/* 0 when the affinity mask cannot be read. */
static int allowed_cores(void)
{
    int cores = 0;
    for (int max = 1024; max <= 1 << 20 && cores == 0; max *= 4) { /* EINVAL: more of them */
        cpu_set_t *set = CPU_ALLOC((size_t)max);
        int *ids = malloc((size_t)max * sizeof *ids);
        size_t size = CPU_ALLOC_SIZE((size_t)max);
        if (set && ids && sched_getaffinity(0, size, set) == 0) {
            int n = 0;
            for (int i = 0; i < max; i++)
                if (CPU_ISSET_S((size_t)i, size, set))
                    ids[n++] = i;
            cores = n > 0 ? cpu_count_cores("", ids, n) : 0;
        }
        free(ids);
        if (set)
            CPU_FREE(set);
    }
    return cores;
}
#elif defined(__APPLE__)
static int allowed_cores(void)
{
    int cores = 0; /* the fast ones, where there are two kinds */
    size_t size = sizeof cores;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, NULL, 0) != 0 &&
        sysctlbyname("hw.physicalcpu", &cores, &size, NULL, 0) != 0)
        return 0;
    return cores;
}
#else
static int allowed_cores(void)
{
    return 0;
}
#endif

int cpu_physical_cores(void)
{
    int cores = allowed_cores();
    if (cores < 1) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        cores = online > 0 ? (int)online : 1;
    }
    double limit = cgroup_cpu_limit("");
    if (limit > 0 && limit < cores)
        cores = limit < 1 ? 1 : (int)limit;
    return cores;
}
