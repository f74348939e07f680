/* Reading quantised and bf16 numbers from bytes at any address (spec 4.4), in float32. */
#pragma once

#include <stdint.h>

#include "model/weights.h"

float bf16_load(const unsigned char *bytes);
float vector_load(const struct vector *vector, int64_t index);
/* Expands row `row` of matrix `index` (0 unless it is an expert's) into columns floats. */
void quant_row_load(const struct quant_matrix *matrix, int index, int row, float *out);
