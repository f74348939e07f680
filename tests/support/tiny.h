/* models/tiny opened for tests that need no tokenizer, and the ids of its reference cases. */
#pragma once

#include "backend/backend.h"
#include "model/checkpoint.h"

#define TINY_N_VALID_IDS 4083

extern struct checkpoint *tiny; /* opened by tiny_setup, a cmocka group fixture */
int tiny_setup(void **state);
int tiny_teardown(void **state);

/* Opens a backend on tiny's weights; fails the test when it cannot. */
struct backend *tiny_backend(const struct backend_ops *ops, int32_t context, int n_sequences);
/* The first n ids of the longest reference case (1,025 tokens). */
const int32_t *tiny_ids(void);
