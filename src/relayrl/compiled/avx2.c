/* The kernels for x86-64 with AVX2 and FMA. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define KERNELS_NAME "avx2"
#define KERNELS_SYMBOL avx2_kernels
#define LANES 8
#define BLOCK_ROWS 6
#define LOW_BLOCK_ROWS 4 /* BLOCK_ROWS - 2 */
#define BLOCK_VECTORS 2
#include "instruction_set.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
