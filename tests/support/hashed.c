#include "support/hashed.h"

#include <stdlib.h>
#include <string.h>

#include "backend/kv_pool.h"
#include "backend/rank.h"

struct hashed hashed;

#define IDS 4000 /* that are answered with: fewer than tiny has */
#define START 0x9e3779b97f4a7c15u

struct hashed_backend {
    struct backend base;
    struct kv_pool kv;
    const struct shape *shape;
    int32_t context;
    int32_t *rows;             /* [pages][KV_PAGE] the tokens read */
    int32_t next[HASHED_ROWS]; /* that the last step answered with */
    struct sequence *paused;   /* whose chunk has paused, while its `paused` is set */
    int slice, slices;         /* of it, done and in all */
};

struct hashed_sequence {
    struct kv_sequence kv;
    uint64_t state; /* hash of the tokens read */
};

static uint64_t add_token(uint64_t state, int32_t token)
{
    state = (state ^ (uint32_t)token) * 0xbf58476d1ce4e5b9u;
    return state ^ state >> 29;
}

static int32_t id_of(uint64_t state)
{
    return (int32_t)(state * 0x94d049bb133111ebu >> 33) % IDS;
}

int32_t hashed_next(const int32_t *tokens, int32_t n)
{
    uint64_t state = START;
    for (int32_t i = 0; i < n; i++)
        state = add_token(state, tokens[i]);
    return id_of(state);
}

static void hashed_plan(const struct backend_options *options, struct memory_plan *plan)
{
    *plan = (struct memory_plan){.state = (int64_t)sizeof(uint64_t)};
    kv_pool_plan(options, sizeof(int32_t), plan);
    plan->total = plan->kv_cache + plan->workspace;
}

static void copy_page(struct backend *backend, int32_t from, int32_t to)
{
    int32_t *rows = ((struct hashed_backend *)backend)->rows;
    memcpy(rows + (size_t)to * KV_PAGE, rows + (size_t)from * KV_PAGE, KV_PAGE * sizeof *rows);
}

static void hashed_close(struct backend *backend)
{
    struct hashed_backend *b = (struct hashed_backend *)backend;
    kv_pool_close(&b->kv);
    free(b->rows);
    free(b);
}

static enum status hashed_open(const struct backend_options *options, struct backend **out,
                               struct error *error)
{
    struct hashed_backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_no_memory(error, "hashed");
    b->base = (struct backend){&backend_hashed,
                               {.max_rows = HASHED_ROWS,
                                .max_chunk = hashed.max_chunk ? hashed.max_chunk : 64,
                                .pauses = hashed.slices > 1},
                               &b->kv};
    b->slices = hashed.slices;
    b->shape = options->weights->shape;
    b->context = options->context;
    b->rows = calloc((size_t)kv_pool_pages(options) * KV_PAGE, sizeof *b->rows);
    enum status status = b->rows ? kv_pool_open(&b->kv, options, sizeof *b->rows, copy_page, error)
                                 : error_no_memory(error, "hashed");
    if (status == STATUS_OK)
        *out = &b->base;
    else
        hashed_close(&b->base);
    return status;
}

static void hashed_sequence_reset(struct backend *backend, struct sequence *sequence)
{
    struct hashed_sequence *q = (struct hashed_sequence *)sequence;
    kv_sequence_reset(backend->kv, &q->kv);
    q->state = START;
}

static void hashed_sequence_free(struct backend *backend, struct sequence *sequence)
{
    struct hashed_backend *b = (struct hashed_backend *)backend;
    struct hashed_sequence *q = (struct hashed_sequence *)sequence;
    if (b->paused == sequence)
        b->paused = NULL;
    if (q)
        kv_sequence_clear(backend->kv, &q->kv);
    free(q);
}

static enum status hashed_sequence_new(struct backend *backend, struct sequence **out,
                                       struct error *error)
{
    struct hashed_sequence *q = calloc(1, sizeof *q);
    if (!q)
        return error_no_memory(error, "hashed");
    q->state = START;
    *out = &q->kv.base;
    enum status status =
        kv_sequence_init(&q->kv, ((struct hashed_backend *)backend)->context, error);
    if (status != STATUS_OK)
        hashed_sequence_free(backend, &q->kv.base);
    return status;
}

static int32_t *row_at(const struct hashed_backend *b, const struct hashed_sequence *q, int32_t at)
{
    return &b->rows[(size_t)kv_page_of(&q->kv, at) * KV_PAGE + (size_t)(at % KV_PAGE)];
}

/* Whether the rows that are there are those of the state. */
static enum status check_rows(const struct hashed_backend *b, const struct sequence *sequence,
                              struct error *error)
{
    const struct hashed_sequence *q = (const struct hashed_sequence *)sequence;
    uint64_t state = START;
    for (int32_t i = 0; i < sequence->position; i++)
        state = add_token(state, *row_at(b, q, i));
    return state == q->state
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "hashed: the KV rows are not those of the state");
}

static void answer(struct hashed_backend *b, int output, const struct sequence *sequence,
                   struct ranked *ranked)
{
    int32_t next = b->next[output] = id_of(((const struct hashed_sequence *)sequence)->state);
    *ranked = (struct ranked){.logsumexp = 100, .n = 1, .id = {next}, .logit = {100}};
    for (int32_t id = 0; ranked->n < RANKED_MAX; id++)
        if (id != next)
            ranked->id[ranked->n++] = id;
}

