/* The Python binding of what a policy climbs: the lowest value that several networks give. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

static int read_networks(Judging *judging, PyObject *MLPs) {
    const Py_ssize_t count = PyTuple_GET_SIZE(MLPs);
    if (count < 1 || count > MAX_JUDGES) {
        PyErr_Format(PyExc_ValueError, "1 to %d MLPs, not %zd", MAX_JUDGES, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *mlp = PyTuple_GET_ITEM(MLPs, i);
        if (!PyObject_TypeCheck(mlp, &MLP_type)) {
            PyErr_SetString(PyExc_TypeError, "MLPs must be of type MLP");
            return -1;
        }
        const Network *network = judging->networks[i] = &((MLPObject *)mlp)->network;
        if (network->sizes[network->num_layers] != 1 || network->sizes[0] != judging->networks[0]->sizes[0]) {
            PyErr_SetString(PyExc_ValueError, "MLPs must have one output and the same inputs");
            return -1;
        }
    }
    judging->num_networks = (int)count;
    return 0;
}

/* Whether every row has its own numbers within its inputs; sets an error where one has not. */
static int fit_own(const Judging *judging) {
    const OwnColumns *own = &judging->own;
    for (int64_t r = 0; r < judging->num_rows; r++) {
        if (own->first[r] >= 0 && own->first[r] <= judging->networks[0]->sizes[0] - own->width) continue;
        PyErr_Format(PyExc_ValueError, "first holds %lld", (long long)own->first[r]);
        return 0;
    }
    return 1;
}

PyObject *judge(PyObject *module, PyObject *args) {
    Judging judging = {0};
    GivenInputs given = {0};
    PyObject *MLPs, *parts;
    Py_buffer first, own, share, lowest, by_own;
    int is_factored, num_threads, failed = 0;
    if (!PyArg_ParseTuple(
            args, "O!Opy*y*y*w*w*i:judge", &PyTuple_Type, &MLPs, &parts, &is_factored, &first, &own, &share, &lowest,
            &by_own, &num_threads
        ))
        return NULL;
    const int64_t num_rows = judging.num_rows = share.len / 4;
    judging.own.width = num_rows ? (int)(own.len / 4 / num_rows) : 0;
    if (!read_networks(&judging, MLPs) &&
        !read_inputs(&given, parts, is_factored, num_rows, judging.networks[0]->sizes[0]) &&
        has_size(&share, num_rows, 4, "share") && has_size(&lowest, num_rows, 4, "lowest") &&
        has_size(&first, num_rows, 8, "first") && has_size(&own, num_rows * judging.own.width, 4, "own") &&
        has_size(&by_own, num_rows * judging.own.width, 4, "by_own")) {
        judging.inputs = &given.inputs;
        judging.own.first = first.buf;
        judging.own.numbers = own.buf;
        judging.share = share.buf;
        judging.lowest = lowest.buf;
        judging.by_own = by_own.buf;
        if (fit_own(&judging)) {
            Py_BEGIN_ALLOW_THREADS
            failed = kernels->judge(&judging, num_threads);
            Py_END_ALLOW_THREADS
            if (failed) PyErr_NoMemory();
        }
    }
    release_inputs(&given);
    Py_buffer *all[] = {&first, &own, &share, &lowest, &by_own};
    for (int i = 0; i < 5; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
