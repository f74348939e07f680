/* THE SEAM between the model and a device: whole steps, never single ops. A backend may be loops in
 * C, a thread pool, one persistent kernel or a list of dispatches; nothing above this header knows.
 *
 * One thread at a time drives a backend and all of its sequences. What grows with context is
 * allocated by open and sequence_new, as backend_plan foretells; a step allocates nothing. A step
 * that fails or is cancelled leaves its sequences as they were, or marks them `broken`: every call
 * on a broken sequence but reset, restore (kv_reserve, kv_attach, kv_write, state_write) and free
 * fails with STATUS_DEVICE.
 *
 * KV rows lie in pages of one pool, which open allocates whole. Sequences take pages as they grow
 * and share them by way of holds, which keep rows for later. A call that needs more pages than are
 * free fails with STATUS_BUSY and changes nothing: release a hold, reset a sequence, try again. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/weights.h"

#define RANKED_MAX 64

/* The best candidates of one row, best first, ties by lowest id. Padding rows never appear. */
struct ranked {
    float logsumexp; /* over all valid ids: log p(id) = logit - logsumexp */
    int n;           /* min(RANKED_MAX, valid ids) */
    int32_t id[RANKED_MAX];
    float logit[RANKED_MAX]; /* raw */
};

/* The part of a sequence that every backend shares; a backend's own struct begins with it. Read
 * only above the seam. */
struct sequence {
    int32_t position;  /* tokens read so far = position of the next one */
    int32_t kv_length; /* KV rows that are there; above position only after going back */
    int32_t capacity;  /* tokens that fit */
    bool broken;
    int32_t paused; /* tokens of the chunk that paused, 0: none; such a sequence is broken too */
};

/* One new token of one sequence. */
struct row {
    struct sequence *sequence;
    int32_t token;
};

/* Bytes of memory by purpose, computed before anything is allocated. */
struct memory_plan {
    int64_t weights;   /* read from the mapped checkpoint */
    int64_t kv_cache;  /* once: the pool of pages */
    int64_t kv_row;    /* of kv_cache, for one position of one sequence */
    int64_t state;     /* per sequence: recurrent and conv state */
    int64_t workspace; /* once */
    int64_t total;     /* all of it, with n_sequences states */
};

/* The pool of pages as it is now. */
struct kv_usage {
    int32_t page_rows; /* positions of a page, with all layers and heads */
    int64_t page_bytes;
    int32_t pages; /* of the pool */
    int32_t free;
    int32_t held; /* pages that at least one hold needs, each counted once */
};

/* The first rows of a sequence, as they were when kv_hold was called. */
struct kv_hold;

struct backend_options {
    const struct weights *weights; /* borrowed until close */
    int32_t n_valid_ids;           /* logit rows from here on are padding and masked */
    int32_t context;               /* capacity of each sequence, in tokens */
    int n_sequences;               /* that will live at once, at most */
    int64_t kv_rows;               /* of the pool, rounded up to whole pages; 0: as many as all
                                    * sequences need when nothing is shared */
    int threads;                   /* 0: one for each core (cpu) */
    const char *cpu;               /* kernels' level by name, NULL: the best this CPU runs (cpu) */
};

/* Limits that callers respect. */
struct backend_limits {
    int max_rows;  /* rows of one decode_step, and tokens of a prefill_chunk with PREFILL_ALL */
    int max_chunk; /* tokens of one prefill_chunk */
    bool pauses;   /* a prefill_chunk obeys `pause_at` */
};

/* What stops a prefill_chunk before its end. */
struct interrupt {
    const atomic_bool *cancel; /* NULL: nothing; polled inside the chunk */
    double pause_at;           /* time of base/clock, 0: never */
};

enum prefill_output {
    PREFILL_LAST, /* one ranked, of the chunk's last token */
    PREFILL_ALL,  /* n of them: scoring */
};

/* Watches named intermediate tensors (tests, `calla score --hidden`). Called during a step with
 * rows of consecutive tokens, [rows][columns] float32; names as in models/tiny/reference/README. */
struct probe {
    void (*tensor)(void *context, const char *name, const float *values, int64_t rows,
                   int64_t columns);
    void *context;
};

struct backend {
    const struct backend_ops *ops;
    struct backend_limits limits;
    struct kv_pool *kv; /* its pages; backends alone look into it, see backend/kv_pool.h */
};

struct backend_ops {
    const char *name;

    /* Whether `threads` and `cpu`, alone of all options, are what the backend takes; asked before
     * there are weights. NULL: whatever they are. The error begins with the field's name. */
    enum status (*check)(const struct backend_options *options, struct error *error);
    /* The i-th of the names that `cpu` may have, best first; NULL after the last. NULL: none. */
    const char *(*level)(int i);

    /* Sizes alone: the weights may have no data yet. */
    void (*plan)(const struct backend_options *options, struct memory_plan *plan);
    enum status (*open)(const struct backend_options *options, struct backend **out,
                        struct error *error);
    void (*close)(struct backend *backend);

