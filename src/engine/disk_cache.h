/* Prefixes that outlive the process, in files of one folder within a budget of bytes. The engine's
 * thread looks them up and reads them; a thread of its own writes them, so that nobody waits for a
 * disk. A file that is torn, or of another build, model or context, is removed with a line in the
 * log; so is the least recently used one when the budget is full. One process at a time uses a
 * folder.
 *
 * All functions are for the engine's thread. */
#pragma once

#include "engine/disk_file.h"

struct disk_cache;

struct disk_cache_options {
    const char *folder;                           /* made if it is not there; copied */
    int64_t budget;                               /* bytes of all files */
    const char *weights;                          /* see disk_identity_fill */
    void (*log)(void *context, const char *line); /* NULL: nobody reads it; any thread */
    void *log_context;
    void (*wake)(void *context); /* there is work again; from the writing thread; may be NULL */
    void *wake_context;
};

/* Locks the folder and looks through it. STATUS_BUSY: another process has it. */
enum status disk_cache_open(struct engine *engine, const struct disk_cache_options *options,
                            struct disk_cache **out, struct error *error);
/* Drains and frees it. NULL is allowed. */
void disk_cache_close(struct disk_cache *cache);

/* The length of the longest state whose tokens begin these n; 0: none. */
int32_t disk_cache_match(const struct disk_cache *cache, const int32_t *tokens, int32_t n);
/* Reads it into a sequence, which is without rows before; `reserve` makes room for them. Gives its
 * length, or 0 when there is none, or no room, or the file is bad (it is gone then): the sequence
 * must be reset. */
int32_t disk_cache_load(
    struct disk_cache *cache, struct sequence *sequence, const int32_t *tokens, int32_t n,
    enum status (*reserve)(void *context, struct sequence *sequence, int32_t rows), void *context);

/* A prefix to write: its tokens, rows, and states on the way. All but the tokens is borrowed until
 * `done` is called, on the engine's thread, when it is written, or has failed, or given up. */
struct disk_prefix {
    const int32_t *tokens; /* copied */
    int32_t n_tokens;      /* the last state's length */
    const struct kv_hold *rows;
    int n_states;
    int32_t lengths[DISK_STATES];
    const void *states[DISK_STATES];
    void (*done)(void *context, const struct disk_prefix *prefix);
    void *context;
};

/* Whether this very prefix is there, or being written. */
bool disk_cache_has(const struct disk_cache *cache, const int32_t *tokens, int32_t n);
/* Takes it up; one that waited before is given up if nothing of it is written. False: it is larger
 * than the budget, or there is no memory; `done` is not called. */
bool disk_cache_put(struct disk_cache *cache, const struct disk_prefix *prefix);
/* Does the next piece of what there is to write; false: there is nothing to do now. */
bool disk_cache_work(struct disk_cache *cache);
/* Whether disk_cache_work would do something. */
bool disk_cache_has_work(struct disk_cache *cache);
/* Gives up all that is not written yet; false: there was nothing. */
bool disk_cache_give_up(struct disk_cache *cache);

/* Waits until all is written. */
void disk_cache_drain(struct disk_cache *cache);

struct disk_cache_figures {
    int files;
    int64_t used, budget; /* bytes */
    int64_t loads, writes, failures, removed;
};
void disk_cache_read_figures(const struct disk_cache *cache, struct disk_cache_figures *out);
