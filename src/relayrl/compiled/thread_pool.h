/* A pool of threads for the process, which share work out in blocks.
 *
 * What comes out must not depend on how many threads there are: sums are kept for each block, blocks follow from the shape of the
 * work alone, and sums of blocks are added in their order. Where blocks do not add anything up, there may be one for each thread.
 */
#ifndef RELAYRL_THREAD_POOL_H
#define RELAYRL_THREAD_POOL_H

#include <stdint.h>

#define MAX_THREADS 64
#define MAX_BLOCKS 65535

/* Let forked children begin with a pool of their own; before anything else, and before there are threads that could use it. */
void watch_forks(void);

/* The blocks of some work that one thread takes. */
typedef struct Blocks Blocks;

/* What a thread does: prepare, take blocks until there are no more, clean up. */
typedef void (*Work)(void *argument, Blocks *blocks);

/* The next block that this thread takes; -1: all are taken. */
int next_block(Blocks *blocks);

/* Do blocks 0 … num_blocks - 1 on at most `num_threads` threads, of which the caller is one; comes back when all are done. The
 * caller takes what no other thread has begun, so that it never waits for a thread that has no core. May be called by a block. */
void parallel_for(int num_blocks, Work work, void *argument, int num_threads);

/* Leave work of one block to the pool and come back at once: what `wait_for` must be called with. Where it cannot be left it is
 * done: -1. */
int leave(Work work, void *argument);

/* Wait until work that was left is done; do it where nobody has begun it, else take blocks that it shares out. */
void wait_for(int left);

/* Threads for work whose threads often wait for each other: one where a thread was found without a core a while ago, since every wait
 * may then take a time slice of some other program's. */
int threads_that_wait(int num_threads);

/* Threads that short work can count on, of which the caller is one: all where such work came just before, since a thread that is woken
 * for it is still there for the next, else those that are awake. */
int threads_awake(int num_threads);

/* How many threads are worth their waking, where one should have at least `per_thread` of an amount of work. */
static inline int threads_worth(int64_t amount, int64_t per_thread, int num_threads) {
    const int64_t count = amount / per_thread, limit = num_threads < MAX_THREADS ? num_threads : MAX_THREADS;
    return count < 2 || limit < 2 ? 1 : (int)(count < limit ? count : limit);
}

/* Where a block begins, where `count` rows or numbers are cut into blocks of the same size. */
static inline int64_t block_start(int64_t count, int block, int num_blocks) {
    return count / num_blocks * block + count % num_blocks * block / num_blocks;
}

#endif
