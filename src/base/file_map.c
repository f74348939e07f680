#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status map_descriptor(int descriptor, const char *path, struct file_map *map,
                                  struct error *error)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(error, STATUS_INVALID, "%s: found %s, wanted a file", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "something that is no regular file");
    if (info.st_size == 0)
        return STATUS_OK;
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED)
        return error_set(error, STATUS_IO, "%s: cannot map: %s", path, strerror(errno));
    map->data = data;
    map->size = (size_t)info.st_size;
    return STATUS_OK;
}

enum status file_map_open(const char *path, struct file_map *map, struct error *error)
{
    *map = (struct file_map){0};
    /* O_NONBLOCK: opening a pipe must not wait for its writer */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return error_set(error, STATUS_IO, "%s: %s", *path ? path : "''", strerror(errno));
    enum status status = map_descriptor(descriptor, path, map, error);
    close(descriptor);
    return status;
}

void file_map_preload(const struct file_map *map)
{
    if (!map->data)
        return;
    madvise((void *)map->data, map->size, MADV_WILLNEED);
    long page = sysconf(_SC_PAGESIZE);
    volatile unsigned char seen = 0;
    for (size_t i = 0; i < map->size; i += (size_t)page)
        seen = (unsigned char)(seen ^ map->data[i]);
}

enum status file_map_lock(const struct file_map *map, const char *path, struct error *error)
{
    if (!map->data || mlock(map->data, map->size) == 0)
        return STATUS_OK;
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return error_set(error, STATUS_NO_MEMORY,
                     "%s: cannot lock %.2f GiB in memory: %s; the limit on locked memory "
                     "(ulimit -l) is %.6g GiB",
                     path, (double)map->size / (1 << 30), strerror(errno),
                     limited ? (double)limit.rlim_cur / (1 << 30) : (double)INFINITY);
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)map->data, map->size);
    *map = (struct file_map){0};
}

bool file_is_absent(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}
