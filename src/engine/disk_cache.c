#include "engine/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "engine/disk_writer.h"

struct entry {
    struct entry *next;
    char name[64];
    int32_t *tokens; /* [n_tokens] */
    int32_t n_tokens;
    int n_states;
    int32_t lengths[DISK_STATES];
    int64_t size;
    int64_t used; /* the cache's clock; at first the file's age */
};

/* A prefix on its way to the disk. */
struct writing {
    struct disk_prefix prefix; /* tokens: owned */
    char path[PATH_MAX];
    int step; /* 0: nothing is written; then create, each state, each block, commit */
};

struct disk_cache {
    struct engine *engine;
    struct disk_identity identity;
    struct disk_cache_options options;
    char folder[PATH_MAX - 128];
    int lock;
    struct entry *entries;
    struct disk_cache_figures figures;
    int64_t clock;
    struct writing *current, *waiting; /* NULL: none */
    char *block;                       /* rows on their way to the writer */
    struct disk_writer *writer;
};

static void log_line(const struct disk_cache *cache, const char *line)
{
    if (cache->options.log)
        cache->options.log(cache->options.log_context, line);
}

static void log_problem(const struct disk_cache *cache, const struct error *error, const char *then)
{
    char line[sizeof error->message + 64];
    snprintf(line, sizeof line, "cache-disk: %s%s", error->message, then);
    log_line(cache, line);
}

static void path_of(const struct disk_cache *cache, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%.120s", cache->folder, name);
}

/* ---- the index ------------------------------------------------------------------------------- */

static void free_entry(struct entry *entry)
{
    free(entry->tokens);
    free(entry);
}

/* Takes a file's place in the index, and the file. */
static void remove_entry(struct disk_cache *cache, struct entry **link)
{
    struct entry *entry = *link;
    char path[PATH_MAX];
    path_of(cache, entry->name, path, sizeof path);
    unlink(path);
    *link = entry->next;
    cache->figures.files--;
    cache->figures.used -= entry->size;
    cache->figures.removed++;
    free_entry(entry);
}

/* Adds a file that is whole. */
static bool add_entry(struct disk_cache *cache, const char *name, const int32_t *tokens,
                      int32_t n_tokens, const int32_t *lengths, int n_states, int64_t size,
                      int64_t used)
{
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry || !(entry->tokens = malloc(4 * (size_t)n_tokens))) {
        free(entry);
        return false;
    }
    snprintf(entry->name, sizeof entry->name, "%s", name);
    memcpy(entry->tokens, tokens, 4 * (size_t)n_tokens);
    memcpy(entry->lengths, lengths, 4 * (size_t)n_states);
    entry->n_tokens = n_tokens;
    entry->n_states = n_states;
    entry->size = size;
    entry->used = used;
    entry->next = cache->entries;
    cache->entries = entry;
    cache->figures.files++;
    cache->figures.used += size;
    return true;
}

static struct entry **oldest(struct disk_cache *cache)
{
    struct entry **least = NULL;
    for (struct entry **link = &cache->entries; *link; link = &(*link)->next)
        if (!least || (*link)->used < (*least)->used)
            least = link;
    return least;
}

/* Whether `size` more bytes are within the budget; old files go for it. */
static bool make_room(struct disk_cache *cache, int64_t size)
{
    while (cache->figures.used + size > cache->options.budget) {
        struct entry **least = oldest(cache);
        if (!least)
            return false;
        remove_entry(cache, least);
    }
    return true;
}

