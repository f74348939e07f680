/* The float32 operations, written once for vectors of LANES floats. Included by kernels_LEVEL.c,
 * which defines before:
 *   LANES                       4, 8 or 16
 *   vi, vf                      vectors of LANES int32 / float (GCC vector extension)
 *   load_floats(p, n)           n <= LANES floats, the rest 0
 *   add_lanes(v)                sum of the lanes
 * Lengths are multiples of 16 here: heads, hidden size, tiles. */

static inline vf load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* a where the mask is set, else b */
static inline vf pick(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* e^x to 2 units in the last place; x above 88.3 or below -87.3 counts as that. NaN stays NaN. */
static inline vf exp_lanes(vf x)
{
    const vf low = (vf){0} - 87.3f, high = (vf){0} + 88.3f;
    x = pick(x < low, low, x);
    x = pick(x > high, high, x);
    vf shifted = x * 1.44269504f + 12582912.0f; /* the nearest integer in the low bits */
    vf n = shifted - 12582912.0f;
    vf r = x - n * 0.693359375f; /* ln 2 in two parts */
    r = r + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f; /* Cephes' expf polynomial */
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vi exponent = ((vi)shifted << 23); /* wraps: only n's low bits are left */
    return (vf)((vi)p + exponent);
}

static inline vf sigmoid_lanes(vf x)
{
    return 1.0f / (1.0f + exp_lanes(-x));
}

/* The scale at which n values become codes of up to `most`. Values so small that the scale's
 * inverse could overflow become zeros. */
#define ROUNDING_LEAST 1e-30f
struct rounding {
    float scale, inverse;
};

static inline struct rounding rounding_of(const float *x, int n, float most)
{
    /* as integers, sizes have the order of floats, with NaN above all: it is not lost */
    int32_t bits, largest_bits = 0;
    for (int i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        bits &= INT32_MAX;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    return (struct rounding){largest / most, largest > ROUNDING_LEAST ? most / largest : 0};
}

static inline int32_t round_value(float x, struct rounding rounding)
{
    /* adding 1.5 * 2^23 leaves the nearest integer in the low bits */
    float shifted = x * rounding.inverse + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4B400000;
}

static inline float sum_squares(const float *x, int n)
{
    vf sum[2] = {{0}};
    for (int i = 0; i < n; i += 2 * LANES)
        for (int j = 0; j < 2; j++) {
            vf v = load(x + i + j * LANES);
            sum[j] += v * v;
        }
    return add_lanes(sum[0] + sum[1]);
}

static void rms_norm(const float *x, const float *weight, int n, float eps, float *y)
{
    float r = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    for (int i = 0; i < n; i += LANES)
        store(y + i, load(x + i) * r * load(weight + i));
}

static void l2_norm(float *x, int n, float scale)
{
    float r = scale / sqrtf(sum_squares(x, n) + L2_NORM_EPS);
    for (int i = 0; i < n; i += LANES)
        store(x + i, load(x + i) * r);
}

static void gated_norm(float *o, const float *weight, const float *z, int n, float eps)
{
    rms_norm(o, weight, n, eps, o);
    for (int i = 0; i < n; i += LANES) {
        vf gate = load(z + i);
        store(o + i, load(o + i) * gate * sigmoid_lanes(gate));
    }
}

static void swiglu(float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += LANES) {
        vf g = load(gate + i);
        store(gate + i, g * sigmoid_lanes(g) * load(up + i));
    }
}

static void sigmoid_gate(float *x, const float *gate, int n)
{
    for (int i = 0; i < n; i += LANES)
        store(x + i, load(x + i) * sigmoid_lanes(load(gate + i)));
}

static void add_scaled(float *y, float a, const float *x, int n)
{
    for (int i = 0; i < n; i += LANES)
        store(y + i, load(y + i) + load(x + i) * a);
}

static double sum_exp(const float *x, int n, float max)
{
    double total = 0;
    for (int i = 0; i < n; i += LANES) {
        vf p = exp_lanes(load_floats(x + i, n - i) - max);
        if (n - i < LANES) /* lanes past the end */
            for (int l = n - i; l < LANES; l++)
                p[l] = 0;
        total += (double)add_lanes(p);
    }
    return total;
}

/* ---- the 8-bit matrices ---------------------------------------------------------------------- */

#define Q8_ROWS 4 /* of w and of x that are multiplied together */

/* Rows of w, expanded, times rows of x. What is past the last one is that one again. */
static void matmul_q8(const struct quant_matrix *w, int from, int to, const float *x, int n,
                      float *y, int64_t stride, void *scratch)
{
    float(*expanded)[MAX_GROUPS * GROUP_SIZE] = scratch; /* [Q8_ROWS] */
    _Static_assert(Q8_ROWS * sizeof *expanded <= KERNEL_SCRATCH, "rows do not fit");
    int64_t columns = w->columns;
    for (int first = from; first < to; first += Q8_ROWS) {
        int rows = to - first < Q8_ROWS ? to - first : Q8_ROWS;
        for (int i = 0; i < Q8_ROWS; i++)
            quant_row_load(w, 0, first + (i < rows ? i : rows - 1), expanded[i]);
        for (int done = 0; done < n; done += Q8_ROWS) {
            vf sum[Q8_ROWS][Q8_ROWS];
            const float *in[Q8_ROWS];
            for (int t = 0; t < Q8_ROWS; t++) {
                in[t] = x + (done + t < n ? done + t : n - 1) * columns;
                for (int i = 0; i < Q8_ROWS; i++)
                    sum[t][i] = (vf){0};
            }
            for (int c = 0; c < columns; c += LANES)
                for (int t = 0; t < Q8_ROWS; t++)
                    for (int i = 0; i < Q8_ROWS; i++)
                        sum[t][i] += load(expanded[i] + c) * load(in[t] + c);
            for (int t = 0; t < Q8_ROWS && done + t < n; t++)
                for (int i = 0; i < rows; i++)
                    y[(done + t) * stride + first + i] = add_lanes(sum[t][i]);
        }
    }
}

/* ---- Gated DeltaNet -------------------------------------------------------------------------- */

static void conv(const float *x, int64_t x_stride, int n, const float *taps, int64_t tap_stride,
                 float *state, int64_t state_stride, int channels, float *out)
{
    for (int c = 0; c < channels; c += LANES) {
        vf tap[4], oldest = load(state + c), older = load(state + state_stride + c),
                   newest = load(state + 2 * state_stride + c);
        for (int i = 0; i < 4; i++)
            tap[i] = load(taps + i * tap_stride + c);
        for (int t = 0; t < n; t++) {
            vf in = load(x + t * x_stride + c);
            vf sum = tap[0] * oldest + tap[1] * older + tap[2] * newest + tap[3] * in;
            oldest = older; /* the state keeps what came in, before SiLU */
            older = newest;
            newest = in;
            store(out + (int64_t)t * channels + c, sum * sigmoid_lanes(sum));
        }
        store(state + c, oldest);
        store(state + state_stride + c, older);
        store(state + 2 * state_stride + c, newest);
    }
}

/* Columns that are taken through both passes while they lie in the nearest cache. */
#define STRIP 32
#define STRIP_VECTORS (STRIP / LANES)

static void deltanet_step(float *state, const float *q, const float *k, const float *v, float g,
                          float beta, float *o)
{
    enum { D = LINEAR_HEAD_DIM };
    float decay = expf(g);
    for (int first = 0; first < D; first += STRIP) {
        vf read[STRIP_VECTORS], out[STRIP_VECTORS];
        for (int j = 0; j < STRIP_VECTORS; j++)
            read[j] = out[j] = (vf){0};
        for (int i = 0; i < D; i++)
            for (int j = 0; j < STRIP_VECTORS; j++)
                read[j] += load(state + i * D + first + j * LANES) * k[i];
        /* the decayed state is read: decay * (S^T k) */
        for (int j = 0; j < STRIP_VECTORS; j++)
            read[j] = (load(v + first + j * LANES) - read[j] * decay) * beta; /* now delta */
        for (int i = 0; i < D; i++)
            for (int j = 0; j < STRIP_VECTORS; j++) {
                float *s = state + i * D + first + j * LANES;
                vf updated = load(s) * decay + read[j] * k[i];
                store(s, updated);
                out[j] += updated * q[i];
            }
        for (int j = 0; j < STRIP_VECTORS; j++)
            store(o + first + j * LANES, out[j]);
    }
}

/* c[M][N vectors] (+)= a[M][k] b[k][…], all rows `l*` floats apart. */
static inline __attribute__((always_inline)) void gemm_tile(const int M, const int N, int k,
                                                            const float *a, int64_t la,
                                                            const float *b, int64_t lb, float *c,
                                                            int64_t lc, float keep)
{
    const vf zero = {0};
    vf sum[4][4];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            sum[i][j] = keep != 0 ? load(c + i * lc + j * LANES) * keep : zero;
    for (int p = 0; p < k; p++) {
        vf row[4];
        for (int j = 0; j < N; j++)
            row[j] = load(b + p * lb + j * LANES);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                sum[i][j] += row[j] * a[i * la + p];
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            store(c + i * lc + j * LANES, sum[i][j]);
}

/* c[m][n] = keep * c + a[m][k] b[k][n]; m a multiple of 4, n of 16. */
static void gemm(int m, int n, int k, const float *a, int64_t la, const float *b, int64_t lb,
                 float *c, int64_t lc, float keep)
{
    enum { WIDE = LANES == 8 ? 2 : 4 }; /* sums for 16 registers, or for 32 */
    for (int i = 0; i < m; i += 4) {
        int j = 0;
        for (; j + WIDE * LANES <= n; j += WIDE * LANES)
            gemm_tile(4, WIDE, k, a + i * la, la, b + j, lb, c + i * lc + j, lc, keep);
        for (; j < n; j += LANES)
            gemm_tile(4, 1, k, a + i * la, la, b + j, lb, c + i * lc + j, lc, keep);
    }
}

/* What deltanet_chunk works with: n tokens, padded with zeros to a multiple of SUB. Names as in
 * spec 2.6. */
#define SUB 16
struct chunk {
    float q[CHUNK_TOKENS][LINEAR_HEAD_DIM], k[CHUNK_TOKENS][LINEAR_HEAD_DIM];
    float kt[LINEAR_HEAD_DIM][CHUNK_TOKENS]; /* k transposed */
    float kk[CHUNK_TOKENS][CHUNK_TOKENS], qk[CHUNK_TOKENS][CHUNK_TOKENS];
    float v[CHUNK_TOKENS][LINEAR_HEAD_DIM]; /* V' */
    float o[CHUNK_TOKENS][LINEAR_HEAD_DIM];
    float G[CHUNK_TOKENS], e[CHUNK_TOKENS]; /* sums of g, exp of them */
    float G_rest[CHUNK_TOKENS];             /* what float32 cannot hold of the sums: after a strong
                                               decay their differences would lose the weak ones */
};

/* D_ij = exp(G_i - G_j) for i >= j; the exponent is never positive there. */
static void decay_products(struct chunk *c, int size, const float *beta, int n)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j += LANES) {
            vf d = exp_lanes((c->G[i] - load(&c->G[j])) + (c->G_rest[i] - load(&c->G_rest[j])));
            vi column = {0};
            for (int l = 0; l < LANES; l++)
                column[l] = j + l;
            store(&c->kk[i][j],
                  pick(column < i, load(&c->kk[i][j]) * d * (i < n ? beta[i] : 0), (vf){0}));
            store(&c->qk[i][j], pick(column <= i, load(&c->qk[i][j]) * d, (vf){0}));
        }
}

