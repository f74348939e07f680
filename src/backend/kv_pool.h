/* KV rows in pages that sequences and holds share: the bookkeeping alone, the same for every
 * backend. Where a page's bytes lie is the backend's own matter; it gives a function that copies a
 * page, and puts the functions of the seam below into its table.
 *
 * A page is KV_PAGE positions of all attention layers and heads. It counts who refers to it, at
 * most once each: sequences and holds. Rows that anybody else may need are never written to:
 *
 *   - With one reference, a sequence's, the page is all its own.
 *   - Else the first `frozen` rows are not to be changed by anybody. The rows behind them may be
 *     written by one sequence, the page's writer: others see none of them. So a sequence appends
 *     to a page that it has put a hold on without a copy.
 *   - Whoever else wants to write takes a free page and copies first.
 *
 * One thread at a time, as in all of the seam. */
#pragma once

#include "backend/backend.h"

#define KV_PAGE 256 /* a multiple of all that kernels take together */

/* What a backend's own sequence begins with. */
struct kv_sequence {
    struct sequence base;
    int32_t *pages; /* [capacity in pages] page of the rows KV_PAGE * i and following */
    int32_t n_pages;
    int32_t reserved; /* rows for which pages are kept; 0: those that are there */
};

struct kv_page {
    int32_t references; /* 0: free */
    int32_t holds;      /* of the references */
    int32_t frozen;
    const struct kv_sequence *writer; /* NULL: the next one that appends */
};

struct kv_pool {
    int32_t n_pages, n_free, n_held;
    int64_t page_bytes;
    struct kv_page *pages;
    int32_t *free_pages; /* [n_free], taken from the end */
    void (*copy)(struct backend *backend, int32_t from, int32_t to);
};

/* ---- for a backend's plan, open and close ---------------------------------------------------- */

int64_t kv_pool_pages(const struct backend_options *options);
/* Fills kv_row and kv_cache, and adds the bookkeeping to workspace. */
void kv_pool_plan(const struct backend_options *options, size_t row_bytes,
                  struct memory_plan *plan);
enum status kv_pool_open(struct kv_pool *pool, const struct backend_options *options,
                         size_t row_bytes, void (*copy)(struct backend *, int32_t, int32_t),
                         struct error *error);
/* Also of one that is zero or whose opening failed. */
void kv_pool_close(struct kv_pool *pool);

/* ---- for its sequences ----------------------------------------------------------------------- */

/* Sets capacity; STATUS_NO_MEMORY. */
enum status kv_sequence_init(struct kv_sequence *q, int32_t capacity, struct error *error);
/* Also of one that is zero or whose init failed. */
void kv_sequence_clear(struct kv_pool *pool, struct kv_sequence *q);
/* Without rows and pages, at position 0 and not broken. */
void kv_sequence_reset(struct kv_pool *pool, struct kv_sequence *q);
/* The page of a position below kv_length or within a step's rows. */
static inline int32_t kv_page_of(const struct kv_sequence *q, int32_t position)
{
    return q->pages[position / KV_PAGE];
}

/* Around a step whose rows step_check has allowed. Begin makes all rows writable and the sequences
 * broken, with the rows below their positions alone; or nothing changes and it says STATUS_BUSY.
 * End moves the sequences behind the rows. */
enum status kv_step_begin(struct backend *backend, const struct row *rows, int n,
                          const int32_t *positions, struct error *error);
void kv_step_end(struct backend *backend, const struct row *rows, int n, const int32_t *positions);
/* What state_write does to a sequence beside its state. */
enum status kv_go_to(struct sequence *sequence, int32_t position, struct error *error);
/* Whether rows [from, from + n) can be read. */
enum status kv_check_read(const struct sequence *sequence, int32_t from, int32_t n,
                          struct error *error);
/* What kv_write does to a sequence before the rows are written. */
enum status kv_write_begin(struct backend *backend, struct sequence *sequence, int32_t from,
                           int32_t n, struct error *error);

/* ---- functions of the seam ------------------------------------------------------------------- */

enum status kv_pool_reserve(struct backend *backend, struct sequence *sequence, int32_t rows,
                            struct error *error);
enum status kv_pool_hold(struct backend *backend, struct sequence *sequence, int32_t length,
                         struct kv_hold **out, struct error *error);
void kv_pool_release(struct backend *backend, struct kv_hold *hold);
/* By the backend's kv_read, which must look at nothing of a sequence but its struct kv_sequence. */
enum status kv_pool_hold_read(struct backend *backend, const struct kv_hold *hold, int32_t from,
                              int32_t n, void *out, struct error *error);
enum status kv_pool_attach(struct backend *backend, struct sequence *sequence,
                           const struct kv_hold *hold, int32_t length, struct error *error);
void kv_pool_usage(struct backend *backend, struct kv_usage *out);

/* All of them, for a backend's table. */
#define KV_POOL_OPS                                                                                \
    .kv_reserve = kv_pool_reserve, .kv_hold = kv_pool_hold, .kv_release = kv_pool_release,         \
    .kv_hold_read = kv_pool_hold_read, .kv_attach = kv_pool_attach, .kv_usage = kv_pool_usage
