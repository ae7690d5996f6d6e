/* The gradient steps of an actor and a critic, as a Python object: begun when it is made, done when it is finished.
 *
 * They share no parameters, so what comes out does not depend on which thread takes whose steps. When the object is made the
 * actor's are taken: whoever acts with it may go on while the critic's are still taken. A critic that is no MLP has none here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "kernels.h"
#include "python_types.h"
#include "thread_pool.h"

/* A job as it came from Python, with the buffers that its pointers lead into. */
typedef struct {
    Training training;
    PolicyLoss policy;
    ValueLoss value;
    GivenInputs inputs;
    Py_buffer buffers[16];
    int num_buffers;
} Job;

static void release(Job *job) {
    release_inputs(&job->inputs);
    while (job->num_buffers) PyBuffer_Release(&job->buffers[--job->num_buffers]);
}

/* The array `dict[name]` of `count` items; NULL with an error, or without one where it is None. */
static void *array_of(Job *job, PyObject *dict, const char *name, int64_t count, size_t item, int writable) {
    PyObject *array = PyDict_GetItemString(dict, name);
    if (!array) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return NULL;
    }
    if (array == Py_None) return NULL;
    Py_buffer *buffer = &job->buffers[job->num_buffers];
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0))) return NULL;
    job->num_buffers++;
    if (!has_size(buffer, count, item, name)) return NULL;
    return buffer->buf;
}

static void *required(Job *job, PyObject *dict, const char *name, int64_t count, size_t item, int writable) {
    void *found = array_of(job, dict, name, count, item, writable);
    if (!found && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s must not be None", name);
    return found;
}

static double number_of(PyObject *dict, const char *name) {
    PyObject *number = PyDict_GetItemString(dict, name);
    if (!number) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return 0.0;
    }
    Py_INCREF(number); /* what makes a float of it may be Python code, which may change the dict */
    const double value = PyFloat_AsDouble(number);
    Py_DECREF(number);
    return value;
}

/* A whole number that is not negative; -1 with an error where it is none. */
static int64_t count_of(PyObject *dict, const char *name) {
    PyObject *number = PyDict_GetItemString(dict, name);
    if (!number) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return -1;
    }
    const long long count = PyLong_Check(number) ? PyLong_AsLongLong(number) : -1;
    if (count < 0 && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s must be a count, not %R", name, number);
    return count;
}

static int read_network(Job *job, PyObject *dict) {
    Training *t = &job->training;
    PyObject *sizes = PyDict_GetItemString(dict, "sizes");
    if (!sizes) PyErr_SetString(PyExc_KeyError, "sizes");
    const int count = sizes ? read_sizes(sizes, t->shape.sizes, MAX_LAYERS + 1, "sizes") : -1;
    if (count < 2) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a network has an input and an output");
        return -1;
    }
    t->shape.num_layers = count - 1;
    t->shape.is_tanh = number_of(dict, "is_tanh") != 0.0;
    int64_t parameters = 0;
    for (int l = 0; l + 1 < count; l++) parameters += ((int64_t)t->shape.sizes[l] + 1) * t->shape.sizes[l + 1];
    return PyErr_Occurred() ? -1 : (t->adam.num_parameters = parameters, 0);
}

static int read_adam(Job *job, PyObject *dict, int64_t num_deviations) {
    Adam *adam = &job->training.adam;
    adam->num_parameters += num_deviations;
    adam->vector = required(job, dict, "vector", adam->num_parameters, 4, 1);
    if (adam->vector) adam->first_moment = required(job, dict, "first_moment", adam->num_parameters, 4, 1);
    if (adam->first_moment) adam->second_moment = required(job, dict, "second_moment", adam->num_parameters, 4, 1);
    if (!adam->second_moment) return -1;
    adam->num_steps = count_of(dict, "num_steps");
    adam->learning_rate = number_of(dict, "learning_rate");
    adam->beta1 = number_of(dict, "beta1");
    adam->beta2 = number_of(dict, "beta2");
    adam->epsilon = number_of(dict, "epsilon");
    adam->max_norm = number_of(dict, "max_norm");
    return PyErr_Occurred() ? -1 : 0;
}

