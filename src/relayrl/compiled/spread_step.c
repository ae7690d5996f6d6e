/* A whole step of simple_spread, as a Python object that holds the arrays of its worlds. NumPy's exp and log1p come in between:
 * `find_contacts` gives the exponents, `step` does the rest.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "numpy_functions.h"
#include "particles.h"
#include "thread_memory.h"
#include "thread_pool.h"
#include "worlds.h"

#define MIN_PAIRS_PER_THREAD 2000 /* of somebody and what it sees, for a thread that is awake: 4 µs */
#define MIN_PAIRS_TO_WAKE 12000   /* for one that sleeps */
#define MIN_PAIRS_UNLOCKED 6000   /* fewer are done before another thread could have taken the GIL */

#define CACHE_LINE 128            /* bytes; of most processors two */

enum { POSITION, VELOCITY, OFFSET, DISTANCE, REWARD, TERMINATED, REACH, EXPONENT, OBSERVATION, NUM_ARRAYS };

typedef struct {
    int64_t N, B, O;                             /* agents and landmarks, worlds, numbers that an agent sees */
    int64_t num_landmarks_seen, num_agents_seen; /* the nearest; 0: all of them, in their order */
    float acceleration, step_s, keep, factor, tiny, touch_distance, cover_distance;
    double local_ratio;
    int is_continuous, ends_when_covered;
    Contacts contacts;
    int64_t *seen; /* [N, K] */
    float *force, *push; /* [2, N, B] */
    void *array[NUM_ARRAYS];
} Spread;

typedef struct {
    WorldsObject worlds;
    Spread spread;
    Py_buffer buffers[NUM_ARRAYS];
} SpreadStepObject;

/* ---- the step of worlds [from, to) ------------------------------------------------------------------------------- */

static void decode_choices(const Spread *s, const int64_t *action, Range w) {
    float *x = s->force, *y = s->force + s->N * s->B;
    const float a = s->acceleration, by_x[NUM_MOVES] = {0.0f, -a, a, 0.0f, 0.0f}, by_y[NUM_MOVES] = {0.0f, 0.0f, 0.0f, -a, a};
    for (int64_t b = w.from; b < w.to; b++) {
        for (int64_t n = 0; n < s->N; n++) {
            const int64_t given = action[b * s->N + n], choice = given < 0 ? 0 : given < NUM_MOVES ? given : NUM_MOVES - 1;
            x[n * s->B + b] = by_x[choice];
            y[n * s->B + b] = by_y[choice];
        }
    }
}

static void decode_actions(const Spread *s, const void *action, Range w) {
    if (s->is_continuous) decode(s->N, s->B, NUM_MOVES, action, s->acceleration, w, s->force, s->force + s->N * s->B);
    else decode_choices(s, action, w);
}

/* (1 − ρ) (−Σ min distance) + ρ (−collisions), and whether all landmarks are covered. */
static void reward_of(const Spread *s, Range w) {
    const int64_t N = s->N, K = 2 * N - 1, B = s->B;
    const float *distance = s->array[DISTANCE], share = (float)(s->local_ratio - 1.0);
    float *reward = s->array[REWARD];
    uint8_t *terminated = s->array[TERMINATED];
    float team[CHUNK];
    uint8_t is_uncovered[CHUNK] = {0};
    const int64_t count = w.to - w.from;
    for (int64_t l = 0; l < N; l++) {
        float least[CHUNK];
        const float *first = distance + l * B + w.from;
        for (int64_t b = 0; b < count; b++) least[b] = first[b];
        for (int64_t n = 1; n < N; n++) {
            const float *d = first + n * K * B;
            for (int64_t b = 0; b < count; b++) least[b] = least[b] < d[b] || least[b] != least[b] ? least[b] : d[b];
        }
        for (int64_t b = 0; b < count; b++) team[b] = l ? team[b] + least[b] : least[b];
        for (int64_t b = 0; b < count; b++) is_uncovered[b] |= least[b] >= s->cover_distance;
    }
    for (int64_t b = 0; b < count; b++) team[b] *= share;
    for (int64_t n = 0; n < N; n++) {
        int32_t collisions[CHUNK] = {0};
        for (int64_t k = N; k < K; k++) {
            const float *d = distance + (n * K + k) * B + w.from;
            for (int64_t b = 0; b < count; b++) collisions[b] += d[b] < s->touch_distance;
        }
        for (int64_t b = 0; b < count; b++) {
            const float own = (float)(collisions[b] * -s->local_ratio);
            reward[(w.from + b) * N + n] = own + team[b];
        }
    }
    for (int64_t b = 0; s->ends_when_covered && b < count; b++) terminated[w.from + b] = !is_uncovered[b];
}

