/* The Python binding of what all particle worlds share: the arithmetic is in particles.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "particles.h"
#include "python_types.h"

static Range all_of(int64_t B) { return (Range){0, B}; }

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
    if (is_sound) measure(N, K, B, E, first, b[0].buf, b[1].buf, all_of(B), b[2].buf, b[3].buf);
    release_all(b, 4);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

PyObject *find_contacts(PyObject *module, PyObject *args) {
    Py_buffer b[5] = {{0}};
    int sizes[4]; /* N, K, B and the first column */
    float margin, bound;
    if (!PyArg_ParseTuple(
            args, "iiiiy*y*ffw*w*w*:find_contacts", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &b[0], &b[1], &margin, &bound, &b[2], &b[3], &b[4]
        ))
        return NULL;
    const int64_t N = sizes[0], K = sizes[1], B = sizes[2], C = K - sizes[3];
    const Expected expected[] = {
        {"reach", N * C, 4}, {"distance", N * K * B, 4}, {"start", N * C + 1, 8}, {"close", N * C * B, 4}, {"exponent", N * C * B + 1, 4}
    };
    int64_t count = 0;
    const int is_sound = are_sizes(sizes, 4) && are_sound(b, expected, 5);
    if (is_sound) {
        const Contacts contacts = {N, K, B, sizes[3], b[0].buf, b[1].buf, margin, bound, b[2].buf, b[3].buf};
        count = find_close(&contacts, b[4].buf);
    }
    release_all(b, 5);
    return is_sound ? PyLong_FromLongLong(count) : NULL;
}

/* Whether each pair's worlds follow those of the pair before it, with a softplus for each; sets an error where they do not. */
static int are_starts(const Contacts *c, int64_t num_soft) {
    const int64_t num_pairs = c->N * (c->K - c->first), end = c->start[num_pairs];
    int is_sound = c->start[0] == 0 && end < num_soft && end <= num_pairs * c->B;
    for (int64_t i = 0; is_sound && i < num_pairs; i++) is_sound = c->start[i] <= c->start[i + 1];
    if (!is_sound) PyErr_SetString(PyExc_ValueError, "start is not that of find_contacts");
    return is_sound;
}

PyObject *add_pushes(PyObject *module, PyObject *args) {
    Py_buffer b[7] = {{0}};
    int sizes[4]; /* N, K, B and the first column */
    float margin, factor, tiny;
    if (!PyArg_ParseTuple(
            args, "iiiiy*y*y*y*y*y*fffw*:add_pushes", &sizes[0], &sizes[1], &sizes[2], &sizes[3], &b[0], &b[1], &b[2], &b[3], &b[4], &b[5],
            &margin, &factor, &tiny, &b[6]
        ))
        return NULL;
    const int64_t N = sizes[0], K = sizes[1], B = sizes[2], C = K - sizes[3], num_soft = b[3].len / 4;
    const Expected expected[] = {
        {"reach", N * C, 4}, {"start", N * C + 1, 8}, {"close", N * C * B, 4}, {"soft", num_soft, 4}, {"offset", 2 * N * K * B, 4},
        {"distance", N * K * B, 4}, {"force", 2 * N * B, 4}
    };
    const Contacts contacts = {N, K, B, sizes[3], b[0].buf, b[5].buf, margin, 0.0f, b[1].buf, b[2].buf};
    const int is_sound = are_sizes(sizes, 4) && are_sound(b, expected, 7) && are_starts(&contacts, num_soft);
    if (is_sound) push_apart(&contacts, b[3].buf, b[4].buf, factor, tiny, all_of(B), b[6].buf);
    release_all(b, 7);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
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
    if (is_sound && A < NUM_MOVES) {
        PyErr_SetString(PyExc_ValueError, "an action has five numbers or more");
        is_sound = 0;
    }
    if (is_sound) decode(N, B, A, b[0].buf, acceleration, all_of(B), b[1].buf, b[2].buf);
    release_all(b, 3);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
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
    if (is_sound) move(N, B, E, A, first, b[0].buf, b[1].buf, b[2].buf, b[3].buf, dt, keep, all_of(B));
    release_all(b, 4);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}
