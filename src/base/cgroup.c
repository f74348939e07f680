#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_SIZE 4096

/* Calls `visit` for the folder of each group that the process is in: version 2's or that of version
 * 1's `controller`, from the mount's root down. In a container the path may be the host's, of which
 * only the root can be seen: then that is the container's own group. */
static void each_group(const char *root, const char *controller,
                       void (*visit)(const char *folder, bool version2, void *context),
                       void *context)
{
    char path[PATH_SIZE], line[PATH_SIZE];
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
        return;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) { /* "0::/a/b" or "7:cpu,cpuacct:/a/b" */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *names++ = *group++ = '\0';
        bool version2 = strcmp(line, "0") == 0 && !*names, found = version2;
        char *rest = NULL;
        for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
            found |= strcmp(name, controller) == 0;
        if (!found || strstr(group, "..")) /* above the mount: nothing to see there */
            continue;
        int n = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, version2 ? "" : "/",
                         version2 ? "" : controller);
        size_t end = (size_t)n, length = strlen(group);
        if (n < 0 || end + length + 1 >= sizeof path)
            continue;
        visit(path, version2, context);
        for (size_t i = 1; i <= length; i++) /* "/a", then "/a/b" */
            if ((group[i] == '/' || group[i] == '\0') && group[i - 1] != '/') {
                memcpy(path + end, group, i);
                path[end + i] = '\0';
                visit(path, version2, context);
            }
    }
    fclose(file);
}

static FILE *open_file(const char *folder, const char *name)
{
    char path[PATH_SIZE];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return NULL;
    return fopen(path, "re");
}

/* The number in a file; -1 when it is not there or is no number ("max"). */
static long long read_number(const char *folder, const char *name)
{
    long long value = -1;
    FILE *file = open_file(folder, name);
    if (!file)
        return -1;
    if (fscanf(file, "%lld", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

/* ---- processors ------------------------------------------------------------------------------ */

static void visit_cpu(const char *folder, bool version2, void *context)
{
    double *limit = context;
    long long quota = -1, period = -1;
    if (version2) {
        FILE *file = open_file(folder, "cpu.max"); /* "max 100000" or "150000 100000" */
        if (file && fscanf(file, "%lld %lld", &quota, &period) != 2)
            quota = -1;
        if (file)
            fclose(file);
    } else {
        quota = read_number(folder, "cpu.cfs_quota_us");
        period = read_number(folder, "cpu.cfs_period_us");
    }
    if (quota > 0 && period > 0 && (*limit == 0 || (double)quota / (double)period < *limit))
        *limit = (double)quota / (double)period;
}

double cgroup_cpu_limit(const char *root)
{
    double limit = 0;
    each_group(root, "cpu", visit_cpu, &limit);
    return limit;
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct memory {
    int64_t limit, available;
};

/* Pages of files among a group's memory: its own in version 2's file, with those below it in
 * version 1's "total_" lines. */
static long long file_pages(const char *folder, bool version2)
{
    FILE *file = open_file(folder, "memory.stat");
    if (!file)
        return 0;
    char line[128];
    long long value, sum = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, version2 ? "inactive_file %lld" : "total_inactive_file %lld", &value) ==
                1 ||
            sscanf(line, version2 ? "active_file %lld" : "total_active_file %lld", &value) == 1)
            sum += value;
    fclose(file);
    return sum;
}

static void visit_memory(const char *folder, bool version2, void *context)
{
    struct memory *memory = context;
    long long limit = read_number(folder, version2 ? "memory.max" : "memory.limit_in_bytes");
    if (limit < 0 || limit >= 1LL << 60) /* version 1's "none" is about 2^63 */
        return;
    if (memory->limit == 0 || limit < memory->limit)
        memory->limit = limit;
    long long used = read_number(folder, version2 ? "memory.current" : "memory.usage_in_bytes");
    used = used > 0 ? used - file_pages(folder, version2) : 0;
    long long left = used < 0 ? limit : used > limit ? 0 : limit - used;
    if (memory->available < 0 || left < memory->available)
        memory->available = left;
}

static struct memory read_memory(const char *root)
{
    struct memory memory = {.limit = 0, .available = -1};
    each_group(root, "memory", visit_memory, &memory);
    return memory;
}

int64_t cgroup_memory_limit(const char *root)
{
    return read_memory(root).limit;
}

int64_t cgroup_memory_available(const char *root)
{
    return read_memory(root).available;
}