static int is_farther(float a, float b) { return a > b || (a != a && b == b); }

/* The `count` nearest of K bodies in one world, nearest first, of equals the first; not a number is farthest. */
static void find_nearest(const float *distance, int64_t K, int64_t B, int64_t count, int32_t *nearest) {
    for (int64_t k = 0, length = 0; k < K; k++) {
        int64_t at = length;
        while (at && is_farther(distance[nearest[at - 1] * B], distance[k * B])) at--;
        if (at == count) continue;
        length += length < count;
        for (int64_t i = length - 1; i > at; i--) nearest[i] = nearest[i - 1];
        nearest[at] = (int32_t)k;
    }
}

/* Numbers [2, …, B] of x and y, `apart` from each other, into two columns of what an agent sees. */
static void write_pair(const Spread *s, Range w, const float *x, int64_t apart, float *seen) {
    const int64_t stride = s->N * s->O;
    for (int64_t b = w.from; b < w.to; b++) {
        seen[b * stride] = x[b];
        seen[b * stride + 1] = x[apart + b];
    }
}

/* The bodies [first, first + K) of what agent n sees, or the `limit` nearest, into columns of (x, y); gives where these end. */
static float *write_bodies(const Spread *s, Range w, int64_t n, int64_t first, int64_t K, int64_t limit, int32_t *nearest, float *seen) {
    const int64_t B = s->B, all = 2 * s->N - 1, column = (n * all + first) * B, apart = s->N * all * B;
    const float *x = (const float *)s->array[OFFSET] + column, *distance = (const float *)s->array[DISTANCE] + column;
    for (int64_t k = 0; !limit && k < K; k++) write_pair(s, w, x + k * B, apart, seen + 2 * k);
    for (int64_t b = w.from; limit && b < w.to; b++) {
        const int64_t count = limit < K ? limit : K;
        float *own = seen + b * s->N * s->O;
        find_nearest(distance + b, K, B, count, nearest);
        for (int64_t i = 0; i < count; i++) {
            own[2 * i] = x[nearest[i] * B + b];
            own[2 * i + 1] = x[apart + nearest[i] * B + b];
        }
    }
    return seen + 2 * (limit ? limit : K);
}

static void write_seen(const Spread *s, Range w, int32_t *nearest) {
    const int64_t N = s->N, B = s->B;
    const float *position = s->array[POSITION], *velocity = s->array[VELOCITY];
    for (int64_t n = 0; n < N; n++) {
        float *seen = (float *)s->array[OBSERVATION] + n * s->O;
        write_pair(s, w, velocity + n * B, N * B, seen);
        write_pair(s, w, position + n * B, 2 * N * B, seen + 2);
        float *others = write_bodies(s, w, n, 0, N, s->num_landmarks_seen, nearest, seen + 4);
        write_bodies(s, w, n, N, N - 1, s->num_agents_seen, nearest, others);
    }
}

#define MIN_TILE 8       /* worlds that are written at a time */
#define TILE_BYTES 32768 /* of what they see, which stays in the cache from one column to the next */

static void look_around(const Spread *s, Range w, int32_t *nearest) {
    const int64_t N = s->N;
    measure(N, 2 * N - 1, s->B, 2 * N, 0, s->array[POSITION], s->seen, w, s->array[OFFSET], s->array[DISTANCE]);
    const int64_t fitting = TILE_BYTES / (4 * N * s->O), tile = fitting < MIN_TILE ? MIN_TILE : fitting;
    for (int64_t from = w.from; from < w.to; from += tile) {
        write_seen(s, (Range){from, w.to - from < tile ? w.to : from + tile}, nearest);
    }
}

static void advance(const Spread *s, const void *action, Range w) {
    const int64_t N = s->N, B = s->B;
    decode_actions(s, action, w);
    push_apart(&s->contacts, s->array[EXPONENT], s->array[OFFSET], s->factor, s->tiny, w, s->push);
    move(N, B, 2 * N, N, 0, s->array[POSITION], s->array[VELOCITY], s->force, s->push, s->step_s, s->keep, w);
}

/* ---- blocks of worlds -------------------------------------------------------------------------------------------- */

