#include "engine/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

struct snapshot {
    struct snapshot *next;
    struct cached_sequence *owner;
    int32_t length;
    enum prefix_kind kind;
    uint64_t useful; /* the cache's clock when it was made or used last */
    char state[];    /* [state_size] */
};

struct cached_sequence {
    struct sequence *sequence;
    int32_t *tokens; /* [capacity], of the sequence's KV rows; NULL: nothing is remembered */
    int32_t length;  /* rows whose ids are known; the ones above are never used again */
    int32_t spacing;
};

struct prefix_cache {
    struct engine *engine;
    int64_t budget, used, peak;
    int32_t spacing;
    uint64_t clock;
    struct snapshot *snapshots;
};

static const struct backend_ops *ops_of(const struct prefix_cache *cache)
{
    return cache->engine->backend->ops;
}

static int64_t tokens_size(const struct cached_sequence *cached)
{
    return (int64_t)cached->sequence->capacity * (int64_t)sizeof *cached->tokens;
}

static int64_t snapshot_bytes(const struct prefix_cache *cache)
{
    return (int64_t)(sizeof(struct snapshot) + ops_of(cache)->state_size(cache->engine->backend));
}

/* ---- the snapshots and their memory ---------------------------------------------------------- */

static void count(struct prefix_cache *cache, int64_t bytes)
{
    cache->used += bytes;
    if (cache->used > cache->peak)
        cache->peak = cache->used;
}

static struct snapshot *unlink_snapshot(struct snapshot **link)
{
    struct snapshot *snapshot = *link;
    *link = snapshot->next;
    return snapshot;
}

static void drop(struct prefix_cache *cache, struct snapshot **link)
{
    free(unlink_snapshot(link));
    cache->used -= snapshot_bytes(cache);
}

/* Drops the snapshots of a sequence that are longer than `length`. */
static void drop_above(struct prefix_cache *cache, const struct cached_sequence *cached,
                       int32_t length)
{
    for (struct snapshot **link = &cache->snapshots; *link;) {
        if ((*link)->owner == cached && (*link)->length > length)
            drop(cache, link);
        else
            link = &(*link)->next;
    }
}

/* Which of two is to go first: any other before one of a system block, then the one that was of no
 * use for longer. */
static bool is_less_useful(const struct snapshot *a, const struct snapshot *b)
{
    bool a_system = a->kind == PREFIX_SYSTEM, b_system = b->kind == PREFIX_SYSTEM;
    return a_system != b_system ? b_system : a->useful < b->useful;
}

static struct snapshot **least_useful(struct prefix_cache *cache)
{
    struct snapshot **least = NULL;
    for (struct snapshot **link = &cache->snapshots; *link; link = &(*link)->next)
        if (!least || is_less_useful(*link, *least))
            least = link;
    return least;
}

/* Memory for one more snapshot: new, or that of the least useful one, since all have one size. It
 * is counted as used. NULL when there is none to be had. */
static struct snapshot *take_block(struct prefix_cache *cache)
{
    int64_t size = snapshot_bytes(cache);
    if (cache->used + size <= cache->budget) {
        struct snapshot *block = malloc((size_t)size);
        if (block) {
            count(cache, size);
            return block;
        }
    }
    struct snapshot **least = least_useful(cache);
    return least ? unlink_snapshot(least) : NULL;
}

static struct snapshot *find_snapshot(const struct prefix_cache *cache,
                                      const struct cached_sequence *cached, int32_t length)
{
    for (struct snapshot *snapshot = cache->snapshots; snapshot; snapshot = snapshot->next)
        if (snapshot->owner == cached && snapshot->length == length)
            return snapshot;
    return NULL;
}

/* Keeps the state of the sequence as it stands, if there is memory for it. */
static void save(struct prefix_cache *cache, struct cached_sequence *cached, enum prefix_kind kind)
{
    if (!cached->tokens)
        return;
    struct snapshot *snapshot = find_snapshot(cache, cached, cached->length);
    if (snapshot) { /* the state at one length of the same tokens is always the same */
        snapshot->useful = ++cache->clock;
        if (kind == PREFIX_SYSTEM)
            snapshot->kind = kind;
        return;
    }
    snapshot = take_block(cache);
    if (!snapshot)
        return;
    if (ops_of(cache)->state_read(cache->engine->backend, cached->sequence, snapshot->state,
                                  NULL) != STATUS_OK) {
        free(snapshot);
        cache->used -= snapshot_bytes(cache);
        return;
    }
    snapshot->owner = cached;
    snapshot->length = cached->length;
    snapshot->kind = kind;
    snapshot->useful = ++cache->clock;
    snapshot->next = cache->snapshots;
    cache->snapshots = snapshot;
}