/* Rows of one prompt or of several sequences; outputs from `first` on. */
static enum status step(struct hashed_backend *b, const struct row *rows, int n, int first,
                        bool prefill, struct ranked *ranked, struct error *error)
{
    int32_t positions[1024];
    bool broken = false;
    enum status status = step_check(b->shape, rows, n, 1024, positions, error);
    for (int i = 0; i < n && status == STATUS_OK; i++)
        if (positions[i] == rows[i].sequence->position)
            status = check_rows(b, rows[i].sequence, error);
    if (status == STATUS_OK && hashed.on_step && hashed.on_step(rows, n, prefill, &broken)) {
        status = error_set(error, STATUS_DEVICE, "hashed: the device failed");
        for (int i = 0; i < n && broken; i++)
            rows[i].sequence->broken = true;
    }
    if (status == STATUS_OK)
        status = kv_step_begin(&b->base, rows, n, positions, error);
    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < n; i++) {
        struct hashed_sequence *q = (struct hashed_sequence *)rows[i].sequence;
        *row_at(b, q, positions[i]) = rows[i].token;
        q->state = add_token(q->state, rows[i].token);
        if (i >= first)
            answer(b, i - first, rows[i].sequence, &ranked[i - first]);
    }
    kv_step_end(&b->base, rows, n, positions);
    return STATUS_OK;
}

static enum status hashed_prefill_chunk(struct backend *backend, struct sequence *sequence,
                                        const int32_t *tokens, int n, enum prefill_output output,
                                        struct ranked *ranked, const struct interrupt *interrupt,
                                        struct error *error)
{
    struct hashed_backend *b = (struct hashed_backend *)backend;
    struct row rows[1024];
    int most = output == PREFILL_ALL ? backend->limits.max_rows : backend->limits.max_chunk;
    if (n < 1 || n > most)
        return error_set(error, STATUS_INVALID, "a chunk of %d tokens, wanted 1 to %d", n, most);
    for (int i = 0; i < n; i++)
        rows[i] = (struct row){sequence, tokens[i]};
    if (interrupt && interrupt->cancel && atomic_load(interrupt->cancel)) {
        sequence->broken = true;
        sequence->paused = 0;
        return error_set(error, STATUS_CANCELLED, "cancelled");
    }
    if (sequence->paused > 0 && sequence->paused != n)
        return error_set(error, STATUS_INVALID, "a chunk of %d tokens, paused: %d", n,
                         sequence->paused);
    bool taken = b->paused && b->paused != sequence && b->paused->paused > 0;
    if (backend->limits.pauses && interrupt && interrupt->pause_at > 0 && !taken &&
        output != PREFILL_ALL) {
        b->slice = sequence->paused > 0 ? b->slice + 1 : 1;
        b->paused = sequence;
        sequence->broken = b->slice < b->slices;
        sequence->paused = sequence->broken ? n : 0;
        if (sequence->broken)
            return STATUS_OK;
    }
    return step(b, rows, n, output == PREFILL_ALL ? 0 : n - 1, true, ranked, error);
}

static enum status hashed_decode_step(struct backend *backend, const struct row *rows, int n,
                                      struct ranked *ranked, struct error *error)
{
    if (n > HASHED_ROWS)
        return error_set(error, STATUS_INVALID, "a step of %d rows", n);
    return step((struct hashed_backend *)backend, rows, n, 0, false, ranked, error);
}

static enum status hashed_logits(struct backend *backend, int i, float *out, struct error *error)
{
    (void)error;
    struct hashed_backend *b = (struct hashed_backend *)backend;
    memset(out, 0, (size_t)b->shape->vocab_size * sizeof *out);
    out[b->next[i]] = 100;
    return STATUS_OK;
}

static size_t hashed_state_size(struct backend *backend)
{
    (void)backend;
    return sizeof(uint64_t);
}

static enum status hashed_state_read(struct backend *backend, struct sequence *sequence, void *out,
                                     struct error *error)
{
    (void)backend, (void)error;
    memcpy(out, &((struct hashed_sequence *)sequence)->state, sizeof(uint64_t));
    return STATUS_OK;
}

static enum status hashed_state_write(struct backend *backend, struct sequence *sequence,
                                      int32_t position, const void *state, struct error *error)
{
    (void)backend;
    enum status status = kv_go_to(sequence, position, error);
    if (status == STATUS_OK)
        memcpy(&((struct hashed_sequence *)sequence)->state, state, sizeof(uint64_t));
    return status;
}

static size_t hashed_kv_row_size(struct backend *backend)
{
    (void)backend;
    return sizeof(int32_t);
}

const struct backend_ops backend_hashed = {
    .name = "hashed",
    .plan = hashed_plan,
    .open = hashed_open,
    .close = hashed_close,
    .sequence_new = hashed_sequence_new,
    .sequence_free = hashed_sequence_free,
    .sequence_reset = hashed_sequence_reset,
    .prefill_chunk = hashed_prefill_chunk,
    .decode_step = hashed_decode_step,
    .logits = hashed_logits,
    .state_size = hashed_state_size,
    .state_read = hashed_state_read,
    .state_write = hashed_state_write,
    .kv_row_size = hashed_kv_row_size,
    KV_POOL_OPS,
};
