/* 4-bit matrix products on int16 inputs, written once for vectors of LANES 32-bit lanes, 8 or 16.
 * Included by kernels_LEVEL.c after float_ops.h; needs besides what that one and
 * tile_ops.h do:
 *   dot_pairs(acc, a, b)        acc + a.lo * b.lo + a.hi * b.hi for each lane's two int16
 *   IN_REGISTER(v)              v is computed here and stays in a register
 *   TILE_TOKENS                 rows of x whose sums fit in the registers beside a tile's weights
 *
 * Weights. A group's 32 bytes are 16 words of 16 bits; word l holds the codes 4l .. 4l+3. Masking
 * nibble j of all words gives the codes 4l + j as int16 lanes ("plane" j), so inputs are stored in
 * that order: [pair of groups][plane][group in pair][16]. In the 32-bit lanes of transposed rows
 * the same masks give the codes of columns 8d + j and 8d + 4 + j, which lie side by side in x.
 *
 * 64 codes of at most 15 times 32767 stay below 2^25: a group's sum is exact in int32. */

#include "backend/cpu/tile_ops.h"

#define LARGEST_CODE INT16_MAX
#define GROUPS_PER_VECTOR (LANES / 8)
#define TILE_VECTORS 2 /* of rows: their transposed codes stay in registers beside the sums */
#define TILE_WIDTH (TILE_VECTORS * LANES)
#define MATMUL_TOKENS 128 /* rows of x for which one unpacked tile is used */

