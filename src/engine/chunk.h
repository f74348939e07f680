/* How many tokens of a prompt are read at once, so that what others wait for, a chunk or a part of
 * one that pauses, takes about as long as it may on this machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct chunk_size {
    double seconds; /* that a chunk may take */
    int32_t now, most;
    bool learned;
};

#define CHUNK_LEAST 32 /* tokens; shorter chunks cost nearly as much as this one */

void chunk_size_init(struct chunk_size *size, double seconds, int32_t most);
int32_t chunk_size_next(const struct chunk_size *size);
/* A first size, until something is learned: from n tokens that took so long in a longer chunk. */
void chunk_size_guess(struct chunk_size *size, int32_t n, double seconds);
/* What others waited for in a chunk of n tokens, which may have been cut short. */
void chunk_size_learn(struct chunk_size *size, int32_t n, double seconds);
