/* A binary tree of sums, as `training.priority_sums` lays it out: node n has the children 2n and 2n + 1, node 1 is the root. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

/* Whether the sums are a tree whose leaves begin at `first_leaf`. */
static int is_tree(const Py_buffer *sums, long long first_leaf) {
    return first_leaf > 0 && (first_leaf & (first_leaf - 1)) == 0 && has_size(sums, 2 * first_leaf, 8, "sums");
}

/* Replace leaves, and every sum above them. */
static int set_leaves(double *sums, int64_t first_leaf, const int64_t *where, const double *priority, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (where[i] < 0 || where[i] >= first_leaf) return -1;
    }
    for (int64_t i = 0; i < count; i++) sums[first_leaf + where[i]] = priority[i];
    for (int64_t i = 0; i < count; i++) {
        for (int64_t node = (first_leaf + where[i]) >> 1; node >= 1; node >>= 1) sums[node] = sums[2 * node] + sums[2 * node + 1];
    }
    return 0;
}

PyObject *set_priorities(PyObject *module, PyObject *args) {
    Py_buffer sums, where, priority;
    long long first_leaf;
    if (!PyArg_ParseTuple(args, "w*Ly*y*:set_priorities", &sums, &first_leaf, &where, &priority)) return NULL;
    const int64_t count = where.len / 8;
    if (is_tree(&sums, first_leaf) && has_size(&where, count, 8, "where") && has_size(&priority, count, 8, "priority") &&
        set_leaves(sums.buf, first_leaf, where.buf, priority.buf, count)) {
        PyErr_SetString(PyExc_IndexError, "a row that the tree does not have");
    }
    PyBuffer_Release(&sums);
    PyBuffer_Release(&where);
    PyBuffer_Release(&priority);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static int64_t leaf_at(const double *sums, int64_t first_leaf, double point) {
    int64_t node = 1;
    while (node < first_leaf) {
        const double left = sums[2 * node];
        const int goes_right = point >= left && sums[2 * node + 1] > 0.0;
        if (goes_right) point -= left;
        node = 2 * node + goes_right;
    }
    return node;
}

PyObject *find_priorities(PyObject *module, PyObject *args) {
    Py_buffer sums, points, leaves;
    long long first_leaf;
    if (!PyArg_ParseTuple(args, "y*Ly*w*:find_priorities", &sums, &first_leaf, &points, &leaves)) return NULL;
    const int64_t count = points.len / 8;
    if (is_tree(&sums, first_leaf) && has_size(&points, count, 8, "points") && has_size(&leaves, count, 8, "leaves")) {
        for (int64_t i = 0; i < count; i++) {
            ((int64_t *)leaves.buf)[i] = leaf_at(sums.buf, first_leaf, ((const double *)points.buf)[i]);
        }
    }
    PyBuffer_Release(&sums);
    PyBuffer_Release(&points);
    PyBuffer_Release(&leaves);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
