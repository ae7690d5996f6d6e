/* The ids of trajectories: UUIDs of version 5, the SHA-1 of a world's id and the text agent/episode/first step. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdio.h>
#include <string.h>

#include "python_types.h"

#define BLOCK_BYTES 64
#define ID_BYTES 16
#define MAX_NUMBERS 48 /* bytes of two slashes, two numbers and the end of the text */

static uint32_t rotated(uint32_t x, int by) { return x << by | x >> (32 - by); }

static uint32_t word_at(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Some of the 80 rounds of SHA-1 (RFC 3174) on its five words, with what the words b, c and d are mixed to. */
#define TAKE_ROUNDS(FIRST, END, CONSTANT, MIXED)                                             \
    for (int i = FIRST; i < END; i++) {                                                      \
        const uint32_t next = rotated(a, 5) + (MIXED) + (uint32_t)(CONSTANT) + e + w[i];     \
        e = d, d = c, c = rotated(b, 30), b = a, a = next;                                   \
    }

static void add_block(uint32_t state[5], const uint8_t *block) {
    uint32_t w[80];
    for (int i = 0; i < 16; i++) w[i] = word_at(block + 4 * i);
    for (int i = 16; i < 80; i++) w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    TAKE_ROUNDS(0, 20, 0x5A827999, (b & c) | (~b & d))
    TAKE_ROUNDS(20, 40, 0x6ED9EBA1, b ^ c ^ d)
    TAKE_ROUNDS(40, 60, 0x8F1BBCDC, (b & c) | (b & d) | (c & d))
    TAKE_ROUNDS(60, 80, 0xCA62C1D6, b ^ c ^ d)
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

/* The id of a message, which is padded in place: there are BLOCK_BYTES + 8 bytes behind it. */
static PyObject *id_of(uint8_t *message, size_t length) {
    uint32_t state[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    const size_t padded = ((length + 8) / BLOCK_BYTES + 1) * BLOCK_BYTES;
    memset(message + length, 0, padded - length);
    message[length] = 0x80;
    for (int i = 0; i < 8; i++) message[padded - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += BLOCK_BYTES) add_block(state, message + at);
    uint8_t id[ID_BYTES];
    for (int i = 0; i < ID_BYTES; i++) id[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
    id[6] = (id[6] & 0x0F) | 0x50;
    id[8] = (id[8] & 0x3F) | 0x80;
    return PyBytes_FromStringAndSize((const char *)id, ID_BYTES);
}

static PyObject *make_id(PyObject *world, PyObject *agent, int64_t episode, int64_t first_step, uint8_t **message, size_t *room) {
    Py_ssize_t length;
    const char *name = PyUnicode_Check(agent) ? PyUnicode_AsUTF8AndSize(agent, &length) : NULL;
    if (!name || !PyBytes_Check(world)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "worlds are bytes, agents are texts");
        return NULL;
    }
    const size_t world_length = (size_t)PyBytes_GET_SIZE(world), named = world_length + (size_t)length;
    if (*room < named + MAX_NUMBERS + BLOCK_BYTES + 8) {
        *room = named + MAX_NUMBERS + BLOCK_BYTES + 8;
        uint8_t *larger = PyMem_Realloc(*message, *room);
        if (!larger) return PyErr_NoMemory();
        *message = larger;
    }
    memcpy(*message, PyBytes_AS_STRING(world), world_length);
    memcpy(*message + world_length, name, (size_t)length);
    const int digits = snprintf(
        (char *)*message + named, MAX_NUMBERS, "/%lld/%lld", (long long)episode, (long long)first_step
    );
    return id_of(*message, named + (size_t)digits);
}

PyObject *trajectory_ids(PyObject *module, PyObject *args) {
    PyObject *worlds, *agents;
    Py_buffer episodes, first_steps;
    if (!PyArg_ParseTuple(args, "O!O!y*y*:trajectory_ids", &PyList_Type, &worlds, &PyList_Type, &agents, &episodes, &first_steps)) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(worlds);
    PyObject *ids = NULL;
    uint8_t *message = NULL;
    size_t room = 0;
    if (PyList_GET_SIZE(agents) != count) PyErr_SetString(PyExc_ValueError, "every world needs an agent");
    else if (has_size(&episodes, count, 8, "episodes") && has_size(&first_steps, count, 8, "first_steps")) ids = PyList_New(count);
    for (Py_ssize_t k = 0; ids && k < count; k++) {
        const int64_t episode = ((const int64_t *)episodes.buf)[k], first_step = ((const int64_t *)first_steps.buf)[k];
        PyObject *id = make_id(PyList_GET_ITEM(worlds, k), PyList_GET_ITEM(agents, k), episode, first_step, &message, &room);
        if (id) PyList_SET_ITEM(ids, k, id);
        else Py_CLEAR(ids);
    }
    PyMem_Free(message);
    PyBuffer_Release(&episodes);
    PyBuffer_Release(&first_steps);
    return ids;
}
