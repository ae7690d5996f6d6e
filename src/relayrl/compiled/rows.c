/* Arrays one after the other in memory: what `np.concatenate` does, without its cost for each of many small ones. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

typedef struct {
    PyObject *dtype_name, *dtype;
    PyTypeObject *type; /* of plain arrays */
    Py_buffer out;
    char *end; /* of what is written */
} Joined;

/* Whether the array is plain, contiguous, and `num_rows` rows like those of `out`; its rows are then written. */
static int append_rows(Joined *joined, PyObject *array, int64_t num_rows) {
    if (Py_TYPE(array) != joined->type) return 0;
    PyObject *dtype = PyObject_GetAttr(array, joined->dtype_name);
    Py_XDECREF(dtype); /* the array keeps it alive */
    Py_buffer rows;
    if (dtype != joined->dtype || PyObject_GetBuffer(array, &rows, PyBUF_ND)) return 0;
    const Py_buffer *out = &joined->out;
    int fits = rows.ndim == out->ndim && rows.shape[0] == num_rows;
    for (int axis = 1; fits && axis < rows.ndim; axis++) fits = rows.shape[axis] == out->shape[axis];
    fits = fits && rows.len <= (char *)out->buf + out->len - joined->end;
    if (fits) {
        memcpy(joined->end, rows.buf, (size_t)rows.len);
        joined->end += rows.len;
    }
    PyBuffer_Release(&rows);
    return fits;
}

PyObject *join_rows(PyObject *module, PyObject *args) {
    Joined joined;
    PyObject *arrays, *lengths, *out;
    if (!PyArg_ParseTuple(args, "O!O!OO:join_rows", &PyList_Type, &arrays, &PyList_Type, &lengths, &joined.dtype, &out)) return NULL;
    if (PyObject_GetBuffer(out, &joined.out, PyBUF_ND | PyBUF_WRITABLE)) return NULL;
    joined.type = Py_TYPE(out);
    joined.end = joined.out.buf;
    joined.dtype_name = PyUnicode_InternFromString("dtype");
    const Py_ssize_t count = PyList_GET_SIZE(arrays);
    int fits = joined.dtype_name && PyList_GET_SIZE(lengths) == count;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        const int64_t num_rows = PyLong_AsLongLong(PyList_GET_ITEM(lengths, i));
        fits = !PyErr_Occurred() && append_rows(&joined, PyList_GET_ITEM(arrays, i), num_rows);
    }
    fits = fits && joined.end == (char *)joined.out.buf + joined.out.len;
    Py_XDECREF(joined.dtype_name);
    PyBuffer_Release(&joined.out);
    PyErr_Clear(); /* whoever asked finds out what does not fit */
    return PyBool_FromLong(fits);
}
