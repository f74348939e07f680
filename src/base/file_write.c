#include "base/file_write.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum status file_write(const char *path, const void *data, size_t length, struct error *error)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    errno = 0;
    bool whole = fwrite(data, 1, length, file) == length;
    int reason = errno;
    if (fclose(file) != 0 && whole) { /* a full disk may show only here */
        reason = errno;
        whole = false;
    }
    return whole ? STATUS_OK : error_set(error, STATUS_IO, "%s: %s", path, strerror(reason));
}
