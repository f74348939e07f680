/* Collects the tensors that a probe sees and writes them as one safetensors file, in the names and
 * shapes of models/tiny/reference/hidden.safetensors. Kept in memory until written. */
#pragma once

#include "backend/backend.h"

struct tensor_file;

struct tensor_file *tensor_file_new(const struct shape *shape); /* NULL: out of memory */
void tensor_file_free(struct tensor_file *file);
/* What the probe sees from now on belongs to `prefix` (copied), whose ids are given. A prefix that
 * was there before is refused. */
enum status tensor_file_begin(struct tensor_file *file, const char *prefix, const int32_t *ids,
                              int64_t n_ids, struct error *error);
/* Forgets what the present prefix has: its line was refused. */
void tensor_file_drop(struct tensor_file *file);
const struct probe *tensor_file_probe(struct tensor_file *file);
/* Errors: STATUS_NO_MEMORY when anything was lost on the way; STATUS_IO with path and reason. */
enum status tensor_file_write(struct tensor_file *file, const char *path, struct error *error);
