#include "backend/kv_pool.h"

#include <stdlib.h>
#include <string.h>

struct kv_hold {
    int32_t length;
    int32_t pages[];
};

static int64_t pages_for(int64_t rows)
{
    return (rows + KV_PAGE - 1) / KV_PAGE;
}

static struct kv_sequence *paged(struct sequence *sequence)
{
    return (struct kv_sequence *)sequence;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* ---- the pool -------------------------------------------------------------------------------- */

int64_t kv_pool_pages(const struct backend_options *options)
{
    return options->kv_rows > 0 ? pages_for(options->kv_rows)
                                : options->n_sequences * pages_for(options->context);
}

void kv_pool_plan(const struct backend_options *options, size_t row_bytes, struct memory_plan *plan)
{
    int64_t pages = kv_pool_pages(options);
    plan->kv_row = (int64_t)row_bytes;
    plan->kv_cache = pages * KV_PAGE * plan->kv_row;
    plan->workspace +=
        pages * (int64_t)(sizeof(struct kv_page) + sizeof(int32_t)) +
        options->n_sequences * pages_for(options->context) * (int64_t)sizeof(int32_t);
}

enum status kv_pool_open(struct kv_pool *pool, const struct backend_options *options,
                         size_t row_bytes, void (*copy)(struct backend *, int32_t, int32_t),
                         struct error *error)
{
    int64_t pages = kv_pool_pages(options);
    if (options->kv_rows < 0 || pages > INT32_MAX)
        return error_set(error, STATUS_INVALID, "kv_rows: found %lld, wanted 0 to %lld",
                         (long long)options->kv_rows, (long long)INT32_MAX * KV_PAGE);
    *pool = (struct kv_pool){
        .n_pages = (int32_t)pages,
        .n_free = (int32_t)pages,
        .page_bytes = KV_PAGE * (int64_t)row_bytes,
        .pages = calloc((size_t)pages, sizeof *pool->pages),
        .free_pages = malloc((size_t)pages * sizeof *pool->free_pages),
        .copy = copy,
    };
    if (!pool->pages || !pool->free_pages)
        return error_no_memory(error, "the list of KV pages");
    for (int32_t i = 0; i < pool->n_pages; i++) /* the first ones first, and then used ones */
        pool->free_pages[i] = pool->n_pages - 1 - i;
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *pool)
{
    free(pool->pages);
    free(pool->free_pages);
}

void kv_pool_usage(struct backend *backend, struct kv_usage *out)
{
    const struct kv_pool *pool = backend->kv;
    *out = (struct kv_usage){.page_rows = KV_PAGE,
                             .page_bytes = pool->page_bytes,
                             .pages = pool->n_pages,
                             .free = pool->n_free,
                             .held = pool->n_held};
}

/* ---- single pages ---------------------------------------------------------------------------- */

static void drop_reference(struct kv_pool *pool, int32_t page)
{
    if (--pool->pages[page].references == 0)
        pool->free_pages[pool->n_free++] = page;
}

/* The sequence gives its last page back. */
static void drop_last(struct kv_pool *pool, struct kv_sequence *q)
{
    int32_t page = q->pages[--q->n_pages];
    if (pool->pages[page].writer == q)
        pool->pages[page].writer = NULL;
    drop_reference(pool, page);
}

/* Pages behind those for rows that are there or reserved. */
static void drop_spare(struct kv_pool *pool, struct kv_sequence *q)
{
    int32_t rows = larger(q->base.kv_length, q->reserved);
    if (q->base.paused > 0) /* that it goes on to write */
        rows = larger(rows, q->base.position + q->base.paused);
    while (q->n_pages > pages_for(rows))
        drop_last(pool, q);
}

/* Whether a free page is needed so that the rows of one page from `position` on can be written.
 * Where none is, the sequence has them for itself from now on. */
static bool needs_page(struct kv_pool *pool, struct kv_sequence *q, int32_t position)
{
    if (position / KV_PAGE >= q->n_pages)
        return true;
    struct kv_page *page = &pool->pages[kv_page_of(q, position)];
    if (page->references == 1)
        page->frozen = 0;
    else if ((page->writer && page->writer != q) || position % KV_PAGE < page->frozen)
        return true;
    page->writer = q;
    return false;
}

/* Takes that page, if it is needed; one is free. Rows below kv_length are copied. */
static void take_page(struct backend *backend, struct kv_sequence *q, int32_t position)
{
    struct kv_pool *pool = backend->kv;
    if (!needs_page(pool, q, position))
        return;
    int32_t taken = pool->free_pages[--pool->n_free], index = position / KV_PAGE;
    pool->pages[taken] = (struct kv_page){.references = 1, .writer = q};
    if (index == q->n_pages) {
        q->pages[q->n_pages++] = taken;
        return;
    }
    int32_t old = q->pages[index];
    if (index * KV_PAGE < q->base.kv_length)
        pool->copy(backend, old, taken);
    if (pool->pages[old].writer == q)
        pool->pages[old].writer = NULL;
    drop_reference(pool, old);
    q->pages[index] = taken;
}

static enum status check_free(const struct kv_pool *pool, int32_t needed, struct error *error)
{
    if (needed <= pool->n_free)
        return STATUS_OK;
    return error_set(error, STATUS_BUSY, "KV rows: found %d of %d pages of %d rows free, wanted %d",
                     pool->n_free, pool->n_pages, KV_PAGE, needed);
}

/* ---- ranges of rows -------------------------------------------------------------------------- */

static int64_t next_page(int64_t position)
{
    return position / KV_PAGE * KV_PAGE + KV_PAGE;
}

static enum status check_range(struct kv_pool *pool, struct kv_sequence *q, int32_t from,
                               int32_t to, struct error *error)
{
    int32_t needed = 0;
    for (int64_t at = from; at < to; at = next_page(at))
        needed += needs_page(pool, q, (int32_t)at);
    return check_free(pool, needed, error);
}

static void take_range(struct backend *backend, struct kv_sequence *q, int32_t from, int32_t to)
{
    for (int64_t at = from; at < to; at = next_page(at))
        take_page(backend, q, (int32_t)at);
}

/* ---- sequences ------------------------------------------------------------------------------- */

enum status kv_sequence_init(struct kv_sequence *q, int32_t capacity, struct error *error)
{
    q->base.capacity = capacity;
    q->pages = malloc((size_t)pages_for(capacity) * sizeof *q->pages);
    return q->pages ? STATUS_OK : error_no_memory(error, "a sequence's KV pages");
}

void kv_sequence_clear(struct kv_pool *pool, struct kv_sequence *q)
{
    kv_sequence_reset(pool, q);
    free(q->pages);
}

void kv_sequence_reset(struct kv_pool *pool, struct kv_sequence *q)
{
    while (q->n_pages > 0)
        drop_last(pool, q);
    q->reserved = q->base.position = q->base.kv_length = 0;
    q->base.broken = false;
    q->base.paused = 0;
}

/* Whether row r is the first of its sequence or of a page. */
static bool begins_page(const struct row *row, int32_t position)
{
    return position == row->sequence->position || position % KV_PAGE == 0;
}

enum status kv_step_begin(struct backend *backend, const struct row *rows, int n,
                          const int32_t *positions, struct error *error)
{
    int32_t needed = 0;
    for (int r = 0; r < n; r++)
        if (begins_page(&rows[r], positions[r]))
            needed += needs_page(backend->kv, paged(rows[r].sequence), positions[r]);
    enum status status = check_free(backend->kv, needed, error);
    if (status != STATUS_OK)
        return status;
    for (int r = 0; r < n; r++) {
        struct sequence *sequence = rows[r].sequence;
        sequence->kv_length = sequence->position;
        sequence->broken = true;
        if (begins_page(&rows[r], positions[r]))
            take_page(backend, paged(sequence), positions[r]);
    }
    return STATUS_OK;
}

void kv_step_end(struct backend *backend, const struct row *rows, int n, const int32_t *positions)
{
    for (int r = 0; r < n; r++) {
        rows[r].sequence->position = rows[r].sequence->kv_length = positions[r] + 1;
        rows[r].sequence->broken = false;
    }
    for (int r = 0; r < n; r++)
        drop_spare(backend->kv, paged(rows[r].sequence));
}

enum status kv_go_to(struct sequence *sequence, int32_t position, struct error *error)
{
    if (position < 0 || position > sequence->kv_length)
        return error_set(error, STATUS_INVALID,
                         "a state of position %d, but the sequence has %d KV rows", position,
                         sequence->kv_length);
    if (position < sequence->kv_length)
        paged(sequence)->reserved = 0;
    sequence->position = position;
    sequence->broken = false;
    sequence->paused = 0;
    return STATUS_OK;
}

static enum status check_rows(const struct sequence *sequence, int32_t from, int32_t n,
                              int32_t limit, struct error *error)
{
    if (from < 0 || n < 0 || from > sequence->kv_length || from > limit - n)
        return error_set(error, STATUS_INVALID, "KV rows %d to %lld, the sequence has %d of %d",
                         from, (long long)from + n, sequence->kv_length, sequence->capacity);
    return STATUS_OK;
}

enum status kv_check_read(const struct sequence *sequence, int32_t from, int32_t n,
                          struct error *error)
{
    return check_rows(sequence, from, n, sequence->kv_length, error);
}

enum status kv_write_begin(struct backend *backend, struct sequence *sequence, int32_t from,
                           int32_t n, struct error *error)
{
    struct kv_sequence *q = paged(sequence);
    enum status status = check_rows(sequence, from, n, sequence->capacity, error);
    if (status == STATUS_OK)
        status = check_range(backend->kv, q, from, from + n, error);
    if (status != STATUS_OK)
        return status;
    if (from < sequence->kv_length)
        q->reserved = 0;
    sequence->paused = 0;
    sequence->kv_length = from;
    take_range(backend, q, from, from + n);
    sequence->kv_length = from + n;
    if (sequence->position > sequence->kv_length)
        sequence->broken = true; /* until a state that fits the rows is written */
    drop_spare(backend->kv, q);
    return STATUS_OK;
}

enum status kv_pool_reserve(struct backend *backend, struct sequence *sequence, int32_t rows,
                            struct error *error)
{
    struct kv_sequence *q = paged(sequence);
    int32_t from = smaller(sequence->position, sequence->kv_length);
    if (rows < 0 || rows > sequence->capacity)
        return error_set(error, STATUS_INVALID, "rows to reserve: found %d, wanted 0 to %d", rows,
                         sequence->capacity);
    enum status status = check_range(backend->kv, q, from, rows, error);
    if (status != STATUS_OK)
        return status;
    take_range(backend, q, from, rows);
    q->reserved = rows;
    drop_spare(backend->kv, q);
    return STATUS_OK;
}

/* ---- holds ----------------------------------------------------------------------------------- */

enum status kv_pool_hold(struct backend *backend, struct sequence *sequence, int32_t length,
                         struct kv_hold **out, struct error *error)
{
    struct kv_pool *pool = backend->kv;
    if (sequence->broken)
        return error_set(error, STATUS_DEVICE, "the sequence is unusable after a failed step");
    if (length < 0 || length > sequence->kv_length)
        return error_set(error, STATUS_INVALID, "KV rows to hold: found %d, wanted 0 to %d", length,
                         sequence->kv_length);
    int32_t n = (int32_t)pages_for(length);
    struct kv_hold *hold = malloc(sizeof *hold + (size_t)n * sizeof *hold->pages);
    if (!hold)
        return error_no_memory(error, "a hold on KV rows");
    hold->length = length;
    for (int32_t i = 0; i < n; i++) {
        struct kv_page *page = &pool->pages[hold->pages[i] = paged(sequence)->pages[i]];
        page->references++;
        pool->n_held += page->holds++ == 0;
        page->frozen = larger(page->frozen, smaller(length - i * KV_PAGE, KV_PAGE));
    }
    *out = hold;
    return STATUS_OK;
}

enum status kv_pool_hold_read(struct backend *backend, const struct kv_hold *hold, int32_t from,
                              int32_t n, void *out, struct error *error)
{
    struct kv_sequence reader = {
        .base = {.position = hold->length, .kv_length = hold->length, .capacity = hold->length},
        .pages = (int32_t *)hold->pages, /* which are only read */
        .n_pages = (int32_t)pages_for(hold->length),
    };
    return backend->ops->kv_read(backend, &reader.base, from, n, out, error);
}

void kv_pool_release(struct backend *backend, struct kv_hold *hold)
{
    struct kv_pool *pool = backend->kv;
    if (!hold)
        return;
    for (int64_t i = pages_for(hold->length); i-- > 0;) {
        pool->n_held -= --pool->pages[hold->pages[i]].holds == 0;
        drop_reference(pool, hold->pages[i]);
    }
    free(hold);
}

enum status kv_pool_attach(struct backend *backend, struct sequence *sequence,
                           const struct kv_hold *hold, int32_t length, struct error *error)
{
    struct kv_sequence *q = paged(sequence);
    if (length < 0 || length > hold->length)
        return error_set(error, STATUS_INVALID, "KV rows to attach: found %d, wanted 0 to %d",
                         length, hold->length);
    if (length == 0) {
        backend->ops->sequence_reset(backend, sequence);
        return STATUS_OK;
    }
    kv_sequence_reset(backend->kv, q); /* the hold keeps pages that are in both */
    for (; q->n_pages < pages_for(length); q->n_pages++) {
        q->pages[q->n_pages] = hold->pages[q->n_pages];
        backend->kv->pages[q->pages[q->n_pages]].references++;
    }
    sequence->position = sequence->kv_length = length;
    sequence->broken = true; /* until its state is written */
    return STATUS_OK;
}