static void deltanet_chunk(float *state, const float *q, const float *k, const float *v,
                           int64_t qk_stride, int64_t v_stride, const float *g, const float *beta,
                           int n, float *o, void *scratch)
{
    enum { D = LINEAR_HEAD_DIM, C = CHUNK_TOKENS };
    struct chunk *c = scratch;
    _Static_assert(sizeof *c <= KERNEL_SCRATCH, "a chunk does not fit");
    int size = (n + SUB - 1) / SUB * SUB;
    double sum = 0;
    for (int t = 0; t < size; t++) {
        if (t < n) {
            memcpy(c->q[t], q + t * qk_stride, sizeof c->q[t]);
            memcpy(c->k[t], k + t * qk_stride, sizeof c->k[t]);
            sum += (double)g[t];
        } else {
            memset(c->q[t], 0, sizeof c->q[t]);
            memset(c->k[t], 0, sizeof c->k[t]);
        }
        c->G[t] = (float)sum;
        c->G_rest[t] = (float)(sum - (double)c->G[t]);
        c->e[t] = expf(c->G[t]);
        for (int i = 0; i < D; i++)
            c->kt[i][t] = c->k[t][i];
    }
    memset(c->kk, 0, sizeof c->kk); /* the upper triangle is masked, but read */
    memset(c->qk, 0, sizeof c->qk);
    for (int i = 0; i < size; i += SUB) { /* the lower triangle */
        gemm(SUB, i + SUB, D, c->k[i], D, c->kt[0], C, c->kk[i], C, 0);
        gemm(SUB, i + SUB, D, c->q[i], D, c->kt[0], C, c->qk[i], C, 0);
    }
    decay_products(c, size, beta, n);
    /* (I + A) V' = beta (V - exp(G) K S_0), by forward substitution */
    gemm(size, D, D, c->k[0], D, state, D, c->v[0], D, 0);
    for (int t = 0; t < n; t++) /* the padding's rows are 0 */
        for (int i = 0; i < D; i += LANES)
            store(&c->v[t][i],
                  (load(v + t * v_stride + i) - load(&c->v[t][i]) * c->e[t]) * beta[t]);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < D; j += STRIP) {
            vf x[STRIP_VECTORS];
            for (int l = 0; l < STRIP_VECTORS; l++)
                x[l] = load(&c->v[i][j + l * LANES]);
            for (int s = 0; s < i; s++)
                for (int l = 0; l < STRIP_VECTORS; l++)
                    x[l] -= load(&c->v[s][j + l * LANES]) * c->kk[i][s];
            for (int l = 0; l < STRIP_VECTORS; l++)
                store(&c->v[i][j + l * LANES], x[l]);
        }
    /* O = exp(G) Q S_0 + ((Q K^T) D) V' */
    gemm(size, D, D, c->q[0], D, state, D, c->o[0], D, 0);
    for (int t = 0; t < size; t++)
        for (int i = 0; i < D; i += LANES)
            store(&c->o[t][i], load(&c->o[t][i]) * c->e[t]);
    for (int i = 0; i < size; i += SUB)
        gemm(SUB, D, i + SUB, c->qk[i], C, c->v[0], D, c->o[i], D, 1);
    memcpy(o, c->o, (size_t)n * sizeof c->o[0]);
    /* S_n = exp(G_n) S_0 + sum_j exp(G_n - G_j) k_j V'_j^T */
    for (int t = 0; t < size; t += LANES) {
        vf weight = exp_lanes((c->G[size - 1] - load(&c->G[t])) +
                              (c->G_rest[size - 1] - load(&c->G_rest[t])));
        for (int i = 0; i < D; i++)
            store(&c->kt[i][t], load(&c->kt[i][t]) * weight);
    }
    gemm(D, D, size, c->kt[0], C, c->v[0], D, state, D, c->e[size - 1]);
}

