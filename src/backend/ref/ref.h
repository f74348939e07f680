/* What the two files of the ref backend share: its structs, and the seam's functions that run the
 * model (ref.c) beside those that hold it in memory (memory.c). */
#pragma once

#include "backend/kv_pool.h"

#define MAX_ROWS 64
#define MAX_CHUNK 64

struct ref_sequence {
    struct kv_sequence kv;
    float *conv_state;      /* [deltanet layer][3][conv channels], oldest first */
    float *recurrent_state; /* [deltanet layer][value heads][dk][dv] */
};

struct ref_backend {
    struct backend base;
    const struct weights *weights;
    const struct shape *shape;
    int32_t n_valid_ids, context;
    int n_sequences, n_open;
    struct probe probe;
    int n_outputs; /* of the last step */
    struct kv_pool kv;
    float *kv_cache; /* [page][attention layer][K, V][KV_PAGE][kv heads][head_dim] */
    /* workspace for one step; rows = tokens of the step, at most MAX_ROWS */
    float *h;              /* [rows][hidden] the residual stream */
    float *x;              /* [rows][hidden] a norm's output */
    float *mixed;          /* [rows][hidden] a mixer's or the MoE's output */
    float *first, *second; /* [rows][widest projection] each */
    float *wide;           /* [rows][max(heads * head_dim, value_dim)] */
    float *gates;          /* [rows][2][value heads] beta and log decay inputs */
    float *router;         /* [rows][experts] */
    float *expert_x;       /* [rows][hidden] the rows that chose one expert */
    float *scores;         /* [context] */
    float *expanded;       /* [widest row of a matrix] */
    float *logits;         /* [rows][vocab] */
};

/* Floats of a page: of one layer's K or V, and of all. */
int64_t ref_kv_plane(const struct shape *shape);
int64_t ref_kv_page(const struct shape *shape);
/* Floats of one layer: conv state, recurrent state. */
int64_t ref_conv_size(const struct shape *shape);
int64_t ref_recurrent_size(const struct shape *shape);

enum status ref_prefill_chunk(struct backend *backend, struct sequence *sequence,
                              const int32_t *tokens, int n, enum prefill_output output,
                              struct ranked *ranked, const struct interrupt *interrupt,
                              struct error *error);
enum status ref_decode_step(struct backend *backend, const struct row *rows, int n,
                            struct ranked *ranked, struct error *error);
enum status ref_logits(struct backend *backend, int i, float *out, struct error *error);
