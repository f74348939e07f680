/* The processor that the program runs on: its name, what it can compute with, and how many cores
 * this process may use. Kernel tables choose by cpu_features, thread pools by cpu_physical_cores.
 * Nothing is cached: call once at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What may be executed: the processor has it AND the operating system saves its registers. AMX
 * also wants the kernel's permission (arch_prctl ARCH_REQ_XCOMP_PERM), which is not asked here. */
struct cpu_features {
    bool avx2, fma, f16c, avx_vnni;
    bool avx512f, avx512bw, avx512vl, avx512dq, avx512vbmi, avx512vnni, avx512bf16, avx512fp16;
    bool amx_tile, amx_int8, amx_bf16;
    bool neon, dotprod, i8mm, bf16; /* arm64 */
};

struct cpu_features cpu_features(void);
/* The i-th feature of this architecture by name ("AVX2", "AVX-512 VNNI"); NULL past the last. */
const char *cpu_feature_name(const struct cpu_features *features, int i, bool *has);

/* "AMD EPYC 7B13"; "unknown CPU" when it has no name. One line, spaces squeezed. */
void cpu_name(char *name, size_t size);
/* Cores that this process may use, at least 1: hardware threads of its affinity mask, one of each
 * core, and no more than the cgroup's cpu limit (rounded down). */
int cpu_physical_cores(void);

/* ---- the parts, apart from the machine, for tests -------------------------------------------- */

/* What x86's cpuid and xgetbv say: leaf 1; leaf 7, 0; leaf 7, 1; XCR0 (0 without OSXSAVE). */
struct cpu_words {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint64_t xcr0;
};
struct cpu_features cpu_features_x86(const struct cpu_words *words);

/* Cores that the hardware threads `ids` [n] belong to, by `root`/sys/devices/system/cpu; n where
 * the topology is not there. */
int cpu_count_cores(const char *root, const int *ids, int n);
