/* Writes whole files so that whoever reads the file, or looks after the program was killed, finds
 * the old one or the new one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"

struct file_writer {
    FILE *stream;
    const char *name;  /* for messages; borrowed */
    char *path, *part; /* part is renamed to path; NULL: stream is the file itself */
};

/* Begins to write. `mode` is the file's; 0: a file that is replaced keeps its own, a new one gets
 * what the umask allows. A link stays, what it names is replaced. Devices, pipes and open
 * descriptors (/dev/stdout) are written to as they are, and so are files in folders where none can
 * be made. `path` is borrowed until close. Errors: STATUS_IO with the path and the reason. */
enum status file_writer_open(struct file_writer *writer, const char *path, mode_t mode,
                             struct error *error);
/* Ends it: the new file takes the old one's place if all was written, else the old one stays and
 * the reason is errno, so nothing comes between a write that failed and this. With `keep` false the
 * old one stays, too, and the answer is STATUS_OK. */
enum status file_writer_close(struct file_writer *writer, bool keep, struct error *error);

/* All of it at once. */
enum status file_write(const char *path, mode_t mode, const void *data, size_t length,
                       struct error *error);
