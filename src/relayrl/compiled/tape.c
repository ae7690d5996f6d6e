/* The Python binding of what is learned step by step: `Tape`, Adam, and targets that follow. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "helper_thread.h"
#include "python_types.h"

typedef struct {
    PyObject_HEAD
    PerceptronObject *perceptron;
    const Kernels *kernels; /* those that made the tape */
    Tape *tape;
    int is_kept;
    int64_t num_rows; /* of the last forward pass, where it can be differentiated */
} TapeObject;

static int begin_tape(PyObject *object, PyObject *args) {
    TapeObject *self = (TapeObject *)object;
    PyObject *perceptron;
    if (!PyArg_ParseTuple(args, "O!p:Tape", &Perceptron_type, &perceptron, &self->is_kept)) return -1;
    self->perceptron = (PerceptronObject *)Py_NewRef(perceptron);
    self->kernels = kernels;
    self->tape = kernels->open_tape(&self->perceptron->network, self->is_kept);
    if (self->tape) return 0;
    PyErr_NoMemory();
    return -1;
}

static PyObject *Tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { return made(type, args, begin_tape); }

static void Tape_dealloc(PyObject *object) {
    TapeObject *self = (TapeObject *)object;
    if (self->tape) self->kernels->close_tape(self->tape);
    Py_XDECREF(self->perceptron);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject Tape_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.Tape",
    .tp_doc = "A perceptron that is differentiated step by step.",
    .tp_basicsize = sizeof(TapeObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Tape_new,
    .tp_dealloc = Tape_dealloc,
};

#define MAX_TAPES 16

/* One tape's part of a pass over several. */
typedef struct {
    TapeObject *object;
    Py_buffer in, out;
    int64_t num_rows;
    Cut cut;
    double loss; /* of a regression */
    int failed;
} TapePart;

typedef struct Pass Pass;
struct Pass {
    TapePart parts[MAX_TAPES];
    Py_ssize_t num_parts;
    int (*fits)(Pass *, TapePart *); /* whether the arrays have the right sizes; sets an error where they have not */
    void (*run)(const Pass *, TapePart *);
    PyObject *given; /* of a regression, in which all tapes see the same; `in` is where outputs go */
    int is_factored;
    GivenInputs inputs;
    Py_buffer target, share;
};

/* Every second part of a pass. */
typedef struct {
    Pass *pass;
    Py_ssize_t first;
} Share;

static void run_share(void *argument) {
    const Share *share = argument;
    for (Py_ssize_t i = share->first; i < share->pass->num_parts; i += 2) share->pass->run(share->pass, &share->pass->parts[i]);
}

/* Where there are several tapes, each is one thread's affair, whose cache then holds it; a single one has both threads. */
static void run_pass(Pass *pass, int num_threads) {
    const int is_shared = num_threads > 1 && pass->num_parts > 1;
    const Cut cut = pass->num_parts > 1 ? WHOLE : num_threads > 1 ? HALVES_SIDE_BY_SIDE : HALVES_IN_TURN;
    for (Py_ssize_t i = 0; i < pass->num_parts; i++) pass->parts[i].cut = cut;
    Share first = {pass, 0}, second = {pass, 1};
    do_both(run_share, &first, &second, is_shared);
}

static int read_part(TapePart *part, PyObject *tape, PyObject *in, PyObject *out) {
    if (!PyObject_TypeCheck(tape, &Tape_type)) {
        PyErr_SetString(PyExc_TypeError, "tapes must be of type Tape");
        return -1;
    }
    part->object = (TapeObject *)tape;
    if (PyObject_GetBuffer(in, &part->in, PyBUF_C_CONTIGUOUS)) return -1;
    return PyObject_GetBuffer(out, &part->out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
}

static int read_parts(Pass *pass, PyObject *tapes, PyObject *ins, PyObject *outs) {
    const Py_ssize_t count = PyTuple_GET_SIZE(tapes);
    if (count > MAX_TAPES || PyTuple_GET_SIZE(ins) != count || PyTuple_GET_SIZE(outs) != count) {
        PyErr_Format(PyExc_ValueError, "at most %d tapes, and an array in and one out for each", MAX_TAPES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        TapePart *part = &pass->parts[pass->num_parts++];
        if (read_part(part, PyTuple_GET_ITEM(tapes, i), PyTuple_GET_ITEM(ins, i), PyTuple_GET_ITEM(outs, i))) return -1;
        if (!pass->fits(pass, part)) return -1;
        for (Py_ssize_t j = 0; j < i; j++) {
            if (pass->parts[j].object != part->object) continue;
            PyErr_SetString(PyExc_ValueError, "a tape takes part once");
            return -1;
        }
    }
    return 0;
}

static PyObject *pass_over_tapes(Pass *pass, PyObject *tapes, PyObject *ins, PyObject *outs, int num_threads) {
    if (!read_parts(pass, tapes, ins, outs)) {
        Py_BEGIN_ALLOW_THREADS
        run_pass(pass, num_threads);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; i < pass->num_parts; i++) {
        if (pass->parts[i].failed) PyErr_NoMemory();
        PyBuffer_Release(&pass->parts[i].in);
        PyBuffer_Release(&pass->parts[i].out);
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *parse_and_pass(PyObject *args, int (*fits)(Pass *, TapePart *), void (*run)(const Pass *, TapePart *)) {
    Pass pass = {.fits = fits, .run = run};
    PyObject *tapes, *ins, *outs;
    int num_threads;
    if (!PyArg_ParseTuple(args, "O!O!O!i", &PyTuple_Type, &tapes, &PyTuple_Type, &ins, &PyTuple_Type, &outs, &num_threads))
        return NULL;
    return pass_over_tapes(&pass, tapes, ins, outs, num_threads);
}

static const Network *network_of(const TapePart *part) { return &part->object->perceptron->network; }

static int fits_forward(Pass *pass, TapePart *part) {
    const Network *n = network_of(part);
    part->num_rows = part->in.len / 4 / n->sizes[0];
    return has_size(&part->in, part->num_rows * n->sizes[0], 4, "x") &&
           has_size(&part->out, part->num_rows * n->sizes[n->num_layers], 4, "out");
}

static void run_forward(const Pass *pass, TapePart *part) {
    TapeObject *self = part->object;
    part->failed = self->kernels->tape_forward(self->tape, part->in.buf, part->num_rows, part->out.buf, part->cut);
    self->num_rows = part->failed || !self->is_kept ? 0 : part->num_rows;
}

static int fits_backward(Pass *pass, TapePart *part) {
    const Network *n = network_of(part);
    if (!part->object->num_rows) {
        PyErr_SetString(PyExc_ValueError, "there is no forward pass to go back over");
        return 0;
    }
    return has_table(&part->in, part->object->num_rows, n->sizes[n->num_layers], 4, "gradient") &&
           has_size(&part->out, num_parameters(n), 4, "flat");
}

static void run_backward(const Pass *pass, TapePart *part) {
    part->failed = part->object->kernels->tape_backward(part->object->tape, part->in.buf, part->out.buf, part->cut);
}

PyObject *forward_tapes(PyObject *module, PyObject *args) { return parse_and_pass(args, fits_forward, run_forward); }

PyObject *backward_tapes(PyObject *module, PyObject *args) { return parse_and_pass(args, fits_backward, run_backward); }

static int fits_regression(Pass *pass, TapePart *part) {
    const Network *n = network_of(part);
    if (part->in.readonly || !part->object->is_kept) {
        PyErr_SetString(PyExc_ValueError, "outputs must be writable, and tapes differentiated");
        return 0;
    }
    part->num_rows = pass->target.len / 4 / n->sizes[n->num_layers];
    const int64_t num_outputs = part->num_rows * n->sizes[n->num_layers];
    const TapePart *first = &pass->parts[0];
    if (part == first && read_inputs(&pass->inputs, pass->given, pass->is_factored, part->num_rows, n->sizes[0])) return 0;
    if (part->num_rows != first->num_rows || n->sizes[0] != network_of(first)->sizes[0]) {
        PyErr_SetString(PyExc_ValueError, "tapes must have the same inputs and as many outputs");
        return 0;
    }
    return has_size(&pass->target, num_outputs, 4, "target") && has_size(&pass->share, num_outputs, 4, "share") &&
           has_size(&part->in, num_outputs, 4, "out") && has_size(&part->out, num_parameters(n), 4, "flat");
}

static void run_regression(const Pass *pass, TapePart *part) {
    TapeObject *self = part->object;
    Regression rows = {
        part->num_rows, &pass->inputs.inputs, pass->target.buf, pass->share.buf, part->in.buf, 0.0,
    };
    part->failed = self->kernels->tape_regress(self->tape, &rows, part->out.buf, part->cut);
    part->loss = rows.loss;
    self->num_rows = 0; /* what a backward pass would need was overwritten tile by tile */
}

PyObject *regress_tapes(PyObject *module, PyObject *args) {
    Pass pass = {.fits = fits_regression, .run = run_regression};
    PyObject *tapes, *outs, *flats;
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "O!Opy*y*O!O!i", &PyTuple_Type, &tapes, &pass.given, &pass.is_factored, &pass.target, &pass.share,
            &PyTuple_Type, &outs, &PyTuple_Type, &flats, &num_threads
        ))
        return NULL;
    PyObject *done = pass_over_tapes(&pass, tapes, outs, flats, num_threads);
    release_inputs(&pass.inputs);
    PyBuffer_Release(&pass.target);
    PyBuffer_Release(&pass.share);
    if (!done) return NULL;
    Py_DECREF(done);
    double loss = 0.0;
    for (Py_ssize_t i = 0; i < pass.num_parts; i++) loss += pass.parts[i].loss;
    return PyFloat_FromDouble(loss);
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

PyObject *follow_module(PyObject *module, PyObject *args) {
    Py_buffer target, source;
    double share;
    int num_threads;
    if (!PyArg_ParseTuple(args, "w*y*di:follow", &target, &source, &share, &num_threads)) return NULL;
    const int64_t count = target.len / 4;
    if (has_size(&target, count, 4, "target") && has_size(&source, count, 4, "source")) {
        Py_BEGIN_ALLOW_THREADS
        kernels->follow(target.buf, source.buf, count, share, num_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