/* ---- attention ------------------------------------------------------------------------------- */

#if LANES > 4 /* neon_vectors.h has its own: gcc takes vectors of 8 bytes apart */
/* LANES codes of the KV cache as floats. */
static inline vf load_codes(const int16_t *p)
{
    typedef int16_t words __attribute__((vector_size(2 * LANES)));
    words w;
    memcpy(&w, p, sizeof w);
    return __builtin_convertvector(__builtin_convertvector(w, vi), vf);
}
#endif

static float round_head(const float *x, int16_t *codes)
{
    struct rounding rounding = rounding_of(x, HEAD_DIM, INT16_MAX);
    for (int i = 0; i < HEAD_DIM; i++)
        codes[i] = (int16_t)round_value(x[i], rounding);
    return rounding.scale;
}

/* score[q][KV_BLOCK] of Q queries and one block of keys. */
static inline __attribute__((always_inline)) void score_tile(const int Q, const float *queries,
                                                             const int16_t *keys,
                                                             const float *scales,
                                                             float *score /* [][SCORE_BLOCK] */)
{
    enum { V = KV_BLOCK / LANES };
    vf sum[QUERIES][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++)
            sum[q][v] = (vf){0};
    for (int d = 0; d < HEAD_DIM; d++) {
        vf key[V];
        for (int v = 0; v < V; v++)
            key[v] = load_codes(keys + d * KV_BLOCK + v * LANES);
        for (int q = 0; q < Q; q++)
            for (int v = 0; v < V; v++)
                sum[q][v] += key[v] * queries[q * HEAD_DIM + d];
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++)
            store(score + q * SCORE_BLOCK + v * LANES, sum[q][v] * load(scales + v * LANES));
}

