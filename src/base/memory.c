#include "base/memory.h"

#include <stdio.h>
#include <unistd.h>

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
    return kilobytes > 0 ? kilobytes * 1024 : memory_physical();
}
