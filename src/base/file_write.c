#include "base/file_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES 100 /* names of parts that others left behind */

static enum status failed(const struct file_writer *writer, int reason, struct error *error)
{
    const char *name = *writer->name ? writer->name : "''";
    return reason == ENOMEM ? error_no_memory(error, name)
                            : error_set(error, STATUS_IO, "%s: %s", name, strerror(reason));
}

static void writer_clear(struct file_writer *writer)
{
    free(writer->path);
    free(writer->part);
    *writer = (struct file_writer){0};
}

/* A file beside the target, with a name of its own; a descriptor or -1. */
static int open_part(struct file_writer *writer, mode_t mode)
{
    for (int i = 0; i < TRIES; i++) {
        if (asprintf(&writer->part, "%s.%ld.%d.part", writer->path, (long)getpid(), i) < 0) {
            writer->part = NULL;
            errno = ENOMEM;
            return -1;
        }
        int file = open(writer->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file >= 0)
            return file;
        int reason = errno;
        free(writer->part);
        writer->part = NULL;
        errno = reason;
        if (reason != EEXIST)
            return -1;
    }
    return -1;
}

/* Names of what is open already: another file in its place would not be what they name. */
static bool names_descriptor(const char *path)
{
    static const char *const starts[] = {"/dev/fd/", "/dev/std", "/proc/"};
    for (int i = 0; i < 3; i++)
        if (strncmp(path, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

/* Whether another file may take the place of what is there (NULL: nothing). It would be the user's
 * own, and no other name would lead to it. */
static bool can_replace(const char *path, const struct stat *there)
{
    struct stat link;
    if (names_descriptor(path) || !*path)
        return false;
    if (!there)
        return lstat(path, &link) != 0; /* else a link that leads nowhere yet */
    return S_ISREG(there->st_mode) && there->st_nlink == 1 && there->st_uid == geteuid();
}

/* The descriptor to write to, or -1. */
static int open_file(struct file_writer *writer, const char *path, mode_t mode)
{
    struct stat there;
    bool exists = stat(path, &there) == 0;
    if (exists && access(path, W_OK) != 0) /* to replace it would take no more than its folder */
        return -1;
    if (can_replace(path, exists ? &there : NULL)) {
        errno = ENOMEM;
        writer->path = exists ? realpath(path, NULL) : strdup(path);
        int file = writer->path ? open_part(writer, mode ? mode : 0666) : -1;
        if (file >= 0 && (mode || exists))
            fchmod(file, mode ? mode : there.st_mode & 07777);
        /* else on the file itself, but on a full disk that would only lose the old one */
        if (file >= 0 ||
            (errno != EACCES && errno != EPERM && errno != EROFS && errno != ENAMETOOLONG))
            return file;
    }
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode ? mode : 0666);
}

enum status file_writer_open(struct file_writer *writer, const char *path, mode_t mode,
                             struct error *error)
{
    *writer = (struct file_writer){.name = path};
    int file = open_file(writer, path, mode), reason = errno;
    if (file >= 0) {
        writer->stream = fdopen(file, "w");
        if (writer->stream)
            return STATUS_OK;
        reason = errno;
        close(file);
        if (writer->part)
            unlink(writer->part);
    }
    enum status status = failed(writer, reason, error);
    writer_clear(writer);
    return status;
}

enum status file_writer_close(struct file_writer *writer, bool keep, struct error *error)
{
    int reason = ferror(writer->stream) ? (errno ? errno : EIO) : 0;
    if (fclose(writer->stream) != 0 && reason == 0) /* a full disk may show only here */
        reason = errno;
    if (writer->part && keep && reason == 0 && rename(writer->part, writer->path) != 0)
        reason = errno;
    if (writer->part && (!keep || reason != 0))
        unlink(writer->part);
    enum status status = keep && reason != 0 ? failed(writer, reason, error) : STATUS_OK;
    writer_clear(writer);
    return status;
}

enum status file_write(const char *path, mode_t mode, const void *data, size_t length,
                       struct error *error)
{
    struct file_writer writer;
    enum status status = file_writer_open(&writer, path, mode, error);
    if (status != STATUS_OK)
        return status;
    if (length > 0 && fwrite(data, 1, length, writer.stream) != length) {
        status = failed(&writer, errno, error);
        file_writer_close(&writer, false, NULL);
        return status;
    }
    return file_writer_close(&writer, true, error);
}