typedef struct {
    const Spread *step;
    const void *action; /* NULL: nobody moves */
    int num_blocks;
    atomic_int failed;
} SpreadWork;

static int64_t num_chunks(const Spread *s) { return (s->B + CHUNK - 1) / CHUNK; }

static void step_chunks(const Spread *s, const void *action, int64_t first, int64_t end, int32_t *nearest) {
    for (int64_t chunk = first; chunk < end; chunk++) {
        const int64_t from = chunk * CHUNK, left = s->B - from;
        const Range w = {from, left < CHUNK ? s->B : from + CHUNK};
        if (action) advance(s, action, w);
        look_around(s, w, nearest);
        if (action) reward_of(s, w);
    }
}

/* Worlds are independent: how they are cut changes no number. Threads take whole chunks, since cores that write to the same cache
 * lines wait for each other, and every array ends in worlds. */
static void step_worlds(void *argument, Blocks *blocks) {
    SpreadWork *work = argument;
    const Spread *s = work->step;
    int32_t *nearest = (int32_t *)thread_memory(s->N);
    if (!nearest) {
        work->failed = 1;
        return;
    }
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t first = block_start(num_chunks(s), block, work->num_blocks);
        step_chunks(s, work->action, first, block_start(num_chunks(s), block + 1, work->num_blocks), nearest);
    }
}

static int64_t num_pairs(const Spread *s) { return s->B * s->N * (2 * s->N - 1); }

static int share_worlds(const Spread *s, const void *action, int num_threads) {
    const int awake = threads_worth(num_pairs(s), MIN_PAIRS_PER_THREAD, num_threads);
    const int woken = threads_worth(num_pairs(s), MIN_PAIRS_TO_WAKE, num_threads);
    const int useful = awake < 2 ? 1 : threads_awake(awake);
    const int64_t wanted = useful > woken ? useful : woken, most = num_chunks(s);
    SpreadWork work = {.step = s, .action = action, .num_blocks = (int)(wanted < most ? wanted : most)};
    parallel_for(work.num_blocks, step_worlds, &work, work.num_blocks);
    return work.failed;
}

static PyObject *run(const Spread *s, const void *action, int num_threads) {
    int failed;
    if (num_pairs(s) < MIN_PAIRS_UNLOCKED) {
        failed = share_worlds(s, action, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS
        failed = share_worlds(s, action, num_threads);
        Py_END_ALLOW_THREADS
    }
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- steps in a row ---------------------------------------------------------------------------------------------- */

/* The block's worlds, and what else their steps need, in the block's memory. */
typedef struct {
    Spread spread;
    int32_t *nearest;
} SpreadBlock;

static size_t lay_out_block(const Spread *s, int64_t count, void *memory) {
    const int64_t N = s->N, K = 2 * N - 1, pairs = N * (N - 1);
    SpreadBlock *block = memory;
    Spread unused = {0}, *own = memory ? &block->spread : &unused;
    size_t used = (sizeof *block + 63) / 64 * 64;
    int32_t *nearest = NULL;
    float *position = NULL, *velocity = NULL, *offset = NULL, *distance = NULL, *exponent = NULL;
    TAKE_ROOM(memory, used, position, 4 * N * count);
    TAKE_ROOM(memory, used, velocity, 2 * N * count);
    TAKE_ROOM(memory, used, offset, 2 * N * K * count);
    TAKE_ROOM(memory, used, distance, N * K * count);
    TAKE_ROOM(memory, used, exponent, pairs * count + 1);
    TAKE_ROOM(memory, used, own->force, 2 * N * count);
    TAKE_ROOM(memory, used, own->push, 2 * N * count);
    TAKE_ROOM(memory, used, own->contacts.start, pairs + 1);
    TAKE_ROOM(memory, used, own->contacts.close, pairs * count + 1);
    TAKE_ROOM(memory, used, nearest, N);
    if (!memory) return used;
    void *const arrays[] = {position, velocity, offset, distance};
    memcpy(own->array, arrays, sizeof arrays);
    own->array[EXPONENT] = exponent;
    own->contacts.distance = distance;
    block->nearest = nearest;
    return used;
}

static const Spread *spread_of(const WorldsObject *worlds) { return &((const SpreadStepObject *)worlds)->spread; }

static size_t room_of_spread(const WorldsObject *worlds, int64_t count) { return lay_out_block(spread_of(worlds), count, NULL); }

/* Rows [rows, B] of all worlds to those of a block's, or back. */
static void copy_worlds(float *to, int64_t to_width, const float *from, int64_t from_width, int64_t rows, int64_t count) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_width, from + i * from_width, (size_t)count * sizeof(float));
}

