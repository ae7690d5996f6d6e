/* The Python binding of what is differentiated step by step: `Tape`, and Adam by itself. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

typedef struct {
    PyObject_HEAD
    PerceptronObject *perceptron;
    const Kernels *kernels; /* those that made the tape */
    Tape *tape;
    int is_kept;
    int64_t num_rows; /* of the last forward pass, where it can be differentiated */
} TapeObject;

static int Tape_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    TapeObject *self = (TapeObject *)object;
    PyObject *perceptron;
    if (self->perceptron) {
        PyErr_SetString(PyExc_RuntimeError, "a Tape is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!p:Tape", &Perceptron_type, &perceptron, &self->is_kept)) return -1;
    self->perceptron = (PerceptronObject *)Py_NewRef(perceptron);
    self->kernels = kernels;
    self->tape = kernels->open_tape(&self->perceptron->network, self->is_kept);
    if (self->tape) return 0;
    PyErr_NoMemory();
    return -1;
}

static void Tape_dealloc(PyObject *object) {
    TapeObject *self = (TapeObject *)object;
    if (self->tape) self->kernels->close_tape(self->tape);
    Py_XDECREF(self->perceptron);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *Tape_forward(PyObject *object, PyObject *args) {
    TapeObject *self = (TapeObject *)object;
    const Network *n = &self->perceptron->network;
    Py_buffer x, out;
    int num_threads, failed = 0;
    if (!PyArg_ParseTuple(args, "y*w*i:forward", &x, &out, &num_threads)) return NULL;
    const int64_t rows = x.len / 4 / n->sizes[0];
    if (has_size(&x, rows * n->sizes[0], 4, "x") && has_size(&out, rows * n->sizes[n->num_layers], 4, "out")) {
        Py_BEGIN_ALLOW_THREADS
        failed = self->kernels->tape_forward(self->tape, x.buf, rows, out.buf, num_threads);
        Py_END_ALLOW_THREADS
        self->num_rows = failed || !self->is_kept ? 0 : rows;
        if (failed) PyErr_NoMemory();
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static int64_t num_parameters(const Network *n) {
    int64_t count = 0;
    for (int l = 0; l < n->num_layers; l++) count += ((int64_t)n->sizes[l] + 1) * n->sizes[l + 1];
    return count;
}

static PyObject *pull_back(
    TapeObject *self, PyObject *args, int64_t num_results, void (*work)(Tape *, const float *, float *, int)
) {
    const Network *n = &self->perceptron->network;
    Py_buffer gradient, result;
    int num_threads;
    if (!PyArg_ParseTuple(args, "y*w*i", &gradient, &result, &num_threads)) return NULL;
    if (has_size(&gradient, self->num_rows * n->sizes[n->num_layers], 4, "gradient") &&
        has_size(&result, num_results, 4, "result")) {
        Py_BEGIN_ALLOW_THREADS
        work(self->tape, gradient.buf, result.buf, num_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&gradient);
    PyBuffer_Release(&result);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *Tape_backward(PyObject *object, PyObject *args) {
    TapeObject *self = (TapeObject *)object;
    return pull_back(self, args, num_parameters(&self->perceptron->network), self->kernels->tape_backward);
}

static PyObject *Tape_input_gradient(PyObject *object, PyObject *args) {
    TapeObject *self = (TapeObject *)object;
    const int64_t count = self->num_rows * self->perceptron->network.sizes[0];
    return pull_back(self, args, count, self->kernels->tape_input_gradient);
}

static PyMethodDef Tape_methods[] = {
    {"forward", Tape_forward, METH_VARARGS, "Outputs of rows, into an array; what the gradients need is kept."},
    {"backward", Tape_backward, METH_VARARGS, "Gradients of all parameters, into a flat array."},
    {"input_gradient", Tape_input_gradient, METH_VARARGS, "Gradients of the rows that went in, into an array."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Tape_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.Tape",
    .tp_doc = "A perceptron that is differentiated step by step.",
    .tp_basicsize = sizeof(TapeObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = Tape_init,
    .tp_dealloc = Tape_dealloc,
    .tp_methods = Tape_methods,
};

PyObject *take_adam_step(PyObject *module, PyObject *args) {
    Py_buffer vector, gradient, first, second;
    Adam adam = {0};
    long long num_steps;
    if (!PyArg_ParseTuple(
            args, "w*w*w*w*Lddddd:adam_step", &vector, &gradient, &first, &second, &num_steps, &adam.learning_rate,
            &adam.beta1, &adam.beta2, &adam.epsilon, &adam.max_norm
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
        norm = kernels->adam_step(&adam, gradient.buf);
        Py_END_ALLOW_THREADS
    }
    Py_buffer *all[] = {&vector, &gradient, &first, &second};
    for (int i = 0; i < 4; i++) PyBuffer_Release(all[i]);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(norm);
}
