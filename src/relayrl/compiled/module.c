/* The Python binding: checks sizes, releases the GIL, shares work between threads.
 *
 * Arrays come as C-contiguous buffers of the dtypes that `_kernels.pyi` states; their lengths are checked here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.h"
#include "python_types.h"
#include "thread_pool.h"

#define MIN_ROWS_UNLOCKED 256    /* fewer are done before another thread could have taken the lock */
#define MIN_ROWS_PER_THREAD 16             /* more than those that kernels have another way for */
#define MIN_FORWARD_PER_THREAD ((int64_t)2000000) /* multiplications: parameters are taken over by each thread */

const Kernels *kernels = &portable_kernels;

/* ---- buffers -------------------------------------------------------------------------------------------------- */

int has_size(const Py_buffer *buffer, int64_t count, size_t item, const char *name) {
    int64_t bytes;
    if (count < 0 || __builtin_mul_overflow(count, (int64_t)item, &bytes)) {
        PyErr_Format(PyExc_OverflowError, "%s cannot have so many items", name);
        return 0;
    }
    if (buffer->buf && buffer->len == bytes) return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes, not %lld", name, buffer->len, (long long)bytes);
    return 0;
}

int has_table(const Py_buffer *buffer, int64_t rows, int64_t columns, size_t item, const char *name) {
    int64_t count;
    if (rows < 0 || columns < 0 || __builtin_mul_overflow(rows, columns, &count)) count = -1;
    return has_size(buffer, count, item, name);
}

int are_sound(const Py_buffer *buffers, const Expected *expected, int count) {
    int is_sound = 1;
    for (int i = 0; is_sound && i < count; i++) {
        is_sound = has_size(&buffers[i], expected[i].count, expected[i].item, expected[i].name);
    }
    return is_sound;
}

int are_sizes(const int *sizes, int count) {
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0 || sizes[i] > MAX_WIDTH) {
            PyErr_Format(PyExc_ValueError, "there is no size %d", sizes[i]);
            return 0;
        }
    }
    return 1;
}

void release_all(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++) {
        if (buffers[i].obj) PyBuffer_Release(&buffers[i]);
    }
}

int read_arrays(PyObject *tuple, int count, unsigned written, unsigned optional, Py_buffer *buffers) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "a tuple of %d arrays is needed", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        PyObject *array = PyTuple_GET_ITEM(tuple, i);
        if (array == Py_None && optional >> i & 1) continue;
        if (PyObject_GetBuffer(array, &buffers[i], PyBUF_C_CONTIGUOUS | (written >> i & 1 ? PyBUF_WRITABLE : 0))) return -1;
    }
    return 0;
}

int read_sizes(PyObject *sequence, int *sizes, int limit, const char *name) {
    Py_ssize_t count = PyTuple_Check(sequence) ? PyTuple_GET_SIZE(sequence) : -1;
    if (count < 0 || count > limit) {
        PyErr_Format(PyExc_ValueError, "%s must be a tuple of at most %d sizes", name, limit);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long size = PyLong_AsLong(PyTuple_GET_ITEM(sequence, i));
        if (size < 1 || size > MAX_WIDTH) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s holds the size %ld", name, size);
            return -1;
        }
        sizes[i] = (int)size;
    }
    return (int)count;
}

/* ---- objects ---------------------------------------------------------------------------------------------------- */

PyObject *made(PyTypeObject *type, PyObject *args, int (*fill)(PyObject *, PyObject *)) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self && fill(self, args)) Py_CLEAR(self);
    return self;
}

/* ---- MLP ------------------------------------------------------------------------------------------------ */