static void enter_spread(const WorldsObject *worlds, WorldBlock *block) {
    const Spread *all = spread_of(worlds);
    const int64_t B = all->B, count = block->count;
    SpreadBlock *own = block->own;
    Spread *s = &own->spread;
    *s = *all;
    s->B = s->contacts.B = count;
    lay_out_block(all, count, own);
    s->array[REWARD] = block->reward;
    s->array[TERMINATED] = block->terminated;
    s->array[OBSERVATION] = block->seen;
    copy_worlds(s->array[POSITION], count, (const float *)all->array[POSITION] + block->first, B, 4 * s->N, count);
    copy_worlds(s->array[VELOCITY], count, (const float *)all->array[VELOCITY] + block->first, B, 2 * s->N, count);
    memset(block->seen, 0, (size_t)(count * s->N * s->O) * sizeof(float)); /* agents are silent: nobody writes that */
    step_chunks(s, NULL, 0, num_chunks(s), own->nearest);
}

static void step_spread_block(const WorldsObject *worlds, WorldBlock *block, const void *action) {
    const SpreadBlock *own = block->own;
    const Spread *s = &own->spread;
    float *exponent = s->array[EXPONENT];
    const int64_t num_close = find_close(&s->contacts, exponent);
    apply_numpy(NUMPY_EXP, exponent, exponent, num_close);
    apply_numpy(NUMPY_LOG1P, exponent, exponent, num_close);
    step_chunks(s, action, 0, num_chunks(s), own->nearest);
}

static void begin_spread(const WorldsObject *worlds, WorldBlock *block, int64_t b, const double *draws) {
    const SpreadBlock *own = block->own;
    const Spread *s = &own->spread;
    float *position = s->array[POSITION], *velocity = s->array[VELOCITY];
    for (int64_t i = 0; i < 4 * s->N; i++) position[(i % 2 * 2 * s->N + i / 2) * s->B + b] = (float)(2 * draws[i] - 1);
    for (int64_t i = 0; i < 2 * s->N; i++) velocity[i * s->B + b] = 0.0f;
    look_around(s, (Range){b, b + 1}, own->nearest);
}

static void leave_spread(const WorldsObject *worlds, const WorldBlock *block) {
    const Spread *all = spread_of(worlds), *s = &((const SpreadBlock *)block->own)->spread;
    copy_worlds((float *)all->array[POSITION] + block->first, all->B, s->array[POSITION], s->B, 4 * s->N, s->B);
    copy_worlds((float *)all->array[VELOCITY] + block->first, all->B, s->array[VELOCITY], s->B, 2 * s->N, s->B);
}

static const WorldKind SPREAD = {room_of_spread, enter_spread, step_spread_block, begin_spread, leave_spread};

/* ---- the Python type --------------------------------------------------------------------------------------------- */

/* What each agent sees: landmarks, then the other agents. */
static void number_seen(int64_t N, int64_t *seen) {
    for (int64_t n = 0; n < N; n++) {
        for (int64_t l = 0; l < N; l++) *seen++ = N + l;
        for (int64_t other = 0; other < N; other++) {
            if (other != n) *seen++ = other;
        }
    }
}

/* Room that begins at a cache line; NULL: out of memory. */
static float *new_numbers(int64_t count) {
    void *room;
    return posix_memalign(&room, CACHE_LINE, (size_t)(count + 1) * sizeof(float)) ? NULL : room;
}