static inline vi load_vector(const void *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Codes of plane 0 .. 3 of packed words. */
static inline void unpack_planes(vi packed, vi plane[4])
{
    typedef uint16_t words __attribute__((vector_size(4 * LANES)));
    words w = (words)packed;
    plane[0] = (vi)(w & 15);
    plane[1] = (vi)(w >> 4 & 15);
    plane[2] = (vi)(w >> 8 & 15);
    plane[3] = (vi)(w >> 12);
}

static void quantize(const float *x, int from, int n, const struct activations *out, int64_t row)
{
    int groups = out->columns / GROUP_SIZE;
    for (int group = from; group < from + n; group++, x += GROUP_SIZE) {
        int16_t *codes =
            out->codes + row * out->code_stride + group / 2 * PAIR + group % 2 * (GROUP_SIZE / 4);
        struct rounding rounding = rounding_of(x, GROUP_SIZE, LARGEST_CODE);
        int16_t rounded[GROUP_SIZE];
        uint32_t sum = 0; /* NaN has a code of any size */
        for (int i = 0; i < GROUP_SIZE; i++) {
            int32_t code = round_value(x[i], rounding);
            rounded[i] = (int16_t)code;
            sum += (uint32_t)code;
        }
        uint64_t words[GROUP_SIZE / 4]; /* four columns each */
        memcpy(words, rounded, sizeof words);
        for (int plane = 0; plane < 4; plane++)
            for (int lane = 0; lane < GROUP_SIZE / 4; lane++)
                codes[plane * PAIR / 4 + lane] = (int16_t)(words[lane] >> 16 * plane);
        out->scales[row * groups + group] = rounding.scale;
        out->sums[row * groups + group] = rounding.scale * (float)(int32_t)sum;
    }
}

/* TILE_WIDTH rows of a matrix, transposed: lane = row. */
struct tile {
    vf scale[MAX_GROUPS][TILE_VECTORS], bias[MAX_GROUPS][TILE_VECTORS];
    vi dword[8][TILE_VECTORS]; /* of one group, still packed: four planes of two columns a lane */
    vf sum[MATMUL_TOKENS][TILE_VECTORS];
};

/* sums of T rows of x from row `first` on += their products with group g. */
static inline __attribute__((always_inline)) void multiply_tile(const struct tile *tile, int g,
                                                                const struct activations *x,
                                                                int64_t first, const int T,
                                                                vf (*sums)[TILE_VECTORS])
{
    int groups = x->columns / GROUP_SIZE;
    vi dot[TILE_TOKENS][TILE_VECTORS];
    const int16_t *codes[TILE_TOKENS];
    for (int t = 0; t < T; t++) {
        codes[t] =
            x->codes + (first + t) * x->code_stride + g / 2 * PAIR + g % 2 * (GROUP_SIZE / 4);
        for (int v = 0; v < TILE_VECTORS; v++)
            dot[t][v] = (vi){0};
    }
    for (int d = 0; d < 8; d++) {
        vi plane[TILE_VECTORS][4];
        for (int v = 0; v < TILE_VECTORS; v++)
            unpack_planes(tile->dword[d][v], plane[v]);
        for (int j = 0; j < 4; j++)
            for (int t = 0; t < T; t++) {
                int32_t two;
                memcpy(&two, codes[t] + j * PAIR / 4 + d * 2, sizeof two);
                vi both = (vi){0} + two;
                for (int v = 0; v < TILE_VECTORS; v++)
                    dot[t][v] = dot_pairs(dot[t][v], plane[v][j], both);
                for (int v = 0; v < TILE_VECTORS; v++)
                    IN_REGISTER(dot[t][v]); /* or the compiler gathers products in memory */
            }
    }
    for (int t = 0; t < T; t++) {
        int64_t at = (first + t) * groups + g;
        float scale = x->scales[at], sum = x->sums[at];
        for (int v = 0; v < TILE_VECTORS; v++)
            sums[t][v] +=
                term(dot[t][v], tile->scale[g][v] * scale, tile->bias[g][v], (vf){0} + sum);
    }
}

/* As few tiles as can be, of as even a size as can be; each size is compiled for itself. */
static inline __attribute__((always_inline)) void
multiply_tiles(struct tile *tile, int g, const struct activations *x, int64_t first, int n)
{
    int tiles = (n + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int t = 0, size; t < n; t += size, tiles--) {
        size = (n - t + tiles - 1) / tiles;
        switch (size) {
#define TILE(T)                                                                                    \
    case T:                                                                                        \
        multiply_tile(tile, g, x, first + t, T, tile->sum + t);                                    \
        break
            TILE(1);
            TILE(2);
            TILE(3);
            TILE(4);
#if TILE_TOKENS > 4
            TILE(5);
            TILE(6);
            TILE(7);
            TILE(8);
#endif
#undef TILE
        default:
            break;
        }
    }
}

/* Rows [from, from + count) of w, count <= TILE_WIDTH, times n <= MATMUL_TOKENS rows of x. */
static inline __attribute__((always_inline)) void
matmul_tile(struct tile *tile, const struct q4_rows *w, int from, int count,
            const struct activations *x, int64_t first, int n, float *y, int64_t stride)
{
    int groups = w->columns / GROUP_SIZE;
    for (int t = 0; t < n; t++)
        for (int v = 0; v < TILE_VECTORS; v++)
            tile->sum[t][v] = (vf){0};
    const unsigned char *weight = w->weight + (int64_t)from * (w->columns / 2);
    for (int g = 0; g < groups; g++) {
        prefetch_tile(weight + (int64_t)TILE_WIDTH * (w->columns / 2), g, TILE_WIDTH);
        for (int v = 0; v < TILE_VECTORS; v++) {
            vi dword[8];
            transpose8(weight + (int64_t)v * LANES * (w->columns / 2) + g * (GROUP_SIZE / 2),
                       w->columns / 2, count - v * LANES, 8, dword);
            for (int d = 0; d < 8; d++)
                tile->dword[d][v] = dword[d];
        }
        multiply_tiles(tile, g, x, first, n);
    }
    for (int t = 0; t < n; t++)
        memcpy(y + t * stride + from, tile->sum[t], (size_t)count * sizeof *y);
}

static void matmul_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch)
{
    struct tile *tile = scratch;
    _Static_assert(sizeof *tile <= KERNEL_SCRATCH, "a tile does not fit");
    int groups = w->columns / GROUP_SIZE;
    for (int from = 0; from < w->rows; from += TILE_WIDTH) {
        int count = w->rows - from < TILE_WIDTH ? w->rows - from : TILE_WIDTH;
        for (int v = 0; v < TILE_VECTORS; v++) {
            int64_t row = from + v * LANES;
            transpose_bf16(w->scales + row * groups * 2, groups, count - v * LANES,
                           tile->scale[0] + v, TILE_VECTORS);
            transpose_bf16(w->biases + row * groups * 2, groups, count - v * LANES,
                           tile->bias[0] + v, TILE_VECTORS);
        }
        for (int done = 0; done < n; done += MATMUL_TOKENS)
            matmul_tile(tile, w, from, count, x, first + done,
                        n - done < MATMUL_TOKENS ? n - done : MATMUL_TOKENS, y + done * stride,
                        stride);
    }
}

#define DOT_GROUPS GROUPS_PER_VECTOR
#if LANES == 16 /* a row is over too soon for the nearest cache (bench/NOTES.md) */
#define AHEAD 4096
#define AHEAD_CACHE 2
#else
#define AHEAD PREFETCH
#define AHEAD_CACHE 3
#endif

INLINE const int16_t *dot_codes(const int16_t *codes, int g)
{
    return codes + g / 2 * PAIR + g % 2 * (GROUP_SIZE / 4);
}

INLINE void dot_row(const unsigned char *packed, const int16_t *const *codes, const int N, vi *dot)
{
    vi plane[4], words = load_vector(packed);
    IN_REGISTER(words); /* or it is loaded four times, each time from two cache lines */
    unpack_planes(words, plane);
    UNROLL
    for (int r = 0; r < N; r++) {
        dot[r] = (vi){0};
        UNROLL
        for (int j = 0; j < 4; j++)
            dot[r] = dot_pairs(dot[r], plane[j], load_vector(codes[r] + j * PAIR / 4));
    }
}

#include "backend/cpu/matvec_ops.h"
