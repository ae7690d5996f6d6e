/* The Python binding of what is learned step by step: `Tape`, Adam, and soft updates of target networks. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

typedef struct {
    PyObject_HEAD
    MLPObject *mlp;
    const Kernels *kernels; /* those that made the tape */
    Tape *tape;
    int is_kept;
    int64_t num_rows; /* of the last forward pass, where it can be differentiated */
} TapeObject;

static int begin_tape(PyObject *object, PyObject *args) {
    TapeObject *self = (TapeObject *)object;
    PyObject *mlp;
    if (!PyArg_ParseTuple(args, "O!p:Tape", &MLP_type, &mlp, &self->is_kept)) return -1;
    self->mlp = (MLPObject *)Py_NewRef(mlp);
    self->kernels = kernels;
    self->tape = kernels->open_tape(&self->mlp->network, self->is_kept);
    if (self->tape) return 0;
    PyErr_NoMemory();
    return -1;
}

static PyObject *Tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { return made(type, args, begin_tape); }

static void Tape_dealloc(PyObject *object) {
    TapeObject *self = (TapeObject *)object;
    if (self->tape) self->kernels->close_tape(self->tape);
    Py_XDECREF(self->mlp);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject Tape_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.Tape",
    .tp_doc = "A mlp that is differentiated step by step.",
    .tp_basicsize = sizeof(TapeObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Tape_new,
    .tp_dealloc = Tape_dealloc,
};

/* One tape's part of a pass over several. */
typedef struct {
    TapeObject *object;
    Py_buffer in, out;
    int64_t num_rows, num_kept; /* that are passed over, and that can be differentiated afterwards */
} GivenTape;

typedef struct Pass Pass;
struct Pass {
    GivenTape given[MAX_TAPES];
    int num_given;
    int (*fits)(Pass *, GivenTape *); /* whether the arrays have the right sizes; sets an error where they have not */
    TapePart (*part_of)(const Pass *, const GivenTape *);
    int (*run)(const Kernels *, TapePart *, int num_parts, int num_threads);
    PyObject *parts; /* of a regression, in which all tapes see the same; `in` is where outputs go */
    int is_factored;
    GivenInputs inputs;
    Py_buffer target, share;
    double loss;
};

static int read_part(GivenTape *given, PyObject *tape, PyObject *in, PyObject *out) {
    if (!PyObject_TypeCheck(tape, &Tape_type)) {
        PyErr_SetString(PyExc_TypeError, "tapes must be of type Tape");
        return -1;
    }
    given->object = (TapeObject *)tape;
    if (PyObject_GetBuffer(in, &given->in, PyBUF_C_CONTIGUOUS)) return -1;
    return PyObject_GetBuffer(out, &given->out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
}

/* Whether a tape goes with those before it; sets an error where it does not. */
static int goes_with(const Pass *pass, const GivenTape *given) {
    for (const GivenTape *other = pass->given; other < given; other++) {
        if (other->object != given->object && other->object->kernels == given->object->kernels) continue;
        PyErr_SetString(PyExc_ValueError, "a tape takes part once, with tapes of the same instruction set");
        return 0;
    }
    return 1;
}

static int read_parts(Pass *pass, PyObject *tapes, PyObject *ins, PyObject *outs) {
    const Py_ssize_t count = PyTuple_GET_SIZE(tapes);
    if (count > MAX_TAPES || PyTuple_GET_SIZE(ins) != count || PyTuple_GET_SIZE(outs) != count) {
        PyErr_Format(PyExc_ValueError, "at most %d tapes, and an array in and one out for each", MAX_TAPES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        GivenTape *given = &pass->given[pass->num_given++];
        if (read_part(given, PyTuple_GET_ITEM(tapes, i), PyTuple_GET_ITEM(ins, i), PyTuple_GET_ITEM(outs, i))) return -1;
        if (!pass->fits(pass, given) || !goes_with(pass, given)) return -1;
    }
    return 0;
}

static void run_pass(Pass *pass, int num_threads) {
    TapePart parts[MAX_TAPES];
    int failed = 0;
    for (int i = 0; i < pass->num_given; i++) parts[i] = pass->part_of(pass, &pass->given[i]);
    Py_BEGIN_ALLOW_THREADS
    if (pass->num_given) failed = pass->run(pass->given[0].object->kernels, parts, pass->num_given, num_threads);
    Py_END_ALLOW_THREADS
    if (failed) PyErr_NoMemory();
    for (int i = 0; i < pass->num_given; i++) {
        pass->given[i].object->num_rows = failed ? 0 : pass->given[i].num_kept;
        pass->loss += parts[i].loss;
    }
}

static PyObject *pass_over_tapes(Pass *pass, PyObject *tapes, PyObject *ins, PyObject *outs, int num_threads) {
    if (!read_parts(pass, tapes, ins, outs)) run_pass(pass, num_threads);
    for (int i = 0; i < pass->num_given; i++) {
        PyBuffer_Release(&pass->given[i].in);
        PyBuffer_Release(&pass->given[i].out);
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *parse_and_pass(PyObject *args, Pass *pass) {
    PyObject *tapes, *ins, *outs;
    int num_threads;
    if (!PyArg_ParseTuple(args, "O!O!O!i", &PyTuple_Type, &tapes, &PyTuple_Type, &ins, &PyTuple_Type, &outs, &num_threads))
        return NULL;
    return pass_over_tapes(pass, tapes, ins, outs, num_threads);
}

static const Network *network_of(const GivenTape *given) { return &given->object->mlp->network; }

static int fits_forward(Pass *pass, GivenTape *given) {
    const Network *n = network_of(given);
    given->num_rows = given->in.len / 4 / n->sizes[0];
    given->num_kept = given->object->is_kept ? given->num_rows : 0;
    return has_size(&given->in, given->num_rows * n->sizes[0], 4, "x") &&
           has_size(&given->out, given->num_rows * n->sizes[n->num_layers], 4, "out");
}

static TapePart forward_part(const Pass *pass, const GivenTape *given) {
    return (TapePart){given->object->tape, given->num_rows, .in = given->in.buf, .out = given->out.buf};
}

static int run_forward(const Kernels *own, TapePart *parts, int num_parts, int num_threads) {
    return own->forward_tapes(parts, num_parts, num_threads);
}

static int fits_backward(Pass *pass, GivenTape *given) {
    const Network *n = network_of(given);
    given->num_rows = given->num_kept = given->object->num_rows;
    if (!given->num_rows) {
        PyErr_SetString(PyExc_ValueError, "there is no forward pass to go back over");
        return 0;
    }
    return has_table(&given->in, given->num_rows, n->sizes[n->num_layers], 4, "gradient") &&
           has_size(&given->out, num_parameters(n), 4, "flat");
}

static TapePart backward_part(const Pass *pass, const GivenTape *given) {
    return (TapePart){given->object->tape, given->num_rows, .in = given->in.buf, .flat = given->out.buf};
}

static int run_backward(const Kernels *own, TapePart *parts, int num_parts, int num_threads) {
    return own->backward_tapes(parts, num_parts, num_threads);
}

PyObject *forward_tapes(PyObject *module, PyObject *args) {
    Pass pass = {.fits = fits_forward, .part_of = forward_part, .run = run_forward};
    return parse_and_pass(args, &pass);
}

PyObject *backward_tapes(PyObject *module, PyObject *args) {
    Pass pass = {.fits = fits_backward, .part_of = backward_part, .run = run_backward};
    return parse_and_pass(args, &pass);
}

/* What a backward pass would need is overwritten tile by tile: nothing is kept. */
static int fits_regression(Pass *pass, GivenTape *given) {
    const Network *n = network_of(given);
    if (given->in.readonly || !given->object->is_kept) {
        PyErr_SetString(PyExc_ValueError, "outputs must be writable, and tapes differentiated");
        return 0;
    }
    given->num_rows = pass->target.len / 4 / n->sizes[n->num_layers];
    const int64_t num_outputs = given->num_rows * n->sizes[n->num_layers];
    const GivenTape *first = &pass->given[0];
    if (given == first && read_inputs(&pass->inputs, pass->parts, pass->is_factored, given->num_rows, n->sizes[0])) return 0;
    if (given->num_rows != first->num_rows || n->sizes[0] != network_of(first)->sizes[0]) {
        PyErr_SetString(PyExc_ValueError, "tapes must have the same inputs and as many outputs");
        return 0;
    }
    return has_size(&pass->target, num_outputs, 4, "target") && has_size(&pass->share, num_outputs, 4, "share") &&
           has_size(&given->in, num_outputs, 4, "out") && has_size(&given->out, num_parameters(n), 4, "flat");
}

static TapePart regression_part(const Pass *pass, const GivenTape *given) {
    TapePart part = {given->object->tape, given->num_rows, .out = given->in.buf, .flat = given->out.buf};
    part.inputs = &pass->inputs.inputs;
    part.target = pass->target.buf;
    part.share = pass->share.buf;
    return part;
}

static int run_regression(const Kernels *own, TapePart *parts, int num_parts, int num_threads) {
    return own->regress_tapes(parts, num_parts, num_threads);
}

PyObject *regress_tapes(PyObject *module, PyObject *args) {
    Pass pass = {.fits = fits_regression, .part_of = regression_part, .run = run_regression};
    PyObject *tapes, *outs, *flats;
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "O!Opy*y*O!O!i", &PyTuple_Type, &tapes, &pass.parts, &pass.is_factored, &pass.target, &pass.share,
            &PyTuple_Type, &outs, &PyTuple_Type, &flats, &num_threads
        ))
        return NULL;
    PyObject *done = pass_over_tapes(&pass, tapes, outs, flats, num_threads);
    release_inputs(&pass.inputs);
    PyBuffer_Release(&pass.target);
    PyBuffer_Release(&pass.share);
    if (!done) return NULL;
    Py_DECREF(done);
    return PyFloat_FromDouble(pass.loss);
}

PyObject *take_adam_step(PyObject *module, PyObject *args) {
    Py_buffer vector, gradient, first, second;
    Adam adam = {0};
    long long num_steps;
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "w*w*w*w*Ldddddi:adam_step", &vector, &gradient, &first, &second, &num_steps, &adam.learning_rate,
            &adam.beta1, &adam.beta2, &adam.epsilon, &adam.max_norm, &num_threads
        ))
        return NULL;
    double norm = 0.0;
    adam.num_parameters = vector.len / 4;
    adam.num_steps = num_steps;
    if (has_size(&vector, adam.num_parameters, 4, "vector") && has_size(&gradient, adam.num_parameters, 4, "gradient") &&
        has_size(&first, adam.num_parameters, 4, "first_moment") &&
        has_size(&second, adam.num_parameters, 4, "second_moment")) {
        adam.vector = vector.buf;
        adam.first_moment = first.buf;
        adam.second_moment = second.buf;
        Py_BEGIN_ALLOW_THREADS
        norm = kernels->adam_step(&adam, gradient.buf, num_threads);
        Py_END_ALLOW_THREADS
    }
    Py_buffer *all[] = {&vector, &gradient, &first, &second};
    for (int i = 0; i < 4; i++) PyBuffer_Release(all[i]);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(norm);
}

PyObject *soft_update_module(PyObject *module, PyObject *args) {
    Py_buffer target, source;
    double share;
    int num_threads;
    if (!PyArg_ParseTuple(args, "w*y*di:soft_update", &target, &source, &share, &num_threads)) return NULL;
    const int64_t count = target.len / 4;
    if (has_size(&target, count, 4, "target") && has_size(&source, count, 4, "source")) {
        Py_BEGIN_ALLOW_THREADS
        kernels->soft_update(target.buf, source.buf, count, share, num_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