/* ---- life ------------------------------------------------------------------------------------ */

enum status prefix_cache_new(struct engine *engine, const struct prefix_cache_options *options,
                             struct prefix_cache **out, struct error *error)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_no_memory(error, "the prefix cache");
    **out = (struct prefix_cache){
        .engine = engine, .budget = options->budget, .spacing = options->spacing};
    return STATUS_OK;
}

void prefix_cache_free(struct prefix_cache *cache)
{
    if (!cache)
        return;
    while (cache->snapshots)
        drop(cache, &cache->snapshots);
    free(cache);
}

/* The distance of periodic snapshots, so that those of a full sequence take half of the budget at
 * most: they must not drive out the ones between turns. */
static int32_t choose_spacing(const struct prefix_cache *cache, int32_t capacity)
{
    if (cache->spacing > 0)
        return cache->spacing;
    int32_t spacing = PREFIX_SPACING;
    while (spacing <= capacity && capacity / spacing * snapshot_bytes(cache) > cache->budget / 2)
        spacing *= 2;
    return spacing;
}

enum status prefix_cache_add(struct prefix_cache *cache, struct sequence *sequence,
                             struct cached_sequence **out, struct error *error)
{
    struct cached_sequence *cached = *out = calloc(1, sizeof *cached);
    if (!cached)
        return error_no_memory(error, "the prefix cache");
    cached->sequence = sequence;
    cached->spacing = choose_spacing(cache, sequence->capacity);
    int64_t size = tokens_size(cached);
    while (cache->snapshots && cache->used + size > cache->budget)
        drop(cache, least_useful(cache));
    if (cache->used + size > cache->budget)
        return STATUS_OK; /* works, and remembers nothing */
    cached->tokens = malloc((size_t)size);
    if (!cached->tokens) {
        free(cached);
        *out = NULL;
        return error_no_memory(error, "the prefix cache");
    }
    count(cache, size);
    return STATUS_OK;
}

/* From here on the sequence has to be reset before it is used. */
static void forget(struct prefix_cache *cache, struct cached_sequence *cached)
{
    drop_above(cache, cached, -1);
    cached->length = 0;
}

void prefix_cache_remove(struct prefix_cache *cache, struct cached_sequence *cached)
{
    if (!cached)
        return;
    forget(cache, cached);
    if (cached->tokens)
        cache->used -= tokens_size(cached);
    free(cached->tokens);
    free(cached);
}

/* ---- prompts --------------------------------------------------------------------------------- */

struct match {
    int32_t length;
    bool live; /* the sequence stands there */
    struct snapshot *snapshot;
};

static struct match find_match(const struct prefix_cache *cache,
                               const struct cached_sequence *cached, const int32_t *tokens,
                               int32_t n)
{
    const struct sequence *sequence = cached->sequence;
    struct match best = {0, false, NULL};
    int32_t common = 0, limit = cached->length < n - 1 ? cached->length : n - 1;
    while (common < limit && tokens[common] == cached->tokens[common])
        common++;
    if (common > 0 && common == cached->length && sequence->position == common && !sequence->broken)
        return (struct match){common, true, NULL};
    for (struct snapshot *snapshot = cache->snapshots; snapshot; snapshot = snapshot->next)
        if (snapshot->owner == cached && snapshot->length <= common &&
            snapshot->length > best.length)
            best = (struct match){snapshot->length, false, snapshot};
    return best;
}

int32_t prefix_cache_match(const struct prefix_cache *cache, const struct cached_sequence *cached,
                           const int32_t *tokens, int32_t n)
{
    return find_match(cache, cached, tokens, n).length;
}

/* Brings the sequence to the longest known beginning of the prompt and gives its length. */
static int32_t go_back(struct prefix_cache *cache, struct cached_sequence *cached,
                       const int32_t *tokens, int32_t n)
{
    struct backend *backend = cache->engine->backend;
    struct match match = find_match(cache, cached, tokens, n);
    if (match.live) {
        save(cache, cached, PREFIX_END);
        return match.length;
    }
    if (match.snapshot && ops_of(cache)->state_write(backend, cached->sequence, match.length,
                                                     match.snapshot->state, NULL) == STATUS_OK) {
        match.snapshot->useful = ++cache->clock;
        drop_above(cache, cached, match.length);
        cached->length = match.length;
        return match.length;
    }
    forget(cache, cached);
    ops_of(cache)->sequence_reset(backend, cached->sequence);
    return 0;
}

