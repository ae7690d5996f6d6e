/* The Python binding of what a policy climbs: the lowest value that several networks give. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

static int read_networks(Judging *judging, PyObject *perceptrons) {
    const Py_ssize_t count = PyTuple_GET_SIZE(perceptrons);
    if (count < 1 || count > MAX_JUDGES) {
        PyErr_Format(PyExc_ValueError, "1 to %d perceptrons, not %zd", MAX_JUDGES, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *perceptron = PyTuple_GET_ITEM(perceptrons, i);
        if (!PyObject_TypeCheck(perceptron, &Perceptron_type)) {
            PyErr_SetString(PyExc_TypeError, "perceptrons must be of type Perceptron");
            return -1;
        }
        const Network *network = judging->networks[i] = &((PerceptronObject *)perceptron)->network;
        if (network->sizes[network->num_layers] != 1 || network->sizes[0] != judging->networks[0]->sizes[0]) {
            PyErr_SetString(PyExc_ValueError, "perceptrons must have one output and the same inputs");
            return -1;
        }
    }
    judging->num_networks = (int)count;
    return 0;
}

PyObject *judge(PyObject *module, PyObject *args) {
    Judging judging = {0};
    PyObject *perceptrons;
    Py_buffer x, share, lowest, by_input;
    int num_threads, failed = 0;
    if (!PyArg_ParseTuple(args, "O!y*y*w*w*i:judge", &PyTuple_Type, &perceptrons, &x, &share, &lowest, &by_input, &num_threads))
        return NULL;
    judging.num_rows = share.len / 4;
    if (!read_networks(&judging, perceptrons)) {
        const int64_t num_inputs = judging.num_rows * judging.networks[0]->sizes[0];
        if (has_size(&x, num_inputs, 4, "x") && has_size(&share, judging.num_rows, 4, "share") &&
            has_size(&lowest, judging.num_rows, 4, "lowest") && has_size(&by_input, num_inputs, 4, "by_input")) {
            judging.x = x.buf;
            judging.share = share.buf;
            judging.lowest = lowest.buf;
            judging.by_input = by_input.buf;
            Py_BEGIN_ALLOW_THREADS
            failed = kernels->judge(&judging, num_threads);
            Py_END_ALLOW_THREADS
            if (failed) PyErr_NoMemory();
        }
    }
    Py_buffer *all[] = {&x, &share, &lowest, &by_input};
    for (int i = 0; i < 4; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
