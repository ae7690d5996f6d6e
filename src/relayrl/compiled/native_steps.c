/* Steps of native environments: the arithmetic of `envs.native` in one call each, number for number as NumPy has it.
 *
 * Every operation rounds as NumPy's does: no product and sum become one instruction. Functions whose last bits are NumPy's own
 * (sin, cos, exp, log1p) are computed there and handed in. Worlds are the last axis B of all arrays but those that agents see.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#include "python_types.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

static void release_all(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++) {
        if (buffers[i].obj) PyBuffer_Release(&buffers[i]);
    }
}

/* What each buffer holds, by name; sets an error where one does not. */
typedef struct {
    const char *name;
    int64_t count;
    size_t item;
} Expected;

static int are_sound(const Py_buffer *buffers, const Expected *expected, int count) {
    int is_sound = 1;
    for (int i = 0; is_sound && i < count; i++) {
        is_sound = has_size(&buffers[i], expected[i].count, expected[i].item, expected[i].name);
    }
    return is_sound;
}

/* Sizes whose products are far from overflowing. */
static int are_sizes(const int *sizes, int count) {
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || sizes[i] > MAX_WIDTH) {
            PyErr_Format(PyExc_ValueError, "there is no size %d", sizes[i]);
            return 0;
        }
    }
    return 1;
}

/* ---- CartPole -------------------------------------------------------------------------------------------------- */

enum { LEVER, INERTIA, GRAVITY, STEP_S, PUSH_LEFT, PUSH_RIGHT, MAX_POSITION, MAX_ANGLE, NUM_CONSTANTS };

static void step_carts(
    int64_t B, float *motion, const int64_t *action, const float *sine, const float *cosine, const float *k, float *seen, uint8_t *terminated
) {
    float *x = motion, *speed = motion + B, *angle = motion + 2 * B, *spin = motion + 3 * B;
    for (int64_t b = 0; b < B; b++) {
        const float push = spin[b] * spin[b] * sine[b] * k[LEVER] + k[action[b] > 0 ? PUSH_RIGHT : PUSH_LEFT];
        const float lever = cosine[b] * k[LEVER], inertia = k[INERTIA] - lever * cosine[b];
        const float pole = (sine[b] * k[GRAVITY] - cosine[b] * push) / inertia;
        const float cart = push - pole * lever;
        x[b] += speed[b] * k[STEP_S];
        angle[b] += spin[b] * k[STEP_S];
        speed[b] += cart * k[STEP_S];
        spin[b] += pole * k[STEP_S];
        terminated[b] = fabsf(x[b]) > k[MAX_POSITION] || fabsf(angle[b]) > k[MAX_ANGLE];
    }
    for (int64_t b = 0; b < B; b++) {
        for (int i = 0; i < 4; i++) seen[4 * b + i] = motion[i * B + b];
    }
}

