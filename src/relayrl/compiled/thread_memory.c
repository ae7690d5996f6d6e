/* Scratch memory, one block a thread: networks that take turns on a thread then take turns in its cache as well. */
#include <pthread.h>
#include <stdlib.h>

#include "thread_memory.h"

static _Thread_local float *block;
static _Thread_local int64_t capacity;
static pthread_key_t key; /* frees a thread's block when it ends */

static void make_key(void) { pthread_key_create(&key, free); }

float *thread_memory(int64_t count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (count <= capacity) return block;
    void *larger;
    pthread_once(&once, make_key);
    if (posix_memalign(&larger, 64, (size_t)count * sizeof(float))) return NULL;
    free(block);
    block = larger;
    capacity = count;
    pthread_setspecific(key, block);
    return block;
}
