/* How fast this machine reads memory: the bound of everything that streams weights. `calla bench`
 * and `calla doctor` measure it in the same run as what they compare with it. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct bandwidth {
    double median, best; /* bytes a second, all threads together */
    int threads, rounds;
    int64_t bytes; /* read in each round */
};

/* Reads `bytes` of ordinary pages of their own `rounds` times with `threads` threads, a part each.
 * 0 bytes: 1 GiB or 128 MiB a thread, whatever is more, since caches must not help, but at most a
 * quarter of the free memory. 0 rounds: 7. Takes about a second. Errors: STATUS_NO_MEMORY;
 * STATUS_IO when a thread cannot start. */
enum status bandwidth_measure(int threads, int64_t bytes, int rounds, struct bandwidth *out,
                              struct error *error);