static int take_layer(MLPObject *self, PyObject *weight, PyObject *bias) {
    Network *n = &self->network;
    const int l = n->num_layers;
    Py_buffer *w = &self->buffers[self->num_buffers];
    if (PyObject_GetBuffer(weight, w, PyBUF_C_CONTIGUOUS)) return -1;
    self->num_buffers++;
    Py_buffer *b = &self->buffers[self->num_buffers];
    if (PyObject_GetBuffer(bias, b, PyBUF_C_CONTIGUOUS)) return -1;
    self->num_buffers++;
    const int64_t out = b->len / 4, in = out ? w->len / 4 / out : 0;
    const int is_possible = in >= 1 && in <= MAX_WIDTH && out <= MAX_WIDTH && (!l || n->sizes[l] == in);
    if (!is_possible || !has_size(w, in * out, 4, "weight") || !has_size(b, out, 4, "bias")) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the layers' sizes do not fit together");
        return -1;
    }
    n->sizes[l] = (int)in;
    n->sizes[l + 1] = (int)out;
    n->weight[l] = w->buf;
    n->bias[l] = b->buf;
    n->num_layers++;
    return 0;
}

static int take_layers(PyObject *object, PyObject *args) {
    MLPObject *self = (MLPObject *)object;
    PyObject *layers;
    if (!PyArg_ParseTuple(args, "O!p|p:MLP", &PyTuple_Type, &layers, &self->network.is_tanh, &self->is_frozen)) return -1;
    const Py_ssize_t count = PyTuple_GET_SIZE(layers);
    if (count < 1 || count > MAX_LAYERS) {
        PyErr_Format(PyExc_ValueError, "a mlp has 1 to %d layers, not %zd", MAX_LAYERS, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *weight, *bias;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(layers, i), "OO", &weight, &bias)) return -1;
        if (take_layer(self, weight, bias)) return -1;
    }
    if (self->is_frozen) {
        self->frozen_by = kernels;
        self->frozen = kernels->freeze(&self->network);
        if (!self->frozen) PyErr_NoMemory();
    }
    return PyErr_Occurred() ? -1 : 0;
}

static void drop_frozen(MLPObject *self) {
    if (self->frozen) self->frozen_by->thaw(self->frozen);
    self->frozen = NULL;
}

/* Take held parameters over when they are first used. Without memory the live ones go on being used, which are the same. */
static void take_held(MLPObject *self) {
    if (self->frozen_by != kernels) drop_frozen(self);
    self->frozen_by = kernels;
    if (self->frozen) kernels->refreeze(self->frozen, &self->network);
    else self->frozen = kernels->freeze(&self->network);
    self->is_outdated = 0;
}

static PyObject *MLP_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return made(type, args, take_layers);
}

/* What was taken over, where this call may use it: its buffers are one caller's, so only while the lock is held. */
static Frozen *usable(MLPObject *self, int64_t num_rows) {
    if (num_rows >= MIN_ROWS_UNLOCKED || !(self->is_frozen || self->is_held)) return NULL;
    if (self->is_outdated) take_held(self);
    return self->frozen_by == kernels ? self->frozen : NULL;
}

static PyObject *MLP_hold(PyObject *object, PyObject *unused) {
    MLPObject *self = (MLPObject *)object;
    if (!self->is_frozen) self->is_held = self->is_outdated = 1;
    Py_RETURN_NONE;
}

static PyObject *MLP_release(PyObject *object, PyObject *unused) {
    ((MLPObject *)object)->is_held = 0;
    Py_RETURN_NONE;
}

static void MLP_dealloc(PyObject *object) {
    MLPObject *self = (MLPObject *)object;
    drop_frozen(self);
    for (int i = 0; i < self->num_buffers; i++) PyBuffer_Release(&self->buffers[i]);
    Py_TYPE(object)->tp_free(object);
}

typedef struct {
    const Network *network;
    Frozen *frozen;
    const float *x;
    const Inputs *inputs; /* that lie in parts, instead of x */
    int64_t num_rows;
    float *out;
    int num_blocks;
    atomic_int failed;
} ForwardRows;