static void note_tokens(struct cached_sequence *cached, const int32_t *tokens, int32_t n)
{
    if (!cached->tokens)
        return;
    memcpy(cached->tokens + cached->length, tokens, (size_t)n * sizeof *tokens);
    cached->length += n;
}

/* The end of the chunk that begins at `at`: no chunk crosses a place. */
static int32_t chunk_end(const struct prefix_cache *cache, const struct cached_sequence *cached,
                         int32_t at, int32_t n, const struct prefix_place *places, int n_places)
{
    int32_t max = cache->engine->backend->limits.max_chunk;
    int32_t end = n - at < max ? n : at + max;
    if (!cached->tokens)
        return end;
    int32_t periodic = (at / cached->spacing + 1) * cached->spacing;
    end = periodic < end ? periodic : end;
    for (int i = 0; i < n_places; i++)
        if (places[i].length > at && places[i].length < end)
            end = places[i].length;
    return end;
}

static void save_at_place(struct prefix_cache *cache, struct cached_sequence *cached, int32_t at,
                          const struct prefix_place *places, int n_places)
{
    for (int i = 0; i < n_places; i++)
        if (places[i].length == at) {
            save(cache, cached, places[i].kind);
            return;
        }
    if (at % cached->spacing == 0)
        save(cache, cached, PREFIX_PERIODIC);
}

static enum status read_rest(struct prefix_cache *cache, struct cached_sequence *cached,
                             const int32_t *tokens, int32_t from, int32_t n,
                             const struct prefix_place *places, int n_places, struct ranked *ranked,
                             const struct prefill_watch *watch, struct error *error)
{
    for (int32_t at = from; at < n;) {
        if (watch->progress)
            watch->progress(watch->context, at - from, n - from);
        int32_t end = chunk_end(cache, cached, at, n, places, n_places);
        enum status status =
            ops_of(cache)->prefill_chunk(cache->engine->backend, cached->sequence, tokens + at,
                                         end - at, PREFILL_LAST, ranked, watch->cancel, error);
        if (status != STATUS_OK)
            return status;
        note_tokens(cached, tokens + at, end - at);
        save_at_place(cache, cached, end, places, n_places);
        at = end;
    }
    if (watch->progress)
        watch->progress(watch->context, n - from, n - from);
    return STATUS_OK;
}

enum status prefix_cache_prefill(struct prefix_cache *cache, struct cached_sequence *cached,
                                 const int32_t *tokens, int32_t n,
                                 const struct prefix_place *places, int n_places,
                                 struct ranked *ranked, const struct prefill_watch *watch,
                                 int32_t *reused, struct error *error)
{
    *reused = 0;
    enum status status = engine_check_prompt(n, cached->sequence->capacity, error);
    if (status != STATUS_OK)
        return status;
    *reused = go_back(cache, cached, tokens, n);
    status = read_rest(cache, cached, tokens, *reused, n, places, n_places, ranked, watch, error);
    if (status == STATUS_DEVICE) /* whether the rows outlived it is not known */
        forget(cache, cached);
    return status;
}

enum status prefix_cache_decode(struct prefix_cache *cache, struct cached_sequence *cached,
                                int32_t token, struct ranked *ranked, struct error *error)
{
    enum status status = engine_decode(cache->engine, cached->sequence, token, ranked, error);
    if (status == STATUS_OK)
        note_tokens(cached, &token, 1);
    else if (status == STATUS_DEVICE)
        forget(cache, cached);
    return status;
}

/* ---- figures --------------------------------------------------------------------------------- */

void prefix_cache_read_figures(const struct prefix_cache *cache, struct prefix_cache_figures *out)
{
    *out = (struct prefix_cache_figures){
        .used = cache->used, .peak = cache->peak, .budget = cache->budget};
    for (const struct snapshot *snapshot = cache->snapshots; snapshot; snapshot = snapshot->next)
        out->n_snapshots++;
}

bool prefix_cache_holds(const struct prefix_cache *cache, const struct cached_sequence *cached,
                        int32_t length)
{
    return find_snapshot(cache, cached, length) != NULL;
}
