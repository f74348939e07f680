/* Writes synthetic weights as the folder of an MLX checkpoint. All or nothing: files get their
 * names only when every byte is on the disk, the index last; whatever goes wrong, what was written
 * is removed. (A process that is killed leaves *.part files, which no loader takes for a model.) */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/synth.h"

struct synth_write_options {
    const void *tokenizer; /* tokenizer.json as it is to be written */
    size_t tokenizer_length;
    int n_threads; /* 0: one for each processor */
    /* may be NULL; told the bytes of weights written so far, out of synth_bytes, by the caller's
     * thread */
    void (*progress)(void *context, int64_t done);
    void *context;
    const atomic_bool *cancel; /* may be NULL; seen within some megabytes */
};

/* `folder` must be empty or not there yet, in a folder that is. Errors: STATUS_INVALID for a folder
 * that is not empty, STATUS_UNSUPPORTED for a shape that no checkpoint can have, STATUS_IO (too
 * little room among others, which is looked at first), STATUS_CANCELLED, STATUS_NO_MEMORY. */
enum status synth_write(const struct synth *synth, const char *folder,
                        const struct synth_write_options *options, struct error *error);
