/* 4-bit matrix products by AMX tiles. Included by kernels_avx512.h in place of int_ops.h.
 *
 * A tile product takes 64 int8 of 16 rows of x and 16 rows of w: one group. An int16 input is split
 * into two int8, x = 256 high + low, so two products and a shift give the exact int32 sum; plain
 * int8 or bf16 inputs would be cheaper and would cost the fidelity that this engine promises.
 * Inputs of a group lie as [high, low][even columns, odd columns][32], the order in which masking
 * the low and the high nibbles of 32 packed bytes gives the codes.
 *
 * Largest input: 127 * 256 + 127, so that both halves fit. */

#include "backend/cpu/tile_ops.h"

#define LARGEST_CODE 32639
#define TILE_ROWS 16  /* of x, and of w: the hardware's largest tile */
#define BLOCK_TILES 2 /* tiles of rows of w that share the tiles of x */
#define BLOCK_ROWS (BLOCK_TILES * TILE_ROWS)

static void quantize(const float *x, int from, int n, const struct activations *out, int64_t row)
{
    int groups = out->columns / GROUP_SIZE;
    for (int group = from; group < from + n; group++, x += GROUP_SIZE) {
        int8_t *halves = (int8_t *)(out->codes + row * out->code_stride + group * GROUP_SIZE);
        struct rounding rounding = rounding_of(x, GROUP_SIZE, LARGEST_CODE);
        uint32_t sum = 0; /* NaN has a code of any size */
        for (int i = 0; i < GROUP_SIZE; i++) {
            int32_t code = round_value(x[i], rounding), high = (code + 128) >> 8;
            int place = i % 2 * (GROUP_SIZE / 2) + i / 2;
            halves[place] = (int8_t)high;
            halves[GROUP_SIZE + place] = (int8_t)(code - high * 256);
            sum += (uint32_t)code;
        }
        out->scales[row * groups + group] = rounding.scale;
        out->sums[row * groups + group] = rounding.scale * (float)(int32_t)sum;
    }
}

/* The codes of one group, even columns in the lower half. */
static inline __m512i unpack_group(const unsigned char *packed)
{
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i bytes = _mm256_loadu_si256((const __m256i *)packed);
    __m256i even = _mm256_and_si256(bytes, mask);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    return _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
}

/* Tiles: 0 to 3 sums of [high, low][tile of w], 4 and 5 x's high and low, 6 and 7 w. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

static void configure(int x_rows)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.column_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i < 6 ? x_rows : TILE_ROWS);
    }
    _tile_loadconfig(&config);
}

/* BLOCK_ROWS rows of w: codes as tiles, scales and biases as vectors over rows. */
struct block {
    _Alignas(64) vi codes[MAX_GROUPS][BLOCK_TILES][16]; /* [even, odd][dword] */
    vf scale[MAX_GROUPS][BLOCK_TILES], bias[MAX_GROUPS][BLOCK_TILES];
    vi dot[2][2][BLOCK_TILES][TILE_ROWS]; /* [two in turns][high, low]… */
    vf sum[TILE_ROWS][BLOCK_TILES];
};

static void unpack_block(struct block *block, const struct q4_rows *w, int from, int count)
{
    int groups = w->columns / GROUP_SIZE, row_bytes = w->columns / 2;
    const vi mask = (vi){0} + 0x0F0F0F0F;
    for (int v = 0; v < BLOCK_TILES; v++) {
        int left = count - v * TILE_ROWS;
        int64_t row = from + v * TILE_ROWS;
        for (int g = 0; g < groups; g++) {
            vi dword[8];
            prefetch_tile(w->weight + (row + BLOCK_ROWS) * row_bytes, g, TILE_ROWS);
            transpose8(w->weight + row * row_bytes + g * (GROUP_SIZE / 2), row_bytes, left, 8,
                       dword);
            for (int d = 0; d < 8; d++) {
                block->codes[g][v][d] = dword[d] & mask;
                block->codes[g][v][8 + d] = dword[d] >> 4 & mask;
            }
        }
        transpose_bf16(w->scales + row * groups * 2, groups, left, block->scale[0] + v,
                       BLOCK_TILES);
        transpose_bf16(w->biases + row * groups * 2, groups, left, block->bias[0] + v, BLOCK_TILES);
    }
}

