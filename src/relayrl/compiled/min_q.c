/* The Python binding of min-Q, what a policy climbs: the smallest value that several critics give. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

static int read_networks(MinQ *query, PyObject *MLPs) {
    const Py_ssize_t count = PyTuple_GET_SIZE(MLPs);
    if (count < 1 || count > MAX_CRITICS) {
        PyErr_Format(PyExc_ValueError, "1 to %d MLPs, not %zd", MAX_CRITICS, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *mlp = PyTuple_GET_ITEM(MLPs, i);
        if (!PyObject_TypeCheck(mlp, &MLP_type)) {
            PyErr_SetString(PyExc_TypeError, "MLPs must be of type MLP");
            return -1;
        }
        const Network *network = query->networks[i] = &((MLPObject *)mlp)->network;
        if (network->sizes[network->num_layers] != 1 || network->sizes[0] != query->networks[0]->sizes[0]) {
            PyErr_SetString(PyExc_ValueError, "MLPs must have one output and the same inputs");
            return -1;
        }
    }
    query->num_networks = (int)count;
    return 0;
}

/* Whether every row has its own numbers within its inputs; sets an error where one has not. */
static int fit_own(const MinQ *query) {
    const OwnColumns *own = &query->own;
    for (int64_t r = 0; r < query->num_rows; r++) {
        if (own->first[r] >= 0 && own->first[r] <= query->networks[0]->sizes[0] - own->width) continue;
        PyErr_Format(PyExc_ValueError, "first holds %lld", (long long)own->first[r]);
        return 0;
    }
    return 1;
}

PyObject *min_q(PyObject *module, PyObject *args) {
    MinQ query = {0};
    GivenInputs given = {0};
    PyObject *MLPs, *parts;
    Py_buffer first, own, share, minimum, by_own;
    int is_factored, num_threads, failed = 0;
    if (!PyArg_ParseTuple(
            args, "O!Opy*y*y*w*w*i:min_q", &PyTuple_Type, &MLPs, &parts, &is_factored, &first, &own, &share, &minimum,
            &by_own, &num_threads
        ))
        return NULL;
    const int64_t num_rows = query.num_rows = share.len / 4;
    query.own.width = num_rows ? (int)(own.len / 4 / num_rows) : 0;
    if (!read_networks(&query, MLPs) &&
        !read_inputs(&given, parts, is_factored, num_rows, query.networks[0]->sizes[0]) &&
        has_size(&share, num_rows, 4, "share") && has_size(&minimum, num_rows, 4, "minimum") &&
        has_size(&first, num_rows, 8, "first") && has_size(&own, num_rows * query.own.width, 4, "own") &&
        has_size(&by_own, num_rows * query.own.width, 4, "by_own")) {
        query.inputs = &given.inputs;
        query.own.first = first.buf;
        query.own.numbers = own.buf;
        query.share = share.buf;
        query.minimum = minimum.buf;
        query.by_own = by_own.buf;
        if (fit_own(&query)) {
            Py_BEGIN_ALLOW_THREADS
            failed = kernels->min_q(&query, num_threads);
            Py_END_ALLOW_THREADS
            if (failed) PyErr_NoMemory();
        }
    }
    release_inputs(&given);
    Py_buffer *all[] = {&first, &own, &share, &minimum, &by_own};
    for (int i = 0; i < 5; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