/* out[q][d .. d + 2 vectors] = keep[q] * out + p[q] values, for Q queries. */
static inline __attribute__((always_inline)) void
value_tile(const int Q, const float *p, const int16_t *values, int n, const float *keep, float *out)
{
    vf sum[QUERIES][2];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < 2; v++)
            sum[q][v] = load(out + q * HEAD_DIM + v * LANES) * keep[q];
    for (int s = 0; s < n; s++) {
        vf value[2];
        for (int v = 0; v < 2; v++)
            value[v] = load_codes(values + s * HEAD_DIM + v * LANES);
        for (int q = 0; q < Q; q++)
            for (int v = 0; v < 2; v++)
                sum[q][v] += value[v] * p[q * SCORE_BLOCK + s];
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < 2; v++)
            store(out + q * HEAD_DIM + v * LANES, sum[q][v]);
}

static void attention_block(const float *queries, const struct kv_block *kv, int n,
                            struct attention_state *state)
{
    /* queries at a time: as many sums as there are registers for */
    enum { Q = LANES == 16 ? QUERIES : QUERIES / 2, VALUE_Q = LANES == 8 ? QUERIES / 2 : QUERIES };
    float score[QUERIES][SCORE_BLOCK], keep[QUERIES];
    int blocks = (n + KV_BLOCK - 1) / KV_BLOCK;
    for (int b = 0; b < blocks; b++)
        for (int q = 0; q < QUERIES; q += Q)
            score_tile(Q, queries + q * HEAD_DIM, kv->keys + b * HEAD_DIM * KV_BLOCK,
                       kv->key_scales + b * KV_BLOCK, &score[q][b * KV_BLOCK]);
    for (int q = 0; q < QUERIES; q++) {
        float best = state->max[q];
        for (int s = 0; s < n; s++)
            best = score[q][s] > best ? score[q][s] : best;
        for (int s = n; s < blocks * KV_BLOCK; s++)
            score[q][s] = -INFINITY; /* rows that are not there */
        vf sum = {0};
        for (int s = 0; s < blocks * KV_BLOCK; s += LANES) {
            vf x = load(&score[q][s]);
            vf p = pick(x == -INFINITY, (vf){0}, exp_lanes(x - best));
            store(&score[q][s], p * load(kv->value_scales + s));
            sum += p;
        }
        keep[q] = expf(state->max[q] - best);
        state->max[q] = best;
        state->sum[q] = state->sum[q] * keep[q] + add_lanes(sum);
    }
    for (int d = 0; d < HEAD_DIM; d += 2 * LANES)
        for (int q = 0; q < QUERIES; q += VALUE_Q)
            value_tile(VALUE_Q, score[q], kv->values + d, n, keep + q, state->out[q] + d);
}
