/* What the files of the Python binding share. */
#ifndef RELAYRL_PYTHON_TYPES_H
#define RELAYRL_PYTHON_TYPES_H

#include "kernels.h"

extern const Kernels *kernels; /* those of the instruction set in use */
extern PyTypeObject MLP_type, Tape_type, Update_type, TeamPasses_type, SpreadStep_type, CartPoles_type, Pendulums_type;

typedef struct {
    PyObject_HEAD
    Network network;
    Frozen *frozen;           /* parameters that were taken over; not in use while the mlp is on live ones */
    const Kernels *frozen_by; /* whose layout `frozen` has */
    int is_frozen, is_held;   /* for good, or until they are released */
    int is_outdated;          /* whether held parameters are still to be taken over */
    int num_buffers;
    Py_buffer buffers[2 * MAX_LAYERS];
} MLPObject;

/* Whether a buffer holds so many items; sets a ValueError where it does not. */
int has_size(const Py_buffer *buffer, int64_t count, size_t item, const char *name);

/* The same for a table of so many rows and columns, whose product may be no number. */
int has_table(const Py_buffer *buffer, int64_t rows, int64_t columns, size_t item, const char *name);

/* What each buffer holds, by name; sets an error where one does not. */
typedef struct {
    const char *name;
    int64_t count;
    size_t item;
} Expected;

int are_sound(const Py_buffer *buffers, const Expected *expected, int count);

/* Sizes whose products of two are far from overflowing; sets an error where one is not. */
int are_sizes(const int *sizes, int count);

/* Release those of `count` buffers that hold something. */
void release_all(Py_buffer *buffers, int count);

/* Take the buffers of a tuple of `count` arrays; bits say which are written to, and which may be None. Those that were taken are to be
 * released either way. For many arrays at once: PyArg_ParseTuple has room to clean up for as many as there are arguments, which does not
 * count those of a tuple among them. */
int read_arrays(PyObject *tuple, int count, unsigned written, unsigned optional, Py_buffer *buffers);

/* A new object, which `fill` makes of the arguments; it gives -1 with an error. All is done by `__new__`, so that there is no object
 * without what its methods need. */
PyObject *made(PyTypeObject *type, PyObject *args, int (*fill)(PyObject *, PyObject *));

/* Read a tuple of sizes, at most `limit`; gives how many, or -1 with an error. */
int read_sizes(PyObject *sequence, int *sizes, int limit, const char *name);

/* Inputs as they came from Python, with the buffers that their pointers lead into. */
typedef struct {
    Inputs inputs;
    Py_buffer buffers[2 * MAX_INPUT_PARTS];
    int num_buffers;
} GivenInputs;

/* Read the inputs of so many rows from ((table, lines or None), …); -1 with an error. They are to be released either way. */
int read_inputs(GivenInputs *given, PyObject *parts, int is_factored, int64_t num_rows, int width);
void release_inputs(GivenInputs *given);

PyObject *forward_tapes(PyObject *module, PyObject *args);
PyObject *backward_tapes(PyObject *module, PyObject *args);
PyObject *regress_tapes(PyObject *module, PyObject *args);
PyObject *min_q(PyObject *module, PyObject *args);
PyObject *team_values(PyObject *module, PyObject *args);
PyObject *team_gradient(PyObject *module, PyObject *args);
PyObject *take_adam_step(PyObject *module, PyObject *args);
PyObject *soft_update_module(PyObject *module, PyObject *args);
PyObject *set_priorities(PyObject *module, PyObject *args);
PyObject *find_priorities(PyObject *module, PyObject *args);
PyObject *sum_grid(PyObject *module, PyObject *args);
PyObject *join_rows(PyObject *module, PyObject *args);
PyObject *attributes(PyObject *module, PyObject *args);
PyObject *all_alike(PyObject *module, PyObject *args);
PyObject *uuid_bytes(PyObject *module, PyObject *ids);
PyObject *uuid_texts(PyObject *module, PyObject *args);
PyObject *header_numbers(PyObject *module, PyObject *args);
PyObject *headers_fit(PyObject *module, PyObject *args);
PyObject *copy_records(PyObject *module, PyObject *args);
PyObject *spread_headers(PyObject *module, PyObject *args);
PyObject *check_stream(PyObject *module, PyObject *args);
PyObject *step_cart_poles(PyObject *module, PyObject *args);
PyObject *measure_offsets(PyObject *module, PyObject *args);
PyObject *find_contacts(PyObject *module, PyObject *args);
PyObject *add_pushes(PyObject *module, PyObject *args);
PyObject *move_bodies(PyObject *module, PyObject *args);
PyObject *decode_moves(PyObject *module, PyObject *args);
PyObject *numpy_function(PyObject *module, PyObject *args);
PyObject *collect_rows(PyObject *module, PyObject *args);

#endif
