/* Whole rollouts of native environments: observe, act, step, and write rows, T times, in one call. Worlds are independent: threads take
 * blocks of them through all steps, and how they are cut changes no number.
 *
 * The numbers are those of `runtime.collector` with `accelerator.mlp_actor` and `envs.native.batched_environment`. Noise is drawn before,
 * in the order in which steps would draw it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "numpy_functions.h"
#include "numpy_rounding.h"
#include "worlds.h"

#define MIN_PRODUCTS_PER_THREAD 2000000 /* multiplications, of a thread that is awake: 40 µs */
#define MIN_PRODUCTS_TO_WAKE 10000000  /* of one that sleeps */
#define PRODUCTS_PER_ROW 2000          /* as many as take the time of what a row costs besides its forward pass */
#define BLOCK_LANES 128                /* that blocks should not have more of, where there is one for every thread */

/* By world, int64 [B]: what runs on from step to step. */
enum { STREAM_KEY, EPISODE, ELAPSED, BEGAN_AT, CLOCK_EPISODE, CLOCK_STEP, NUM_COUNTERS };

typedef struct {
    const WorldsObject *worlds;
    const Kernels *kernels;
    Acting acting; /* what all rows have in common */
    int64_t T, limit, num_steps;
    int limit_hides_end, num_blocks;
    const float *draws, *shift, *scale; /* shift: NULL where observations are taken as they are */
    float clip;
    float *obs, *action, *logp, *reward, *last_obs; /* [T, L, …] */
    int64_t *choice;
    uint8_t *terminated, *truncated;
    double *sums, *returns;                  /* [B, N] of running episodes, [T, B, N] of those that ended */
    int64_t *began, *env_episode, *env_step; /* [T, B] */
    int64_t *counters[NUM_COUNTERS];
    atomic_int failed;
} Rollout;

/* A block's own memory. */
typedef struct {
    WorldBlock worlds;
    float *x; /* [count · N, O] normalised */
    int64_t *counters[NUM_COUNTERS];
    double *sums, *draws;
} RolloutBlock;

/* ---- where episodes begin: `envs.native.random_streams` ---------------------------------------------------------- */

#define GOLDEN 0x9E3779B97F4A7C15u

