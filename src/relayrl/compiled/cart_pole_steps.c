/* Steps of CartPole: the arithmetic of `envs.native.classic` in one call, number for number as NumPy has it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#include "numpy_rounding.h"
#include "python_types.h"

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
