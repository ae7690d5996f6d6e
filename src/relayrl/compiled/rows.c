/* Trajectories as columns: what Python and NumPy do for each of many small objects, without their cost for each.
 *
 * The objects of a trajectory lie apart in memory, and most are not in a cache when a sink looks at them. Loops therefore ask
 * for what they will need a few objects later. Nothing here says what is wrong: where something is not plain, the answer is
 * False or None, and whoever asked finds out in Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>
#include <structmember.h>

#include "python_types.h"

#define AHEAD 8 /* objects */
#define MAX_ATTRIBUTES 32

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
    Py_XDECREF(dtype);
    return dtype && array->dtype == dtype && array->data == buffer->buf && array->num_axes == buffer->ndim &&
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
            for (int line = 0; line < 4; line++) __builtin_prefetch(later->data + 64 * line);
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

/* Where objects of a type hold what is in a slot; 0 where the name is no slot. */
static Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name) {
    PyObject *slot = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = 0;
    if (slot && Py_TYPE(slot) == &PyMemberDescr_Type && PyType_IsSubtype(type, PyDescr_TYPE(slot))) {
        const PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
        if (member->type == T_OBJECT_EX) offset = member->offset;
    }
    Py_XDECREF(slot);
    PyErr_Clear();
    return offset;
}

static PyObject *attribute(PyObject *object, PyTypeObject *type, PyObject *name, Py_ssize_t offset) {
    PyObject *held = offset && Py_TYPE(object) == type ? *(PyObject **)((char *)object + offset) : NULL;
    return held ? Py_NewRef(held) : PyObject_GetAttr(object, name);
}

/* Fills `found`, a list of lists of NULLs; -1 and an exception where an attribute is missing. */
static int fill_attributes(PyObject *objects, PyObject *names, PyObject *found) {
    Py_ssize_t offsets[MAX_ATTRIBUTES];
    const Py_ssize_t num_names = PyTuple_GET_SIZE(names), count = PyList_GET_SIZE(objects);
    PyTypeObject *type = count ? Py_TYPE(PyList_GET_ITEM(objects, 0)) : NULL;
    for (Py_ssize_t name = 0; type && name < num_names; name++) offsets[name] = slot_offset(type, PyTuple_GET_ITEM(names, name));
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            PyObject *later = PyList_GET_ITEM(objects, i + AHEAD);
            for (int line = 0; line < 4; line++) __builtin_prefetch((const char *)later + 64 * line);
        }
        if (i + AHEAD / 2 < count && Py_TYPE(PyList_GET_ITEM(objects, i + AHEAD / 2)) == type) {
            const char *soon = (const char *)PyList_GET_ITEM(objects, i + AHEAD / 2);
            for (Py_ssize_t name = 0; name < num_names; name++) {
                if (offsets[name]) __builtin_prefetch(*(PyObject **)(soon + offsets[name]), 1);
            }
        }
        PyObject *object = Py_NewRef(PyList_GET_ITEM(objects, i));
        int failed = 0;
        for (Py_ssize_t name = 0; !failed && name < num_names; name++) {
            PyObject *value = attribute(object, type, PyTuple_GET_ITEM(names, name), offsets[name]);
            failed = value == NULL;
            if (value) PyList_SET_ITEM(PyList_GET_ITEM(found, name), i, value);
        }
        Py_DECREF(object);
        if (!failed && PyList_GET_SIZE(objects) != count) { /* an attribute may be Python code */
            PyErr_SetString(PyExc_RuntimeError, "the list changed while it was read");
            failed = 1;
        }
        if (failed) return -1;
    }
    return 0;
}