static uint64_t mix64(uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

static void draw_beginning(uint64_t key, uint64_t episode, int64_t count, double *draws) {
    const uint64_t stream = mix64(key + (episode + 1) * GOLDEN);
    for (int64_t d = 0; d < count; d++) draws[d] = (double)(mix64(stream + (uint64_t)(d + 1) * GOLDEN) >> 11) * 0x1p-53;
}

/* ---- a block of worlds ------------------------------------------------------------------------------------------- */

static size_t lay_out(const Rollout *r, int64_t count, RolloutBlock *block, void *memory) {
    const WorldsObject *w = r->worlds;
    size_t used = 0;
    char *own = NULL;
    TAKE_ROOM(memory, used, block->worlds.seen, count * w->N * w->O);
    TAKE_ROOM(memory, used, block->worlds.reward, count * w->N);
    TAKE_ROOM(memory, used, block->worlds.terminated, count);
    TAKE_ROOM(memory, used, block->x, count * w->N * w->O);
    for (int i = 0; i < NUM_COUNTERS; i++) TAKE_ROOM(memory, used, block->counters[i], count);
    TAKE_ROOM(memory, used, block->sums, count * w->N);
    TAKE_ROOM(memory, used, block->draws, w->num_draws);
    TAKE_ROOM(memory, used, own, w->kind->room(w, count));
    block->worlds.own = own;
    return used;
}

static void enter(const Rollout *r, RolloutBlock *block) {
    const WorldsObject *w = r->worlds;
    const int64_t first = block->worlds.first, count = block->worlds.count;
    memset(block->worlds.terminated, 0, (size_t)count);
    for (int i = 0; i < NUM_COUNTERS; i++) {
        const size_t size = (size_t)count * sizeof(int64_t);
        if (r->counters[i]) memcpy(block->counters[i], r->counters[i] + first, size);
        else memset(block->counters[i], 0, size);
    }
    memcpy(block->sums, r->sums + first * w->N, (size_t)(count * w->N) * sizeof(double));
    w->kind->enter(w, &block->worlds);
}

static void leave_block(const Rollout *r, const RolloutBlock *block) {
    const WorldsObject *w = r->worlds;
    const int64_t first = block->worlds.first, count = block->worlds.count;
    for (int i = EPISODE; i < NUM_COUNTERS; i++) {
        if (r->counters[i]) memcpy(r->counters[i] + first, block->counters[i], (size_t)count * sizeof(int64_t));
    }
    memcpy(r->sums + first * w->N, block->sums, (size_t)(count * w->N) * sizeof(double));
    w->kind->leave(w, &block->worlds);
}

/* clip((x − shift) · scale); what is not a number stays so. */
static void normalise(const Rollout *r, const float *seen, int64_t num_rows, int64_t width, float *x) {
    for (int64_t row = 0; row < num_rows; row++) {
        for (int64_t i = 0; i < width; i++) {
            const float scaled = (seen[row * width + i] - r->shift[i]) * r->scale[i];
            const float above = scaled < -r->clip ? -r->clip : scaled;
            x[row * width + i] = above > r->clip ? r->clip : above;
        }
    }
}

/* Begin row t: what the block's lanes see and do. */
static const void *act_in(const Rollout *r, const RolloutBlock *block, int64_t t, int *failed) {
    const WorldsObject *w = r->worlds;
    const int64_t num_rows = block->worlds.count * w->N, row = (t * w->B + block->worlds.first) * w->N, A = w->action_width;
    const float *seen = block->worlds.seen;
    Acting acting = r->acting;
    memcpy(r->obs + row * w->O, seen, (size_t)(num_rows * w->O) * sizeof(float));
    if (r->shift) normalise(r, seen, num_rows, w->O, block->x);
    acting.x = r->shift ? block->x : seen;
    acting.num_rows = num_rows;
    acting.draws = r->draws + row * (A ? A : 1);
    acting.choice = A ? NULL : r->choice + row;
    acting.action = A ? r->action + row * A : NULL;
    acting.logp = r->logp ? r->logp + row : NULL;
    if (r->kernels->act(&acting, 1)) *failed = 1;
    return A ? (const void *)acting.action : acting.choice;
}

/* The end of world b's episode, and the beginning of the next. */
static void end_episode(const Rollout *r, RolloutBlock *block, int64_t t, int64_t b) {
    const WorldsObject *w = r->worlds;
    const int64_t world = t * w->B + block->worlds.first + b, N = w->N;
    memcpy(r->last_obs + world * N * w->O, block->worlds.seen + b * N * w->O, (size_t)(N * w->O) * sizeof(float));
    memcpy(r->returns + world * N, block->sums + b * N, (size_t)N * sizeof(double));
    memset(block->sums + b * N, 0, (size_t)N * sizeof(double));
    r->began[world] = block->counters[BEGAN_AT][b];
    block->counters[BEGAN_AT][b] = r->num_steps + t + 1;
    block->counters[ELAPSED][b] = 0;
    block->counters[CLOCK_STEP][b] = 0;
    block->counters[CLOCK_EPISODE][b]++;
    const int64_t episode = ++block->counters[EPISODE][b];
    draw_beginning((uint64_t)block->counters[STREAM_KEY][b], (uint64_t)episode, w->num_draws, block->draws);
    w->kind->begin(w, &block->worlds, b, block->draws);
}

/* Finish row t: what came of it. */
static void finish_row(const Rollout *r, RolloutBlock *block, int64_t t) {
    const WorldsObject *w = r->worlds;
    const int64_t count = block->worlds.count, N = w->N, first = t * w->B + block->worlds.first;
    if (r->env_episode) {
        memcpy(r->env_episode + first, block->counters[CLOCK_EPISODE], (size_t)count * sizeof(int64_t));
        memcpy(r->env_step + first, block->counters[CLOCK_STEP], (size_t)count * sizeof(int64_t));
    }
    memcpy(r->reward + first * N, block->worlds.reward, (size_t)(count * N) * sizeof(float));
    for (int64_t i = 0; i < count * N; i++) block->sums[i] += block->worlds.reward[i];
    for (int64_t b = 0; b < count; b++) {
        const int is_late = ++block->counters[ELAPSED][b] >= r->limit, has_ended = block->worlds.terminated[b];
        memset(r->terminated + (first + b) * N, has_ended && !(is_late && r->limit_hides_end), (size_t)N);
        memset(r->truncated + (first + b) * N, is_late, (size_t)N);
        block->counters[CLOCK_STEP][b]++;
        if (has_ended || is_late) end_episode(r, block, t, b);
    }
}

static void collect_block(const Rollout *r, RolloutBlock *block, int *failed) {
    enter(r, block);
    for (int64_t t = 0; t < r->T && !*failed; t++) {
        const void *action = act_in(r, block, t, failed);
        r->worlds->kind->step(r->worlds, &block->worlds, action);
        finish_row(r, block, t);
    }
    leave_block(r, block);
}

static void collect_blocks(void *argument, Blocks *blocks) {
    Rollout *r = argument;
    const int64_t B = r->worlds->B;
    RolloutBlock block = {0};
    void *memory;
    int failed = posix_memalign(&memory, 64, lay_out(r, B / r->num_blocks + 1, &block, NULL));
    if (failed) memory = NULL;
    for (int i; !failed && (i = next_block(blocks)) >= 0;) {
        block.worlds.first = block_start(B, i, r->num_blocks);
        block.worlds.count = block_start(B, i + 1, r->num_blocks) - block.worlds.first;
        lay_out(r, block.worlds.count, &block, memory);
        collect_block(r, &block, &failed);
    }
    free(memory);
    if (failed) r->failed = 1;
}

/* As many blocks as threads that are worth it, or a multiple of that, so that all end at the same time. */
static int blocks_of(const Rollout *r, int num_threads, int *useful) {
    const int64_t lanes = r->worlds->B * r->worlds->N;
    const int64_t products = r->T * lanes * (num_parameters(r->acting.network) + PRODUCTS_PER_ROW);
    const int awake = threads_worth(products, MIN_PRODUCTS_PER_THREAD, threads_awake(num_threads));
    const int woken = threads_worth(products, MIN_PRODUCTS_TO_WAKE, num_threads);
    *useful = awake > woken ? awake : woken;
    const int64_t rounds = lanes / BLOCK_LANES / *useful, wanted = *useful * (rounds < 1 ? 1 : rounds);
    const int64_t most = r->worlds->B < MAX_BLOCKS ? r->worlds->B : MAX_BLOCKS;
    return (int)(wanted < most ? wanted : most);
}

/* ---- the Python binding ------------------------------------------------------------------------------------------ */

/* The arrays of the call's tuples, one tuple behind the other. */
enum { KEYS, EPISODES, STEPS, NUM_RUNNING };
enum { DRAWS = NUM_RUNNING, OBS, ACTION, LOGP, REWARD, TERMINATED, TRUNCATED, LAST_OBS, RETURNS, BEGAN, SUMS, BEGAN_ATS };
enum { LOG_STD = BEGAN_ATS + 1, SCALE, CENTER, SHIFT, FACTOR, ROW_EPISODE, ROW_STEP, CLOCK_EPISODES, CLOCK_STEPS, NUM_BUFFERS };

typedef struct {
    PyObject *running, *normal, *moments, *rows, *ends, *episodes, *clock; /* tuples; normal, moments and clock may be None */
} Given;

static int read_optional(PyObject *tuple, int count, unsigned written, Py_buffer *buffers) {
    return tuple == Py_None ? 0 : read_arrays(tuple, count, written, 0, buffers);
}

static int read_given(const Given *g, Py_buffer *b) {
    return read_arrays(g->running, 3, 6, 0, &b[KEYS]) || read_optional(g->normal, 3, 0, &b[LOG_STD]) ||
           read_optional(g->moments, 2, 0, &b[SHIFT]) || read_arrays(g->rows, 6, 63, 4, &b[OBS]) ||
           read_arrays(g->ends, 3, 7, 0, &b[LAST_OBS]) || read_arrays(g->episodes, 2, 3, 0, &b[SUMS]) ||
           read_optional(g->clock, 4, 15, &b[ROW_EPISODE]);
}

static int are_needed(const Rollout *r, const Py_buffer *b) {
    const WorldsObject *w = r->worlds;
    const int64_t B = w->B, T = r->T, L = B * w->N, A = w->action_width;
    int64_t rows, numbers;
    if (__builtin_mul_overflow(T, L, &rows) || __builtin_mul_overflow(rows, w->O + A + 1, &numbers)) {
        PyErr_SetString(PyExc_OverflowError, "there cannot be so many rows");
        return 0;
    }
    const Expected first[] = {
        {"stream_key", B, 8}, {"episode", B, 8}, {"elapsed", B, 8}, {"noise", rows * (A ? A : 1), 4}, {"obs", rows * w->O, 4},
        {"action", rows * (A ? A : 1), A ? 4 : 8}
    };
    const Expected rest[] = {
        {"reward", rows, 4}, {"terminated", rows, 1}, {"truncated", rows, 1}, {"last_obs", rows * w->O, 4}, {"returns", rows, 8},
        {"began", T * B, 8}, {"sums", L, 8}, {"began_at", B, 8}
    };
    return are_sound(b, first, 6) && are_sound(b + REWARD, rest, 8);
}

static int are_optional(const Rollout *r, const Py_buffer *b, int has_clock) {
    const WorldsObject *w = r->worlds;
    const int64_t B = w->B, T = r->T;
    if (b[LOGP].obj && !has_size(&b[LOGP], T * B * w->N, 4, "logp")) return 0;
    for (int i = LOG_STD; b[LOG_STD].obj && i <= CENTER; i++) {
        if (!has_size(&b[i], w->action_width, 4, "log_std, scale and center")) return 0;
    }
    for (int i = SHIFT; b[SHIFT].obj && i <= FACTOR; i++) {
        if (!has_size(&b[i], w->O, 4, "shift and scale")) return 0;
    }
    const Expected clock[] = {{"env_episode", T * B, 8}, {"env_step", T * B, 8}, {"clock_episode", B, 8}, {"clock_step", B, 8}};
    return !has_clock || are_sound(b + ROW_EPISODE, clock, 4);
}

static int fits(const Rollout *r, int is_normal) {
    const WorldsObject *w = r->worlds;
    const Network *n = r->acting.network;
    const int outputs = n->sizes[n->num_layers], wanted = w->action_width ? w->action_width : w->num_choices;
    if (n->sizes[0] == w->O && outputs == wanted && is_normal == (w->action_width > 0) && r->T > 0 && w->B > 0) return 1;
    PyErr_SetString(PyExc_ValueError, "the network, the noise or the number of rows is not one for these worlds");
    return 0;
}

static void take_buffers(Rollout *r, const Py_buffer *b) {
    r->draws = b[DRAWS].buf;
    r->obs = b[OBS].buf;
    r->action = b[ACTION].buf;
    r->choice = b[ACTION].buf;
    r->reward = b[REWARD].buf;
    r->terminated = b[TERMINATED].buf;
    r->truncated = b[TRUNCATED].buf;
    r->last_obs = b[LAST_OBS].buf;
    r->returns = b[RETURNS].buf;
    r->began = b[BEGAN].buf;
    r->sums = b[SUMS].buf;
    r->logp = b[LOGP].buf;
    r->shift = b[SHIFT].buf;
    r->scale = b[FACTOR].buf;
    r->env_episode = b[ROW_EPISODE].buf;
    r->env_step = b[ROW_STEP].buf;
    r->acting.log_std = b[LOG_STD].buf;
    r->acting.scale = b[SCALE].buf;
    r->acting.center = b[CENTER].buf;
    int64_t *const counters[] = {b[KEYS].buf, b[EPISODES].buf, b[STEPS].buf, b[BEGAN_ATS].buf, b[CLOCK_EPISODES].buf, b[CLOCK_STEPS].buf};
    memcpy(r->counters, counters, sizeof counters);
}

/* With parameters that were taken over for the call, so that nobody else's hold on them matters to its threads. */
static int collect(Rollout *r, int num_threads) {
    int useful;
    r->kernels = kernels;
    r->acting.frozen = kernels->freeze(r->acting.network);
    r->acting.is_shared = 1;
    if (!r->acting.frozen) return -1;
    r->num_blocks = blocks_of(r, num_threads, &useful);
    Py_BEGIN_ALLOW_THREADS
    parallel_for(r->num_blocks, collect_blocks, r, useful);
    Py_END_ALLOW_THREADS
    r->kernels->thaw(r->acting.frozen);
    return r->failed ? -1 : 0;
}

static int is_worlds(PyObject *object) {
    const PyTypeObject *type = Py_TYPE(object);
    if (type == &CartPoles_type || type == &Pendulums_type || type == &SpreadStep_type) return 1;
    PyErr_Format(PyExc_TypeError, "there are no rollouts of %R", object);
    return 0;
}

PyObject *collect_rows(PyObject *module, PyObject *args) {
    Py_buffer b[NUM_BUFFERS] = {{0}};
    PyObject *worlds, *mlp;
    Given g;
    long long limit, num_rows, num_steps;
    int num_threads, failed = 0;
    Rollout r = {0};
    if (!PyArg_ParseTuple(
            args, "OOLpO!y*OOfOOOLOLi:collect_rows", &worlds, &g.running, &limit, &r.limit_hides_end, &MLP_type, &mlp, &b[DRAWS], &g.normal,
            &g.moments, &r.clip, &g.rows, &g.ends, &g.episodes, &num_steps, &g.clock, &num_rows, &num_threads
        ))
        return NULL;
    r.T = num_rows, r.limit = limit, r.num_steps = num_steps;
    r.acting.network = &((MLPObject *)mlp)->network;
    int is_sound = is_worlds(worlds) && !read_given(&g, b);
    if (is_sound) {
        r.worlds = (WorldsObject *)worlds;
        is_sound = fits(&r, g.normal != Py_None) && are_needed(&r, b) && are_optional(&r, b, g.clock != Py_None);
    }
    if (is_sound && !have_numpy_functions()) {
        PyErr_SetString(PyExc_RuntimeError, "NumPy's functions are not where they should be");
        is_sound = 0;
    }
    if (is_sound) {
        take_buffers(&r, b);
        r.acting.num_parts = r.worlds->num_choices > 0;
        r.acting.part_size[0] = r.worlds->num_choices;
        failed = collect(&r, num_threads);
        if (failed) PyErr_NoMemory();
    }
    release_all(b, NUM_BUFFERS);
    if (!is_sound || failed) return NULL;
    Py_RETURN_NONE;
}