static int32_t common_length(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b)
{
    int32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

/* The entry with the longest state that begins the tokens, and that state's place. */
static struct entry *find(const struct disk_cache *cache, const int32_t *tokens, int32_t n,
                          int *state)
{
    struct entry *best = NULL;
    for (struct entry *entry = cache->entries; entry; entry = entry->next) {
        int32_t common = -1, longest = best ? best->lengths[*state] : 0;
        for (int i = entry->n_states - 1; i >= 0 && entry->lengths[i] > longest; i--) {
            if (entry->lengths[i] > n)
                continue;
            if (common < 0)
                common = common_length(entry->tokens, entry->n_tokens, tokens, n);
            if (entry->lengths[i] <= common) {
                best = entry;
                *state = i;
                break;
            }
        }
    }
    return best;
}

int32_t disk_cache_match(const struct disk_cache *cache, const int32_t *tokens, int32_t n)
{
    int state;
    const struct entry *entry = find(cache, tokens, n, &state);
    return entry ? entry->lengths[state] : 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Takes one file up, or removes it. */
static void look_at(struct disk_cache *cache, const char *name)
{
    char path[PATH_MAX];
    struct disk_file file;
    struct error error;
    struct stat there;
    path_of(cache, name, path, sizeof path);
    if (disk_file_open(path, &cache->identity, &file, &error) != STATUS_OK) {
        if (error.status == STATUS_INVALID) {
            unlink(path);
            cache->figures.removed++;
        }
        log_problem(cache, &error, error.status == STATUS_INVALID ? ": removed" : "");
        return;
    }
    int64_t used = fstat(file.descriptor, &there) == 0 ? there.st_mtime : 0;
    add_entry(cache, name, file.tokens, file.n_tokens, file.lengths, file.n_states, file.size,
              used);
    cache->clock = used > cache->clock ? used : cache->clock;
    disk_file_close(&file);
}

static enum status scan(struct disk_cache *cache, struct error *error)
{
    DIR *folder = opendir(cache->folder);
    if (!folder)
        return error_set(error, STATUS_IO, "cache-disk: %s: %s", cache->folder, strerror(errno));
    for (const struct dirent *file; (file = readdir(folder));) {
        char path[PATH_MAX];
        path_of(cache, file->d_name, path, sizeof path);
        if (has_suffix(file->d_name, DISK_SUFFIX))
            look_at(cache, file->d_name);
        else if (has_suffix(file->d_name, DISK_SUFFIX DISK_PART))
            unlink(path); /* of a process that was killed */
    }
    closedir(folder);
    make_room(cache, 0);
    return STATUS_OK;
}

static enum status lock_folder(struct disk_cache *cache, struct error *error)
{
    char path[PATH_MAX];
    if (mkdir(cache->folder, 0700) != 0 && errno != EEXIST)
        return error_set(error, STATUS_IO, "cache-disk: %s: %s", cache->folder, strerror(errno));
    path_of(cache, "lock", path, sizeof path);
    cache->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (cache->lock < 0)
        return error_set(error, STATUS_IO, "cache-disk: %s: %s", path, strerror(errno));
    if (flock(cache->lock, LOCK_EX | LOCK_NB) != 0)
        return error_set(error, STATUS_BUSY, "cache-disk: %s is in use by another process",
                         cache->folder);
    return STATUS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void free_writing(struct writing *writing)
{
    writing->prefix.done(writing->prefix.context, &writing->prefix);
    free((void *)writing->prefix.tokens);
    free(writing);
}

bool disk_cache_has(const struct disk_cache *cache, const int32_t *tokens, int32_t n)
{
    const struct writing *pending[] = {cache->current, cache->waiting};
    for (int i = 0; i < 2; i++)
        if (pending[i] && pending[i]->prefix.n_tokens == n &&
            memcmp(pending[i]->prefix.tokens, tokens, 4 * (size_t)n) == 0)
            return true;
    for (const struct entry *entry = cache->entries; entry; entry = entry->next)
        if (entry->n_tokens == n && memcmp(entry->tokens, tokens, 4 * (size_t)n) == 0)
            return true;
    return false;
}

bool disk_cache_put(struct disk_cache *cache, const struct disk_prefix *prefix)
{
    if (disk_file_size(&cache->identity, prefix->n_tokens, prefix->n_states) >
        cache->options.budget)
        return false;
    struct writing *writing = calloc(1, sizeof *writing);
    int32_t *tokens = malloc(4 * (size_t)prefix->n_tokens);
    if (!writing || !tokens) {
        free(writing);
        free(tokens);
        return false;
    }
    memcpy(tokens, prefix->tokens, 4 * (size_t)prefix->n_tokens);
    writing->prefix = *prefix;
    writing->prefix.tokens = tokens;
    char name[64];
    snprintf(
        name, sizeof name, "%016llx" DISK_SUFFIX,
        (unsigned long long)checksum_add(CHECKSUM_START, tokens, 4 * (size_t)prefix->n_tokens));
    path_of(cache, name, writing->path, sizeof writing->path);
    if (cache->waiting)
        free_writing(cache->waiting);
    cache->waiting = writing;
    return true;
}

/* What a new file's path makes useless: prefixes of it, whose states it has or has better ones of.
 */
static void remove_covered(struct disk_cache *cache, const struct disk_prefix *prefix)
{
    for (struct entry **link = &cache->entries; *link;) {
        const struct entry *entry = *link;
        bool covered = entry->n_tokens <= prefix->n_tokens &&
                       memcmp(entry->tokens, prefix->tokens, 4 * (size_t)entry->n_tokens) == 0;
        for (int i = 0; i < entry->n_states && covered; i++) {
            covered = false;
            for (int k = 0; k < prefix->n_states && !covered; k++)
                covered = prefix->lengths[k] == entry->lengths[i];
        }
        if (covered)
            remove_entry(cache, link);
        else
            link = &(*link)->next;
    }
}

/* The current write is over. */
static void end_current(struct disk_cache *cache, bool written)
{
    struct writing *w = cache->current;
    cache->current = NULL;
    if (written) {
        const struct disk_prefix *prefix = &w->prefix;
        remove_covered(cache, prefix);
        cache->figures.writes++;
        add_entry(cache, strrchr(w->path, '/') + 1, prefix->tokens, prefix->n_tokens,
                  prefix->lengths, prefix->n_states,
                  disk_file_size(&cache->identity, prefix->n_tokens, prefix->n_states),
                  ++cache->clock);
    }
    free_writing(w);
}

/* Hands over the next piece of the current write. */
static void next_piece(struct disk_cache *cache)
{
    struct writing *w = cache->current;
    const struct disk_prefix *prefix = &w->prefix;
    struct backend *backend = cache->engine->backend;
    int i = w->step++ - 1, block = i - prefix->n_states,
        blocks = disk_file_blocks(prefix->n_tokens);
    if (i < 0) {
        disk_writer_create(cache->writer, w->path, prefix->tokens, prefix->n_tokens,
                           prefix->lengths, prefix->n_states);
    } else if (block < 0) {
        disk_writer_put_state(cache->writer, i, prefix->states[i]);
    } else if (block < blocks) {
        int32_t from = block * DISK_BLOCK, left = prefix->n_tokens - from;
        if (backend->ops->kv_hold_read(backend, prefix->rows, from,
                                       left < DISK_BLOCK ? left : DISK_BLOCK, cache->block,
                                       NULL) == STATUS_OK)
            disk_writer_put_block(cache->writer, block, cache->block);
        else
            disk_cache_give_up(cache);
    } else {
        disk_writer_commit(cache->writer);
    }
}

static bool is_committed(const struct writing *w)
{
    return w->step == 2 + w->prefix.n_states + disk_file_blocks(w->prefix.n_tokens);
}

bool disk_cache_has_work(struct disk_cache *cache)
{
    return (cache->current || cache->waiting) && !disk_writer_is_busy(cache->writer);
}

/* Takes up the one that waits. */
static void begin_writing(struct disk_cache *cache)
{
    const struct disk_prefix *prefix = &cache->waiting->prefix;
    cache->current = cache->waiting;
    cache->waiting = NULL;
    if (make_room(cache, disk_file_size(&cache->identity, prefix->n_tokens, prefix->n_states)))
        next_piece(cache);
    else
        end_current(cache, false);
}

bool disk_cache_work(struct disk_cache *cache)
{
    struct error error;
    if (!disk_cache_has_work(cache))
        return false;
    if (!cache->current) {
        begin_writing(cache);
    } else if (disk_writer_status(cache->writer, &error) != STATUS_OK) {
        log_problem(cache, &error, "");
        cache->figures.failures++;
        disk_writer_abandon(cache->writer);
        end_current(cache, false);
    } else if (is_committed(cache->current)) {
        end_current(cache, true);
    } else {
        next_piece(cache);
    }
    return true;
}

bool disk_cache_give_up(struct disk_cache *cache)
{
    struct error error;
    bool any = cache->current || cache->waiting;
    disk_writer_wait(cache->writer);
    if (cache->current && is_committed(cache->current) &&
        disk_writer_status(cache->writer, &error) == STATUS_OK) {
        end_current(cache, true);
    } else if (cache->current) {
        disk_writer_abandon(cache->writer);
        end_current(cache, false);
    }
    if (cache->waiting)
        free_writing(cache->waiting);
    cache->waiting = NULL;
    return any;
}

/* ---- loading --------------------------------------------------------------------------------- */

static enum status read_rows(struct disk_cache *cache, const struct disk_file *file,
                             struct sequence *sequence, int32_t length, struct error *error)
{
    struct backend *backend = cache->engine->backend;
    char *rows = malloc(DISK_BLOCK * cache->identity.row_size);
    enum status status = rows ? STATUS_OK : error_no_memory(error, "rows of the disk cache");
    for (int32_t from = 0; from < length && status == STATUS_OK; from += DISK_BLOCK) {
        int32_t n = length - from < DISK_BLOCK ? length - from : DISK_BLOCK;
        status = disk_file_get_block(file, from / DISK_BLOCK, rows, error);
        if (status == STATUS_OK)
            status = backend->ops->kv_write(backend, sequence, from, n, rows, error);
    }
    free(rows);
    return status;
}

static enum status read_state(struct disk_cache *cache, const struct disk_file *file, int i,
                              struct sequence *sequence, struct error *error)
{
    struct backend *backend = cache->engine->backend;
    void *state = malloc(cache->identity.state_size);
    enum status status = state ? disk_file_get_state(file, i, state, error)
                               : error_no_memory(error, "a state of the disk cache");
    if (status == STATUS_OK)
        status = backend->ops->state_write(backend, sequence, file->lengths[i], state, error);
    free(state);
    return status;
}

static void drop_named(struct disk_cache *cache, const char *name)
{
    for (struct entry **link = &cache->entries; *link; link = &(*link)->next)
        if (strcmp((*link)->name, name) == 0) {
            remove_entry(cache, link);
            return;
        }
}

int32_t disk_cache_load(
    struct disk_cache *cache, struct sequence *sequence, const int32_t *tokens, int32_t n,
    enum status (*reserve)(void *context, struct sequence *sequence, int32_t rows), void *context)
{
    int state;
    char path[PATH_MAX];
    struct disk_file file;
    struct error error;
    int32_t length = disk_cache_match(cache, tokens, n);
    if (length == 0 || reserve(context, sequence, length) != STATUS_OK)
        return 0;
    struct entry *entry = find(cache, tokens, n, &state); /* making room may have ended a write */
    if (!entry || entry->lengths[state] != length)
        return 0;
    path_of(cache, entry->name, path, sizeof path);
    enum status status = disk_file_open(path, &cache->identity, &file, &error);
    if (status == STATUS_OK) {
        status = read_rows(cache, &file, sequence, length, &error);
        if (status == STATUS_OK)
            status = read_state(cache, &file, state, sequence, &error);
        futimens(file.descriptor, NULL);
        disk_file_close(&file);
    }
    if (status == STATUS_OK) {
        entry->used = ++cache->clock;
        cache->figures.loads++;
        return length;
    }
    bool bad = status == STATUS_INVALID || status == STATUS_IO;
    log_problem(cache, &error, bad ? ": removed" : "");
    if (bad)
        drop_named(cache, entry->name);
    cache->figures.failures++;
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum status open_cache(struct disk_cache *cache, struct error *error)
{
    enum status status = lock_folder(cache, error);
    if (status != STATUS_OK)
        return status;
    cache->block = malloc(DISK_BLOCK * cache->identity.row_size);
    if (!cache->block)
        return error_no_memory(error, "the disk cache");
    status = scan(cache, error);
    return status == STATUS_OK ? disk_writer_new(&cache->identity, cache->options.wake,
                                                 cache->options.wake_context, &cache->writer, error)
                               : status;
}

enum status disk_cache_open(struct engine *engine, const struct disk_cache_options *options,
                            struct disk_cache **out, struct error *error)
{
    struct disk_cache *cache = *out = calloc(1, sizeof *cache);
    if (!cache)
        return error_no_memory(error, "the disk cache");
    cache->engine = engine;
    cache->options = *options;
    cache->figures.budget = options->budget;
    cache->lock = -1;
    snprintf(cache->folder, sizeof cache->folder, "%s", options->folder);
    disk_identity_fill(&cache->identity, engine, options->weights);
    enum status status = open_cache(cache, error);
    if (status != STATUS_OK) {
        disk_cache_close(cache);
        *out = NULL;
    }
    return status;
}

void disk_cache_drain(struct disk_cache *cache)
{
    while (cache->current || cache->waiting) {
        disk_writer_wait(cache->writer);
        disk_cache_work(cache);
    }
}

void disk_cache_close(struct disk_cache *cache)
{
    if (!cache)
        return;
    disk_cache_drain(cache);
    disk_writer_free(cache->writer);
    while (cache->entries) {
        struct entry *entry = cache->entries;
        cache->entries = entry->next;
        free_entry(entry);
    }
    if (cache->lock >= 0)
        close(cache->lock);
    free(cache->block);
    free(cache);
}

void disk_cache_read_figures(const struct disk_cache *cache, struct disk_cache_figures *out)
{
    *out = cache->figures;
}
