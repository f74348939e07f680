/* A checkpoint folder opened for use: config, shards mapped by the index, every tensor that the
 * model needs found, checked (dtype, shape, bounds, bits against the config) and given out as
 * views. No pass over the weights: opening reads headers only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"

struct checkpoint;

/* Totals by part, and what the text engine leaves unread (spec 4.2, 9). */
struct checkpoint_part {
    const char *name; /* "embedding", "attention", "deltanet", "experts", … "vision (skipped)" */
    const char *bits; /* per weight, as checked: "4", "8", "bf16"; "" for what is skipped */
    int64_t tensors, bytes;
    int64_t parameters; /* 0 for what is skipped */
    bool skipped;
};

enum status checkpoint_open(const char *folder, struct checkpoint **out, struct error *error);
void checkpoint_close(struct checkpoint *checkpoint);
const struct config *checkpoint_config(const struct checkpoint *checkpoint);
const struct weights *checkpoint_weights(const struct checkpoint *checkpoint);
int checkpoint_n_shards(const struct checkpoint *checkpoint);
/* Reads all shards into memory; with lock they stay there, or STATUS_NO_MEMORY. */
void checkpoint_preload(const struct checkpoint *checkpoint);
enum status checkpoint_lock(const struct checkpoint *checkpoint, struct error *error);
/* Tells checkpoints apart: SHA-256, in hex, of the names, dtypes, shapes and sizes of all tensors
 * and of some bytes of each. STATUS_NO_MEMORY. */
enum status checkpoint_digest(const struct checkpoint *checkpoint, char hex[65],
                              struct error *error);
/* A table that ends with a NULL name. */
const struct checkpoint_part *checkpoint_parts(const struct checkpoint *checkpoint);
