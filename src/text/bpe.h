/* Byte-pair encoding by rank (spec 7.3 step 4): among all adjacent pairs that the merges list has,
 * the one of lowest rank is joined first, the leftmost among equals, until none is left. A merge's
 * rank is its place in the list. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define BPE_RANK_MAX ((1 << 23) - 2)
/* Texts of one call: nodes of a long pre-token are numbered in 32 bits. */
#define BPE_LENGTH_MAX (INT32_MAX / 2)

struct bpe {
    int32_t byte_ids[256]; /* the token of each byte, set by the loader */
    uint64_t *pairs;       /* [n_merges] packed ids, by rank; only until bpe_finish */
    int32_t *results;      /* [n_merges] what a merge makes, by rank */
    int32_t n_merges, capacity;
    uint64_t *slots; /* open addressing, 1 << bits: pair << 24 | rank + 1, 0 when free */
    int bits;
};

/* Memory that encoding long pre-tokens needs, kept from call to call. One thread's own. */
struct bpe_scratch {
    void *data;
    size_t size;
};

/* Adds the next merge of the list; ids at most TOKEN_ID_MAX, at most BPE_RANK_MAX merges. */
bool bpe_add(struct bpe *bpe, int32_t left, int32_t right, int32_t result);
/* Indexes the merges; refuses a pair that is twice in the list. `name` begins the message. */
enum status bpe_finish(struct bpe *bpe, const char *name, struct error *error);
void bpe_clear(struct bpe *bpe);

/* Writes the ids of one pre-token to `ids`, which has room for `length` of them, and gives their
 * number; -1 when out of memory. Time grows as length * log(length). */
int64_t bpe_encode(const struct bpe *bpe, const unsigned char *data, size_t length, int32_t *ids,
                   struct bpe_scratch *scratch);
void bpe_scratch_clear(struct bpe_scratch *scratch);