static int read_rows(Job *job, PyObject *dict) {
    Rows *rows = &job->training.rows;
    rows->num_rows = count_of(dict, "num_rows");
    if (!PyErr_Occurred()) rows->num_passes = count_of(dict, "num_passes");
    if (!PyErr_Occurred()) rows->minibatch_rows = count_of(dict, "minibatch_rows");
    int64_t num_ordered;
    if (PyErr_Occurred()) return -1;
    if (__builtin_mul_overflow(rows->num_passes, rows->num_rows, &num_ordered)) {
        PyErr_SetString(PyExc_OverflowError, "there are no such numbers of rows and passes");
        return -1;
    }
    PyObject *parts = PyDict_GetItemString(dict, "inputs");
    if (!parts) PyErr_SetString(PyExc_KeyError, "inputs");
    const int is_factored = number_of(dict, "is_factored") != 0.0;
    const int width = job->training.shape.sizes[0];
    if (PyErr_Occurred() || read_inputs(&job->inputs, parts, is_factored, rows->num_rows, width)) return -1;
    rows->inputs = job->inputs.inputs;
    rows->order = array_of(job, dict, "order", num_ordered, 8, 0);
    if (!PyErr_Occurred() && (rows->num_rows < 1 || rows->minibatch_rows < 1)) {
        PyErr_SetString(PyExc_ValueError, "num_rows and minibatch_rows must be positive");
    }
    for (int64_t i = 0; !PyErr_Occurred() && rows->order && i < num_ordered; i++) {
        if (rows->order[i] < 0 || rows->order[i] >= rows->num_rows) {
            PyErr_Format(PyExc_ValueError, "order holds %lld", (long long)rows->order[i]);
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_choices(Job *job, PyObject *dict) {
    PolicyLoss *loss = &job->policy;
    const int64_t M = job->training.rows.num_rows;
    const int outputs = job->training.shape.sizes[job->training.shape.num_layers];
    int sum = 0;
    for (int i = 0; i < loss->num_parts; i++) sum += loss->part_size[i];
    if (sum != outputs) {
        PyErr_SetString(PyExc_ValueError, "the parts are not the outputs");
        return -1;
    }
    loss->choice = required(job, dict, "action", M * loss->num_parts, 8, 0);
    loss->mask = array_of(job, dict, "mask", M * outputs, 1, 0);
    for (int64_t i = 0; loss->choice && i < M * loss->num_parts; i++) {
        const int64_t choice = loss->choice[i];
        if (choice < 0 || choice >= loss->part_size[i % loss->num_parts]) {
            PyErr_Format(PyExc_ValueError, "action %lld does not exist", (long long)choice);
            return -1;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_policy(Job *job, PyObject *dict) {
    PolicyLoss *loss = job->training.policy = &job->policy;
    PyObject *parts = PyDict_GetItemString(dict, "part_sizes");
    if (!parts) PyErr_SetString(PyExc_KeyError, "part_sizes");
    loss->num_parts = parts ? read_sizes(parts, loss->part_size, MAX_PARTS, "part_sizes") : -1;
    if (loss->num_parts < 0 || read_network(job, dict)) return -1;
    const int outputs = job->training.shape.sizes[job->training.shape.num_layers];
    if (read_adam(job, dict, loss->num_parts ? 0 : outputs) || read_rows(job, dict)) return -1;
    const int64_t M = job->training.rows.num_rows;
    loss->is_surrogate = number_of(dict, "is_surrogate") != 0.0;
    loss->clip_ratio = number_of(dict, "clip_ratio");
    loss->entropy_coef = number_of(dict, "entropy_coef");
    loss->kl_limit = number_of(dict, "kl_limit");
    if (PyErr_Occurred()) return -1;
    loss->logp = required(job, dict, "logp", M, 4, 0);
    loss->advantage = required(job, dict, "advantage", M, 4, 0);
    if (PyErr_Occurred()) return -1;
    if (loss->num_parts) return read_choices(job, dict);
    loss->action = required(job, dict, "action", M * outputs, 4, 0);
    loss->scale = required(job, dict, "scale", outputs, 4, 0);
    loss->center = required(job, dict, "center", outputs, 4, 0);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_value(Job *job, PyObject *dict) {
    ValueLoss *loss = job->training.value = &job->value;
    if (read_network(job, dict) || read_adam(job, dict, 0) || read_rows(job, dict)) return -1;
    const int64_t M = job->training.rows.num_rows;
    loss->clip = number_of(dict, "clip");
    if (PyErr_Occurred()) return -1;
    loss->target = required(job, dict, "target", M, 4, 0);
    loss->old_value = required(job, dict, "old_value", M, 4, 0);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *sums_of(const Training *t) {
    const Sums *s = &t->sums;
    return Py_BuildValue(
        "{s:d,s:d,s:d,s:d,s:d,s:L,s:N,s:d,s:L}", "loss", s->loss, "kl", s->kl, "entropy", s->entropy, "clip_fraction",
        s->clip_fraction, "gradient_norm", s->gradient_norm, "num_steps", (long long)s->num_steps, "is_stopped", PyBool_FromLong(s->status == STATUS_KL_EXCEEDED),
        "bad_loss", s->bad_loss, "adam_steps", (long long)t->adam.num_steps
    );
}

typedef struct {
    PyObject_HEAD
    Job actor, critic;
    int has_critic;
    int left; /* the critic's steps, where the pool has them, else -1 */
} UpdateObject;

static void train_left(void *training, Blocks *blocks) { kernels->train(training); }

/* Take the actor's steps, and leave the critic's: gives what is left, or -1. Where all threads can take part in both, they are
 * at the actor first: whoever then waits for the critic takes blocks of it. Else each network has a thread. */
static int take_steps(Training *actor, Training *critic, int num_threads) {
    int left = -1;
    actor->num_threads = critic->num_threads = num_threads;
    const int is_left_first = num_threads > 1 && !(is_shareable(actor) && is_shareable(critic));
    if (is_left_first) left = leave(train_left, critic);
    kernels->train(actor);
    if (num_threads < 2) kernels->train(critic);
    else if (!is_left_first) left = leave(train_left, critic);
    return left;
}

static int begin_update(PyObject *object, PyObject *args) {
    UpdateObject *self = (UpdateObject *)object;
    PyObject *policy, *value;
    int num_threads;
    self->left = -1;
    if (!PyArg_ParseTuple(args, "O!Oi:Update", &PyDict_Type, &policy, &value, &num_threads)) return -1;
    self->has_critic = value != Py_None;
    if (self->has_critic && !PyDict_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "the value's job must be a dict, or None where there is none");
        return -1;
    }
    if (read_policy(&self->actor, policy) || (self->has_critic && read_value(&self->critic, value))) return -1;
    Py_BEGIN_ALLOW_THREADS
    if (self->has_critic) {
        self->left = take_steps(&self->actor.training, &self->critic.training, num_threads);
    } else {
        self->actor.training.num_threads = num_threads;
        kernels->train(&self->actor.training);
    }
    Py_END_ALLOW_THREADS
    return 0;
}

static PyObject *Update_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return made(type, args, begin_update);
}

static void wait_for_critic(UpdateObject *self) {
    const int left = self->left;
    if (left < 0) return;
    self->left = -1;
    Py_BEGIN_ALLOW_THREADS
    wait_for(left);
    Py_END_ALLOW_THREADS
}

static PyObject *Update_finish(PyObject *object, PyObject *unused) {
    UpdateObject *self = (UpdateObject *)object;
    wait_for_critic(self);
    const Training *actor = &self->actor.training, *critic = &self->critic.training;
    if (actor->out_of_memory || critic->out_of_memory) return PyErr_NoMemory();
    return Py_BuildValue("NN", sums_of(actor), sums_of(critic));
}

static void Update_dealloc(PyObject *object) {
    UpdateObject *self = (UpdateObject *)object;
    wait_for_critic(self);
    release(&self->actor);
    release(&self->critic);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef Update_methods[] = {
    {"finish", Update_finish, METH_NOARGS, "Wait until all steps are taken; sums over those of the actor and of the critic."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Update_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.Update",
    .tp_doc = "Passes over minibatches for an actor and a critic.",
    .tp_basicsize = sizeof(UpdateObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Update_new,
    .tp_dealloc = Update_dealloc,
    .tp_methods = Update_methods,
};