PyObject *step_cart_poles(PyObject *module, PyObject *args) {
    Py_buffer b[7] = {{0}};
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*w*w*:step_cart_poles", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6])) return NULL;
    const int64_t B = b[6].len;
    const Expected expected[] = {{"motion", 4 * B, 4}, {"action", B, 8}, {"sine", B, 4}, {"cosine", B, 4}, {"constants", NUM_CONSTANTS, 4}, {"observation", 4 * B, 4}, {"terminated", B, 1}};
    const int is_sound = are_sound(b, expected, 7);
    if (is_sound) step_carts(B, b[0].buf, b[1].buf, b[2].buf, b[3].buf, b[4].buf, b[5].buf, b[6].buf);
    release_all(b, 7);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

/* ---- particle worlds ------------------------------------------------------------------------------------------- */

/* `offset` [2, N, K, B] from agent first + n to the bodies seen[n, k], and `distance` [N, K, B]. */
static void measure(
    int64_t N, int64_t K, int64_t B, int64_t E, int64_t first, const float *position, const int64_t *seen, float *offset, float *distance
) {
    for (int64_t n = 0; n < N; n++) {
        const float *own = position + (first + n) * B;
        for (int64_t k = n * K; k < (n + 1) * K; k++) {
            const float *other = position + seen[k] * B;
            float *x = offset + k * B, *y = offset + (N * K + k) * B, *d = distance + k * B;
            for (int64_t b = 0; b < B; b++) {
                x[b] = other[b] - own[b];
                y[b] = other[E * B + b] - own[E * B + b];
                d[b] = sqrtf(x[b] * x[b] + y[b] * y[b]);
            }
        }
    }
}

PyObject *measure_offsets(PyObject *module, PyObject *args) {
    Py_buffer b[4] = {{0}};
    int sizes[5]; /* N, K, B, E and the first observer */
    if (!PyArg_ParseTuple(
            args, "iiiiiy*y*w*w*:measure_offsets", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &b[0], &b[1], &b[2], &b[3]
        ))
        return NULL;
    const int64_t N = sizes[0], K = sizes[1], B = sizes[2], E = sizes[3], first = sizes[4];
    const Expected expected[] = {{"position", 2 * E * B, 4}, {"seen", N * K, 8}, {"offset", 2 * N * K * B, 4}, {"distance", N * K * B, 4}};
    int is_sound = are_sizes(sizes, 5) && are_sound(b, expected, 4);
    if (is_sound && first + N > E) {
        PyErr_SetString(PyExc_ValueError, "an observer is not among the bodies");
        is_sound = 0;
    }
    for (int64_t i = 0; is_sound && i < N * K; i++) {
        const int64_t body = ((const int64_t *)b[1].buf)[i];
        if (body >= 0 && body < E) continue;
        PyErr_Format(PyExc_ValueError, "there is no body %lld", (long long)body);
        is_sound = 0;
    }
    if (is_sound) measure(N, K, B, E, first, b[0].buf, b[1].buf, b[2].buf, b[3].buf);
    release_all(b, 4);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

/* The overlap [N, C, B] of those who touch in margins, at least 0, and −|overlap|, at least −`bound`, of which softplus takes the
 * exponential. They are the columns from `first` on of the distances [N, K, B]. */
static void overlap_of(
    int64_t N, int64_t K, int64_t B, int64_t first, const float *reach, const float *distance, float margin, float bound, float *overlap, float *exponent
) {
    const int64_t C = K - first;
    for (int64_t i = 0; i < N * C; i++) {
        const float *d = distance + (i / C * K + first + i % C) * B;
        for (int64_t b = 0; b < B; b++) {
            const float x = (reach[i] - d[b]) / margin, size = fabsf(x);
            exponent[i * B + b] = -(size > bound ? bound : size);
            overlap[i * B + b] = x < 0.0f ? 0.0f : x;
        }
    }
}

PyObject *find_overlaps(PyObject *module, PyObject *args) {
    Py_buffer b[4] = {{0}};
    int sizes[4]; /* N, K, B and the first column */
    float margin, bound;
    if (!PyArg_ParseTuple(
            args, "iiiiy*y*ffw*w*:find_overlaps", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &b[0], &b[1], &margin, &bound, &b[2], &b[3]
        ))
        return NULL;
    const int64_t N = sizes[0], K = sizes[1], B = sizes[2], C = K - sizes[3];
    const Expected expected[] = {{"reach", N * C, 4}, {"distance", N * K * B, 4}, {"overlap", N * C * B, 4}, {"exponent", N * C * B, 4}};
    const int is_sound = are_sizes(sizes, 4) && are_sound(b, expected, 4);
    if (is_sound) overlap_of(N, K, B, sizes[3], b[0].buf, b[1].buf, margin, bound, b[2].buf, b[3].buf);
    release_all(b, 4);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

/* Total force [2, N, B] that pushes apart: offset · (soft + overlap) factor / distance, added up over the columns in their order. */
static void push_apart(
    int64_t N, int64_t K, int64_t B, int64_t first, const float *soft, const float *overlap, const float *offset, const float *distance, float factor,
    float tiny, float *force
) {
    const int64_t C = K - first;
    for (int64_t n = 0; n < N; n++) {
        float *x = force + n * B, *y = force + (N + n) * B;
        for (int64_t b = 0; !C && b < B; b++) x[b] = y[b] = 0.0f;
        for (int64_t c = 0; c < C; c++) {
            const int64_t at = (n * C + c) * B, column = (n * K + first + c) * B;
            const float *by_x = offset + column, *by_y = by_x + N * K * B, *d = distance + column;
            for (int64_t b = 0; b < B; b++) {
                const float push = (soft[at + b] + overlap[at + b]) * factor / (d[b] < tiny ? tiny : d[b]);
                x[b] = c ? x[b] + by_x[b] * push : by_x[b] * push;
                y[b] = c ? y[b] + by_y[b] * push : by_y[b] * push;
            }
        }
    }
}

PyObject *add_pushes(PyObject *module, PyObject *args) {
    Py_buffer b[5] = {{0}};
    int sizes[4]; /* N, K, B and the first column */
    float factor, tiny;
    if (!PyArg_ParseTuple(
            args, "iiiiy*y*y*y*ffw*:add_pushes", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &b[0], &b[1], &b[2], &b[3], &factor, &tiny, &b[4]
        ))
        return NULL;
    const int64_t N = sizes[0], K = sizes[1], B = sizes[2], C = K - sizes[3];
    const Expected expected[] = {{"soft", N * C * B, 4}, {"overlap", N * C * B, 4}, {"offset", 2 * N * K * B, 4}, {"distance", N * K * B, 4}, {"force", 2 * N * B, 4}};
    const int is_sound = are_sizes(sizes, 4) && are_sound(b, expected, 5);
    if (is_sound) push_apart(N, K, B, sizes[3], b[0].buf, b[1].buf, b[2].buf, b[3].buf, factor, tiny, b[4].buf);
    release_all(b, 5);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

/* Forces [2, N, B] of actions [B, N, A] with the moves stay, left, right, down, up first, each between 0 and 1. */
static float clipped(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

static void decode(int64_t N, int64_t B, int64_t A, const float *action, float acceleration, float *x, float *y) {
    for (int64_t b = 0; b < B; b++) {
        for (int64_t n = 0; n < N; n++) {
            const float *own = action + (b * N + n) * A;
            x[n * B + b] = (clipped(own[2]) - clipped(own[1])) * acceleration;
            y[n * B + b] = (clipped(own[4]) - clipped(own[3])) * acceleration;
        }
    }
}

PyObject *decode_moves(PyObject *module, PyObject *args) {
    Py_buffer b[3] = {{0}};
    int sizes[3]; /* N, B and A */
    float acceleration;
    if (!PyArg_ParseTuple(
            args, "iiiy*fw*w*:decode_moves", &sizes[0], &sizes[1], &sizes[2], &b[0], &acceleration, &b[1], &b[2]
        ))
        return NULL;
    const int64_t N = sizes[0], B = sizes[1], A = sizes[2];
    const Expected expected[] = {{"action", B * N * A, 4}, {"by_x", N * B, 4}, {"by_y", N * B, 4}};
    int is_sound = are_sizes(sizes, 3) && are_sound(b, expected, 3);
    if (is_sound && A < 5) {
        PyErr_SetString(PyExc_ValueError, "an action has five numbers or more");
        is_sound = 0;
    }
    if (is_sound) decode(N, B, A, b[0].buf, acceleration, b[1].buf, b[2].buf);
    release_all(b, 3);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

/* x += v dt and v ← keep v + F dt of the bodies from `first` on, in each of the two axes. */
static void move(
    int64_t N, int64_t B, int64_t E, int64_t A, int64_t first, float *position, float *velocity, const float *force, const float *push, float dt, float keep
) {
    for (int64_t axis = 0; axis < 2; axis++) {
        float *x = position + (axis * E + first) * B, *v = velocity + (axis * A + first) * B;
        const float *own = force + axis * N * B, *other = push ? push + axis * N * B : NULL;
        for (int64_t i = 0; i < N * B; i++) {
            const float total = other ? own[i] + other[i] : own[i];
            x[i] += v[i] * dt;
            v[i] = v[i] * keep + total * dt;
        }
    }
}

PyObject *move_bodies(PyObject *module, PyObject *args) {
    Py_buffer b[4] = {{0}};
    int sizes[5]; /* N, B, E, A agents and the first mover */
    float dt, keep;
    if (!PyArg_ParseTuple(
            args, "iiiiiw*w*y*z*ff:move_bodies", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &sizes[4], &b[0], &b[1], &b[2], &b[3], &dt, &keep
        ))
        return NULL;
    const int64_t N = sizes[0], B = sizes[1], E = sizes[2], A = sizes[3], first = sizes[4];
    const Expected expected[] = {{"position", 2 * E * B, 4}, {"velocity", 2 * A * B, 4}, {"force", 2 * N * B, 4}, {"push", 2 * N * B, 4}};
    int is_sound = are_sizes(sizes, 5) && are_sound(b, expected, b[3].buf ? 4 : 3);
    if (is_sound && (first + N > A || A > E)) {
        PyErr_SetString(PyExc_ValueError, "a mover is not among the agents");
        is_sound = 0;
    }
    if (is_sound) move(N, B, E, A, first, b[0].buf, b[1].buf, b[2].buf, b[3].buf, dt, keep);
    release_all(b, 4);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}