static void forward_rows(void *argument, Blocks *blocks) {
    ForwardRows *all = argument;
    const Network *n = all->network;
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t first = block_start(all->num_rows, block, all->num_blocks);
        const int64_t end = block_start(all->num_rows, block + 1, all->num_blocks);
        const float *x = all->inputs ? NULL : all->x + first * n->sizes[0];
        float *out = all->out + first * n->sizes[n->num_layers];
        if (x ? kernels->forward(n, all->frozen, x, end - first, out)
              : kernels->forward_parts(n, all->inputs, first, end, all->out)) {
            all->failed = 1;
        }
    }
}

/* Rows are independent: how they are cut changes no number. */
static int forward_shared(ForwardRows *all, int num_threads) {
    const int useful = threads_worth(all->num_rows, MIN_ROWS_PER_THREAD, num_threads);
    all->num_blocks = threads_worth(all->num_rows * num_parameters(all->network), MIN_FORWARD_PER_THREAD, useful);
    parallel_for(all->num_blocks, forward_rows, all, all->num_blocks);
    return all->failed;
}

static PyObject *MLP_forward(PyObject *object, PyObject *args) {
    MLPObject *self = (MLPObject *)object;
    const Network *n = &self->network;
    Py_buffer x, out;
    int num_threads, failed = 0;
    if (!PyArg_ParseTuple(args, "y*w*i:forward", &x, &out, &num_threads)) return NULL;
    const int64_t rows = x.len / 4 / n->sizes[0];
    if (has_size(&x, rows * n->sizes[0], 4, "x") && has_size(&out, rows * n->sizes[n->num_layers], 4, "out")) {
        /* Few rows are multiplied in another order where parameters are live: the numbers stay, whether they are held or not. */
        Frozen *frozen = !self->is_frozen && rows <= FEW_ROWS ? NULL : usable(self, rows);
        ForwardRows all = {n, .frozen = frozen, .x = x.buf, .num_rows = rows, .out = out.buf};
        if (rows < MIN_ROWS_UNLOCKED) {
            failed = forward_shared(&all, 1);
        } else {
            Py_BEGIN_ALLOW_THREADS
            failed = forward_shared(&all, num_threads);
            Py_END_ALLOW_THREADS
        }
        if (failed) PyErr_NoMemory();
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *MLP_forward_parts(PyObject *object, PyObject *args) {
    const Network *n = &((MLPObject *)object)->network;
    PyObject *parts;
    Py_buffer out;
    int is_factored, num_threads, failed = 0;
    if (!PyArg_ParseTuple(args, "Opw*i:forward_parts", &parts, &is_factored, &out, &num_threads)) return NULL;
    GivenInputs given = {0};
    const int outputs = n->sizes[n->num_layers];
    const int64_t rows = out.len / 4 / outputs;
    if (has_size(&out, rows * outputs, 4, "out") && !read_inputs(&given, parts, is_factored, rows, n->sizes[0])) {
        ForwardRows all = {n, .inputs = &given.inputs, .num_rows = rows, .out = out.buf};
        Py_BEGIN_ALLOW_THREADS
        failed = forward_shared(&all, num_threads);
        Py_END_ALLOW_THREADS
        if (failed) PyErr_NoMemory();
    }
    release_inputs(&given);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static int run_acting(const Acting *acting, int num_threads) {
    int failed;
    if (acting->num_rows < MIN_ROWS_UNLOCKED) return kernels->act(acting, num_threads);
    Py_BEGIN_ALLOW_THREADS
    failed = kernels->act(acting, num_threads);
    Py_END_ALLOW_THREADS
    return failed;
}

static PyObject *MLP_choose(PyObject *object, PyObject *args) {
    MLPObject *self = (MLPObject *)object;
    const Network *n = &self->network;
    const int outputs = n->sizes[n->num_layers];
    PyObject *parts;
    Py_buffer x, draws, mask, choice, logp;
    int num_threads;
    if (!PyArg_ParseTuple(args, "y*O!y*z*w*z*i:choose", &x, &PyTuple_Type, &parts, &draws, &mask, &choice, &logp, &num_threads)) return NULL;
    const int64_t num_rows = x.len / 4 / n->sizes[0];
    Acting a = {n, usable(self, num_rows), x.buf, num_rows};
    a.num_parts = read_sizes(parts, a.part_size, MAX_PARTS, "part_sizes");
    int total = 0;
    for (int i = 0; i < a.num_parts; i++) total += a.part_size[i];
    if (!PyErr_Occurred() && total != outputs) PyErr_SetString(PyExc_ValueError, "the parts are not the outputs");
    if (!PyErr_Occurred() && has_size(&x, a.num_rows * n->sizes[0], 4, "x") &&
        has_size(&draws, a.num_rows * a.num_parts, 4, "draws") && has_size(&choice, a.num_rows * a.num_parts, 8, "choice") &&
        (!mask.buf || has_size(&mask, a.num_rows * outputs, 1, "mask")) &&
        (!logp.buf || has_size(&logp, a.num_rows, 4, "logp"))) {
        a.draws = draws.buf;
        a.mask = mask.buf;
        a.choice = choice.buf;
        a.logp = logp.buf;
        if (run_acting(&a, num_threads)) PyErr_NoMemory();
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&draws);
    if (mask.buf) PyBuffer_Release(&mask);
    PyBuffer_Release(&choice);
    if (logp.buf) PyBuffer_Release(&logp);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *MLP_draw_normal(PyObject *object, PyObject *args) {
    MLPObject *self = (MLPObject *)object;
    const Network *n = &self->network;
    const int outputs = n->sizes[n->num_layers];
    Py_buffer x, noise, log_std, scale, center, action, logp;
    int num_threads;
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*y*w*z*i:draw_normal", &x, &noise, &log_std, &scale, &center, &action, &logp, &num_threads
        ))
        return NULL;
    const int64_t num_rows = x.len / 4 / n->sizes[0];
    Acting a = {n, usable(self, num_rows), x.buf, num_rows};
    if (has_size(&x, a.num_rows * n->sizes[0], 4, "x") && has_size(&noise, a.num_rows * outputs, 4, "noise") &&
        has_size(&log_std, outputs, 4, "log_std") && has_size(&scale, outputs, 4, "scale") &&
        has_size(&center, outputs, 4, "center") && has_size(&action, a.num_rows * outputs, 4, "action") &&
        (!logp.buf || has_size(&logp, a.num_rows, 4, "logp"))) {
        a.draws = noise.buf;
        a.log_std = log_std.buf;
        a.scale = scale.buf;
        a.center = center.buf;
        a.action = action.buf;
        a.logp = logp.buf;
        if (run_acting(&a, num_threads)) PyErr_NoMemory();
    }
    Py_buffer *all[] = {&x, &noise, &log_std, &scale, &center, &action};
    for (int i = 0; i < 6; i++) PyBuffer_Release(all[i]);
    if (logp.buf) PyBuffer_Release(&logp);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef MLP_methods[] = {
    {"forward", MLP_forward, METH_VARARGS, "Outputs of rows, into an array."},
    {"forward_parts", MLP_forward_parts, METH_VARARGS, "The same of rows whose inputs lie in parts."},
    {"choose", MLP_choose, METH_VARARGS, "Draw categorical actions of rows."},
    {"draw_normal", MLP_draw_normal, METH_VARARGS, "Draw normally distributed actions of rows."},
    {"hold", MLP_hold, METH_NOARGS, "Act with the parameters as they are now until they are released."},
    {"release", MLP_release, METH_NOARGS, "Act with live parameters again."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject MLP_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "relayrl.compiled._kernels.MLP",
    .tp_doc = "A mlp on live parameters.",
    .tp_basicsize = sizeof(MLPObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = MLP_new,
    .tp_dealloc = MLP_dealloc,
    .tp_methods = MLP_methods,
};

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static PyObject *advantages(PyObject *module, PyObject *args) {
    Py_buffer b[6];
    Py_ssize_t T, L;
    double gamma, lam;
    if (!PyArg_ParseTuple(
            args, "nny*y*y*y*y*ddw*:advantages", &T, &L, &b[0], &b[1], &b[2], &b[3], &b[4], &gamma, &lam, &b[5]
        ))
        return NULL;
    static const char *const names[] = {"reward", "value", "next_value", "terminated", "truncated", "out"};
    static const size_t items[] = {4, 4, 4, 1, 1, 4};
    int is_sound = 1;
    for (int i = 0; is_sound && i < 6; i++) is_sound = has_table(&b[i], T, L, items[i], names[i]);
    if (is_sound) generalised_advantages(T, L, b[0].buf, b[1].buf, b[2].buf, b[3].buf, b[4].buf, gamma, lam, b[5].buf);
    for (int i = 0; i < 6; i++) PyBuffer_Release(&b[i]);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}

#if defined(__x86_64__)
/* Whether the machine has some features and the system keeps the registers that they use. Asked of the processor itself, since
 * not every compiler's library answers __builtin_cpu_supports. */
static int has_features(unsigned int leaf_1_ecx, unsigned int leaf_7_ebx, unsigned int registers) {
    unsigned int eax, ebx, ecx, edx, kept, kept_high;
    const unsigned int keeps_registers = 1u << 27;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & (leaf_1_ecx | keeps_registers)) != (leaf_1_ecx | keeps_registers)) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (ebx & leaf_7_ebx) != leaf_7_ebx) return 0;
    __asm__("xgetbv" : "=a"(kept), "=d"(kept_high) : "c"(0));
    return (kept & registers) == registers;
}

enum { FMA = 1 << 12, AVX = 1 << 28 };                                                       /* leaf 1, ecx */
enum { AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30 };           /* leaf 7, ebx */
#define AVX512VL (1u << 31)
enum { YMM = 0x06, ZMM = 0xe6 }; /* registers that are kept */
#endif

/* The instruction sets of this machine, best first. */
static int supported(const Kernels *found[3]) {
    int count = 0;
#if defined(__x86_64__)
    if (has_features(AVX | FMA, AVX512F | AVX512DQ | AVX512BW | AVX512VL, ZMM)) found[count++] = &avx512_kernels;
    if (has_features(AVX | FMA, AVX2, YMM)) found[count++] = &avx2_kernels;
#endif
    found[count++] = &portable_kernels;
    return count;
}

static PyObject *instruction_sets(PyObject *module, PyObject *args) {
    const Kernels *found[3];
    const int count = supported(found);
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) PyTuple_SET_ITEM(names, i, PyUnicode_FromString(found[i]->name));
    return names;
}

static PyObject *use_instruction_set(PyObject *module, PyObject *name) {
    const Kernels *found[3];
    const int count = supported(found);
    for (int i = 0; i < count; i++) {
        if (PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, found[i]->name)) {
            kernels = found[i];
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "this machine has no instruction set %R", name);
}

static PyMethodDef methods[] = {
    {"forward_tapes", forward_tapes, METH_VARARGS, "Outputs of rows, for tapes; what the gradients need is kept."},
    {"backward_tapes", backward_tapes, METH_VARARGS, "Gradients of all parameters, into a flat array for each tape."},
    {"regress_tapes", regress_tapes, METH_VARARGS, "Outputs, and gradients of what they differ from a target by."},
    {"min_q", min_q, METH_VARARGS, "The minimum of several networks' values, and its gradient."},
    {"team_values", team_values, METH_VARARGS, "Values of teams, and baselines of their agents."},
    {"team_gradient", team_gradient, METH_VARARGS, "The gradient of a team critic's losses."},
    {"adam_step", take_adam_step, METH_VARARGS, "One step of Adam over a flat vector."},
    {"soft_update", soft_update_module, METH_VARARGS, "Move a vector a little towards another."},
    {"set_priorities", set_priorities, METH_VARARGS, "Replace leaves of a tree of sums."},
    {"find_priorities", find_priorities, METH_VARARGS, "The leaves of a tree of sums at some points."},
    {"advantages", advantages, METH_VARARGS, "Generalised advantage estimates."},
    {"sum_grid", sum_grid, METH_VARARGS, "Sums of rows and columns of words."},
    {"join_rows", join_rows, METH_VARARGS, "Arrays one after the other."},
    {"attributes", attributes, METH_VARARGS, "Attributes of many objects, by name."},
    {"all_alike", all_alike, METH_VARARGS, "Whether columns hold one object, or None throughout or nowhere."},
    {"uuid_bytes", uuid_bytes, METH_O, "The bytes of UUIDs."},
    {"uuid_texts", uuid_texts, METH_VARARGS, "The texts of UUIDs."},
    {"header_numbers", header_numbers, METH_VARARGS, "The numbers and flags of trajectories."},
    {"headers_fit", headers_fit, METH_VARARGS, "Whether numbers and flags are possible."},
    {"copy_records", copy_records, METH_VARARGS, "Records of PostgreSQL's binary COPY."},
    {"spread_headers", spread_headers, METH_VARARGS, "What headers say, for every row."},
    {"check_stream", check_stream, METH_VARARGS, "Whether bytes are a stream of trajectories as Arrow writes it."},
    {"step_cart_poles", step_cart_poles, METH_VARARGS, "One step of every cart and pole."},
    {"measure_offsets", measure_offsets, METH_VARARGS, "Offsets and distances from agents to the bodies that they see."},
    {"find_contacts", find_contacts, METH_VARARGS, "Who is close enough to touch, and how far they overlap."},
    {"add_pushes", add_pushes, METH_VARARGS, "Forces that push apart those who overlap."},
    {"decode_moves", decode_moves, METH_VARARGS, "Forces of continuous actions."},
    {"move_bodies", move_bodies, METH_VARARGS, "Move bodies by their velocities, and those by forces."},
    {"numpy_function", numpy_function, METH_VARARGS, "A function of NumPy's, by its own inner loop."},
    {"collect_rows", collect_rows, METH_VARARGS, "Whole rollouts of native environments."},
    {"instruction_sets", instruction_sets, METH_NOARGS, "The instruction sets of this machine, best first."},
    {"use_instruction_set", use_instruction_set, METH_O, "Use the kernels of another instruction set."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "Compiled kernels.", -1, methods};

PyMODINIT_FUNC PyInit__kernels(void) {
    const Kernels *found[3];
    supported(found);
    kernels = found[0];
    watch_forks();
    if (PyType_Ready(&MLP_type) || PyType_Ready(&Tape_type) || PyType_Ready(&Update_type) || PyType_Ready(&TeamPasses_type) ||
        PyType_Ready(&SpreadStep_type) || PyType_Ready(&CartPoles_type) || PyType_Ready(&Pendulums_type))
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (PyModule_AddObjectRef(module, "MLP", (PyObject *)&MLP_type) ||
        PyModule_AddObjectRef(module, "Tape", (PyObject *)&Tape_type) ||
        PyModule_AddObjectRef(module, "Update", (PyObject *)&Update_type) ||
        PyModule_AddObjectRef(module, "TeamPasses", (PyObject *)&TeamPasses_type) ||
        PyModule_AddObjectRef(module, "SpreadStep", (PyObject *)&SpreadStep_type) ||
        PyModule_AddObjectRef(module, "CartPoles", (PyObject *)&CartPoles_type) ||
        PyModule_AddObjectRef(module, "Pendulums", (PyObject *)&Pendulums_type) ||
        PyModule_AddIntMacro(module, MAX_LAYERS) || PyModule_AddIntMacro(module, MAX_PARTS) ||
        PyModule_AddIntMacro(module, MAX_THREADS) || PyModule_AddIntMacro(module, MAX_AGENTS) ||
        PyModule_AddIntMacro(module, MAX_ATTENTION)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
