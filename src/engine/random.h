/* Counter-based random numbers: a draw depends on a seed and a position only, so it needs no state,
 * a token can be drawn again, and a device can draw the same. Philox4x32 with 10 rounds (Salmon et
 * al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
#pragma once

#include <stdint.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Uniform in [0, 1), 53 bits. */
double random_uniform(uint64_t seed, uint64_t position);
