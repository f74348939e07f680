/* AVX-512 without VNNI. */
#define LEVEL_NAME "avx512"
#define TABLE kernels_avx512
#define DOT_PAIRS(acc, a, b) _mm512_add_epi32(acc, _mm512_madd_epi16(a, b))
#include "backend/cpu/kernels_avx512.h"
