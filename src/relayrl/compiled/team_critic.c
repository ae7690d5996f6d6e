/* The Python binding of the team critic's kernels. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"


static int read_encoder(Network *network, PyObject *sizes, int is_tanh, const char *name) {
    const int count = read_sizes(sizes, network->sizes, MAX_LAYERS + 1, name);
    if (count >= 0 && count < 2) PyErr_Format(PyExc_ValueError, "%s must have an input and an output", name);
    if (count < 2) return -1;
    network->num_layers = count - 1;
    network->is_tanh = is_tanh;
    return 0;
}

/* Read ((sizes, sizes), N, H, is_tanh) and check that the vector is that of such a critic; -1 with an error. */
static int read_critic(Teams *teams, PyObject *shape, const Py_buffer *vector) {
    PyObject *observed, *acted;
    int is_tanh;
    if (!PyArg_ParseTuple(shape, "OOiip", &observed, &acted, &teams->num_agents, &teams->num_heads, &is_tanh)) return -1;
    if (read_encoder(&teams->observed, observed, is_tanh, "observed")) return -1;
    if (read_encoder(&teams->acted, acted, is_tanh, "acted")) return -1;
    const int64_t W = teams->observed.sizes[teams->observed.num_layers];
    if (teams->acted.sizes[teams->acted.num_layers] != W || teams->acted.sizes[0] < teams->observed.sizes[0]) {
        PyErr_SetString(PyExc_ValueError, "the encoders do not fit each other");
        return -1;
    }
    if (teams->num_heads < 1 || W % teams->num_heads || teams->num_agents < 1 || teams->num_agents > MAX_AGENTS) {
        PyErr_SetString(PyExc_ValueError, "there is no such number of heads or agents");
        return -1;
    }
    teams->num_parameters = num_parameters(&teams->observed) + num_parameters(&teams->acted);
    teams->num_parameters += 4 * W + 5 * (W * W + W) + W + W + 1;
    teams->vector = vector->buf;
    return has_size(vector, teams->num_parameters, 4, "vector") ? 0 : -1;
}

static int read_teams(Teams *teams, const Py_buffer *features, const Py_buffer *actions, const Py_buffer *present) {
    const int64_t N = teams->num_agents, F = teams->observed.sizes[0], A = teams->acted.sizes[0] - F;
    teams->num_teams = present->len / N;
    teams->features = features->buf;
    teams->actions = actions->buf;
    teams->present = present->buf;
    return has_table(present, teams->num_teams, N, 1, "present") && has_table(features, teams->num_teams, N * F, 4, "features") &&
                   has_table(actions, teams->num_teams, N * A, 4, "actions")
               ? 0
               : -1;
}

static int read_chosen(Teams *teams, const Py_buffer *chosen) {
    teams->num_chosen = chosen->len / 8;
    teams->chosen = chosen->buf;
    if (!has_size(chosen, teams->num_chosen, 8, "chosen")) return -1;
    for (int64_t t = 0; t < teams->num_chosen; t++) {
        if (teams->chosen[t] >= 0 && teams->chosen[t] < teams->num_teams) continue;
        PyErr_Format(PyExc_ValueError, "chosen holds %lld", (long long)teams->chosen[t]);
        return -1;
    }
    if (!teams->num_chosen) PyErr_SetString(PyExc_ValueError, "there must be a team");
    return teams->num_chosen ? 0 : -1;
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
        has_size(&b[5], teams.num_teams, 4, "target") && has_size(&b[6], teams.num_teams, 4, "old_value") &&
        has_table(&b[7], teams.num_teams, teams.num_agents, 4, "old_baseline") &&
        has_size(&b[8], teams.num_parameters, 4, "gradient")) {
        teams.target = b[5].buf;
        teams.old_value = b[6].buf;
        teams.old_baseline = b[7].buf;
        teams.gradient = b[8].buf;
        run_teams(&teams, num_threads);
    }
    for (int i = 0; i < 9; i++) PyBuffer_Release(&b[i]);
    if (PyErr_Occurred()) return NULL;
    const double there = teams.num_there ? (double)teams.num_there : 1.0;
    return Py_BuildValue("dd", teams.value_loss / (double)teams.num_chosen, teams.baseline_loss / there);
}
