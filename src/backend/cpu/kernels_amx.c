/* AVX-512 with VNNI, and AMX tiles for products with many rows. */
#define LEVEL_NAME "amx"
#define TABLE kernels_amx
#define TWO_TERMS true
#define INT_OPS "backend/cpu/amx_ops.h"
#include "backend/cpu/kernels_avx512.h"