PyObject *attributes(PyObject *module, PyObject *args) {
    PyObject *objects, *names;
    if (!PyArg_ParseTuple(args, "O!O!:attributes", &PyList_Type, &objects, &PyTuple_Type, &names)) return NULL;
    if (PyTuple_GET_SIZE(names) > MAX_ATTRIBUTES) {
        PyErr_Format(PyExc_ValueError, "at most %d names", MAX_ATTRIBUTES);
        return NULL;
    }
    PyObject *found = PyList_New(PyTuple_GET_SIZE(names));
    for (Py_ssize_t name = 0; found && name < PyTuple_GET_SIZE(names); name++) {
        PyObject *column = PyList_New(PyList_GET_SIZE(objects));
        if (column) PyList_SET_ITEM(found, name, column);
        else Py_CLEAR(found);
    }
    if (found && fill_attributes(objects, names, found)) Py_CLEAR(found);
    return found;
}

PyObject *all_alike(PyObject *module, PyObject *args) {
    PyObject *identical, *optional;
    if (!PyArg_ParseTuple(args, "O!O!:all_alike", &PyList_Type, &identical, &PyList_Type, &optional)) return NULL;
    for (int kind = 0; kind < 2; kind++) {
        PyObject *columns = kind ? optional : identical;
        for (Py_ssize_t c = 0; c < PyList_GET_SIZE(columns); c++) {
            PyObject *column = PyList_GET_ITEM(columns, c);
            if (!PyList_Check(column) || PyList_GET_SIZE(column) == 0) Py_RETURN_FALSE;
            PyObject *first = PyList_GET_ITEM(column, 0);
            for (Py_ssize_t i = 1; i < PyList_GET_SIZE(column); i++) {
                PyObject *other = PyList_GET_ITEM(column, i);
                if (kind ? (other == Py_None) != (first == Py_None) : other != first) Py_RETURN_FALSE;
            }
        }
    }
    Py_RETURN_TRUE;
}

/* The 16 bytes of a number, most significant first; NULL where it is no such number. */
static PyObject *bytes_of(PyObject *number, PyObject *sixty_four) {
    if (!PyLong_CheckExact(number)) return NULL;
    PyObject *high = PyNumber_Rshift(number, sixty_four);
    if (!high) return NULL;
    const unsigned long long first = PyLong_AsUnsignedLongLong(high), second = PyLong_AsUnsignedLongLongMask(number);
    Py_DECREF(high);
    if (PyErr_Occurred()) return NULL;
    unsigned char digits[16];
    for (int i = 0; i < 8; i++) {
        digits[i] = (unsigned char)(first >> (56 - 8 * i));
        digits[8 + i] = (unsigned char)(second >> (56 - 8 * i));
    }
    return PyBytes_FromStringAndSize((const char *)digits, 16);
}

PyObject *uuid_bytes(PyObject *module, PyObject *ids) {
    if (!PyList_Check(ids)) Py_RETURN_NONE;
    const Py_ssize_t count = PyList_GET_SIZE(ids);
    PyObject *found = PyList_New(count), *name = PyUnicode_InternFromString("int"), *sixty_four = PyLong_FromLong(64);
    int fits = found && name && sixty_four;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        if (i + AHEAD < count) __builtin_prefetch(PyList_GET_ITEM(ids, i + AHEAD));
        PyObject *number = PyObject_GetAttr(PyList_GET_ITEM(ids, i), name);
        if (number) {
            __builtin_prefetch(number);
            PyList_SET_ITEM(found, i, number);
        }
        fits = number && PyList_GET_SIZE(ids) == count;
    }
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        PyObject *number = PyList_GET_ITEM(found, i), *digits = bytes_of(number, sixty_four);
        fits = digits != NULL;
        if (fits) {
            PyList_SET_ITEM(found, i, digits);
            Py_DECREF(number);
        }
    }
    Py_XDECREF(name);
    Py_XDECREF(sixty_four);
    if (fits) return found;
    Py_XDECREF(found);
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyObject *header_numbers(PyObject *module, PyObject *args) {
    PyObject *columns, *numbers_out, *flags_out;
    if (!PyArg_ParseTuple(args, "O!OO:header_numbers", &PyTuple_Type, &columns, &numbers_out, &flags_out)) return NULL;
    Py_buffer numbers, flags;
    if (PyObject_GetBuffer(numbers_out, &numbers, PyBUF_WRITABLE)) return NULL;
    if (PyObject_GetBuffer(flags_out, &flags, PyBUF_WRITABLE)) {
        PyBuffer_Release(&numbers);
        return NULL;
    }
    const Py_ssize_t count = numbers.len / 24;
    int fits = PyTuple_GET_SIZE(columns) == 6 && numbers.len == 24 * count && flags.len == 3 * count;
    for (int c = 0; fits && c < 6; c++) {
        PyObject *column = PyTuple_GET_ITEM(columns, c);
        fits = PyList_Check(column) && PyList_GET_SIZE(column) == count;
        for (Py_ssize_t i = 0; fits && i < count; i++) {
            PyObject *value = PyList_GET_ITEM(column, i);
            if (c >= 3) {
                fits = PyBool_Check(value);
                ((char *)flags.buf)[(c - 3) * count + i] = value == Py_True;
            } else {
                fits = c == 2 || PyLong_CheckExact(value);
                if (fits) ((int64_t *)numbers.buf)[c * count + i] = c == 2 ? PyObject_Size(value) : PyLong_AsLongLong(value);
                fits = fits && !PyErr_Occurred() && PyList_GET_SIZE(column) == count;
            }
        }
    }
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&flags);
    PyErr_Clear();
    return PyBool_FromLong(fits);
}

