#include "model/quant.h"

#include <string.h>

float bf16_load(const unsigned char *bytes)
{
    uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float vector_load(const struct vector *vector, int64_t index)
{
    const unsigned char *at = vector->data + index * vector->bytes_per_value;
    if (vector->bytes_per_value == 2)
        return bf16_load(at);
    uint32_t bits = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void quant_row_load(const struct quant_matrix *matrix, int index, int row, float *out)
{
    int64_t n = (int64_t)index * matrix->rows + row;
    int groups = matrix->columns / GROUP_SIZE;
    const unsigned char *code = matrix->weight + n * (matrix->columns * matrix->bits / 8);
    const unsigned char *scales = matrix->scales + n * groups * 2;
    const unsigned char *biases = matrix->biases + n * groups * 2;
    for (int group = 0; group < groups; group++) {
        float scale = bf16_load(scales + group * 2), bias = bf16_load(biases + group * 2);
        if (matrix->bits == 8) {
            for (int i = 0; i < GROUP_SIZE; i++)
                *out++ = scale * (float)*code++ + bias;
        } else {
            for (int i = 0; i < GROUP_SIZE / 2; i++, code++) {
                *out++ = scale * (float)(*code & 15) + bias;
                *out++ = scale * (float)(*code >> 4) + bias;
            }
        }
    }
}
