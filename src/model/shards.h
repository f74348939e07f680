/* The shards of a checkpoint folder as one set of tensors, found by name. The index and the files
 * must tell the same story: each name in one shard, the one that the index says. Used by
 * model/checkpoint. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "model/safetensors.h"

#define MAX_SHARDS 256

struct shard_set {
    struct safetensors *shards[MAX_SHARDS];
    int n_shards;
    const struct tensor **tensors; /* of all shards, by name */
    size_t n_tensors;
};

/* Reads model.safetensors.index.json, or else a single model.safetensors. */
enum status shard_set_open(const char *folder, struct shard_set *set, struct error *error);
void shard_set_close(struct shard_set *set);
/* The place in set->tensors, or -1. */
ptrdiff_t shard_set_find(const struct shard_set *set, const char *name);
