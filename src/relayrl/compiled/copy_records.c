/* Records of PostgreSQL's binary COPY. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "python_types.h"

#define MAX_RECORD_PARTS 256 /* arrays of a record */

typedef struct {
    Py_buffer rows;
    Py_ssize_t row_bytes;
    int field; /* of the record; `num_fields` for what a trajectory has once */
} Part;

/* Adds the arrays of a field, a tuple of (bytes, bytes of a row). */
static int add_parts(PyObject *field, int number, Part *parts, int *num_parts) {
    if (!PyTuple_Check(field)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(field); i++) {
        PyObject *pair = PyTuple_GET_ITEM(field, i);
        if (*num_parts == MAX_RECORD_PARTS || !PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) return 0;
        Part *part = &parts[*num_parts];
        part->row_bytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(pair, 1));
        part->field = number;
        if (part->row_bytes < 0 || PyObject_GetBuffer(PyTuple_GET_ITEM(pair, 0), &part->rows, PyBUF_SIMPLE)) return 0;
        (*num_parts)++;
    }
    return 1;
}

static char *put_length(char *to, Py_ssize_t length) {
    const uint32_t value = (uint32_t)length;
    for (int i = 0; i < 4; i++) to[i] = (char)(value >> (24 - 8 * i));
    return to + 4;
}

/* One field behind its length: rows `begin … begin + count - 1` of its arrays. NULL where there is no such row or no room. */
static char *put_field(char *to, const char *stop, const Part *parts, int num_parts, int field, int64_t begin, int64_t count) {
    if (stop - to < 4) return NULL;
    char *length = to;
    to += 4;
    for (int i = 0; i < num_parts; i++) {
        const Part *part = &parts[i];
        if (part->field != field || part->row_bytes == 0) continue;
        const int64_t num_rows = part->rows.len / part->row_bytes;
        if (count > (stop - to) / part->row_bytes || begin > num_rows || count > num_rows - begin) return NULL;
        memcpy(to, (const char *)part->rows.buf + begin * part->row_bytes, (size_t)(count * part->row_bytes));
        to += count * part->row_bytes;
    }
    put_length(length, to - length - 4);
    return to;
}

static char *put_texts(char *to, const char *stop, PyObject *texts, Py_ssize_t which) {
    for (Py_ssize_t i = 0; to && i < PyTuple_GET_SIZE(texts); i++) {
        PyObject *column = PyTuple_GET_ITEM(texts, i);
        if (!PyList_Check(column) || which >= PyList_GET_SIZE(column)) return NULL;
        PyObject *text = PyList_GET_ITEM(column, which);
        if (!PyBytes_Check(text) || stop - to < 4 || PyBytes_GET_SIZE(text) > stop - to - 4) return NULL;
        to = put_length(to, PyBytes_GET_SIZE(text));
        memcpy(to, PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text));
        to += PyBytes_GET_SIZE(text);
    }
    return to;
}

PyObject *copy_records(PyObject *module, PyObject *args) {
    PyObject *texts, *data, *finals;
    Py_buffer fixed, num_steps, out;
    Py_ssize_t first;
    long long first_step;
    Part parts[MAX_RECORD_PARTS];
    if (!PyArg_ParseTuple(args, "y*O!O!O!y*nLw*:copy_records", &fixed, &PyTuple_Type, &texts, &PyTuple_Type, &data, &PyTuple_Type,
                          &finals, &num_steps, &first, &first_step, &out))
        return NULL;
    const Py_ssize_t count = num_steps.len / 8, fixed_bytes = count ? fixed.len / count : 0;
    const int num_fields = (int)PyTuple_GET_SIZE(data);
    int num_parts = 0, fits = first >= 0 && first <= PY_SSIZE_T_MAX - count && first_step >= 0;
    for (int i = 0; fits && i < num_fields; i++) fits = add_parts(PyTuple_GET_ITEM(data, i), i, parts, &num_parts);
    fits = fits && add_parts(finals, num_fields, parts, &num_parts);
    char *to = out.buf, *const stop = to + out.len;
    int64_t begin = first_step;
    for (Py_ssize_t k = 0; fits && k < count; k++) {
        const int64_t length = ((const int64_t *)num_steps.buf)[k];
        fits = length >= 0 && fixed_bytes <= stop - to;
        if (!fits) break;
        memcpy(to, (const char *)fixed.buf + k * fixed_bytes, (size_t)fixed_bytes);
        to = put_texts(to + fixed_bytes, stop, texts, first + k);
        for (int i = 0; to && i < num_fields; i++) to = put_field(to, stop, parts, num_parts, i, begin, length);
        if (to) to = put_field(to, stop, parts, num_parts, num_fields, first + k, 1);
        fits = to != NULL;
        fits = fits && length <= INT64_MAX - begin;
        begin += fits ? length : 0;
    }
    fits = fits && to == stop;
    while (num_parts) PyBuffer_Release(&parts[--num_parts].rows);
    PyBuffer_Release(&fixed);
    PyBuffer_Release(&num_steps);
    PyBuffer_Release(&out);
    if (fits) Py_RETURN_NONE;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the arguments of copy_records do not fit each other");
    return NULL;
}
