/* Synthetic weights of a shape, a pure function of shape and seed: the real model's tensors by
 * name, dtype and size (spec 4.3) with random contents whose statistics let a forward pass behave
 * (finite, experts used evenly). For measuring and testing at full size where the real checkpoint
 * is not at hand; `calla synth` writes the same bytes as a checkpoint.
 *
 * Any range of bytes is generated on its own, so threads and writers share the work as they like.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/weights.h"

#define SYNTH_MAX_DIMS 5

/* One tensor of the checkpoint. `offset` counts from the first tensor's first byte, with no gaps.
 */
struct synth_tensor {
    char name[104];
    const char *dtype; /* "U32" or "BF16" */
    int n_dims;
    int64_t dims[SYNTH_MAX_DIMS];
    int64_t offset, size;
    uint64_t key;               /* of its random numbers */
    const unsigned char **view; /* what points at it in the weights; NULL: vision */
    uint16_t values[256];       /* BF16: a random byte chooses the value */
};

/* Sizes of the vision tower (spec 9), which the text engine skips. */
struct synth_vision {
    int depth, hidden_size, intermediate_size, num_position_embeddings, num_heads;
};

struct synth;

/* The tensors alone, in the order in which the published checkpoint is cut into shards: vision
 * tower, when asked for, embedding, layers, norm, head. `shape` is borrowed until close. */
enum status synth_plan(const struct shape *shape, uint64_t seed, bool vision, struct synth **out,
                       struct error *error);
/* The same without vision, and written to memory of its own by n_threads threads (0: one for each
 * processor). The memory is like a mapped file's: small pages, the first tensor at an odd address.
 */
enum status synth_open(const struct shape *shape, uint64_t seed, int n_threads, struct synth **out,
                       struct error *error);
void synth_close(struct synth *synth);

const struct shape *synth_shape(const struct synth *synth);
const struct synth_vision *synth_vision(const struct synth *synth); /* NULL: none */
/* After synth_plan they have sizes and no data: enough to plan memory with. */
const struct weights *synth_weights(const struct synth *synth);
const struct synth_tensor *synth_tensors(const struct synth *synth, int *n);
int64_t synth_bytes(const struct synth *synth); /* of all tensors */
/* Bytes [from, from + n) of the tensors laid end to end. Any thread may call it at any time. */
void synth_fill(const struct synth *synth, int64_t from, int64_t n, unsigned char *out);
