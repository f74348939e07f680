/* AVX-512 with VNNI: vpdpwssd multiplies and adds pairs in one instruction. */
#define LEVEL_NAME "avx512vnni"
#define TABLE kernels_avx512vnni
#define DOT_PAIRS(acc, a, b) _mm512_dpwssd_epi32(acc, a, b)
#include "backend/cpu/kernels_avx512.h"
