/* What was read before and may be read again: a store of prefixes, within a budget of bytes.
 *
 * An entry is the token ids of a prefix, its KV rows (held in the backend's pool, shared with
 * sequences and with other entries that begin alike) and a copy of the recurrent and conv state at
 * its end, which cannot be cut back (spec 3). A new prompt goes on from the longest entry that it
 * begins with, compared id by id, and only the rest is read. The result is that of a fresh sequence
 * as far as the backend's steps do not depend on how a prompt is cut (ref: bit for bit).
 *
 * The least recently used entry goes first; to use an entry is to use all that it begins with, so
 * the system block of living conversations stays. Not being able to keep an entry is no error.
 * Driven by the engine's thread. */
#pragma once

#include "engine/disk_cache.h"

/* Where a prefix is worth its memory. */
enum prefix_kind {
    PREFIX_SYSTEM,    /* after the system and tools block */
    PREFIX_EXPLICIT,  /* where the client says that prompts will turn off */
    PREFIX_USER,      /* before the last user turn: that turn may be edited */
    PREFIX_ASSISTANT, /* after `<|im_start|>assistant\n`: earlier thinking leaves the prompt here */
    PREFIX_PROMPT,    /* the prompt but for its last token, whose candidates are always wanted */
    PREFIX_PERIODIC,  /* on the way through a long prompt */
    PREFIX_END,       /* where a generation ended */
};

struct prefix_place {
    int32_t length; /* in tokens from the beginning */
    enum prefix_kind kind;
};

/* The ids that turns begin with; -1 where the vocabulary has no such token. */
struct turn_tokens {
    int32_t im_start, system, user, assistant, newline;
};

/* The places of a prompt, by ascending length, each length once. */
#define PREFIX_PLACES_MAX 16
struct prefix_places {
    int n;
    struct prefix_place place[PREFIX_PLACES_MAX];
};
void prefix_places_find(const struct turn_tokens *turns, const int32_t *tokens, int32_t n,
                        struct prefix_places *places);
/* Adds one, unless there is one at this length or no room. */
void prefix_places_add(struct prefix_places *places, int32_t length, enum prefix_kind kind);

struct prefix_cache;

/* KV rows that a pool should have beside those of its sequences' contexts: an entry's last page is
 * full by chance only, and who goes on from it takes one of its own. */
#define PREFIX_SPARE_ROWS 2048

#define PREFIX_SPACING 2048 /* tokens between entries in a long prompt */

struct prefix_cache_options {
    int64_t budget;  /* bytes of states, ids and held KV rows, never exceeded; 0: nothing is kept */
    int32_t spacing; /* 0: PREFIX_SPACING, more where half of the budget would not hold them */
    struct disk_cache *disk; /* what outlives the process; NULL: nothing. Borrowed */
};

struct prefix_cache_figures {
    int64_t budget, used, peak; /* bytes */
    int64_t kv_bytes;           /* of used: KV rows in the pool, shared ones counted once */
    int64_t hits, misses;       /* prompts that went on from an entry, that did not */
    int64_t evictions;
    int n_entries;
};

/* The engine must be open and outlive the cache. */
enum status prefix_cache_new(struct engine *engine, const struct prefix_cache_options *options,
                             struct prefix_cache **out, struct error *error);
void prefix_cache_free(struct prefix_cache *cache);

/* How many of a prompt's tokens prefix_cache_begin would find: at most n - 1, as the last one's
 * candidates are wanted. */
int32_t prefix_cache_match(const struct prefix_cache *cache, const int32_t *tokens, int32_t n);
/* Brings a sequence, in whatever condition, to the end of the longest prefix known and gives its
 * length; 0: it was reset. */
int32_t prefix_cache_begin(struct prefix_cache *cache, struct sequence *sequence,
                           const int32_t *tokens, int32_t n);
/* Keeps the sequence as it stands, if there is memory for it; `tokens` are those of its rows. */
void prefix_cache_save(struct prefix_cache *cache, struct sequence *sequence, const int32_t *tokens,
                       enum prefix_kind kind);
/* Gives the prefixes that begin these tokens to the disk, but for periodic ones. Nothing of them
 * goes before they are written, unless somebody needs their KV rows. */
void prefix_cache_store(struct prefix_cache *cache, const int32_t *tokens, int32_t n);
/* Where the chunk that begins at `at` has to end, `end` at the latest, for the next place. */
int32_t prefix_cache_next_stop(const struct prefix_cache *cache, int32_t at, int32_t end,
                               const struct prefix_places *places);
/* Saves the sequence if its position is a place or a periodic one. */
void prefix_cache_save_at(struct prefix_cache *cache, struct sequence *sequence,
                          const int32_t *tokens, const struct prefix_places *places);
/* Makes sure that the sequence has KV rows up to `rows`; entries go for it, the least recently used
 * ones first. STATUS_BUSY when other sequences use the pool up. */
enum status prefix_cache_reserve(struct prefix_cache *cache, struct sequence *sequence,
                                 int32_t rows, struct error *error);

void prefix_cache_read_figures(const struct prefix_cache *cache, struct prefix_cache_figures *out);
