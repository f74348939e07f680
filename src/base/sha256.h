/* SHA-256 of whole files and of bytes, by the nettle library. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SHA256_HEX_SIZE 65 /* 64 digits and a NUL */

/* `progress` may be NULL; else it is told the bytes read so far, every megabyte. Errors: STATUS_IO
 * with the path; STATUS_INVALID when it is no regular file. */
enum status sha256_file(const char *path, char hex[SHA256_HEX_SIZE],
                        void (*progress)(void *context, int64_t done), void *context,
                        struct error *error);

void sha256_bytes(const void *data, size_t length, char hex[SHA256_HEX_SIZE]);