/* block->dot = group g of n rows of x, from `codes` on, times the block's rows. */
static inline void multiply_group(struct block *block, int g, const int16_t *codes,
                                  int64_t stride_bytes)
{
    vi(*dot)[BLOCK_TILES][TILE_ROWS] = block->dot[g % 2];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, codes, stride_bytes);
    _tile_loadd(6, block->codes[g][0], 64);
    _tile_loadd(7, block->codes[g][1], 64);
    _tile_loadd(5, codes + GROUP_SIZE / 2, stride_bytes);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, dot[0][0], 64);
    _tile_stored(1, dot[0][1], 64);
    _tile_stored(2, dot[1][0], 64);
    _tile_stored(3, dot[1][1], 64);
}

static void multiply_block(struct block *block, const struct q4_rows *w,
                           const struct activations *x, int64_t first, int n)
{
    int groups = w->columns / GROUP_SIZE, x_groups = x->columns / GROUP_SIZE;
    for (int t = 0; t < n; t++)
        for (int v = 0; v < BLOCK_TILES; v++)
            block->sum[t][v] = (vf){0};
    for (int g = 0; g < groups; g++) {
        multiply_group(block, g, x->codes + first * x->code_stride + g * GROUP_SIZE,
                       x->code_stride * (int64_t)sizeof *x->codes);
        for (int t = 0; t < n; t++) {
            int64_t at = (first + t) * x_groups + g;
            float scale = x->scales[at], sum = x->sums[at];
            for (int v = 0; v < BLOCK_TILES; v++) {
                vi dot = (block->dot[g % 2][0][v][t] << 8) + block->dot[g % 2][1][v][t];
                block->sum[t][v] +=
                    term(dot, block->scale[g][v] * scale, block->bias[g][v], (vf){0} + sum);
            }
        }
    }
}

static void matmul_q4(const struct q4_rows *w, const struct activations *x, int64_t first, int n,
                      float *y, int64_t stride, void *scratch)
{
    struct block *block = scratch;
    _Static_assert(sizeof *block <= KERNEL_SCRATCH, "a block does not fit");
    int rows = 0; /* of x that the tiles are set for */
    for (int from = 0; from < w->rows; from += BLOCK_ROWS) {
        int count = w->rows - from < BLOCK_ROWS ? w->rows - from : BLOCK_ROWS;
        unpack_block(block, w, from, count);
        for (int done = 0; done < n; done += TILE_ROWS) {
            int tokens = n - done < TILE_ROWS ? n - done : TILE_ROWS;
            if (tokens != rows)
                configure(rows = tokens);
            multiply_block(block, w, x, first + done, tokens);
            for (int t = 0; t < tokens; t++)
                memcpy(y + (done + t) * stride + from, block->sum[t], (size_t)count * sizeof *y);
        }
    }
    _tile_release(); /* the system saves no tiles of a thread that has none in use */
}

#define DOT_GROUPS 1
#define AHEAD PREFETCH
#define AHEAD_CACHE 3

INLINE const int16_t *dot_codes(const int16_t *codes, int g)
{
    return codes + g * GROUP_SIZE;
}

INLINE void dot_row(const unsigned char *packed, const int16_t *const *codes, const int N, vi *dot)
{
    __m512i w = unpack_group(packed);
    UNROLL
    for (int r = 0; r < N; r++) {
        __m512i high = _mm512_loadu_si512(codes[r]);
        __m512i low = _mm512_loadu_si512(codes[r] + GROUP_SIZE / 2);
        __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, high);
        dot[r] = (vi)_mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), w, low);
    }
}

#include "backend/cpu/matvec_ops.h"
