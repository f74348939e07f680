/* The files of the target checkpoint with their sizes and SHA-256 (head of the spec), and the check
 * of a folder against them. `calla inspect --verify` prints it. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/sha256.h"

extern const char known_checkpoint[]; /* its name */

struct known_file {
    const char *name;
    int64_t size;
    const char *sha256;
};
extern const struct known_file known_files[]; /* ends with a NULL name */

enum known_state {
    KNOWN_OK,
    KNOWN_MISSING,
    KNOWN_SIZE,       /* another size; not hashed */
    KNOWN_DIFFERENT,  /* the right size, other bytes */
    KNOWN_UNREADABLE, /* the error says why */
};
extern const char *const known_state_names[]; /* "ok", "missing", … */

struct known_result {
    enum known_state state;
    int64_t size;                 /* found; -1 when missing */
    char sha256[SHA256_HEX_SIZE]; /* found; "" when not hashed */
    struct error error;           /* for KNOWN_UNREADABLE */
};

/* The bytes that known_file_check is going to read: 0 for a file it need not hash. */
int64_t known_file_work(const char *folder, const struct known_file *file);
/* `progress` may be NULL; else it is told the bytes of this file read so far. */
void known_file_check(const char *folder, const struct known_file *file,
                      void (*progress)(void *context, int64_t done), void *context,
                      struct known_result *result);
