/* What the files of the cpu backend share. A step is a list of stages; each stage is a job for the
 * threads whose units write disjoint parts of the workspace. The stages of a layer, in order:
 *
 *   device.c     open, close, plan, the table of the seam; weights that are kept as float32
 *   state.c      sequences, snapshots, KV rows
 *   step.c       one step: rows, runs, layers in the order of spec 2.1, norms
 *   matmul.c     products of dense 4-bit matrices
 *   attention.c  spec 2.3        deltanet.c  spec 2.5, 2.6        moe.c  spec 2.7
 *   head.c       logits and ranked candidates
 *   kernels*     the inner loops, one table for each instruction set
 *
 * Work is cut by rows of weights, heads and positions, never by the number of threads, so results
 * are the same bits for any number of them. */
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/kv_pool.h"
#include "backend/rank.h"
#include "base/threads.h"

#define MAX_ROWS 64    /* rows with logits */
#define MAX_CHUNK 1024 /* tokens of a prefill chunk: 32 for an expert of the real model */
#define UNIT_ROWS 64   /* rows of a matrix in one unit of work: a group of the next product */
#define ROUTER_ROWS 32 /* the same for the router */
#define HEAD_ROWS 1024 /* the same for the head, each with candidates of its own */
#define MAX_SPLITS 64  /* parts of a long context that one row's attention is cut into */
#define SPLIT_ROWS 16  /* rows of a step up to which attention is cut */
#define STAGE_SCRATCH (160 << 10) /* bytes of a unit's own in the largest stage */
/* A thread's scratch: buffers of their own begin near a page's start, so its two parts begin a
 * quarter and a half page later, lest they share the nearest cache's sets with those. */
#define SCRATCH_SHIFT 1024
#define SCRATCH (STAGE_SCRATCH + KERNEL_SCRATCH + 4 * SCRATCH_SHIFT)

struct cpu_sequence {
    struct kv_sequence kv;
    float *conv_state;      /* [deltanet layer][3][conv channels], oldest first */
    float *recurrent_state; /* [deltanet layer][value heads][dk][dv] */
};

/* The pool of KV pages; a plane is an attention layer's KV head. */
struct kv_cache {
    int16_t *keys;       /* [page][plane][KV_PAGE / KV_BLOCK][head_dim][KV_BLOCK] */
    int16_t *values;     /* [page][plane][KV_PAGE][head_dim] */
    float *key_scales;   /* [page][plane][KV_PAGE] */
    float *value_scales; /* the same */
};

/* Consecutive rows of a step that are consecutive tokens of one sequence. */
struct run {
    struct cpu_sequence *sequence;
    int first, n;
    int32_t position; /* of the first */
};

/* The small weights of a layer as float32. */
struct cpu_layer {
    float *input_layernorm, *post_attention_layernorm; /* [hidden] */
    float *q_norm, *k_norm;                            /* [head_dim] */
    float *taps;                                       /* [4][conv channels], oldest first */
    float *A, *dt_bias;                                /* [value heads]; A = -exp(A_log) */
    float *norm;                                       /* [value_head_dim] */
};

/* The chunk that paused: valid while its sequence's `paused` is set. */
struct paused_chunk {
    struct cpu_sequence *sequence; /* NULL: none was, or it was freed */
    int layer;                     /* that comes next */
    float *h; /* [rows][hidden] its residual stream, while another's is in b->h */
};

struct cpu_backend {
    struct backend base;
    const struct weights *weights;
    const struct shape *shape;
    const struct kernels *kernels;
    struct threads *threads;
    int32_t n_valid_ids, context;
    int n_sequences, n_open, n_threads;
    struct probe probe;
    struct cpu_layer layers[MAX_LAYERS];
    float *norm;                         /* [hidden], the final one */
    double rope_frequency[HEAD_DIM / 2]; /* rotary_dims / 2 of them */
    struct kv_pool kv;
    struct kv_cache cache;

    /* the step under way */
    int n, n_runs, n_outputs;
    struct paused_chunk paused;

    /* workspace; rows = tokens of the step */
    struct row *rows;           /* [rows] of a chunk */
    struct run *runs;           /* [rows] */
    int32_t *positions;         /* [rows] */
    float *h;                   /* [rows][hidden] the residual stream */
    float *x;                   /* [rows][hidden] a norm's output */
    struct activations x_codes; /* x rounded */
    float *mixed;  /* [2 * rows][hidden] a mixer's output, perhaps in two terms, or the MoE's */
    float *wide;   /* [rows][conv channels or heads * 2 * head_dim] */
    float *narrow; /* [rows][value_dim or 2 * kv_heads * head_dim] z, or keys, values */
    float *gates;  /* [rows][2 * value heads] inputs of beta and of the decay */
    struct activations mixer_codes; /* [2 * rows][value_dim or heads * head_dim] out_proj's input */
    float *rope;                    /* [rows][rotary_dims] cosines, then sines */
    float *router;                  /* [rows][experts] */
    float *shared_gate;             /* [rows] */
    struct activations slot_codes;  /* [rows * top-k][hidden] x_codes in the order of slots */
    struct activations expert_codes; /* [rows * (top-k + 1)][intermediate] down_proj's input */
    int32_t *chosen;                 /* [rows][top-k] experts */
    float *chosen_weight;            /* [rows][top-k] */
    int32_t *slot_row;     /* [rows * top-k] the row of each slot; slots are sorted by expert */
    float *slot_weight;    /* [rows * top-k] */
    int32_t *expert_first; /* [experts + 1] its first slot */
    int32_t *active;       /* [experts] experts with slots */
    int n_active;
    struct attention_state *splits; /* [SPLIT_ROWS][kv heads][MAX_SPLITS] */
    float *logits;                  /* [MAX_ROWS][vocab] */
    struct rank_part *parts;        /* [MAX_ROWS][head units] */
    unsigned char *scratch;         /* [threads][SCRATCH] */
};

