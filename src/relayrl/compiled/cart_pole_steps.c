/* The Python binding of a step of CartPole: the arithmetic is in cart_poles.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cart_poles.h"
#include "python_types.h"

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
