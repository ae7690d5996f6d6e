/* Worlds that take many steps in one call: what a rollout (rollout.c) asks of each kind of them.
 *
 * A block of worlds steps in memory of its own, laid out as in Python with the block's worlds for B: threads share nothing, and what a
 * block touches stays in the cache. State is copied in and out; what follows from it is Python's to work out again (`Worlds.observe`).
 */
#ifndef RELAYRL_WORLDS_H
#define RELAYRL_WORLDS_H

#include "python_types.h"

typedef struct {
    int64_t first, count;
    float *seen;         /* [count, N, O] */
    float *reward;       /* [count, N] */
    uint8_t *terminated; /* [count] */
    void *own;           /* of the kind */
} WorldBlock;

typedef struct WorldsObject WorldsObject;

typedef struct {
    size_t (*room)(const WorldsObject *worlds, int64_t count);      /* bytes of `own` */
    void (*enter)(const WorldsObject *worlds, WorldBlock *block);   /* take the state, and look around */
    void (*step)(const WorldsObject *worlds, WorldBlock *block, const void *action);
    void (*begin)(const WorldsObject *worlds, WorldBlock *block, int64_t b, const double *draws);
    void (*leave)(const WorldsObject *worlds, const WorldBlock *block); /* give the state back */
} WorldKind;

struct WorldsObject {
    PyObject_HEAD
    const WorldKind *kind;
    int64_t B, N, O, num_draws;    /* worlds, agents, numbers that an agent sees, numbers that begin an episode */
    int num_choices, action_width; /* actions are choices, or so many numbers; the other is 0 */
};

/* Room for `count` numbers of some type behind those before, at a cache line; NULL while sizes are added up. */
#define TAKE_ROOM(memory, used, pointer, count)                                                   \
    do {                                                                                          \
        if (memory) (pointer) = (void *)((char *)(memory) + (used));                              \
        (used) += ((size_t)(count) * sizeof *(pointer) + 63) / 64 * 64;                           \
    } while (0)

#endif
