/* A tree of sums, sixteen to a node, as `training.priority_sums` lays it out: levels one after the other, the root's children
 * first; and where each of a node's children ends, for all levels but the last. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

#define FAN_OUT 16
#define MAX_LEVELS 16

typedef struct {
    double *level[MAX_LEVELS]; /* of sums, the leaves last */
    double *ends[MAX_LEVELS];  /* running sums inside each node; the leaves have none */
    int64_t size[MAX_LEVELS];
    int num_levels;
} Tree;

/* Whether the sums and where their levels start are a tree; sets a ValueError where they are not. */
static int read_tree(Tree *tree, const Py_buffer *sums, const Py_buffer *ends, const Py_buffer *starts) {
    const int64_t *start = starts->buf, num_sums = sums->len / 8;
    tree->num_levels = (int)(starts->len / 8);
    int fits = starts->len % 8 == 0 && tree->num_levels >= 2 && tree->num_levels <= MAX_LEVELS && start[0] == 0;
    for (int l = 0; fits && l < tree->num_levels; l++) {
        const int64_t end = l + 1 < tree->num_levels ? start[l + 1] : num_sums;
        tree->level[l] = (double *)sums->buf + start[l];
        tree->ends[l] = (double *)ends->buf + start[l];
        tree->size[l] = end - start[l];
        fits = end >= start[l] && end <= num_sums && tree->size[l] >= FAN_OUT && tree->size[l] % FAN_OUT == 0 &&
               tree->size[l] / FAN_OUT <= (l ? tree->size[l - 1] : 1);
    }
    fits = fits && ends->len / 8 >= start[tree->num_levels - 1];
    if (!fits) PyErr_SetString(PyExc_ValueError, "these sums are no tree");
    return fits;
}

/* Where each of a node's children ends. */
static void end_each(const double *children, double *ends) {
    ends[0] = children[0];
    for (int i = 1; i < FAN_OUT; i++) ends[i] = ends[i - 1] + children[i];
}

/* Replace leaves, and every sum above them; -1 where there is no such leaf. */
static int set_leaves(const Tree *tree, const int64_t *where, const double *priority, int64_t count) {
    const int last = tree->num_levels - 1;
    for (int64_t i = 0; i < count; i++) {
        if (where[i] < 0 || where[i] >= tree->size[last]) return -1;
    }
    for (int64_t i = 0; i < count; i++) tree->level[last][where[i]] = priority[i];
    for (int64_t i = 0; i < count; i++) {
        double leaf_ends[FAN_OUT], *ends = leaf_ends;
        int64_t node = where[i] / FAN_OUT;
        for (int l = last; l > 0; l--, node /= FAN_OUT) {
            end_each(tree->level[l] + node * FAN_OUT, ends);
            tree->level[l - 1][node] = ends[FAN_OUT - 1];
            ends = tree->ends[l - 1] + node / FAN_OUT * FAN_OUT;
        }
        end_each(tree->level[0], ends);
    }
    return 0;
}

PyObject *set_priorities(PyObject *module, PyObject *args) {
    Py_buffer sums, ends, starts, where, priority;
    Tree tree;
    if (!PyArg_ParseTuple(args, "w*w*y*y*y*:set_priorities", &sums, &ends, &starts, &where, &priority)) return NULL;
    const int64_t count = where.len / 8;
    if (read_tree(&tree, &sums, &ends, &starts) && has_size(&where, count, 8, "where") && has_size(&priority, count, 8, "priority") &&
        set_leaves(&tree, where.buf, priority.buf, count)) {
        PyErr_SetString(PyExc_IndexError, "a row that the tree does not have");
    }
    Py_buffer *all[] = {&sums, &ends, &starts, &where, &priority};
    for (int i = 0; i < 5; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* The child in which a point lies, which becomes how far into it. Nothing here branches on where that is, which cannot be
 * foretold; rounding, which must not lead beyond what may be drawn, seldom does. */
static int child_at(const double *ends, double *point) {
    int chosen = 8 * (*point >= ends[7]);
    chosen += 4 * (*point >= ends[chosen + 3]);
    chosen += 2 * (*point >= ends[chosen + 1]);
    chosen += *point >= ends[chosen];
    if (*point >= ends[FAN_OUT - 1]) {
        while (chosen > 0 && ends[chosen - 1] == ends[FAN_OUT - 1]) chosen--;
    }
    *point -= chosen ? ends[chosen - 1] : 0.0;
    return chosen;
}

/* The node below the chosen child; the last there is where sums that are none lead beyond it. */
static int64_t node_below(const Tree *tree, int level, int64_t child) {
    const int64_t last = tree->size[level + 1] / FAN_OUT - 1;
    return child < last ? child : last;
}

/* Level by level for all points, so that the memory of one is fetched while others are looked at. */
static void find_leaves(const Tree *tree, double *points, int64_t *nodes, int64_t count) {
    for (int64_t i = 0; i < count; i++) nodes[i] = 0;
    for (int l = 0; l < tree->num_levels - 1; l++) {
        const double *below = l + 2 < tree->num_levels ? tree->ends[l + 1] : tree->level[l + 1];
        for (int64_t i = 0; i < count; i++) {
            nodes[i] = node_below(tree, l, nodes[i] * FAN_OUT + child_at(tree->ends[l] + nodes[i] * FAN_OUT, &points[i]));
            __builtin_prefetch(below + nodes[i] * FAN_OUT);
            __builtin_prefetch(below + nodes[i] * FAN_OUT + FAN_OUT / 2);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        double ends[FAN_OUT];
        end_each(tree->level[tree->num_levels - 1] + nodes[i] * FAN_OUT, ends);
        nodes[i] = nodes[i] * FAN_OUT + child_at(ends, &points[i]);
    }
}

PyObject *find_priorities(PyObject *module, PyObject *args) {
    Py_buffer sums, ends, starts, points, rows;
    Tree tree;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*:find_priorities", &sums, &ends, &starts, &points, &rows)) return NULL;
    const int64_t count = points.len / 8;
    if (read_tree(&tree, &sums, &ends, &starts) && has_size(&points, count, 8, "points") && has_size(&rows, count, 8, "rows")) {
        find_leaves(&tree, points.buf, rows.buf, count);
    }
    Py_buffer *all[] = {&sums, &ends, &starts, &points, &rows};
    for (int i = 0; i < 5; i++) PyBuffer_Release(all[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
