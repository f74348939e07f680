/* A whole regular file mapped read-only. The mapping is shared and lazy: opening touches no page of
 * a large file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct file_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t size;
};

/* Errors: STATUS_IO with the path and the system's reason; STATUS_INVALID when `path` is no regular
 * file (a folder, a device, a pipe). */
enum status file_map_open(const char *path, struct file_map *map, struct error *error);
void file_map_close(struct file_map *map);
/* Reads all of it into memory, as far as the system lets it stay there. */
void file_map_preload(const struct file_map *map);
/* The same, and it stays until closed. STATUS_NO_MEMORY with the limit that forbids it. */
enum status file_map_lock(const struct file_map *map, const char *path, struct error *error);
/* Whether there is no such name at all. A link that leads nowhere and a file that may not be read
 * are there: opening them says what is wrong. */
bool file_is_absent(const char *path);
