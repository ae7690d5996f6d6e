/* Columns as one of Arrow's arrays, handed over through its C data interface: a call instead of one for each array.
 *
 * Arrays are told in preorder, a dictionary behind its indices: four numbers each, and their buffers one after the other. The
 * memory is the caller's; it is held until Arrow releases the array, which may happen on any thread. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

/* As https://arrow.apache.org/docs/format/CDataInterface.html has it. */
typedef struct ArrowArray {
    int64_t length, null_count, offset, num_buffers, num_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

typedef struct {
    int64_t length, num_buffers, num_children, has_dictionary;
} Node;

typedef struct {
    ArrowArray *arrays, **children; /* of all arrays */
    const void **addresses;         /* of all buffers, NULL for none */
    Py_buffer *views;
    Py_ssize_t num_views;
} Held;

static void let_go(Held *held) {
    while (held->num_views) PyBuffer_Release(&held->views[--held->num_views]);
    PyMem_RawFree(held->arrays);
    PyMem_RawFree(held->children);
    PyMem_RawFree(held->addresses);
    PyMem_RawFree(held->views);
    PyMem_RawFree(held);
}

static void release(ArrowArray *array) {
    Held *held = array->private_data;
    array->release = NULL;
    if (!Py_IsInitialized()) return; /* the process ends: its memory goes with it */
    const PyGILState_STATE state = PyGILState_Ensure();
    let_go(held);
    PyGILState_Release(state);
}

static Held *hold(Py_ssize_t num_arrays, Py_ssize_t num_buffers) {
    Held *held = PyMem_RawCalloc(1, sizeof(Held));
    if (!held) return NULL;
    held->arrays = PyMem_RawCalloc((size_t)num_arrays, sizeof(ArrowArray));
    held->children = PyMem_RawCalloc((size_t)num_arrays, sizeof(ArrowArray *));
    held->addresses = PyMem_RawCalloc((size_t)num_buffers, sizeof(void *));
    held->views = PyMem_RawCalloc((size_t)num_buffers, sizeof(Py_buffer));
    if (held->arrays && held->children && held->addresses && held->views) return held;
    let_go(held);
    return NULL;
}

#define MAX_DEPTH 64 /* of arrays within arrays: each is a call within a call */

typedef struct {
    const Node *nodes;
    Py_ssize_t num_arrays, num_buffers;                 /* in all */
    Py_ssize_t next_array, next_buffer, next_child_link; /* used so far */
} Plan;

/* Fills the next array and all below it; NULL where the plan has no more. */
static ArrowArray *place(Held *held, Plan *plan, int depth) {
    if (plan->next_array == plan->num_arrays || depth == MAX_DEPTH) return NULL;
    const Node *node = &plan->nodes[plan->next_array];
    ArrowArray *array = &held->arrays[plan->next_array++];
    if (node->length < 0 || node->num_buffers < 0 || node->num_buffers > plan->num_buffers - plan->next_buffer) return NULL;
    if (node->num_children < 0 || node->num_children > plan->num_arrays - 1 - plan->next_child_link) return NULL;
    *array = (ArrowArray){.length = node->length,
                          .num_buffers = node->num_buffers,
                          .num_children = node->num_children,
                          .buffers = held->addresses + plan->next_buffer,
                          .children = held->children + plan->next_child_link,
                          .release = release,
                          .private_data = held};
    plan->next_buffer += node->num_buffers;
    plan->next_child_link += node->num_children;
    for (int64_t i = 0; i < node->num_children; i++) {
        if (!(array->children[i] = place(held, plan, depth + 1))) return NULL;
    }
    if (node->has_dictionary && !(array->dictionary = place(held, plan, depth + 1))) return NULL;
    return array;
}

static int view_all(Held *held, PyObject *buffers) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buffers); i++) {
        PyObject *buffer = PyList_GET_ITEM(buffers, i);
        if (buffer == Py_None) continue;
        if (PyObject_GetBuffer(buffer, &held->views[held->num_views], PyBUF_SIMPLE)) return 0;
        held->addresses[i] = held->views[held->num_views++].buf;
    }
    return 1;
}

PyObject *arrow_struct(PyObject *module, PyObject *args) {
    Py_buffer nodes;
    PyObject *buffers;
    if (!PyArg_ParseTuple(args, "y*O!:arrow_struct", &nodes, &PyList_Type, &buffers)) return NULL;
    Plan plan = {nodes.buf, nodes.len / (Py_ssize_t)sizeof(Node), PyList_GET_SIZE(buffers), 0, 0, 0};
    Held *held = hold(plan.num_arrays, plan.num_buffers);
    int fits = held && view_all(held, buffers);
    if (fits) fits = place(held, &plan, 0) && plan.next_array == plan.num_arrays && plan.next_buffer == plan.num_buffers;
    PyBuffer_Release(&nodes);
    if (fits) return PyLong_FromVoidPtr(held->arrays);
    if (!held) PyErr_NoMemory();
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the arrays are no tree, or have other buffers");
    if (held) let_go(held);
    return NULL;
}
