/* base/cpu and base/cgroup: what cpuid's words mean when the system saves less than the processor
 * has, cores behind hardware threads, and limits of control groups, from folders made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cgroup.h"
#include "base/cpu.h"

/* ---- a small file tree ----------------------------------------------------------------------- */

static int make_root(void **state)
{
    const char *temporary = getenv("TMPDIR");
    char *root = malloc(256);
    assert_non_null(root);
    snprintf(root, 256, "%s/calla-test-cpu-XXXXXX", temporary ? temporary : "/tmp");
    assert_non_null(mkdtemp(root));
    *state = root;
    return 0;
}

static int remove_root(void **state)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return system(command);
}

static void write_file(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- features -------------------------------------------------------------------------------- */

/* Everything there is. */
static const struct cpu_words all = {.leaf1_ecx = UINT32_MAX,
                                     .leaf7_ebx = UINT32_MAX,
                                     .leaf7_ecx = UINT32_MAX,
                                     .leaf7_edx = UINT32_MAX,
                                     .leaf7_1_eax = UINT32_MAX,
                                     .xcr0 = UINT64_MAX};

static void features_want_the_system(void **state)
{
    (void)state;
    struct cpu_features f = cpu_features_x86(&all);
    assert_true(f.avx2 && f.fma && f.f16c && f.avx_vnni);
    assert_true(f.avx512f && f.avx512bw && f.avx512vl && f.avx512vnni && f.avx512bf16);
    assert_true(f.amx_tile && f.amx_int8 && f.amx_bf16);
    assert_false(f.neon || f.dotprod || f.bf16);
    struct cpu_words words = all;
    words.xcr0 = 0xe7; /* no tiles */
    f = cpu_features_x86(&words);
    assert_true(f.avx2 && f.avx512f && f.avx512bf16);
    assert_false(f.amx_tile || f.amx_int8 || f.amx_bf16);
    words.xcr0 = 0x67; /* the upper halves of zmm16 to zmm31 would be lost */
    f = cpu_features_x86(&words);
    assert_true(f.avx2 && f.fma);
    assert_false(f.avx512f || f.avx512vnni || f.avx512bf16);
    words.xcr0 = 0x3;
    f = cpu_features_x86(&words);
    assert_false(f.avx2 || f.fma || f.f16c || f.avx_vnni);
}

static void features_one_by_one(void **state)
{
    (void)state;
    struct cpu_words words = {.leaf1_ecx = 1u << 28, .leaf7_ebx = 1u << 5, .xcr0 = 7};
    struct cpu_features f = cpu_features_x86(&words);
    assert_true(f.avx2);
    assert_false(f.fma || f.f16c);
    words.leaf1_ecx |= 1u << 12;
    assert_true(cpu_features_x86(&words).fma);
    words = all;
    words.leaf7_ebx &= ~(1u << 16); /* without F there is none of it */
    f = cpu_features_x86(&words);
    assert_false(f.avx512f || f.avx512bw || f.avx512vnni);
    assert_true(f.avx2);
    words = all;
    words.leaf7_edx &= ~(1u << 25);
    f = cpu_features_x86(&words);
    assert_true(f.amx_tile && f.amx_bf16);
    assert_false(f.amx_int8);
}

/* Linux lists the same in /proc/cpuinfo. */
static void features_of_this_machine(void **state)
{
    (void)state;
#if defined(__x86_64__) && defined(__linux__)
    static const char *const flags[] = {
        " avx2 ",        " fma ",         " f16c ",     " avx_vnni ",   " avx512f ",
        " avx512bw ",    " avx512vl ",    " avx512dq ", " avx512vbmi ", " avx512_vnni ",
        " avx512_bf16 ", " avx512_fp16 ", " amx_tile ", " amx_int8 ",   " amx_bf16 "};
    char line[8192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");
    assert_non_null(file);
    while (strncmp(line, "flags", 5) != 0)
        assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    *strchr(line, '\n') = ' ';
    struct cpu_features features = cpu_features();
    for (int i = 0; i < 15; i++) {
        bool has;
        const char *name = cpu_feature_name(&features, i, &has);
        assert_non_null(name);
        if (has != !!strstr(line, flags[i]))
            fail_msg("%s: found %d, /proc/cpuinfo says otherwise", name, has);
    }
    bool has;
    assert_null(cpu_feature_name(&features, 15, &has));
    assert_null(cpu_feature_name(&features, -1, &has));
#else
    skip();
#endif
}

static void name_is_one_line(void **state)
{
    (void)state;
    char name[64], small[5];
    cpu_name(name, sizeof name);
    assert_true(strlen(name) > 2);
    assert_null(strpbrk(name, "\n\t"));
    assert_null(strstr(name, "  "));
    assert_int_not_equal(name[strlen(name) - 1], ' ');
    cpu_name(small, sizeof small);
    assert_true(strlen(small) <= 4);
    assert_memory_equal(small, name, strlen(small));
}

/* ---- cores ----------------------------------------------------------------------------------- */

static void cores_behind_threads(void **state)
{
    const char *root = *state;
    const int ids[] = {0, 1, 2, 3, 8, 9};
    assert_int_equal(cpu_count_cores(root, ids, 6), 6); /* nothing known */
    static const char *const lists[] = {"0,4", "1,5", "2-3", "2-3", "0,8"};
    for (int i = 0; i < 4; i++) {
        char name[100];
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/core_cpus_list", i);
        write_file(root, name, lists[i]);
    }
    assert_int_equal(cpu_count_cores(root, ids, 4), 3);
    assert_int_equal(cpu_count_cores(root, ids, 2), 2);
    assert_int_equal(cpu_count_cores(root, ids + 2, 2), 1);
    assert_int_equal(cpu_count_cores(root, ids, 5), 5); /* cpu8 says nothing: no guess */
    write_file(root, "sys/devices/system/cpu/cpu8/topology/thread_siblings_list", "0,8\n");
    assert_int_equal(cpu_count_cores(root, ids, 5), 3);
}

static void cores_of_this_process(void **state)
{
    (void)state;
    int cores = cpu_physical_cores();
    assert_in_range(cores, 1, sysconf(_SC_NPROCESSORS_ONLN));
#ifdef __linux__
    char command[] = "taskset -p 1 $PPID >/dev/null 2>&1";
    if (system(command) == 0) /* this process on processor 0 alone; the last test needs no more */
        assert_int_equal(cpu_physical_cores(), 1);
#endif
}

/* ---- control groups -------------------------------------------------------------------------- */

static void no_groups(void **state)
{
    assert_true(cgroup_cpu_limit(*state) == 0);
    assert_int_equal(cgroup_memory_limit(*state), 0);
    assert_int_equal(cgroup_memory_available(*state), -1);
}

static void groups_of_version_2(void **state)
{
    const char *root = *state;
    write_file(root, "proc/self/cgroup", "0::/a/b\n");
    write_file(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    write_file(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(cgroup_cpu_limit(root) == 1.5);
    write_file(root, "sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_true(cgroup_cpu_limit(root) == 0.5);
    write_file(root, "sys/fs/cgroup/a/memory.max", "1000000\n");
    write_file(root, "sys/fs/cgroup/a/memory.current", "900000\n");
    write_file(root, "sys/fs/cgroup/a/memory.stat",
               "anon 5\ninactive_file 300000\nactive_file 100000\nunevictable 7\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(cgroup_memory_limit(root), 1000000);
    assert_int_equal(cgroup_memory_available(root), 500000);
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "2000000\n"); /* the parent's is tighter */
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "1900000\n");
    assert_int_equal(cgroup_memory_limit(root), 1000000);
    assert_int_equal(cgroup_memory_available(root), 100000);
}

/* As a container sees it: the path is the host's, the mount's root is the container's own. */
static void groups_of_a_container(void **state)
{
    const char *root = *state;
    write_file(root, "proc/self/cgroup", "0::/system.slice/docker-1.scope\n");
    write_file(root, "sys/fs/cgroup/cpu.max", "400000 100000\n");
    write_file(root, "sys/fs/cgroup/memory.max", "7\n");
    assert_true(cgroup_cpu_limit(root) == 4);
    assert_int_equal(cgroup_memory_limit(root), 7);
    write_file(root, "proc/self/cgroup", "0::/../../up\n"); /* above what is mounted */
    assert_true(cgroup_cpu_limit(root) == 0);
}

static void groups_of_version_1(void **state)
{
    const char *root = *state;
    write_file(root, "proc/self/cgroup",
               "9:name=systemd:/\n5:cpuset:/x\n4:memory:/m/n\n2:cpuacct,cpu:/c\n0::/\n");
    write_file(root, "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "300000\n");
    write_file(root, "sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
    write_file(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    write_file(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_cpu_limit(root) == 3);
    write_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(cgroup_memory_limit(root), 0);
    write_file(root, "sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", "5000\n");
    write_file(root, "sys/fs/cgroup/memory/m/n/memory.usage_in_bytes", "9000\n");
    write_file(root, "sys/fs/cgroup/memory/m/n/memory.stat", "total_inactive_file 8000\n");
    assert_int_equal(cgroup_memory_limit(root), 5000);
    assert_int_equal(cgroup_memory_available(root), 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_want_the_system),
        cmocka_unit_test(features_one_by_one),
        cmocka_unit_test(features_of_this_machine),
        cmocka_unit_test(name_is_one_line),
        cmocka_unit_test_setup_teardown(cores_behind_threads, make_root, remove_root),
        cmocka_unit_test_setup_teardown(no_groups, make_root, remove_root),
        cmocka_unit_test_setup_teardown(groups_of_version_2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(groups_of_a_container, make_root, remove_root),
        cmocka_unit_test_setup_teardown(groups_of_version_1, make_root, remove_root),
        cmocka_unit_test(cores_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
