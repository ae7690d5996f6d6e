/* The kernels for x86-64 with AVX-512. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma")
#endif
#define KERNELS_NAME "avx512"
#define KERNELS_SYMBOL avx512_kernels
#define LANES 16
#define BLOCK_ROWS 6
#define LOW_BLOCK_ROWS 4 /* BLOCK_ROWS - 2 */
#define BLOCK_VECTORS 4
#include "instruction_set.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