    enum status (*sequence_new)(struct backend *backend, struct sequence **out,
                                struct error *error);
    void (*sequence_free)(struct backend *backend, struct sequence *sequence);
    /* Back to position 0 and without pages, whatever its condition. */
    void (*sequence_reset)(struct backend *backend, struct sequence *sequence);

    /* Reads n tokens, 1..max_chunk, into the sequence. `interrupt` may be NULL. A chunk that saw
     * its cancel returns STATUS_CANCELLED. One that would not end by pause_at may do a part of its
     * work, at least one layer, and return STATUS_OK with sequence->paused set and nothing ranked:
     * the next call with the same tokens and output goes on. In between other sequences may do
     * anything, but only one chunk of a backend is paused at a time: others run to their end. What
     * mends a broken sequence, cancel and failure drop a paused chunk. PREFILL_ALL never pauses. */
    enum status (*prefill_chunk)(struct backend *backend, struct sequence *sequence,
                                 const int32_t *tokens, int n, enum prefill_output output,
                                 struct ranked *ranked, const struct interrupt *interrupt,
                                 struct error *error);
    /* One step for n rows, 1..max_rows. Rows of one sequence are consecutive tokens of it. */
    enum status (*decode_step)(struct backend *backend, const struct row *rows, int n,
                               struct ranked *ranked, struct error *error);
    /* The full raw logits [vocab_size] of output i (index into the last step's ranked). */
    enum status (*logits)(struct backend *backend, int i, float *out, struct error *error);

    /* Recurrent and conv state as flat bytes. The KV rows stay in the sequence: writing a state at
     * position p needs p <= kv_length, rows of the same tokens from this sequence's past, by
     * kv_attach or by kv_write. A step drops the rows from its position on and writes new ones;
     * kv_write begins at or below kv_length and drops what is above the rows it writes. */
    size_t (*state_size)(struct backend *backend);
    enum status (*state_read)(struct backend *backend, struct sequence *sequence, void *out,
                              struct error *error);
    enum status (*state_write)(struct backend *backend, struct sequence *sequence, int32_t position,
                               const void *state, struct error *error);
    size_t (*kv_row_size)(struct backend *backend);
    enum status (*kv_read)(struct backend *backend, struct sequence *sequence, int32_t from,
                           int32_t n, void *out, struct error *error);
    enum status (*kv_write)(struct backend *backend, struct sequence *sequence, int32_t from,
                            int32_t n, const void *rows, struct error *error);

    /* Makes sure that steps, or kv_write, can write the sequence's rows up to `rows` (0 to
     * capacity) without STATUS_BUSY: takes pages, and copies shared ones that will be written to.
     * A step reserves for itself what it needs, so this is for promises. The last call counts: a
     * smaller one gives pages back. Going back (state_write or kv_write below kv_length),
     * kv_attach, reset and a kv_hold of rows above position end it. */
    enum status (*kv_reserve)(struct backend *backend, struct sequence *sequence, int32_t rows,
                              struct error *error);
    /* Keeps the sequence's first `length` rows (0 to kv_length) as they are, whatever the sequence
     * does later, without a copy. Allocates nothing but the small struct. Release all holds before
     * close. */
    enum status (*kv_hold)(struct backend *backend, struct sequence *sequence, int32_t length,
                           struct kv_hold **out, struct error *error);
    void (*kv_release)(struct backend *backend, struct kv_hold *hold); /* NULL is allowed */
    /* kv_read of rows that are held. */
    enum status (*kv_hold_read)(struct backend *backend, const struct kv_hold *hold, int32_t from,
                                int32_t n, void *out, struct error *error);
    /* The sequence, whatever its condition, drops its rows and has the hold's first `length` (0 to
     * the hold's) instead, without a copy. It is broken until a state_write, which sets its
     * position; length 0 resets it. Never STATUS_BUSY. */
    enum status (*kv_attach)(struct backend *backend, struct sequence *sequence,
                             const struct kv_hold *hold, int32_t length, struct error *error);
    void (*kv_usage)(struct backend *backend, struct kv_usage *out);

    /* NULL where the backend cannot show its intermediates. A NULL probe stops it. */
    void (*set_probe)(struct backend *backend, const struct probe *probe);
};

extern const struct backend_ops backend_ref; /* plain float32 C, the oracle */
extern const struct backend_ops backend_cpu; /* thread pool and kernels for each instruction set */

/* The backends compiled in, best first; ends with NULL. */
extern const struct backend_ops *const backends[];
/* By name, or the best one for NULL; an unknown name is an error that lists the known ones. */
enum status backend_find(const char *name, const struct backend_ops **out, struct error *error);
/* ops->check, where there is one. */
enum status backend_check(const struct backend_ops *ops, int threads, const char *cpu,
                          struct error *error);
