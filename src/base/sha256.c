#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_SIZE (1 << 20)

static void finish(struct sha256_ctx *hash, char hex[SHA256_HEX_SIZE])
{
    unsigned char digest[SHA256_DIGEST_SIZE];
    sha256_digest(hash, sizeof digest, digest);
    for (int i = 0; i < SHA256_DIGEST_SIZE; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

void sha256_bytes(const void *data, size_t length, char hex[SHA256_HEX_SIZE])
{
    struct sha256_ctx hash;
    sha256_init(&hash);
    sha256_update(&hash, length, data);
    finish(&hash, hex);
}

static enum status hash_descriptor(int descriptor, const char *path, unsigned char *buffer,
                                   struct sha256_ctx *hash,
                                   void (*progress)(void *context, int64_t done), void *context,
                                   struct error *error)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(error, STATUS_INVALID, "%s: found no regular file, wanted one", path);
    for (int64_t done = 0;;) {
        ssize_t n = read(descriptor, buffer, BUFFER_SIZE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return STATUS_OK;
        sha256_update(hash, (size_t)n, buffer);
        done += n;
        if (progress)
            progress(context, done);
    }
}

enum status sha256_file(const char *path, char hex[SHA256_HEX_SIZE],
                        void (*progress)(void *context, int64_t done), void *context,
                        struct error *error)
{
    unsigned char *buffer = malloc(BUFFER_SIZE);
    if (!buffer)
        return error_no_memory(error, path);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* never waits for a pipe */
    enum status status;
    struct sha256_ctx hash;
    sha256_init(&hash);
    if (descriptor < 0) {
        status = error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
    } else {
        status = hash_descriptor(descriptor, path, buffer, &hash, progress, context, error);
        close(descriptor);
    }
    free(buffer);
    if (status == STATUS_OK)
        finish(&hash, hex);
    return status;
}
