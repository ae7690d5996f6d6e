/* The Python binding of the team critic's kernels: values, a gradient, and all gradient steps of an update. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

static int64_t num_team_parameters(const Teams *teams) {
    const int64_t S = teams->attention_size, num_inputs = (int64_t)teams->num_features + teams->num_actions;
    return (num_inputs + 2) * S + 4 * S + 3 * S * S + num_parameters(&teams->estimate);
}

/* Read (F, A, S, H, sizes behind the attention, N, is_tanh) and check that the vector is that of such a critic; -1 with an error. */
static int read_critic(Teams *teams, PyObject *shape, const Py_buffer *vector) {
    PyObject *sizes;
    int *numbers[] = {&teams->num_features, &teams->num_actions, &teams->attention_size, &teams->num_heads};
    if (!PyArg_ParseTuple(
            shape, "iiiiOip", numbers[0], numbers[1], numbers[2], numbers[3], &sizes, &teams->num_agents, &teams->estimate.is_tanh
        ))
        return -1;
    const int count = read_sizes(sizes, teams->estimate.sizes, MAX_LAYERS + 1, "estimate");
    if (count < 0) return -1;
    teams->estimate.num_layers = count - 1;
    for (int i = 0; i < 4; i++) {
        const int limit = i < 2 ? MAX_WIDTH : MAX_ATTENTION;
        if (*numbers[i] >= 1 && *numbers[i] <= limit) continue;
        PyErr_Format(PyExc_ValueError, "there is no critic with %d of something", *numbers[i]);
        return -1;
    }
    if (count < 2 || teams->estimate.sizes[0] != teams->attention_size + 1 || teams->estimate.sizes[count - 1] != 1) {
        PyErr_SetString(PyExc_ValueError, "the layers behind the attention do not fit it");
        return -1;
    }
    if (teams->attention_size % teams->num_heads || teams->num_agents < 1 || teams->num_agents > MAX_AGENTS) {
        PyErr_SetString(PyExc_ValueError, "there is no such number of heads or agents");
        return -1;
    }
    teams->num_parameters = num_team_parameters(teams);
    teams->vector = vector->buf;
    return has_size(vector, teams->num_parameters, 4, "vector") ? 0 : -1;
}

static int read_teams(Teams *teams, const Py_buffer *features, const Py_buffer *actions, const Py_buffer *present) {
    const int64_t N = teams->num_agents, F = teams->num_features, A = teams->num_actions;
    teams->num_teams = present->len / N;
    teams->features = features->buf;
    teams->actions = actions->buf;
    teams->present = present->buf;
    return has_table(present, teams->num_teams, N, 1, "present") && has_table(features, teams->num_teams, N * F, 4, "features") &&
                   has_table(actions, teams->num_teams, N * A, 4, "actions")
               ? 0
               : -1;
}

static int are_teams(const Teams *teams, const int64_t *chosen, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        if (chosen[t] >= 0 && chosen[t] < teams->num_teams) continue;
        PyErr_Format(PyExc_ValueError, "chosen holds %lld", (long long)chosen[t]);
        return 0;
    }
    return 1;
}

static int read_chosen(Teams *teams, const Py_buffer *chosen) {
    teams->num_chosen = chosen->len / 8;
    teams->chosen = chosen->buf;
    if (!has_size(chosen, teams->num_chosen, 8, "chosen") || !are_teams(teams, teams->chosen, teams->num_chosen)) return -1;
    if (!teams->num_chosen) PyErr_SetString(PyExc_ValueError, "there must be a team");
    return teams->num_chosen ? 0 : -1;
}

static int read_targets(Teams *teams, const Py_buffer *target, const Py_buffer *old_value, const Py_buffer *old_baseline) {
    teams->target = target->buf;
    teams->old_value = old_value->buf;
    teams->old_baseline = old_baseline->buf;
    return has_size(target, teams->num_teams, 4, "target") && has_size(old_value, teams->num_teams, 4, "old_value") &&
                   has_table(old_baseline, teams->num_teams, teams->num_agents, 4, "old_baseline")
               ? 0
               : -1;
}

static void run_teams(Teams *teams, int num_threads) {
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = kernels->evaluate_teams(teams, num_threads);
    Py_END_ALLOW_THREADS
    if (failed) PyErr_NoMemory();
}

PyObject *team_values(PyObject *module, PyObject *args) {
    Teams teams = {0};
    PyObject *shape;
    Py_buffer vector, features, actions, present, value, baseline;
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "O!y*y*y*y*w*w*i:team_values", &PyTuple_Type, &shape, &vector, &features, &actions, &present, &value,
            &baseline, &num_threads
        ))
        return NULL;
    if (!read_critic(&teams, shape, &vector) && !read_teams(&teams, &features, &actions, &present) &&
        has_size(&value, teams.num_teams, 4, "value") &&
        has_table(&baseline, teams.num_teams, teams.num_agents, 4, "baseline")) {
        teams.num_chosen = teams.num_teams;
        teams.value = value.buf;
        teams.baseline = baseline.buf;
        if (teams.num_teams) run_teams(&teams, num_threads);
    }
    Py_buffer *all[] = {&vector, &features, &actions, &present, &value, &baseline};
    for (int i = 0; i < 6; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

PyObject *team_gradient(PyObject *module, PyObject *args) {
    Teams teams = {0};
    PyObject *shape;
    Py_buffer b[9];
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "O!y*y*y*y*y*y*y*y*ddw*i:team_gradient", &PyTuple_Type, &shape, &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
            &b[7], &teams.clip, &teams.baseline_weight, &b[8], &num_threads
        ))
        return NULL;
    if (!read_critic(&teams, shape, &b[0]) && !read_teams(&teams, &b[1], &b[2], &b[3]) && !read_chosen(&teams, &b[4]) &&
        !read_targets(&teams, &b[5], &b[6], &b[7]) && has_size(&b[8], teams.num_parameters, 4, "gradient")) {
        teams.gradient = b[8].buf;
        run_teams(&teams, num_threads);
    }
    for (int i = 0; i < 9; i++) PyBuffer_Release(&b[i]);
    if (PyErr_Occurred()) return NULL;
    const double there = teams.num_there ? (double)teams.num_there : 1.0;
    return Py_BuildValue("dd", teams.value_loss / (double)teams.num_chosen, teams.baseline_loss / there);
}