PyObject *headers_fit(PyObject *module, PyObject *args) {
    Py_buffer steps, first, episode, truncated, failed;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*:headers_fit", &steps, &first, &episode, &truncated, &failed)) return NULL;
    const Py_ssize_t count = truncated.len;
    int fits = steps.len == 8 * count && first.len == 8 * count && episode.len == 8 * count && failed.len == count;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        const int64_t begin = ((int64_t *)first.buf)[i], length = ((int64_t *)steps.buf)[i];
        fits = length > 0 && begin >= 0 && ((int64_t *)episode.buf)[i] >= 0 && begin <= INT64_MAX - length &&
               (!((char *)failed.buf)[i] || ((char *)truncated.buf)[i]);
    }
    PyBuffer_Release(&steps);
    PyBuffer_Release(&first);
    PyBuffer_Release(&episode);
    PyBuffer_Release(&truncated);
    PyBuffer_Release(&failed);
    return PyBool_FromLong(fits);
}

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

enum { NUM_STEPS, EPISODE, FIRST_STEP, WORLD, AGENT, TERMINATED, TRUNCATED, FAILED, NUM_GIVEN };
enum {
    ROW_EPISODE, ROW_STEP, ROW_TRAJECTORY, ROW_WORLD, ROW_AGENT, ROW_OFFSET, ROW_GROUP,
    ROW_TERMINATED, ROW_TRUNCATED, ROW_FAILED, ROW_VALID, NUM_ROW_COLUMNS
};
static const Py_ssize_t given_bytes[NUM_GIVEN] = {8, 8, 8, 4, 4, 1, 1, 1};
static const Py_ssize_t row_bits[NUM_ROW_COLUMNS] = {64, 64, 32, 32, 32, 32, 8, 1, 1, 1, 1};

static void fill_rows(const Py_buffer *given, char *const *out, int64_t num_trajectories, int64_t num_rows) {
    const int64_t *num_steps = given[NUM_STEPS].buf, *episodes = given[EPISODE].buf, *first_steps = given[FIRST_STEP].buf;
    const int32_t *worlds = given[WORLD].buf, *agents = given[AGENT].buf;
    int64_t *episode = (int64_t *)out[ROW_EPISODE], *step = (int64_t *)out[ROW_STEP];
    int32_t *trajectory = (int32_t *)out[ROW_TRAJECTORY], *world = (int32_t *)out[ROW_WORLD];
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
        for (int64_t i = begin; i < end; i++) world[i] = worlds[k];
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
        if (count > (stop - to) / part->row_bytes || begin + count > part->rows.len / part->row_bytes) return NULL;
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
    int num_parts = 0, fits = first >= 0 && first_step >= 0;
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
        begin += length;
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
