/* Reuse of what a sequence has read already, in memory and within a budget of bytes.
 *
 * KV rows stay in their sequence and can be cut back to any length; the recurrent and conv state
 * cannot (spec 3). So the cache keeps copies of that state ("snapshots") at chosen lengths. A new
 * prompt goes on from the longest one whose tokens it begins with, compared id by id, or from where
 * the sequence stands, and only the rest is read. The result is that of a fresh sequence as far as
 * the backend's steps do not depend on how a prompt is cut (ref: bit for bit).
 *
 * What must hold: the cache knows the ids of all KV rows of its sequences, so each step of such a
 * sequence goes through it. A snapshot stands for the first `length` of these ids and is dropped
 * before the first of its rows is written anew. Not being able to keep a snapshot is no error.
 *
 * One budget serves all sequences of an engine. A scheduler asks prefix_cache_match which of them
 * knows most of a prompt; rows that move between sequences (kv_read, kv_write) can be added here
 * without a change to callers. Driven by the engine's thread. */
#pragma once

#include "engine/engine.h"

/* Where a snapshot is worth its memory. */
enum prefix_kind {
    PREFIX_SYSTEM,    /* after the system and tools block: kept longest */
    PREFIX_USER,      /* before the last user turn: that turn may be edited */
    PREFIX_ASSISTANT, /* after `<|im_start|>assistant\n`: earlier thinking leaves the prompt here */
    PREFIX_PERIODIC,  /* on the way through a long prompt */
    PREFIX_END,       /* where a generation ended and the next prompt went on */
};

struct prefix_place {
    int32_t length; /* in tokens from the beginning */
    enum prefix_kind kind;
};

/* The ids that turns begin with; -1 where the vocabulary has no such token. */
struct turn_tokens {
    int32_t im_start, system, user, assistant, newline;
};

#define PREFIX_PLACES 3
/* The places of a rendered prompt, by ascending length; gives their number. */
int prefix_places_find(const struct turn_tokens *turns, const int32_t *tokens, int32_t n,
                       struct prefix_place places[PREFIX_PLACES]);

struct prefix_cache;
struct cached_sequence; /* a sequence and what the cache knows of it */

#define PREFIX_SPACING 4096 /* tokens between snapshots in a long prompt */

struct prefix_cache_options {
    int64_t budget;  /* bytes of snapshots and token ids, never exceeded; 0: reuse nothing */
    int32_t spacing; /* 0: PREFIX_SPACING, more where half of the budget would not hold them */
};

struct prefix_cache_figures {
    int64_t used, peak, budget; /* bytes */
    int n_snapshots;
};

/* The engine must be open and outlive the cache. */
enum status prefix_cache_new(struct engine *engine, const struct prefix_cache_options *options,
                             struct prefix_cache **out, struct error *error);
/* All its sequences must have been removed. */
void prefix_cache_free(struct prefix_cache *cache);

/* Takes up an empty sequence, which is borrowed. */
enum status prefix_cache_add(struct prefix_cache *cache, struct sequence *sequence,
                             struct cached_sequence **out, struct error *error);
void prefix_cache_remove(struct prefix_cache *cache, struct cached_sequence *cached);

/* How many of the prompt's tokens prefix_cache_prefill would not have to read: at most n - 1, as
 * the last one's candidates are wanted. */
int32_t prefix_cache_match(const struct prefix_cache *cache, const struct cached_sequence *cached,
                           const int32_t *tokens, int32_t n);
/* Brings the sequence to the end of the prompt, whatever its condition, as engine_prefill does on
 * an empty one; `places` are those of this prompt. *reused gets the number of tokens that needed no
 * reading; the watch's figures count the others. After an error the sequence may be used again. */
enum status prefix_cache_prefill(struct prefix_cache *cache, struct cached_sequence *cached,
                                 const int32_t *tokens, int32_t n,
                                 const struct prefix_place *places, int n_places,
                                 struct ranked *ranked, const struct prefill_watch *watch,
                                 int32_t *reused, struct error *error);
/* engine_decode on it. */
enum status prefix_cache_decode(struct prefix_cache *cache, struct cached_sequence *cached,
                                int32_t token, struct ranked *ranked, struct error *error);

void prefix_cache_read_figures(const struct prefix_cache *cache, struct prefix_cache_figures *out);
/* Whether there is a snapshot of exactly this length. */
bool prefix_cache_holds(const struct prefix_cache *cache, const struct cached_sequence *cached,
                        int32_t length);
