/* Two ways to the same result. Short pre-tokens, nearly all of them, keep one key per node and look
 * for the smallest by passing over all. Long ones use a heap, so that a megabyte without a border
 * takes no longer than other text. In both a key is rank, then place: its order is the rule. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_BITS 7
#define SHORT_MAX (1 << SHORT_BITS)
#define NO_RANK INT32_MAX

static uint64_t pack(int32_t left, int32_t right)
{
    return (uint64_t)left << 20 | (uint64_t)right;
}

static size_t place(const struct bpe *bpe, uint64_t pair)
{
    return (size_t)(pair * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bpe->bits));
}

bool bpe_add(struct bpe *bpe, int32_t left, int32_t right, int32_t result)
{
    if (bpe->n_merges == bpe->capacity) {
        size_t capacity = bpe->capacity ? (size_t)bpe->capacity * 2 : 4096;
        uint64_t *pairs = realloc(bpe->pairs, capacity * sizeof *pairs);
        if (!pairs)
            return false;
        bpe->pairs = pairs;
        int32_t *results = realloc(bpe->results, capacity * sizeof *results);
        if (!results)
            return false;
        bpe->results = results;
        bpe->capacity = (int32_t)capacity;
    }
    bpe->pairs[bpe->n_merges] = pack(left, right);
    bpe->results[bpe->n_merges++] = result;
    return true;
}

enum status bpe_finish(struct bpe *bpe, const char *name, struct error *error)
{
    bpe->bits = 4;
    while ((INT64_C(1) << bpe->bits) < (int64_t)bpe->n_merges * 2)
        bpe->bits++;
    bpe->slots = calloc((size_t)1 << bpe->bits, sizeof *bpe->slots);
    if (!bpe->slots)
        return error_no_memory(error, "the merges");
    size_t mask = ((size_t)1 << bpe->bits) - 1;
    for (int32_t rank = 0; rank < bpe->n_merges; rank++) {
        uint64_t pair = bpe->pairs[rank];
        size_t at = place(bpe, pair);
        for (; bpe->slots[at]; at = (at + 1) & mask)
            if (bpe->slots[at] >> 24 == pair)
                return error_set(error, STATUS_INVALID,
                                 "%s: model.merges[%d]: the same pair as model.merges[%d]", name,
                                 rank, (int)(bpe->slots[at] & 0xffffff) - 1);
        bpe->slots[at] = pair << 24 | (uint64_t)(rank + 1);
    }
    free(bpe->pairs);
    bpe->pairs = NULL;
    return STATUS_OK;
}

void bpe_clear(struct bpe *bpe)
{
    free(bpe->pairs);
    free(bpe->results);
    free(bpe->slots);
    *bpe = (struct bpe){0};
}

void bpe_scratch_clear(struct bpe_scratch *scratch)
{
    free(scratch->data);
    *scratch = (struct bpe_scratch){0};
}

/* The rank of a pair of neighbours, NO_RANK when no merge joins them. */
static inline int32_t rank_of(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = pack(left, right), slot;
    size_t mask = ((size_t)1 << bpe->bits) - 1;
    for (size_t at = place(bpe, pair); (slot = bpe->slots[at]) != 0; at = (at + 1) & mask)
        if (slot >> 24 == pair)
            return (int32_t)(slot & 0xffffff) - 1;
    return NO_RANK;
}

/* A short node's key: its pair's rank and its own place. */
static inline int32_t short_key(const struct bpe *bpe, const int32_t *ids, int at, int next)
{
    int32_t rank = rank_of(bpe, ids[at], ids[next]);
    return rank == NO_RANK ? NO_RANK : rank << SHORT_BITS | at;
}

static int64_t encode_short(const struct bpe *bpe, const unsigned char *data, int length,
                            int32_t *out)
{
    int32_t ids[SHORT_MAX], keys[SHORT_MAX];
    uint8_t next[SHORT_MAX + 1], previous[SHORT_MAX + 1]; /* `length` stands for the end */
    for (int i = 0; i < length; i++) {
        ids[i] = bpe->byte_ids[data[i]];
        next[i] = (uint8_t)(i + 1);
        previous[i + 1] = (uint8_t)i;
    }
    for (int i = 0; i + 1 < length; i++)
        keys[i] = short_key(bpe, ids, i, i + 1);
    keys[length - 1] = NO_RANK;
    for (;;) {
        int32_t best = NO_RANK;
        for (int i = 0; i < length; i++)
            best = keys[i] < best ? keys[i] : best;
        if (best == NO_RANK)
            break;
        int at = best & (SHORT_MAX - 1), gone = next[at], after = next[gone];
        ids[at] = bpe->results[best >> SHORT_BITS];
        keys[gone] = NO_RANK;
        next[at] = (uint8_t)after;
        previous[after] = (uint8_t)at;
        keys[at] = after < length ? short_key(bpe, ids, at, after) : NO_RANK;
        if (at > 0)
            keys[previous[at]] = short_key(bpe, ids, previous[at], at);
    }
    int64_t n = 0;
    for (int at = 0; at < length; at = next[at])
        out[n++] = ids[at];
    return n;
}

