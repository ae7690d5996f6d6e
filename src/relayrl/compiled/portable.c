/* The kernels for any machine: four floats are a register of SSE2 and of NEON. */
#define KERNELS_NAME "portable"
#define KERNELS_SYMBOL portable_kernels
#define LANES 4
#define BLOCK_ROWS 4
#define LOW_BLOCK_ROWS 2 /* BLOCK_ROWS - 2 */
#define BLOCK_VECTORS 2
#include "instruction_set.h"
