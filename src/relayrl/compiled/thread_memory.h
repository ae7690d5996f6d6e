#ifndef RELAYRL_THREAD_MEMORY_H
#define RELAYRL_THREAD_MEMORY_H
#include <stdint.h>

/* At least `count` floats, aligned to cache lines, until the same thread asks again; NULL: out of memory. */
float *thread_memory(int64_t count);

#endif
