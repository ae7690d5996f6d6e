/* The fields of many trajectories as columns, without Python's cost for each.
 *
 * The objects lie apart in memory: loops ask for what they will need a few objects later. Where something is not plain, the
 * answer is False or None, and whoever asked finds out in Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <structmember.h>

#include "python_types.h"

#define AHEAD 8 /* objects */
#define MAX_ATTRIBUTES 32

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
