/* A ufunc begins with its inner loops, the functions that NumPy itself calls on memory; `numpy/ufuncobject.h` has fixed the layout for
 * extensions since NumPy 1.0. `accelerator.native_rollouts` compares what they give with what NumPy gives before it relies on them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "numpy_functions.h"
#include "python_types.h"

#define FLOAT32 11 /* NPY_FLOAT */
#define MAX_LOOPS 256

typedef void (*Loop)(char **args, const intptr_t *count, const intptr_t *strides, void *data);

typedef struct {
    PyObject_HEAD
    int num_in, num_out, num_args, identity;
    Loop *loops;
    void *const *data;
    int num_types, reserved;
    const char *name, *types; /* types [num_types, num_args] */
} UfuncHead;

static const char *const NAMES[NUM_FUNCTIONS] = {"sin", "cos", "exp", "log1p"};
static struct {
    Loop loop;
    void *data;
} found[NUM_FUNCTIONS];

static int take_loop(int function, PyObject *ufunc, PyObject *type) {
    const UfuncHead *head = (const UfuncHead *)ufunc;
    if ((PyObject *)Py_TYPE(ufunc) != type || Py_TYPE(ufunc)->tp_basicsize < (Py_ssize_t)sizeof *head) return 0;
    if (head->num_in != 1 || head->num_out != 1 || head->num_args != 2 || head->num_types < 1 || head->num_types > MAX_LOOPS) return 0;
    if (strcmp(head->name, NAMES[function])) return 0;
    for (int i = 0; i < head->num_types; i++) {
        if (head->types[2 * i] != FLOAT32 || head->types[2 * i + 1] != FLOAT32) continue;
        found[function].loop = head->loops[i];
        found[function].data = head->data ? head->data[i] : NULL;
        return 1;
    }
    return 0;
}

int have_numpy_functions(void) {
    static int is_known = 0, are_there = 0;
    if (is_known) return are_there;
    PyObject *numpy = PyImport_ImportModule("numpy"), *type = numpy ? PyObject_GetAttrString(numpy, "ufunc") : NULL;
    int count = 0;
    for (int f = 0; type && f < NUM_FUNCTIONS; f++) {
        PyObject *ufunc = PyObject_GetAttrString(numpy, NAMES[f]);
        count += ufunc && take_loop(f, ufunc, type);
        Py_XDECREF(ufunc); /* NumPy's module, which is never unloaded, keeps it */
    }
    Py_XDECREF(type);
    Py_XDECREF(numpy);
    PyErr_Clear();
    are_there = count == NUM_FUNCTIONS;
    is_known = 1;
    return are_there;
}

void apply_numpy(int function, const float *x, float *y, int64_t count) {
    char *args[] = {(char *)x, (char *)y};
    const intptr_t length = count, strides[] = {sizeof(float), sizeof(float)};
    found[function].loop(args, &length, strides, found[function].data);
}

PyObject *numpy_function(PyObject *module, PyObject *args) {
    int function;
    Py_buffer x, out;
    if (!PyArg_ParseTuple(args, "iy*w*:numpy_function", &function, &x, &out)) return NULL;
    if (function < 0 || function >= NUM_FUNCTIONS) PyErr_SetString(PyExc_ValueError, "there is no such function");
    const int64_t count = x.len / 4;
    const int is_sound = !PyErr_Occurred() && has_size(&x, count, 4, "x") && has_size(&out, count, 4, "out");
    const int is_there = is_sound && have_numpy_functions();
    if (is_there) apply_numpy(function, x.buf, out.buf, count);
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    return is_sound ? PyBool_FromLong(is_there) : NULL;
}
