/* Sums of rows and columns of 64-bit words, modulo 2^64: what checksums of files are made of (`sinks.files.parts_sink`).
 *
 * NumPy is as fast, but lets other threads have the GIL meanwhile, and a thread that syncs a journal waits to get it back for longer
 * than the sums take: 40 us for 2 MiB. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

enum { ROW_WORDS = 512, ROWS_AT_ONCE = 4 };
typedef uint64_t Word __attribute__((aligned(1), may_alias)); /* bytes of a file begin anywhere */

/* Some rows at once, so that columns are read and written once for all of them. */
static void sum_rows(const Word *restrict words, uint64_t *restrict columns, uint64_t *restrict sums) {
    uint64_t sum[ROWS_AT_ONCE] = {0};
    for (int i = 0; i < ROW_WORDS; i++) {
        uint64_t column = columns[i];
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            const uint64_t word = words[r * ROW_WORDS + i];
            column += word;
            sum[r] += word;
        }
        columns[i] = column;
    }
    for (int r = 0; r < ROWS_AT_ONCE; r++) sums[r] = sum[r];
}

static void sum_row(const Word *restrict words, uint64_t *restrict columns, uint64_t *restrict sums) {
    uint64_t sum = 0;
    for (int i = 0; i < ROW_WORDS; i++) {
        columns[i] += words[i];
        sum += words[i];
    }
    *sums = sum;
}

PyObject *sum_grid(PyObject *module, PyObject *args) {
    Py_buffer b[3] = {{0}};
    if (!PyArg_ParseTuple(args, "y*w*w*:sum_grid", &b[0], &b[1], &b[2])) return NULL;
    const int64_t num_rows = b[2].len / 8;
    const Expected expected[] = {{"data", num_rows * ROW_WORDS, 8}, {"columns", ROW_WORDS, 8}, {"sums", num_rows, 8}};
    const int is_sound = are_sound(b, expected, 3);
    if (is_sound) {
        const Word *words = b[0].buf;
        uint64_t *columns = b[1].buf, *sums = b[2].buf;
        int64_t row = 0;
        for (; row + ROWS_AT_ONCE <= num_rows; row += ROWS_AT_ONCE) sum_rows(words + row * ROW_WORDS, columns, sums + row);
        for (; row < num_rows; row++) sum_row(words + row * ROW_WORDS, columns, sums + row);
    }
    release_all(b, 3);
    if (!is_sound) return NULL;
    Py_RETURN_NONE;
}
