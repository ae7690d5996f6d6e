/* Whole steps of CartPole and Pendulum, number for number as `envs.native.classic` has them in NumPy: types that hold the arrays of such
 * worlds, which a rollout steps.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "cart_poles.h"
#include "numpy_functions.h"
#include "worlds.h"

typedef struct {
    WorldsObject worlds;
    int pays_at_end;      /* CartPole: −1 at the end instead of 1 a step */
    double bounds[2];     /* of what episodes begin with */
    Py_buffer buffers[3]; /* motion, constants, and Pendulum's pull */
} ClassicObject;

enum { MOTION, CONSTANTS, PULL };

static void draw_motion(float *motion, int64_t count, int64_t b, int row, double draw, double bound) {
    motion[row * count + b] = (float)((2 * draw - 1) * bound);
}

static void copy_columns(float *to, int64_t to_width, int64_t to_first, const float *from, int64_t from_width, int64_t from_first, int rows, int64_t count) {
    for (int i = 0; i < rows; i++) memcpy(to + i * to_width + to_first, from + i * from_width + from_first, (size_t)count * sizeof(float));
}

static void take_motion(const WorldsObject *worlds, float *motion, const WorldBlock *block, int rows) {
    const float *all = ((const ClassicObject *)worlds)->buffers[MOTION].buf;
    copy_columns(motion, block->count, 0, all, worlds->B, block->first, rows, block->count);
}

static void give_motion(const WorldsObject *worlds, const float *motion, const WorldBlock *block, int rows) {
    float *all = ((const ClassicObject *)worlds)->buffers[MOTION].buf;
    copy_columns(all, worlds->B, block->first, motion, block->count, 0, rows, block->count);
}

/* ---- CartPole ---------------------------------------------------------------------------------------------------- */

/* `own`: motion [4, count], sine and cosine of the angle. */
static size_t room_of_carts(const WorldsObject *worlds, int64_t count) { return (size_t)(6 * count) * sizeof(float); }

static void see_carts(const WorldBlock *block, int64_t from, int64_t to) {
    const float *motion = block->own;
    for (int64_t b = from; b < to; b++) {
        for (int i = 0; i < 4; i++) block->seen[4 * b + i] = motion[i * block->count + b];
    }
}

static void enter_carts(const WorldsObject *worlds, WorldBlock *block) {
    take_motion(worlds, block->own, block, 4);
    see_carts(block, 0, block->count);
    for (int64_t b = 0; b < block->count; b++) block->reward[b] = 1.0f;
}

static void step_cart_block(const WorldsObject *worlds, WorldBlock *block, const void *action) {
    const ClassicObject *c = (const ClassicObject *)worlds;
    const int64_t count = block->count;
    float *motion = block->own, *sine = motion + 4 * count, *cosine = sine + count;
    apply_numpy(NUMPY_SIN, motion + 2 * count, sine, count);
    apply_numpy(NUMPY_COS, motion + 2 * count, cosine, count);
    step_carts(count, motion, action, sine, cosine, c->buffers[CONSTANTS].buf, block->seen, block->terminated);
    for (int64_t b = 0; c->pays_at_end && b < count; b++) block->reward[b] = -(float)block->terminated[b];
}

static void begin_cart(const WorldsObject *worlds, WorldBlock *block, int64_t b, const double *draws) {
    for (int i = 0; i < 4; i++) draw_motion(block->own, block->count, b, i, draws[i], ((const ClassicObject *)worlds)->bounds[0]);
    see_carts(block, b, b + 1);
}

static void leave_carts(const WorldsObject *worlds, const WorldBlock *block) { give_motion(worlds, block->own, block, 4); }

static const WorldKind CART_POLES = {room_of_carts, enter_carts, step_cart_block, begin_cart, leave_carts};

/* ---- Pendulum ---------------------------------------------------------------------------------------------------- */

enum { SPIN_COST, TORQUE_COST, TIME_STEP, MAX_SPEED, TURNS, FULL_TURN, MAX_TORQUE, NUM_PENDULUM_CONSTANTS };

/* `own`: motion [2, count], pull, and the sine and cosine of the angle. */
static size_t room_of_pendulums(const WorldsObject *worlds, int64_t count) { return (size_t)(5 * count) * sizeof(float); }

/* What is not a number stays so, as in NumPy. */
static float within(float x, float bound) {
    const float y = x < -bound ? -bound : x;
    return y > bound ? bound : y;
}

static void see_pendulums(const WorldBlock *block, int64_t from, int64_t to) {
    const int64_t count = block->count;
    float *motion = block->own, *sine = motion + 3 * count, *cosine = sine + count;
    apply_numpy(NUMPY_SIN, motion + from, sine + from, to - from);
    apply_numpy(NUMPY_COS, motion + from, cosine + from, to - from);
    for (int64_t b = from; b < to; b++) {
        block->seen[3 * b] = cosine[b];
        block->seen[3 * b + 1] = sine[b];
        block->seen[3 * b + 2] = motion[count + b];
    }
}

