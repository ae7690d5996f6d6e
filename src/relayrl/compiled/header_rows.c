/* What the headers of trajectories say, for every row of a batch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "python_types.h"

PyObject *uuid_texts(PyObject *module, PyObject *args) {
    PyObject *ids, *out;
    if (!PyArg_ParseTuple(args, "O!O:uuid_texts", &PyList_Type, &ids, &out)) return NULL;
    Py_buffer texts;
    if (PyObject_GetBuffer(out, &texts, PyBUF_WRITABLE)) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(ids);
    int fits = texts.len == 36 * count;
    char *text = texts.buf;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        PyObject *id = PyList_GET_ITEM(ids, i);
        fits = PyBytes_Check(id) && PyBytes_GET_SIZE(id) == 16;
        for (int byte = 0; fits && byte < 16; byte++) {
            const unsigned char digits = (unsigned char)PyBytes_AS_STRING(id)[byte];
            if (byte == 4 || byte == 6 || byte == 8 || byte == 10) *text++ = '-';
            *text++ = "0123456789abcdef"[digits >> 4];
            *text++ = "0123456789abcdef"[digits & 15];
        }
    }
    PyBuffer_Release(&texts);
    if (fits) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "uuid_texts takes ids of 16 bytes and fills 36 for each");
    return NULL;
}

enum { NUM_STEPS, EPISODE, FIRST_STEP, ENV, AGENT, TERMINATED, TRUNCATED, FAILED, NUM_GIVEN };
enum {
    ROW_EPISODE, ROW_STEP, ROW_TRAJECTORY, ROW_ENV, ROW_AGENT, ROW_OFFSET, ROW_GROUP,
    ROW_TERMINATED, ROW_TRUNCATED, ROW_FAILED, ROW_VALID, NUM_ROW_COLUMNS
};
static const Py_ssize_t given_bytes[NUM_GIVEN] = {8, 8, 8, 4, 4, 1, 1, 1};
static const Py_ssize_t row_bits[NUM_ROW_COLUMNS] = {64, 64, 32, 32, 32, 32, 8, 1, 1, 1, 1};

static void fill_rows(const Py_buffer *given, char *const *out, int64_t num_trajectories, int64_t num_rows) {
    const int64_t *num_steps = given[NUM_STEPS].buf, *episodes = given[EPISODE].buf, *first_steps = given[FIRST_STEP].buf;
    const int32_t *envs = given[ENV].buf, *agents = given[AGENT].buf;
    int64_t *episode = (int64_t *)out[ROW_EPISODE], *step = (int64_t *)out[ROW_STEP];
    int32_t *trajectory = (int32_t *)out[ROW_TRAJECTORY], *env = (int32_t *)out[ROW_ENV];
    int32_t *agent = (int32_t *)out[ROW_AGENT], *offset = (int32_t *)out[ROW_OFFSET];
    const int64_t num_bytes = (num_rows + 7) / 8;
    memset(out[ROW_GROUP], 0, (size_t)num_rows);
    for (int flag = 0; flag < 3; flag++) memset(out[ROW_TERMINATED + flag], 0, (size_t)num_bytes);
    memset(out[ROW_VALID], 0xff, (size_t)num_bytes);
    if (num_rows & 7) out[ROW_VALID][num_bytes - 1] = (char)((1 << (num_rows & 7)) - 1);
    int64_t begin = 0;
    for (int64_t k = 0; k < num_trajectories; k++) {
        const int64_t end = begin + num_steps[k], first = first_steps[k] - begin;
        for (int64_t i = begin; i < end; i++) episode[i] = episodes[k];
        for (int64_t i = begin; i < end; i++) step[i] = first + i;
        for (int64_t i = begin; i < end; i++) trajectory[i] = (int32_t)k;
        for (int64_t i = begin; i < end; i++) env[i] = envs[k];
        for (int64_t i = begin; i < end; i++) agent[i] = agents[k];
        for (int64_t i = begin; i < end; i++) offset[i] = (int32_t)k;
        for (int flag = 0; flag < 3; flag++) {
            const int is_set = ((const char *)given[TERMINATED + flag].buf)[k] != 0;
            out[ROW_TERMINATED + flag][(end - 1) >> 3] |= (char)(is_set << ((end - 1) & 7));
        }
        begin = end;
    }
    offset[num_rows] = (int32_t)num_trajectories;
}

/* Whether the headers are of as many trajectories each, which have `num_rows` rows together. */
static int headers_have_rows(const Py_buffer *given, int64_t num_rows) {
    const Py_ssize_t count = given[NUM_STEPS].len / 8;
    for (int i = 0; i < NUM_GIVEN; i++) {
        if (given[i].len != count * given_bytes[i]) return 0;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        const int64_t num_steps = ((const int64_t *)given[NUM_STEPS].buf)[k];
        if (num_steps < 1 || num_steps > num_rows) return 0;
        num_rows -= num_steps;
    }
    return num_rows == 0;
}

/* Where each column begins in the memory; 0 where it is no place, or too short. */
static int find_columns(PyObject *begins, const Py_buffer *memory, int64_t num_rows, char **columns) {
    if (PyTuple_GET_SIZE(begins) != NUM_ROW_COLUMNS || num_rows < 0 || num_rows > memory->len) return 0;
    for (int i = 0; i < NUM_ROW_COLUMNS; i++) {
        const Py_ssize_t begin = PyLong_AsSsize_t(PyTuple_GET_ITEM(begins, i));
        const int64_t size = ((num_rows + (i == ROW_OFFSET)) * row_bits[i] + 7) / 8;
        if (begin < 0 || begin % 8 || begin > memory->len || size > memory->len - begin) return 0;
        columns[i] = (char *)memory->buf + begin;
    }
    return 1;
}

PyObject *spread_headers(PyObject *module, PyObject *args) {
    PyObject *given, *begins;
    long long num_rows;
    Py_buffer buffers[NUM_GIVEN], memory;
    if (!PyArg_ParseTuple(args, "O!LO!w*:spread_headers", &PyTuple_Type, &given, &num_rows, &PyTuple_Type, &begins, &memory)) return NULL;
    int num_buffers = 0, fits = PyTuple_GET_SIZE(given) == NUM_GIVEN;
    while (fits && num_buffers < NUM_GIVEN) {
        fits = !PyObject_GetBuffer(PyTuple_GET_ITEM(given, num_buffers), &buffers[num_buffers], PyBUF_SIMPLE);
        num_buffers += fits;
    }
    char *columns[NUM_ROW_COLUMNS];
    fits = fits && headers_have_rows(buffers, num_rows) && find_columns(begins, &memory, num_rows, columns);
    if (fits) fill_rows(buffers, columns, buffers[NUM_STEPS].len / 8, num_rows);
    else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the arguments of spread_headers do not fit each other");
    while (num_buffers) PyBuffer_Release(&buffers[--num_buffers]);
    PyBuffer_Release(&memory);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}