/* ---- TeamPasses ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    TeamTraining training;
    Py_buffer buffers[10];
    int num_buffers;
    int left; /* the steps, where the pool has them, else -1 */
} TeamPassesObject;

static int read_order(TeamTraining *t, const Py_buffer *order) {
    const int64_t num_teams = t->teams.num_teams;
    if (num_teams < 1 || t->num_passes < 0 || t->minibatch_teams < 1) {
        PyErr_SetString(PyExc_ValueError, "there must be teams, and minibatches of them");
        return -1;
    }
    t->order = order->buf;
    if (!t->order && t->minibatch_teams < num_teams) {
        PyErr_SetString(PyExc_ValueError, "several minibatches need an order");
        return -1;
    }
    if (!t->order) return 0;
    return has_table(order, t->num_passes, num_teams, 8, "order") && are_teams(&t->teams, t->order, order->len / 8) ? 0 : -1;
}

static int read_state(TeamTraining *t, const Py_buffer *vector, const Py_buffer *first_moment, const Py_buffer *second_moment) {
    Adam *adam = &t->adam;
    adam->num_parameters = t->teams.num_parameters;
    adam->vector = vector->buf, adam->first_moment = first_moment->buf, adam->second_moment = second_moment->buf;
    return has_size(first_moment, adam->num_parameters, 4, "first_moment") &&
                   has_size(second_moment, adam->num_parameters, 4, "second_moment")
               ? 0
               : -1;
}

static void train_left(void *training, Blocks *blocks) { kernels->train_teams(training); }

static int begin_passes(PyObject *object, PyObject *args) {
    TeamPassesObject *self = (TeamPassesObject *)object;
    TeamTraining *t = &self->training;
    Py_buffer *b = self->buffers;
    PyObject *shape;
    long long num_passes, minibatch_teams, num_steps;
    self->left = -1;
    if (!PyArg_ParseTuple(
            args, "O!w*w*w*y*y*y*z*y*y*y*LLddLdddddi:TeamPasses", &PyTuple_Type, &shape, &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
            &b[7], &b[8], &b[9], &num_passes, &minibatch_teams, &t->teams.clip, &t->teams.baseline_weight, &num_steps,
            &t->adam.learning_rate, &t->adam.beta1, &t->adam.beta2, &t->adam.epsilon, &t->adam.max_norm, &t->num_threads
        ))
        return -1;
    self->num_buffers = 10;
    t->num_passes = num_passes, t->minibatch_teams = minibatch_teams, t->adam.num_steps = num_steps;
    if (read_critic(&t->teams, shape, &b[0]) || read_state(t, &b[0], &b[1], &b[2]) || read_teams(&t->teams, &b[3], &b[4], &b[5]) ||
        read_order(t, &b[6]) || read_targets(&t->teams, &b[7], &b[8], &b[9]))
        return -1;
    Py_BEGIN_ALLOW_THREADS
    if (t->num_threads > 1) self->left = leave(train_left, t);
    else kernels->train_teams(t);
    Py_END_ALLOW_THREADS
    return 0;
}

static PyObject *TeamPasses_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return made(type, args, begin_passes);
}

static void wait_for_passes(TeamPassesObject *self) {
    const int left = self->left;
    if (left < 0) return;
    self->left = -1;
    Py_BEGIN_ALLOW_THREADS
    wait_for(left);
    Py_END_ALLOW_THREADS
}

static PyObject *TeamPasses_finish(PyObject *object, PyObject *unused) {
    TeamPassesObject *self = (TeamPassesObject *)object;
    wait_for_passes(self);
    const TeamTraining *t = &self->training;
    if (t->out_of_memory) return PyErr_NoMemory();
    return Py_BuildValue(
        "{s:d,s:d,s:d,s:L,s:d}", "loss", t->value_loss, "baseline_loss", t->baseline_loss, "gradient_norm", t->gradient_norm,
        "num_steps", (long long)t->num_steps, "bad_loss", t->bad_loss
    );
}

static void TeamPasses_dealloc(PyObject *object) {
    TeamPassesObject *self = (TeamPassesObject *)object;
    wait_for_passes(self);
    while (self->num_buffers) PyBuffer_Release(&self->buffers[--self->num_buffers]);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef TeamPasses_methods[] = {
    {"finish", TeamPasses_finish, METH_NOARGS, "Wait until all steps are taken; sums over them."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject TeamPasses_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.TeamPasses",
    .tp_doc = "Passes over minibatches of teams for their critic.",
    .tp_basicsize = sizeof(TeamPassesObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = TeamPasses_new,
    .tp_dealloc = TeamPasses_dealloc,
    .tp_methods = TeamPasses_methods,
};
