/* model/quant against the worked example of spec 4.4, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/quant.h"

/* w_i = (i - 20) / 64: the words that MLX packs, and the same as the file's bytes */
static const uint32_t words_4[8] = {0xdddeeeef, 0xbbccccdd, 0x9aaaaabb, 0x78888999,
                                    0x66667777, 0x44445555, 0x22233333, 0x00011112};
static const unsigned char bytes_4[32] = {
    0xef, 0xee, 0xde, 0xdd, 0xdd, 0xcc, 0xcc, 0xbb, 0xbb, 0xaa, 0xaa, 0x9a, 0x99, 0x89, 0x88, 0x78,
    0x77, 0x77, 0x66, 0x66, 0x55, 0x55, 0x44, 0x44, 0x33, 0x33, 0x23, 0x22, 0x12, 0x11, 0x01, 0x00};
static const int codes_4[64] = {15, 14, 14, 14, 14, 13, 13, 13, 13, 13, 12, 12, 12, 12, 11, 11,
                                11, 11, 10, 10, 10, 10, 10, 9,  9,  9,  9,  8,  8,  8,  8,  7,
                                7,  7,  7,  7,  6,  6,  6,  6,  5,  5,  5,  5,  4,  4,  4,  4,
                                3,  3,  3,  3,  3,  2,  2,  2,  2,  1,  1,  1,  1,  0,  0,  0};
static const unsigned char scale_4[2] = {0x8a, 0xbd}, bias[2] = {0x2c, 0x3f};
static const unsigned char scale_8[2] = {0x7d, 0xbb};

static void test_bf16(void **state)
{
    (void)state;
    assert_true(bf16_load(scale_4) == -0.0673828125f);
    assert_true(bf16_load(bias) == 0.671875f);
    const unsigned char odd[5] = {0, 0x80, 0x3f, 0x80, 0x7f}; /* 1 and infinity, unaligned */
    assert_true(bf16_load(odd + 1) == 1.0f);
    assert_true(bf16_load(odd + 3) > 3e38f);
    const unsigned char negative_zero[2] = {0, 0x80};
    assert_true(1 / bf16_load(negative_zero) < 0);
}

static void test_vector(void **state)
{
    (void)state;
    const unsigned char data[9] = {0xff, 0x00, 0x00, 0xc0, 0x3f, 0xcd, 0xcc, 0x4c, 0x3e};
    const struct vector floats = {.data = data + 1, .length = 2, .bytes_per_value = 4};
    assert_true(vector_load(&floats, 0) == 1.5f);
    assert_true(vector_load(&floats, 1) == 0.2f);
    const struct vector halves = {.data = data + 1, .length = 2, .bytes_per_value = 2};
    assert_true(vector_load(&halves, 0) == 0.0f);
    assert_true(vector_load(&halves, 1) == 1.5f);
}

static void test_packing_4(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++)
            assert_int_equal(bytes_4[4 * i + j], words_4[i] >> 8 * j & 255);
    for (int i = 0; i < 64; i++)
        assert_int_equal(words_4[i / 8] >> 4 * (i % 8) & 15, codes_4[i]);
}

static void test_dequantise_4(void **state)
{
    (void)state;
    const struct quant_matrix matrix = {.weight = bytes_4,
                                        .scales = scale_4,
                                        .biases = bias,
                                        .count = 1,
                                        .rows = 1,
                                        .columns = 64,
                                        .bits = 4};
    float out[64];
    quant_row_load(&matrix, 0, 0, out);
    assert_true(out[0] == -0.3388671875f);
    assert_true(out[1] == -0.271484375f);
    assert_true(out[63] == 0.671875f);
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == -0.0673828125f * (float)codes_4[i] + 0.671875f);
}

/* code = round((w - bias) / scale) with the unrounded scale 0.671875 / -174; w - bias is exact in
 * 64ths, so integers give it: 174 * (63 - i) / 43, to the nearest. */
static int code_8(int i)
{
    return (174 * (63 - i) * 2 + 43) / (2 * 43);
}

static void test_dequantise_8(void **state)
{
    (void)state;
    static const unsigned char first[11] = {0xff, 0xfb, 0xf7, 0xf3, 0xef, 0xeb,
                                            0xe7, 0xe3, 0xdf, 0xdb, 0xd6};
    unsigned char codes[64];
    for (int i = 0; i < 64; i++)
        codes[i] = (unsigned char)code_8(i);
    assert_memory_equal(codes, first, sizeof first);
    assert_int_equal(codes[61], 8);
    assert_int_equal(codes[62], 4);
    assert_int_equal(codes[63], 0);
    const struct quant_matrix matrix = {.weight = codes,
                                        .scales = scale_8,
                                        .biases = bias,
                                        .count = 1,
                                        .rows = 1,
                                        .columns = 64,
                                        .bits = 8};
    float out[64];
    quant_row_load(&matrix, 0, 0, out);
    assert_float_equal(out[0], -0.31254578f, 1e-8);
    assert_float_equal(out[1], -0.29710388f, 1e-8);
    assert_true(out[63] == 0.671875f);
    for (int i = 0; i < 64; i++) /* the quantised weight is within half a step of the true one */
        assert_float_equal(out[i], (float)(i - 20) / 64, 0.5f * 0.00386f + 2e-3f);
}

/* Several matrices, rows and groups, at an odd address: each finds its own codes and scales. */
static void test_places(void **state)
{
    (void)state;
    enum { COUNT = 3, ROWS = 2, GROUPS = 2 };
    for (int bits = 4; bits <= 8; bits += 4) {
        size_t row_bytes = (size_t)(GROUPS * 64 * bits / 8);
        unsigned char memory[1 + COUNT * ROWS * GROUPS * 64];
        unsigned char scales[1 + COUNT * ROWS * GROUPS * 2], biases[sizeof scales];
        for (size_t n = 0; n < COUNT * ROWS; n++) {
            memset(memory + 1 + n * row_bytes, bits == 4 ? (int)n * 0x11 : (int)n, row_bytes);
            for (size_t g = 0; g < GROUPS; g++) { /* scale 1 or -1, bias 0 or 2 */
                unsigned char *scale = scales + 1 + 2 * (n * GROUPS + g);
                unsigned char *offset = biases + 1 + 2 * (n * GROUPS + g);
                scale[0] = 0x80;
                scale[1] = g ? 0xbf : 0x3f;
                offset[0] = 0;
                offset[1] = g ? 0x40 : 0;
            }
        }
        const struct quant_matrix matrix = {memory + 1, scales + 1,  biases + 1, COUNT,
                                            ROWS,       GROUPS * 64, bits};
        for (int index = 0; index < COUNT; index++)
            for (int row = 0; row < ROWS; row++) {
                float out[GROUPS * 64], code = (float)(index * ROWS + row);
                quant_row_load(&matrix, index, row, out);
                assert_true(out[0] == code && out[63] == code);
                assert_true(out[64] == 2 - code && out[127] == 2 - code);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),         cmocka_unit_test(test_vector),
        cmocka_unit_test(test_packing_4),    cmocka_unit_test(test_dequantise_4),
        cmocka_unit_test(test_dequantise_8), cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