static int fill(PyObject *object, PyObject *args) {
    SpreadStepObject *step = (SpreadStepObject *)object;
    Spread *s = &step->spread;
    int sizes[4]; /* N, B, landmarks and agents seen */
    Py_buffer *b = step->buffers;
    PyObject *arrays;
    Contacts *c = &s->contacts;
    if (!PyArg_ParseTuple(
            args, "(iiii)pp(fff)(ffff)(dff)O:SpreadStep", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &s->is_continuous,
            &s->ends_when_covered, &s->acceleration, &s->step_s, &s->keep, &c->margin, &c->bound, &s->factor, &s->tiny, &s->local_ratio,
            &s->touch_distance, &s->cover_distance, &arrays
        ))
        return -1;
    if (read_arrays(arrays, NUM_ARRAYS, ~(1u << REACH), 0, b)) return -1;
    const int64_t N = s->N = sizes[0], B = s->B = sizes[1], K = 2 * N - 1, C = N - 1;
    if (!are_sizes(sizes, 4)) return -1;
    if (N < 1) {
        PyErr_SetString(PyExc_ValueError, "there are no agents");
        return -1;
    }
    s->num_landmarks_seen = sizes[2];
    s->num_agents_seen = sizes[3];
    const int64_t landmarks = sizes[2] ? sizes[2] : N, agents = sizes[3] ? sizes[3] : C;
    s->O = 4 + 2 * landmarks + 4 * agents;
    const Expected expected[] = {
        {"position", 4 * N * B, 4}, {"velocity", 2 * N * B, 4}, {"offset", 2 * N * K * B, 4}, {"distance", N * K * B, 4},
        {"reward", B * N, 4}, {"terminated", B, 1}, {"reach", N * C, 4}, {"exponent", N * C * B + 1, 4}
    };
    if (!are_sound(b, expected, OBSERVATION) || !has_table(&b[OBSERVATION], B * N, s->O, 4, "observation")) return -1;
    for (int i = 0; i < NUM_ARRAYS; i++) s->array[i] = b[i].buf;
    c->N = N, c->K = K, c->B = B, c->first = N;
    c->reach = b[REACH].buf;
    c->distance = b[DISTANCE].buf;
    c->start = calloc((size_t)(N * C + 1), sizeof *c->start);
    c->close = calloc((size_t)(N * C * B + 1), sizeof *c->close);
    s->seen = calloc((size_t)(N * K), sizeof *s->seen);
    s->force = new_numbers(2 * N * B);
    s->push = new_numbers(2 * N * B);
    if (!c->start || !c->close || !s->seen || !s->force || !s->push) {
        PyErr_NoMemory();
        return -1;
    }
    number_seen(N, s->seen);
    WorldsObject *worlds = &step->worlds;
    worlds->kind = &SPREAD;
    worlds->B = B, worlds->N = N, worlds->O = s->O, worlds->num_draws = 4 * N;
    worlds->num_choices = s->is_continuous ? 0 : NUM_MOVES;
    worlds->action_width = s->is_continuous ? NUM_MOVES : 0;
    return 0;
}

static PyObject *SpreadStep_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { return made(type, args, fill); }

static void SpreadStep_dealloc(PyObject *object) {
    Spread *s = &((SpreadStepObject *)object)->spread;
    release_all(((SpreadStepObject *)object)->buffers, NUM_ARRAYS);
    free(s->contacts.start);
    free(s->contacts.close);
    free(s->seen);
    free(s->force);
    free(s->push);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *SpreadStep_find_contacts(PyObject *object, PyObject *unused) {
    const Spread *s = &((SpreadStepObject *)object)->spread;
    return PyLong_FromLongLong(find_close(&s->contacts, s->array[EXPONENT]));
}

static PyObject *SpreadStep_step(PyObject *object, PyObject *args) {
    const Spread *s = &((SpreadStepObject *)object)->spread;
    Py_buffer action;
    int num_threads;
    if (!PyArg_ParseTuple(args, "y*i:step", &action, &num_threads)) return NULL;
    PyObject *done = NULL;
    const int64_t count = s->B * s->N;
    if (s->is_continuous ? has_size(&action, count * NUM_MOVES, 4, "action") : has_size(&action, count, 8, "action")) {
        done = run(s, action.buf, num_threads);
    }
    PyBuffer_Release(&action);
    return done;
}

static PyObject *SpreadStep_observe(PyObject *object, PyObject *args) {
    int num_threads;
    if (!PyArg_ParseTuple(args, "i:observe", &num_threads)) return NULL;
    return run(&((SpreadStepObject *)object)->spread, NULL, num_threads);
}

static PyMethodDef SpreadStep_methods[] = {
    {"find_contacts", SpreadStep_find_contacts, METH_NOARGS, "Exponents of those who touch; gives how many."},
    {"step", SpreadStep_step, METH_VARARGS, "One step of every world, once their softplus is known."},
    {"observe", SpreadStep_observe, METH_VARARGS, "What everybody sees."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SpreadStep_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.SpreadStep",
    .tp_doc = "A step of simple_spread on live arrays.",
    .tp_basicsize = sizeof(SpreadStepObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = SpreadStep_new,
    .tp_dealloc = SpreadStep_dealloc,
    .tp_methods = SpreadStep_methods,
};