static void enter_pendulums(const WorldsObject *worlds, WorldBlock *block) {
    const float *pull = ((const ClassicObject *)worlds)->buffers[PULL].buf;
    float *motion = block->own;
    take_motion(worlds, motion, block, 2);
    memcpy(motion + 2 * block->count, pull + block->first, (size_t)block->count * sizeof(float));
    see_pendulums(block, 0, block->count);
}

/* The sine of the angle is there from looking around. */
static void step_pendulum_block(const WorldsObject *worlds, WorldBlock *block, const void *action) {
    const float *k = ((const ClassicObject *)worlds)->buffers[CONSTANTS].buf, *given = action;
    const int64_t count = block->count;
    float *angle = block->own, *spin = angle + count;
    const float *pull = spin + count, *sine = pull + count;
    for (int64_t b = 0; b < count; b++) {
        const float torque = within(given[b], k[MAX_TORQUE]);
        const float motion_cost = angle[b] * angle[b] + spin[b] * spin[b] * k[SPIN_COST];
        block->reward[b] = -(motion_cost + torque * torque * k[TORQUE_COST]);
        const float turn = (sine[b] * pull[b] + torque * 3.0f) * k[TIME_STEP];
        spin[b] = within(spin[b] + turn, k[MAX_SPEED]);
        angle[b] += spin[b] * k[TIME_STEP];
        angle[b] -= floorf(angle[b] * k[TURNS] + 0.5f) * k[FULL_TURN];
    }
    see_pendulums(block, 0, count);
}

static void begin_pendulum(const WorldsObject *worlds, WorldBlock *block, int64_t b, const double *draws) {
    for (int i = 0; i < 2; i++) draw_motion(block->own, block->count, b, i, draws[i], ((const ClassicObject *)worlds)->bounds[i]);
    see_pendulums(block, b, b + 1);
}

static void leave_pendulums(const WorldsObject *worlds, const WorldBlock *block) { give_motion(worlds, block->own, block, 2); }

static const WorldKind PENDULUMS = {room_of_pendulums, enter_pendulums, step_pendulum_block, begin_pendulum, leave_pendulums};

/* ---- the Python types -------------------------------------------------------------------------------------------- */

static int are_worlds(ClassicObject *c, int rows, int num_constants, int num_seen) {
    const Py_buffer *b = c->buffers;
    const int64_t B = c->worlds.B = b[MOTION].len / 4 / rows;
    c->worlds.N = 1;
    c->worlds.O = num_seen;
    c->worlds.num_draws = rows;
    return has_size(&b[MOTION], rows * B, 4, "motion") && has_size(&b[CONSTANTS], num_constants, 4, "constants");
}

static int fill_carts(PyObject *object, PyObject *args) {
    ClassicObject *c = (ClassicObject *)object;
    if (!PyArg_ParseTuple(args, "w*y*dp:CartPoles", &c->buffers[0], &c->buffers[1], &c->bounds[0], &c->pays_at_end)) return -1;
    c->worlds.kind = &CART_POLES;
    c->worlds.num_choices = 2;
    return are_worlds(c, 4, NUM_CONSTANTS, 4) ? 0 : -1;
}

static int fill_pendulums(PyObject *object, PyObject *args) {
    ClassicObject *c = (ClassicObject *)object;
    Py_buffer *b = c->buffers;
    if (!PyArg_ParseTuple(args, "w*y*y*(dd):Pendulums", &b[0], &b[1], &b[2], &c->bounds[0], &c->bounds[1])) return -1;
    c->worlds.kind = &PENDULUMS;
    c->worlds.action_width = 1;
    const int is_sound = are_worlds(c, 2, NUM_PENDULUM_CONSTANTS, 3) && has_size(&b[PULL], c->worlds.B, 4, "pull");
    return is_sound ? 0 : -1;
}

static PyObject *CartPoles_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { return made(type, args, fill_carts); }
static PyObject *Pendulums_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { return made(type, args, fill_pendulums); }

static void dealloc(PyObject *object) {
    release_all(((ClassicObject *)object)->buffers, 3);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject CartPoles_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.CartPoles",
    .tp_doc = "Carts and poles on live arrays.",
    .tp_basicsize = sizeof(ClassicObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = CartPoles_new,
    .tp_dealloc = dealloc,
};

PyTypeObject Pendulums_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.Pendulums",
    .tp_doc = "Pendulums on live arrays.",
    .tp_basicsize = sizeof(ClassicObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Pendulums_new,
    .tp_dealloc = dealloc,
};
