/* Arrays of many trajectories one after the other.
 *
 * They lie apart in memory, and most are not in a cache when a sink looks at them: loops ask for what they will need a few
 * objects later. Where an array is not plain, the answer is False, and whoever asked finds out why in Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "python_types.h"

#define AHEAD 16 /* objects */

/* How every NumPy begins an array: the part of PyArrayObject that its ABI promises. `looks_right` checks that it is so. */
typedef struct {
    PyObject_HEAD
    char *data;
    int num_axes;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} Array;

#define IS_CONTIGUOUS 0x0001 /* NPY_ARRAY_C_CONTIGUOUS */

typedef struct {
    PyTypeObject *type; /* of plain arrays */
    Py_buffer buffer;
    PyObject *dtype; /* the array keeps it alive */
    Py_ssize_t row_bytes;
    char *end; /* of what is written */
} Joined;

static int looks_right(PyObject *object, const Py_buffer *buffer) {
    if (Py_TYPE(object)->tp_basicsize < (Py_ssize_t)sizeof(Array)) return 0;
    const Array *array = (const Array *)object;
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *has_objects = dtype ? PyObject_GetAttrString(dtype, "hasobject") : NULL; /* copies of these would not be counted */
    Py_XDECREF(dtype);
    Py_XDECREF(has_objects);
    return has_objects == Py_False && array->dtype == dtype && array->data == buffer->buf && array->num_axes == buffer->ndim &&
           (buffer->ndim == 0 || memcmp(array->shape, buffer->shape, (size_t)buffer->ndim * sizeof(Py_ssize_t)) == 0) &&
           (array->flags & IS_CONTIGUOUS);
}

/* Whether rows can be written to `out`; its buffer is to be released if so. */
static int begin_joining(Joined *joined, PyObject *out) {
    if (PyObject_GetBuffer(out, &joined->buffer, PyBUF_ND | PyBUF_WRITABLE)) return 0;
    if (joined->buffer.ndim < 1 || !looks_right(out, &joined->buffer)) {
        PyBuffer_Release(&joined->buffer);
        return 0;
    }
    joined->type = Py_TYPE(out);
    joined->dtype = ((Array *)out)->dtype;
    joined->end = joined->buffer.buf;
    joined->row_bytes = joined->buffer.itemsize;
    for (int axis = 1; axis < joined->buffer.ndim; axis++) joined->row_bytes *= joined->buffer.shape[axis];
    return 1;
}

/* Whether the array is plain, contiguous, and `num_rows` rows like those of `out`; its rows are then written.
 * A negative number stands for one row without the axis of rows. */
static int append_rows(Joined *joined, PyObject *object, int64_t num_rows) {
    if (Py_TYPE(object) != joined->type) return 0;
    const Array *array = (const Array *)object;
    const Py_buffer *out = &joined->buffer;
    const int without = num_rows < 0;
    if (array->dtype != joined->dtype || !(array->flags & IS_CONTIGUOUS) || array->num_axes != out->ndim - without) return 0;
    if (!without && array->shape[0] != num_rows) return 0;
    for (int axis = 1; axis < out->ndim; axis++) {
        if (array->shape[axis - without] != out->shape[axis]) return 0;
    }
    const Py_ssize_t num_bytes = (without ? 1 : num_rows) * joined->row_bytes;
    if (num_bytes > (char *)out->buf + out->len - joined->end) return 0;
    memcpy(joined->end, array->data, (size_t)num_bytes);
    joined->end += num_bytes;
    return 1;
}

static int join_column(PyObject *arrays, const int64_t *lengths, PyObject *out) {
    Joined joined;
    if (!PyList_Check(arrays) || !begin_joining(&joined, out)) return 0;
    const Py_ssize_t count = PyList_GET_SIZE(arrays);
    int fits = 1;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        if (i + 2 * AHEAD < count) __builtin_prefetch(PyList_GET_ITEM(arrays, i + 2 * AHEAD));
        if (i + AHEAD < count && Py_TYPE(PyList_GET_ITEM(arrays, i + AHEAD)) == joined.type) {
            const Array *later = (const Array *)PyList_GET_ITEM(arrays, i + AHEAD);
            __builtin_prefetch(later->shape);
            for (int line = 0; line < 8; line++) __builtin_prefetch(later->data + 64 * line);
        }
        fits = append_rows(&joined, PyList_GET_ITEM(arrays, i), lengths ? lengths[i] : -1);
    }
    fits = fits && joined.end == (char *)joined.buffer.buf + joined.buffer.len;
    PyBuffer_Release(&joined.buffer);
    return fits;
}

PyObject *join_rows(PyObject *module, PyObject *args) {
    PyObject *columns, *outs, *num_steps;
    if (!PyArg_ParseTuple(args, "O!OO!:join_rows", &PyList_Type, &columns, &num_steps, &PyTuple_Type, &outs)) return NULL;
    Py_buffer lengths = {0};
    if (num_steps != Py_None && PyObject_GetBuffer(num_steps, &lengths, PyBUF_SIMPLE)) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(columns);
    int fits = PyTuple_GET_SIZE(outs) == count;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        PyObject *column = PyList_GET_ITEM(columns, i);
        fits = PyList_Check(column) && (!lengths.buf || lengths.len == PyList_GET_SIZE(column) * 8);
        for (Py_ssize_t k = 0; fits && lengths.buf && k < PyList_GET_SIZE(column); k++) fits = ((int64_t *)lengths.buf)[k] >= 0;
        fits = fits && join_column(column, lengths.buf, PyTuple_GET_ITEM(outs, i));
    }
    if (lengths.buf) PyBuffer_Release(&lengths);
    PyErr_Clear();
    return PyBool_FromLong(fits);
}