/* A long pre-token's nodes; an entry of the heap is rank << 32 | node, and it counts only while the
 * node's rank is still the same. */
struct chain {
    const struct bpe *bpe;
    int32_t *ids, *ranks, *next, *previous;
    int32_t length; /* also stands for the end */
    uint64_t *heap;
    size_t heap_size;
};

static void heap_down(uint64_t *heap, size_t size, size_t at)
{
    uint64_t entry = heap[at];
    for (size_t child; (child = at * 2 + 1) < size; at = child) {
        if (child + 1 < size && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= entry)
            break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static void heap_push(struct chain *chain, uint64_t entry)
{
    size_t at = chain->heap_size++;
    for (; at > 0 && chain->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        chain->heap[at] = chain->heap[(at - 1) / 2];
    chain->heap[at] = entry;
}

static uint64_t heap_pop(struct chain *chain)
{
    uint64_t top = chain->heap[0];
    chain->heap[0] = chain->heap[--chain->heap_size];
    if (chain->heap_size > 0)
        heap_down(chain->heap, chain->heap_size, 0);
    return top;
}

static void rank_node(struct chain *chain, int32_t at)
{
    int32_t next = chain->next[at];
    chain->ranks[at] =
        next < chain->length ? rank_of(chain->bpe, chain->ids[at], chain->ids[next]) : NO_RANK;
}

static void rank_again(struct chain *chain, int32_t at)
{
    int32_t before = chain->ranks[at];
    rank_node(chain, at);
    if (chain->ranks[at] != NO_RANK && chain->ranks[at] != before)
        heap_push(chain, (uint64_t)chain->ranks[at] << 32 | (uint32_t)at);
}

static void join(struct chain *chain, int32_t at, int32_t rank)
{
    int32_t gone = chain->next[at], after = chain->next[gone];
    chain->ids[at] = chain->bpe->results[rank];
    chain->ranks[gone] = NO_RANK;
    chain->ranks[at] = NO_RANK; /* its entry has just been taken */
    chain->next[at] = after;
    if (after < chain->length)
        chain->previous[after] = at;
    rank_again(chain, at);
    if (at > 0)
        rank_again(chain, chain->previous[at]);
}

static int64_t encode_long(const struct bpe *bpe, const unsigned char *data, size_t length,
                           int32_t *out, struct bpe_scratch *scratch)
{
    /* Entries: one for each node at first; each join takes one and adds two at most. */
    size_t heap_max = length * 2, size = heap_max * sizeof(uint64_t) + length * 4 * sizeof(int32_t);
    if (scratch->size < size) {
        free(scratch->data);
        *scratch = (struct bpe_scratch){.data = malloc(size), .size = size};
        if (!scratch->data) {
            scratch->size = 0;
            return -1;
        }
    }
    struct chain chain = {.bpe = bpe, .length = (int32_t)length, .heap = scratch->data};
    chain.ids = (int32_t *)(chain.heap + heap_max);
    chain.ranks = chain.ids + length;
    chain.next = chain.ranks + length;
    chain.previous = chain.next + length;
    for (int32_t i = 0; i < chain.length; i++) {
        chain.ids[i] = bpe->byte_ids[data[i]];
        chain.next[i] = i + 1;
        chain.previous[i] = i - 1;
    }
    for (int32_t i = 0; i < chain.length; i++) {
        rank_node(&chain, i);
        if (chain.ranks[i] != NO_RANK)
            chain.heap[chain.heap_size++] = (uint64_t)chain.ranks[i] << 32 | (uint32_t)i;
    }
    for (size_t i = chain.heap_size / 2; i-- > 0;)
        heap_down(chain.heap, chain.heap_size, i);
    while (chain.heap_size > 0) {
        uint64_t entry = heap_pop(&chain);
        int32_t at = (int32_t)(uint32_t)entry, rank = (int32_t)(entry >> 32);
        if (chain.ranks[at] == rank)
            join(&chain, at, rank);
    }
    int64_t n = 0;
    for (int32_t at = 0; at < chain.length; at = chain.next[at])
        out[n++] = chain.ids[at];
    return n;
}

int64_t bpe_encode(const struct bpe *bpe, const unsigned char *data, size_t length, int32_t *ids,
                   struct bpe_scratch *scratch)
{
    if (length == 0)
        return 0;
    if (length <= SHORT_MAX)
        return encode_short(bpe, data, (int)length, ids);
    return encode_long(bpe, data, length, ids, scratch);
}