/* Work of a stage; see threads_run. */
static inline void cpu_run(struct cpu_backend *b, thread_work *work, void *context, int n_units)
{
    threads_run(b->threads, work, context, n_units);
}

/* What a unit needs for itself and is too much for its stack. */
static inline void *cpu_stage_scratch(const struct cpu_backend *b, int thread)
{
    return b->scratch + (size_t)thread * SCRATCH + SCRATCH_SHIFT;
}

/* The same for the kernel that it calls. */
static inline void *cpu_kernel_scratch(const struct cpu_backend *b, int thread)
{
    return b->scratch + (size_t)thread * SCRATCH + STAGE_SCRATCH + 2 * SCRATCH_SHIFT;
}

/* ---- matmul.c -------------------------------------------------------------------------------- */

/* One dense product: y[r * stride + i] = row i of matrix times row r of x. */
struct product {
    const struct quant_matrix *matrix;
    float *y;
    int64_t stride;
};

struct q4_rows cpu_rows(const struct quant_matrix *matrix, int index, int from, int n);
/* All products with the same n rows of x, as one stage. */
void cpu_products(struct cpu_backend *b, const struct product *products, int n_products,
                  const struct activations *x, int n);
/* h += matrix x, by way of b->mixed. With two terms x is the sum of rows r and n + r. */
void cpu_project_back(struct cpu_backend *b, const struct quant_matrix *matrix,
                      const struct activations *x, int terms);
/* matvec or matmul, see kernels.h. */
void cpu_multiply(const struct cpu_backend *b, int thread, const struct q4_rows *w,
                  const struct activations *x, int64_t first, int n, float *y, int64_t stride);

/* ---- the layers: b->x_codes and b->x -> b->h --------------------------------------------------
 */

/* `index` counts the layers of one kind. */
void cpu_attention(struct cpu_backend *b, int layer, int index);
void cpu_deltanet(struct cpu_backend *b, int layer, int index);
void cpu_moe(struct cpu_backend *b, int layer);
/* b->x_codes of n rows from row `first` on -> logits and candidates. */
enum status cpu_head(struct cpu_backend *b, int first, int n, struct ranked *ranked,
                     struct error *error);

/* ---- state.c --------------------------------------------------------------------------------- */

/* One position's place in a plane: index into the scales. The rows of its page follow. */
int64_t cpu_kv_place(const struct cpu_backend *b, const struct cpu_sequence *q, int plane,
                     int32_t position);
int16_t *cpu_key(const struct cpu_backend *b, int64_t place); /* its codes lie KV_BLOCK apart */
int16_t *cpu_value(const struct cpu_backend *b, int64_t place);
/* Allocates b->cache for the pool; on failure the rest is cpu_cache_free's. */
enum status cpu_cache_new(struct cpu_backend *b, struct error *error);
void cpu_cache_free(struct cpu_backend *b);
void cpu_copy_page(struct backend *backend, int32_t from, int32_t to);
int64_t cpu_conv_size(const struct shape *shape); /* floats of one layer */
int64_t cpu_recurrent_size(const struct shape *shape);
size_t cpu_state_size(struct backend *backend);
size_t cpu_kv_row_size(struct backend *backend);
enum status cpu_sequence_new(struct backend *backend, struct sequence **out, struct error *error);
void cpu_sequence_free(struct backend *backend, struct sequence *sequence);
void cpu_sequence_reset(struct backend *backend, struct sequence *sequence);
enum status cpu_state_read(struct backend *backend, struct sequence *sequence, void *out,
                           struct error *error);
enum status cpu_state_write(struct backend *backend, struct sequence *sequence, int32_t position,
                            const void *state, struct error *error);
enum status cpu_kv_read(struct backend *backend, struct sequence *sequence, int32_t from, int32_t n,
                        void *out, struct error *error);
enum status cpu_kv_write(struct backend *backend, struct sequence *sequence, int32_t from,
                         int32_t n, const void *rows, struct error *error);

/* ---- step.c ---------------------------------------------------------------------------------- */

enum status cpu_prefill_chunk(struct backend *backend, struct sequence *sequence,
                              const int32_t *tokens, int n, enum prefill_output output,
                              struct ranked *ranked, const struct interrupt *interrupt,
                              struct error *error);
enum status cpu_decode_step(struct backend *backend, const struct row *rows, int n,
                            struct ranked *ranked, struct error *error);
