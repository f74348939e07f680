/* Writes checkpoints, whole or damaged, to a folder of its own under TMPDIR. A test starts from
 * models/tiny or from a shape, edits the JSON objects, writes, and opens `folder`. The weights are
 * holes (zeros): headers, sizes and config are what loading looks at. Failures of the writer itself
 * fail the test. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "model/shape.h"

#define WRITER_MAX_SHARDS 4

struct checkpoint_writer {
    char folder[256];
    json_t *config, *generation; /* config.json, generation_config.json */
    json_t *index;               /* model.safetensors.index.json; NULL: none is written */
    struct writer_shard {
        char name[64];
        json_t *header;    /* NULL: the file is not written */
        int64_t data_size; /* bytes after the header */
    } shards[WRITER_MAX_SHARDS];
    int n_shards;
};

/* The headers, sizes and configs of models/tiny. */
void writer_init_tiny(struct checkpoint_writer *writer);
/* Every tensor of `shape` by the table of spec 4.3, with `n_vision` tensors of `vision_bytes` in
 * all, spread over n_shards so that parts of one matrix lie in different shards. The config is read
 * from `config_folder`. */
void writer_init_shape(struct checkpoint_writer *writer, const struct shape *shape,
                       const char *config_folder, int n_shards, int n_vision, int64_t vision_bytes);
/* Removes the folder with all that is in it. */
void writer_clear(struct checkpoint_writer *writer);

/* Writes all files as the JSON objects say now. */
void writer_write(const struct checkpoint_writer *writer);
/* Single files, after writer_write. */
void writer_write_file(const struct checkpoint_writer *writer, const char *name, const void *data,
                       size_t length);
void writer_truncate(const struct checkpoint_writer *writer, const char *name, int64_t size);
void writer_remove(const struct checkpoint_writer *writer, const char *name);

/* The header's entry of a tensor (borrowed), and the shard that has it. */
json_t *writer_tensor(const struct checkpoint_writer *writer, const char *name, int *shard);
/* Adds a tensor at the end of a shard, and to the index. */
void writer_add(struct checkpoint_writer *writer, int shard, const char *name, const char *dtype,
                const int64_t *dims, int n_dims, int bytes_per_value);
/* Takes a tensor out of its shard and out of the index. */
void writer_drop(struct checkpoint_writer *writer, const char *name);
/* Gives a tensor another dtype and shape, at the end of its shard. */
void writer_replace(struct checkpoint_writer *writer, const char *name, const char *dtype,
                    const int64_t *dims, int n_dims, int bytes_per_value);
