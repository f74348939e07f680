/* The files of a synthetic checkpoint but for the weights: how the tensors are cut into shards, the
 * shards' headers, and the JSON files. For the target's shape, with vision, config.json,
 * generation_config.json, tokenizer_config.json and the index are the published ones byte for byte
 * (spec, table at the top). model/synth_write calls it. */
#pragma once

#include <stdint.h>

#include "base/bytes.h"
#include "model/synth.h"

#define SYNTH_MAX_SHARDS 16

/* Consecutive tensors; `from` and `size` in the bytes of synth_fill. */
struct synth_shard {
    int first, n;
    int64_t from, size;
    char name[48];
};

struct synth_layout {
    int n;
    struct synth_shard shards[SYNTH_MAX_SHARDS];
};

/* Shards of at most 5 GiB, as MLX cuts them; a model of less gets two, so that it has an index. */
void synth_cut(const struct synth *synth, struct synth_layout *layout);

/* The id of <|endoftext|>, the first added token of the shape's tokenizer (spec 7.2); -1 for a
 * shape that has no tokenizer. */
int32_t synth_first_added_id(const struct shape *shape);

/* Each appends a whole file, or what stands before the data of a shard, length included. A buffer
 * that ran out of memory says so itself. */
void synth_shard_header(const struct synth *synth, const struct synth_shard *shard,
                        struct bytes *out);
void synth_index(const struct synth *synth, const struct synth_layout *layout, struct bytes *out);
void synth_config(const struct synth *synth, struct bytes *out);
void synth_generation_config(const struct synth *synth, struct bytes *out);
void synth_tokenizer_config(const struct synth *synth, struct bytes *out);
