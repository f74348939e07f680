/* Hints to the compiler for the inner loops. */
#pragma once

#define INLINE static inline __attribute__((always_inline))
/* Before a loop that must become straight code, or its sums are not kept in registers. */
#if defined __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
