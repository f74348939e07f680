#include "engine/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next; /* by ascending length */
    struct kv_hold *rows;
    void *state;
    int32_t *tokens; /* [length] */
    int32_t length;
    enum prefix_kind kind;
    int pins;      /* while it is written to the disk */
    uint64_t hash; /* of the tokens */
    uint64_t used; /* the cache's clock when it was made or used last */
};

#define DISK_GAIN 64   /* tokens that reading a file must save */
#define DISK_LEAST 128 /* tokens of a prefix that is worth a file */

struct prefix_cache {
    struct engine *engine;
    struct prefix_cache_figures figures; /* used and kv_bytes: as of the last change */
    int32_t spacing;
    int64_t own_bytes; /* of all entries without their KV rows */
    uint64_t clock;
    struct entry *entries;
    struct disk_cache *disk; /* NULL: none */
};

static const struct backend_ops *ops_of(const struct prefix_cache *cache)
{
    return cache->engine->backend->ops;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t entry_bytes(const struct prefix_cache *cache, int32_t length)
{
    return (int64_t)sizeof(struct entry) + (int64_t)length * (int64_t)sizeof(int32_t) +
           (int64_t)ops_of(cache)->state_size(cache->engine->backend);
}

static void count(struct prefix_cache *cache)
{
    struct prefix_cache_figures *figures = &cache->figures;
    struct kv_usage usage;
    ops_of(cache)->kv_usage(cache->engine->backend, &usage);
    figures->kv_bytes = usage.held * usage.page_bytes;
    figures->used = cache->own_bytes + figures->kv_bytes;
}

static void drop(struct prefix_cache *cache, struct entry **link)
{
    struct entry *entry = *link;
    *link = entry->next;
    cache->own_bytes -= entry_bytes(cache, entry->length);
    cache->figures.n_entries--;
    ops_of(cache)->kv_release(cache->engine->backend, entry->rows);
    free(entry->state);
    free(entry->tokens);
    free(entry);
}

/* Whether an entry goes before a shorter one. Those of one conversation are used together: then
 * places of old turns go before new ones, and last those that other conversations begin with. */
static bool goes_before(const struct entry *entry, const struct entry *shorter)
{
    if (entry->used != shorter->used)
        return entry->used < shorter->used;
    return shorter->kind <= PREFIX_EXPLICIT && entry->kind > PREFIX_EXPLICIT;
}

static struct entry **least_useful(struct prefix_cache *cache)
{
    struct entry **least = NULL;
    for (struct entry **link = &cache->entries; *link; link = &(*link)->next)
        if ((*link)->pins == 0 && (!least || goes_before(*link, *least)))
            least = link;
    return least;
}

/* Drops one entry; `need`: even if the disk has to do without it. */
static bool evict(struct prefix_cache *cache, bool need)
{
    struct entry **least = least_useful(cache);
    if (!least && need && cache->disk && disk_cache_give_up(cache->disk))
        least = least_useful(cache);
    if (!least)
        return false;
    drop(cache, least);
    cache->figures.evictions++;
    count(cache);
    return true;
}

/* The distance of periodic entries, so that those of a full sequence take half of the budget at
 * most: they must not drive out the ones between turns. */
static int32_t choose_spacing(const struct prefix_cache *cache, int32_t wanted)
{
    int32_t context = cache->engine->options.context, spacing = PREFIX_SPACING;
    if (wanted > 0)
        return wanted;
    while (spacing <= context &&
           context / spacing * entry_bytes(cache, 0) > cache->figures.budget / 2)
        spacing *= 2;
    return spacing;
}

enum status prefix_cache_new(struct engine *engine, const struct prefix_cache_options *options,
                             struct prefix_cache **out, struct error *error)
{
    struct prefix_cache *cache = *out = calloc(1, sizeof *cache);
    if (!cache)
        return error_no_memory(error, "the prefix cache");
    cache->engine = engine;
    cache->figures.budget = options->budget;
    cache->disk = options->disk;
    cache->spacing = choose_spacing(cache, options->spacing);
    return STATUS_OK;
}

void prefix_cache_free(struct prefix_cache *cache)
{
    if (!cache)
        return;
    if (cache->disk)
        disk_cache_drain(cache->disk);
    while (cache->entries)
        drop(cache, &cache->entries);
    free(cache);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

#define HASH_START 0xcbf29ce484222325

static uint64_t hash_token(uint64_t hash, int32_t token)
{
    hash = (hash ^ (uint32_t)token) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
}

static bool is_prefix(const struct entry *entry, const int32_t *tokens)
{
    return memcmp(entry->tokens, tokens, (size_t)entry->length * sizeof *tokens) == 0;
}

/* Walks through the entries that begin the n tokens, by ascending length. */
struct walk {
    struct entry *next;
    const int32_t *tokens;
    int32_t n, at;
    uint64_t hash; /* of the first `at` tokens */
};

static struct walk walk_start(const struct prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    return (struct walk){cache->entries, tokens, n, 0, HASH_START};
}

static struct entry *walk_next(struct walk *walk)
{
    while (walk->next && walk->next->length <= walk->n) {
        struct entry *entry = walk->next;
        walk->next = entry->next;
        while (walk->at < entry->length)
            walk->hash = hash_token(walk->hash, walk->tokens[walk->at++]);
        if (walk->hash == entry->hash && is_prefix(entry, walk->tokens))
            return entry;
    }
    return NULL;
}

/* The longest entry that begins the n tokens; those on the way to it count as used. */
static struct entry *use(struct prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    struct walk walk = walk_start(cache, tokens, n);
    struct entry *longest = NULL;
    cache->clock++;
    for (struct entry *entry; (entry = walk_next(&walk));) {
        entry->used = cache->clock;
        longest = entry;
    }
    return longest;
}

int32_t prefix_cache_match(const struct prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    struct walk walk = walk_start(cache, tokens, n - 1);
    int32_t length = 0;
    for (const struct entry *entry; (entry = walk_next(&walk));)
        length = entry->length;
    return length;
}

static enum status reserve(void *context, struct sequence *sequence, int32_t rows)
{
    return prefix_cache_reserve(context, sequence, rows, NULL);
}

/* Goes on from the disk, where that knows much more than `length` tokens; 0: it does not. */
static int32_t begin_from_disk(struct prefix_cache *cache, struct sequence *sequence,
                               const int32_t *tokens, int32_t n, int32_t length)
{
    struct backend *backend = cache->engine->backend;
    if (!cache->disk || disk_cache_match(cache->disk, tokens, n - 1) < length + DISK_GAIN)
        return 0;
    ops_of(cache)->sequence_reset(backend, sequence);
    length = disk_cache_load(cache->disk, sequence, tokens, n - 1, reserve, cache);
    if (length > 0)
        prefix_cache_save(cache, sequence, tokens, PREFIX_PERIODIC); /* it is on the disk */
    return length;
}

int32_t prefix_cache_begin(struct prefix_cache *cache, struct sequence *sequence,
                           const int32_t *tokens, int32_t n)
{
    struct backend *backend = cache->engine->backend;
    struct entry *entry = use(cache, tokens, n - 1);
    int32_t length = begin_from_disk(cache, sequence, tokens, n, entry ? entry->length : 0);
    if (length == 0) /* loading may have dropped it */
        entry = use(cache, tokens, n - 1);
    if (length == 0 && entry &&
        ops_of(cache)->kv_attach(backend, sequence, entry->rows, entry->length, NULL) ==
            STATUS_OK &&
        ops_of(cache)->state_write(backend, sequence, entry->length, entry->state, NULL) ==
            STATUS_OK)
        length = entry->length;
    if (length == 0)
        ops_of(cache)->sequence_reset(backend, sequence);
    cache->figures.hits += length > 0;
    cache->figures.misses += length == 0;
    return length;
}

/* ---- the disk -------------------------------------------------------------------------------- */

/* Adds to the pins of the entries that a prefix consists of. */
static void pin(struct prefix_cache *cache, const struct disk_prefix *prefix, int by)
{
    for (struct entry *entry = cache->entries; entry; entry = entry->next)
        for (int i = 0; i < prefix->n_states; i++)
            if (entry->state == prefix->states[i])
                entry->pins += by;
}

static void stored(void *context, const struct disk_prefix *prefix)
{
    pin(context, prefix, -1);
}

void prefix_cache_store(struct prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    struct walk walk = walk_start(cache, tokens, n);
    struct disk_prefix prefix = {.tokens = tokens, .done = stored, .context = cache};
    for (const struct entry *entry; cache->disk && (entry = walk_next(&walk));) {
        if (entry->kind == PREFIX_PERIODIC)
            continue;
        if (prefix.n_states ==
            DISK_STATES) { /* the first, of the system block, and the last stay */
            prefix.n_states--;
            for (int i = 1; i < prefix.n_states; i++) {
                prefix.lengths[i] = prefix.lengths[i + 1];
                prefix.states[i] = prefix.states[i + 1];
            }
        }
        prefix.lengths[prefix.n_states] = prefix.n_tokens = entry->length;
        prefix.states[prefix.n_states++] = entry->state;
        prefix.rows = entry->rows;
    }
    if (prefix.n_tokens < DISK_LEAST || disk_cache_has(cache->disk, tokens, prefix.n_tokens))
        return;
    pin(cache, &prefix, 1);
    if (!disk_cache_put(cache->disk, &prefix))
        pin(cache, &prefix, -1);
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* Whether the budget holds an entry of this length when there is no other one. */
static bool can_fit(const struct prefix_cache *cache, int32_t length)
{
    struct kv_usage usage;
    ops_of(cache)->kv_usage(cache->engine->backend, &usage);
    int64_t pages = (length + (int64_t)usage.page_rows - 1) / usage.page_rows;
    return entry_bytes(cache, length) + pages * usage.page_bytes <= cache->figures.budget;
}

/* Whether the budget has room for `bytes` more than what is used; entries go for it. */
static bool make_room(struct prefix_cache *cache, int64_t bytes)
{
    count(cache);
    while (cache->figures.used + bytes > cache->figures.budget)
        if (!evict(cache, false))
            return false;
    return true;
}

static bool fill(struct prefix_cache *cache, struct entry *entry, struct sequence *sequence,
                 const int32_t *tokens)
{
    struct backend *backend = cache->engine->backend;
    entry->tokens = malloc((size_t)entry->length * sizeof *entry->tokens);
    entry->state = malloc(ops_of(cache)->state_size(backend));
    if (!entry->tokens || !entry->state ||
        ops_of(cache)->state_read(backend, sequence, entry->state, NULL) != STATUS_OK)
        return false;
    memcpy(entry->tokens, tokens, (size_t)entry->length * sizeof *entry->tokens);
    entry->hash = HASH_START;
    for (int32_t i = 0; i < entry->length; i++)
        entry->hash = hash_token(entry->hash, tokens[i]);
    return true;
}

static void insert(struct prefix_cache *cache, struct entry *entry)
{
    struct entry **link = &cache->entries;
    while (*link && (*link)->length < entry->length)
        link = &(*link)->next;
    entry->next = *link;
    *link = entry;
    cache->own_bytes += entry_bytes(cache, entry->length);
    cache->figures.n_entries++;
}

void prefix_cache_save(struct prefix_cache *cache, struct sequence *sequence, const int32_t *tokens,
                       enum prefix_kind kind)
{
    struct backend *backend = cache->engine->backend;
    int32_t length = sequence->position;
    if (length == 0 || sequence->broken || !can_fit(cache, length))
        return;
    const struct entry *known = use(cache, tokens, length);
    if (known && known->length == length) /* the same tokens always have the same state */
        return;
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return;
    *entry = (struct entry){.length = length, .kind = kind, .used = cache->clock};
    if (ops_of(cache)->kv_hold(backend, sequence, length, &entry->rows, NULL) == STATUS_OK &&
        make_room(cache, entry_bytes(cache, length)) && fill(cache, entry, sequence, tokens)) {
        insert(cache, entry);
        count(cache);
        if (cache->figures.used > cache->figures.peak)
            cache->figures.peak = cache->figures.used;
        return;
    }
    if (entry->rows)
        ops_of(cache)->kv_release(backend, entry->rows);
    free(entry->state);
    free(entry->tokens);
    free(entry);
    count(cache);
}

int32_t prefix_cache_next_stop(const struct prefix_cache *cache, int32_t at, int32_t end,
                               const struct prefix_places *places)
{
    if (cache->figures.budget == 0)
        return end;
    int32_t periodic = (at / cache->spacing + 1) * cache->spacing;
    end = periodic < end ? periodic : end;
    for (int i = 0; i < places->n; i++)
        if (places->place[i].length > at && places->place[i].length < end)
            end = places->place[i].length;
    return end;
}

void prefix_cache_save_at(struct prefix_cache *cache, struct sequence *sequence,
                          const int32_t *tokens, const struct prefix_places *places)
{
    for (int i = 0; i < places->n; i++)
        if (places->place[i].length == sequence->position) {
            prefix_cache_save(cache, sequence, tokens, places->place[i].kind);
            return;
        }
    if (sequence->position % cache->spacing == 0)
        prefix_cache_save(cache, sequence, tokens, PREFIX_PERIODIC);
}

enum status prefix_cache_reserve(struct prefix_cache *cache, struct sequence *sequence,
                                 int32_t rows, struct error *error)
{
    for (;;) {
        enum status status =
            ops_of(cache)->kv_reserve(cache->engine->backend, sequence, rows, error);
        if (status != STATUS_BUSY || !evict(cache, true))
            return status;
    }
}

void prefix_cache_read_figures(const struct prefix_cache *cache, struct prefix_cache_figures *out)
{
    *out = cache->figures;
}
