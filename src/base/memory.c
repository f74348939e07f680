#include "base/memory.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"

int64_t memory_physical(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (int64_t)pages * size : 0;
}

int64_t memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re"); /* Linux; elsewhere the physical size must do */
    if (!file)
        return memory_physical();
    char line[128];
    long long kilobytes = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kilobytes) == 1)
            break;
    fclose(file);
    int64_t machine = kilobytes > 0 ? kilobytes * 1024 : memory_physical();
    int64_t group = cgroup_memory_available("");
    return group >= 0 && group < machine ? group : machine;
}

int64_t memory_limit(void)
{
    return cgroup_memory_limit("");
}

/* The process's limit, INT64_MAX when there is none. */
static int64_t own_limit(int resource)
{
    struct rlimit limit;
    if (getrlimit((unsigned)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    return (int64_t)limit.rlim_cur;
}

static int64_t left_of(int64_t limit, int64_t used)
{
    return limit == INT64_MAX ? INT64_MAX : limit > used ? limit - used : 0;
}

struct memory_room memory_look(void)
{
    struct memory_room room = {
        .physical = memory_physical(),
        .available = memory_available(),
        .limit = memory_limit(),
        .address_space = own_limit(RLIMIT_AS),
    };
    /* what counts against both limits is there already: mapped weights, too, against the first */
    long long pages = 0, data_pages = 0;
    FILE *file = fopen("/proc/self/statm", "re"); /* Linux */
    if (file && fscanf(file, "%lld %*d %*d %*d %*d %lld", &pages, &data_pages) != 2)
        pages = data_pages = 0;
    if (file)
        fclose(file);
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t space = left_of(room.address_space, pages * page);
    int64_t data = left_of(own_limit(RLIMIT_DATA), data_pages * page);
    room.allocatable = space < data ? space : data;
    return room;
}

/* A line of the kernel's report on this process, in bytes; 0: not Linux, or no such line. */
static int64_t process_status(const char *name)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long long kilobytes = 0;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, ": %lld", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

int64_t memory_resident(void)
{
    return process_status("VmRSS");
}

int64_t memory_peak(void)
{
    int64_t peak = process_status("VmHWM");
    if (peak > 0)
        return peak;
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#ifdef __APPLE__
    return usage.ru_maxrss;
#else
    return (int64_t)usage.ru_maxrss * 1024;
#endif
}

bool memory_peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (!file)
        return false;
    bool done = fputs("5", file) >= 0;
    return fclose(file) == 0 && done;
}

void memory_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
