/* Inputs that lie in parts, from Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

void release_inputs(GivenInputs *given) {
    while (given->num_buffers) PyBuffer_Release(&given->buffers[--given->num_buffers]);
}

static Py_buffer *input_buffer(GivenInputs *given, PyObject *array) {
    Py_buffer *buffer = &given->buffers[given->num_buffers];
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS)) return NULL;
    given->num_buffers++;
    return buffer;
}

static int read_part(GivenInputs *given, PyObject *table, PyObject *line, int64_t num_rows) {
    InputPart *part = &given->inputs.parts[given->inputs.num_parts++];
    const Py_buffer *lines = input_buffer(given, table);
    if (!lines) return -1;
    if (lines->ndim != 2 || lines->shape[1] < 1 || lines->shape[1] > MAX_WIDTH) {
        PyErr_SetString(PyExc_ValueError, "a part of the inputs must be a matrix");
        return -1;
    }
    part->table = lines->buf;
    part->num_lines = line == Py_None ? num_rows : lines->shape[0];
    part->width = (int)lines->shape[1];
    if (!has_table(lines, part->num_lines, part->width, 4, "a part of the inputs")) return -1;
    if (line == Py_None) return 0;
    const Py_buffer *numbers = input_buffer(given, line);
    if (!numbers || !has_size(numbers, num_rows, 8, "lines")) return -1;
    part->line = numbers->buf;
    for (int64_t r = 0; r < num_rows; r++) {
        if (part->line[r] >= 0 && part->line[r] < part->num_lines) continue;
        PyErr_Format(PyExc_ValueError, "lines hold %lld", (long long)part->line[r]);
        return -1;
    }
    return 0;
}

int read_inputs(GivenInputs *given, PyObject *parts, int is_factored, int64_t num_rows, int width) {
    const Py_ssize_t count = PyTuple_Check(parts) ? PyTuple_GET_SIZE(parts) : 0;
    given->inputs.is_factored = is_factored != 0;
    if (count < 1 || count > MAX_INPUT_PARTS) {
        PyErr_Format(PyExc_ValueError, "inputs have 1 to %d parts", MAX_INPUT_PARTS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *table, *line;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parts, i), "OO", &table, &line)) return -1;
        if (read_part(given, table, line, num_rows)) return -1;
        width -= given->inputs.parts[i].width;
    }
    if (!width) return 0;
    PyErr_SetString(PyExc_ValueError, "the parts are not what the network takes");
    return -1;
}
