/* Whether the bytes of a stranger are a stream of trajectories exactly as this program's Arrow writes it, in one pass.
 *
 * The answer is yes or "unknown": whoever asked then decodes in Python, which says what is wrong. The rules are those of
 * `data.arrow.arrow_reading`, `sinks.buffered` and `require_learnable`; a test holds every yes to them. Metadata is not parsed: it
 * must equal a template that Arrow wrote, but for the numbers that `data.arrow.checked_streams` marks in it. So whatever reads the
 * bytes later finds nothing but what Arrow wrote itself, and numbers that were checked here.
 *
 * Every offset and length is checked against the bytes that are there before anything is read through it. A yes comes with the
 * place of every column, so that whoever learns from the stream needs no Arrow to find them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "python_types.h"

#define RELEASE_BYTES (256 << 10) /* from here on other threads run meanwhile; below, taking turns costs more */
#define MAX_NUMBER ((int64_t)1 << 62)
#define UUID_TEXT 36
#define NUM_DICTIONARIES 4

enum { IDS, ENVS, AGENTS, GROUPS };                      /* dictionaries */
enum { TEMPLATE_BEGIN, FRAMED, LENGTH, BODY, NODES, BUFFERS, NUM_HEAD };  /* of a message; the last four count from its begin */
enum { ROLE, KIND, ITEM_BYTES, WIDTH, LOW, HIGH, NUM_COLUMN };            /* of a column; WIDTH 0 is a plain value */
enum { ANY, EPISODE, STEP, VERSION, ENDS, TRUNCATES, FAILS, VALID, FIRST_STEP, END_STEP };  /* ROLE */
enum { UNCHECKED, FLOAT32, FLOAT64, BITS, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32 };  /* KIND */

typedef struct {
    const uint8_t *meta, *body;
    int64_t body_bytes, length, position; /* position: where the last buffer ended */
    const uint8_t *nodes, *buffers;
} Message;

typedef struct {
    const uint8_t *data;
    int64_t size;
    const uint8_t *schema, *template, *mask, *group;
    int64_t schema_bytes, group_bytes;
    const int64_t *heads, *columns, *finals;
    int64_t num_columns, num_finals;
    /* found */
    const uint8_t *texts[NUM_DICTIONARIES], *text_offsets[NUM_DICTIONARIES], *indices[NUM_DICTIONARIES];
    int32_t *begins; /* [trajectories + 1] the first row of each, and the number of rows */
    int64_t *places; /* [columns + finals] where the values of each begin */
    int64_t num_rows, num_trajectories, newest_version;
} Check;

static int64_t i64_at(const uint8_t *data, int64_t i) {
    int64_t value;
    memcpy(&value, data + 8 * i, 8);
    return value;
}

static int32_t i32_at(const uint8_t *data, int64_t i) {
    int32_t value;
    memcpy(&value, data + 4 * i, 4);
    return value;
}

static int bit_at(const uint8_t *data, int64_t i) { return data[i >> 3] >> (i & 7) & 1; }

static int is_like(const uint8_t *data, const uint8_t *template, const uint8_t *mask, int64_t size) {
    uint8_t differs = 0;
    for (int64_t i = 0; i < size; i++) differs |= (data[i] ^ template[i]) & mask[i];
    return !differs;
}

/* The message at `*position`, which is moved behind it. */
static int read_message(const Check *check, const int64_t *head, int64_t *position, Message *message) {
    const int64_t framed = head[FRAMED], left = check->size - *position;
    const uint8_t *begin = check->data + *position;
    if (left < framed) return 0;
    if (!is_like(begin, check->template + head[TEMPLATE_BEGIN], check->mask + head[TEMPLATE_BEGIN], framed)) return 0;
    const int64_t body = i64_at(begin + head[BODY], 0);
    if (body < 0 || body % 8 || body > left - framed) return 0;
    *message = (Message){begin, begin + framed, body, i64_at(begin + head[LENGTH], 0), 0, begin + head[NODES], begin + head[BUFFERS]};
    *position += framed + body;
    return 1;
}

/* The next node has `length` values and no nulls, and the next buffer, which would say where they are, is empty. */
static int skip_node(Message *message, int64_t length) {
    const int is_so = i64_at(message->nodes, 0) == length && i64_at(message->nodes, 1) == 0 && i64_at(message->buffers, 1) == 0;
    const int64_t offset = i64_at(message->buffers, 0);
    if (!is_so || offset < message->position || offset > message->body_bytes) return 0;
    message->position = offset;
    message->nodes += 16;
    message->buffers += 16;
    return 1;
}

/* The next buffer, of `count * bytes` bytes or more; NULL where it is not. */
static const uint8_t *next_buffer(Message *message, int64_t count, int64_t bytes, int64_t *length) {
    const int64_t offset = i64_at(message->buffers, 0), size = i64_at(message->buffers, 1);
    if (offset < message->position || offset % 8 || size < 0 || offset > message->body_bytes) return NULL;
    if (size > message->body_bytes - offset || count < 0 || (bytes && count > size / bytes)) return NULL;
    message->position = offset + size;
    message->buffers += 16;
    if (length) *length = size;
    return message->body + offset;
}

static const uint8_t *next_bits(Message *message, int64_t count) { return next_buffer(message, count / 8 + (count % 8 != 0), 1, NULL); }

static int is_uuid(const uint8_t *text) {
    for (int i = 0; i < UUID_TEXT; i++) {
        const int is_dash = i == 8 || i == 13 || i == 18 || i == 23, c = text[i];
        if (is_dash ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return 0;
    }
    return 1;
}

/* How many names a dictionary has; 0 where it is not as it must be. */
static int64_t read_names(Check *check, int which, int64_t *position) {
    Message message;
    if (!read_message(check, check->heads + which * NUM_HEAD, position, &message)) return 0;
    const int64_t count = message.length;
    if (count < 1 || count > message.body_bytes || !skip_node(&message, count)) return 0;
    int64_t size = 0;
    const uint8_t *offsets = next_buffer(&message, count + 1, 4, NULL);
    const uint8_t *text = offsets ? next_buffer(&message, 0, 1, &size) : NULL;
    if (!text || i32_at(offsets, 0) != 0) return 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t begin = i32_at(offsets, i), end = i32_at(offsets, i + 1);
        if (end < begin || end > size) return 0;
        if (which <= ENVS && (end - begin != UUID_TEXT || !is_uuid(text + begin))) return 0;
        for (int32_t k = begin; which == AGENTS && k < end; k++) if (text[k] >= 0x80) return 0;
        if (which == GROUPS && (count != 1 || end != check->group_bytes || memcmp(text, check->group, end))) return 0;
    }
    check->texts[which] = text;
    check->text_offsets[which] = offsets;
    return count;
}

/* Ids count the trajectories, each of which begins with a row of its own. Loops here and below have no exits, so that they are
 * vectorised. */
static int find_begins(Check *check, const uint8_t *indices, int64_t num_ids) {
    int64_t count = 0;
    if (num_ids > check->num_rows || !(check->begins = malloc((num_ids + 1) * sizeof(int32_t)))) return 0;
    for (int64_t i = 0; i < check->num_rows; i++) {
        if (i && i32_at(indices, i) == i32_at(indices, i - 1)) continue;
        if (count == num_ids || i32_at(indices, i) != count) return 0;
        check->begins[count++] = (int32_t)i;
    }
    check->num_trajectories = count;
    check->begins[count] = (int32_t)check->num_rows;
    return count == num_ids;
}

/* Whether all of `values` from row `begin` on are one value. */
static int is_constant32(const uint8_t *values, int64_t begin, int64_t end, int32_t value) {
    int32_t differs = 0;
    for (int64_t i = begin; i < end; i++) differs |= i32_at(values, i) ^ value;
    return !differs;
}

static int is_constant64(const uint8_t *values, int64_t begin, int64_t end, int64_t value) {
    int64_t differs = 0;
    for (int64_t i = begin; i < end; i++) differs |= i64_at(values, i) ^ value;
    return !differs;
}

/* Environments and agents are the same for all rows of a trajectory; the group has but one name. */
static int check_names(Check *check, Message *batch, const int64_t *num_names) {
    const int64_t rows = check->num_rows;
    for (int which = IDS; which <= AGENTS; which++) {
        if (!skip_node(batch, rows)) return 0;
        const uint8_t *indices = next_buffer(batch, rows, 4, NULL);
        if (!indices || (which == IDS && !find_begins(check, indices, num_names[IDS]))) return 0;
        check->indices[which] = indices;
        for (int64_t k = 0; which != IDS && k < check->num_trajectories; k++) {
            const int32_t index = i32_at(indices, check->begins[k]);
            if (index < 0 || index >= num_names[which]) return 0;
            if (!is_constant32(indices, check->begins[k], check->begins[k + 1], index)) return 0;
        }
    }
    if (!skip_node(batch, rows)) return 0;
    const uint8_t *groups = next_buffer(batch, rows, 1, NULL);
    if (!groups) return 0;
    uint8_t other = 0;
    for (int64_t i = 0; i < rows; i++) other |= groups[i];
    return !other;
}

/* A value outside makes one of both differences negative, also where one of them wraps around. */
#define ALL_WITHIN(type)                                                    \
    {                                                                       \
        uint64_t outside = 0;                                               \
        for (int64_t i = 0; i < count; i++) {                               \
            type value;                                                     \
            memcpy(&value, data + i * (int64_t)sizeof(type), sizeof(type)); \
            const uint64_t wide = (uint64_t)(int64_t)value;                 \
            outside |= (wide - (uint64_t)low) | ((uint64_t)high - wide);    \
        }                                                                   \
        return !(outside >> 63);                                            \
    }

/* Whether values are finite, or among the choices that there are. */
static int are_values(const uint8_t *data, int64_t count, int64_t kind, int64_t low, int64_t high) {
    int is_wrong = 0;
    int64_t is_wide_wrong = 0;
    switch (kind) {
        case FLOAT32:
            for (int64_t i = 0; i < count; i++) is_wrong |= (i32_at(data, i) & 0x7f800000) == 0x7f800000;
            return !is_wrong;
        case FLOAT64:
            for (int64_t i = 0; i < count; i++) is_wide_wrong |= (i64_at(data, i) & 0x7ff0000000000000) == 0x7ff0000000000000;
            return !is_wide_wrong;
        case INT8: ALL_WITHIN(int8_t)
        case INT16: ALL_WITHIN(int16_t)
        case INT32: ALL_WITHIN(int32_t)
        case INT64: ALL_WITHIN(int64_t)
        case UINT8: ALL_WITHIN(uint8_t)
        case UINT16: ALL_WITHIN(uint16_t)
        case UINT32: ALL_WITHIN(uint32_t)
        default: return kind == UNCHECKED || kind == BITS;
    }
}

/* The values of a column with `rows` rows; NULL where they are not as they must be. */
static const uint8_t *read_column(Message *batch, const int64_t *column, int64_t rows) {
    int64_t count = rows;
    if (column[WIDTH]) {
        if (rows > MAX_NUMBER / column[WIDTH] || !skip_node(batch, rows)) return NULL;
        count = rows * column[WIDTH];
    }
    if (!skip_node(batch, count)) return NULL;
    const uint8_t *data = column[KIND] == BITS ? next_bits(batch, count) : next_buffer(batch, count, column[ITEM_BYTES], NULL);
    return data && are_values(data, count, column[KIND], column[LOW], column[HIGH]) ? data : NULL;
}

/* What followed each trajectory: one record at the last row of each, and none elsewhere. */
static int check_successors(Check *check, Message *batch, const uint8_t **first_steps, const uint8_t **end_steps) {
    const int64_t rows = check->num_rows, count = check->num_trajectories;
    if (!skip_node(batch, rows)) return 0;
    const uint8_t *offsets = next_buffer(batch, rows + 1, 4, NULL);
    if (!offsets || i32_at(offsets, 0) != 0 || i32_at(offsets, rows) != count) return 0;
    for (int64_t k = 0; k < count; k++) {
        if (!is_constant32(offsets, check->begins[k], check->begins[k + 1], (int32_t)k)) return 0;
    }
    if (!skip_node(batch, count)) return 0;
    for (int64_t k = 0; k < check->num_finals; k++) {
        const int64_t *column = check->finals + k * NUM_COLUMN;
        const uint8_t *data = read_column(batch, column, count);
        if (!data) return 0;
        check->places[check->num_columns + k] = data - check->data;
        if (column[ROLE] == FIRST_STEP) *first_steps = data;
        if (column[ROLE] == END_STEP) *end_steps = data;
    }
    return 1;
}

/* Steps count on within a trajectory, or increase between its first step and its end where it says both. */
static int check_steps(const Check *check, const uint8_t *steps, const uint8_t *first_steps, const uint8_t *end_steps) {
    if ((first_steps == NULL) != (end_steps == NULL)) return 0;
    for (int64_t k = 0; k < check->num_trajectories; k++) {
        const int64_t begin = check->begins[k], end = check->begins[k + 1];
        const int64_t first = i64_at(steps, begin), last = i64_at(steps, end - 1);
        if (first < 0 || first >= MAX_NUMBER || last < 0 || last >= MAX_NUMBER) return 0;
        if (!end_steps) {
            int64_t differs = 0;
            for (int64_t i = begin; i < end; i++) differs |= i64_at(steps, i) ^ (first + (i - begin));
            if (differs) return 0;
            continue;
        }
        int64_t wrong = 0;
        for (int64_t i = begin + 1; i < end; i++) wrong |= i64_at(steps, i) <= i64_at(steps, i - 1);
        const int64_t covers_from = i64_at(first_steps, k), covers_to = i64_at(end_steps, k);
        if (wrong || covers_from < 0 || first < covers_from || covers_to <= last || covers_to >= MAX_NUMBER) return 0;
    }
    return 1;
}

static int64_t count_bits(const uint8_t *bits, int64_t count) {
    int64_t found = 0;
    for (int64_t i = 0; i < count / 8; i++) found += __builtin_popcount(bits[i]);
    for (int64_t i = count / 8 * 8; i < count; i++) found += bit_at(bits, i);
    return found;
}

/* Flags stand on the last row of a trajectory only, who failed is truncated, and every row is valid. */
static int check_flags(const Check *check, const uint8_t *const *found) {
    int64_t at_ends[VALID] = {0};
    for (int64_t k = 0; k < check->num_trajectories; k++) {
        const int64_t last = check->begins[k + 1] - 1;
        for (int role = ENDS; role <= FAILS; role++) at_ends[role] += bit_at(found[role], last);
        if (bit_at(found[FAILS], last) && !bit_at(found[TRUNCATES], last)) return 0;
    }
    for (int role = ENDS; role <= FAILS; role++) {
        if (count_bits(found[role], check->num_rows) != at_ends[role]) return 0;
    }
    return count_bits(found[VALID], check->num_rows) == check->num_rows;
}

static int check_episodes(const Check *check, const uint8_t *episodes) {
    for (int64_t k = 0; k < check->num_trajectories; k++) {
        const int64_t episode = i64_at(episodes, check->begins[k]);
        if (episode < 0 || !is_constant64(episodes, check->begins[k], check->begins[k + 1], episode)) return 0;
    }
    return 1;
}

static int check_batch(Check *check, Message *batch, const int64_t *num_names) {
    const uint8_t *found[END_STEP + 1] = {NULL};
    check->num_rows = batch->length;
    if (check->num_rows < 1 || check->num_rows > batch->body_bytes || check->num_rows >= INT32_MAX) return 0;
    if (!check_names(check, batch, num_names)) return 0;
    for (int64_t k = 0; k < check->num_columns; k++) {
        const int64_t *column = check->columns + k * NUM_COLUMN;
        const uint8_t *data = read_column(batch, column, check->num_rows);
        if (!data) return 0;
        check->places[k] = data - check->data;
        found[column[ROLE]] = data;
    }
    if (!check_successors(check, batch, &found[FIRST_STEP], &found[END_STEP])) return 0;
    for (int role = EPISODE; role <= VALID; role++) if (!found[role]) return 0;
    int64_t newest = 0, negative = 0;
    for (int64_t i = 0; i < check->num_rows; i++) {
        const int64_t version = i64_at(found[VERSION], i);
        negative |= version;
        newest = version > newest ? version : newest;
    }
    check->newest_version = newest;
    if (negative < 0) return 0;
    return check_episodes(check, found[EPISODE]) && check_steps(check, found[STEP], found[FIRST_STEP], found[END_STEP]) &&
           check_flags(check, found);
}

static int is_checked(Check *check) {
    static const uint8_t end_of_stream[8] = {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0};
    int64_t position = check->schema_bytes, num_names[NUM_DICTIONARIES];
    Message batch;
    if (check->size < position || memcmp(check->data, check->schema, position)) return 0;
    if (!(check->places = malloc((check->num_columns + check->num_finals + 1) * sizeof(int64_t)))) return 0;
    for (int which = IDS; which <= GROUPS; which++) {
        if (!(num_names[which] = read_names(check, which, &position))) return 0;
    }
    if (!read_message(check, check->heads + NUM_DICTIONARIES * NUM_HEAD, &position, &batch)) return 0;
    if (!check_batch(check, &batch, num_names)) return 0;
    return check->size - position == 8 && !memcmp(check->data + position, end_of_stream, 8);
}

/* Of every trajectory the 16 bytes of its id, or of its environment's. */
static PyObject *ids_of(const Check *check, int which) {
    PyObject *ids = PyBytes_FromStringAndSize(NULL, 16 * check->num_trajectories);
    if (!ids) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(ids);
    for (int64_t k = 0; k < check->num_trajectories; k++) {
        const int32_t index = i32_at(check->indices[which], check->begins[k]);
        const uint8_t *text = check->texts[which] + i32_at(check->text_offsets[which], index);
        int high = -1;
        for (int i = 0; i < UUID_TEXT; i++) {
            if (text[i] == '-') continue;
            const int digit = text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10;
            if (high < 0) high = digit;
            else *out++ = (uint8_t)(high << 4 | digit), high = -1;
        }
    }
    return ids;
}

static PyObject *agents_of(const Check *check) {
    PyObject *names = PyList_New(check->num_trajectories);
    for (int64_t k = 0; names && k < check->num_trajectories; k++) {
        const int32_t index = i32_at(check->indices[AGENTS], check->begins[k]);
        const int32_t begin = i32_at(check->text_offsets[AGENTS], index), end = i32_at(check->text_offsets[AGENTS], index + 1);
        PyObject *name = PyUnicode_FromStringAndSize((const char *)check->texts[AGENTS] + begin, end - begin);
        if (name) PyList_SET_ITEM(names, k, name);
        else Py_CLEAR(names);
    }
    return names;
}

/* What was found of a stream that passed. */
static PyObject *described(const Check *check) {
    PyObject *ids = ids_of(check, IDS), *envs = ids_of(check, ENVS), *agents = agents_of(check);
    const Py_ssize_t begins = (check->num_trajectories + 1) * sizeof(int32_t);
    const Py_ssize_t places = (check->num_columns + check->num_finals) * sizeof(int64_t);
    if (!ids || !envs || !agents) {
        Py_XDECREF(ids);
        Py_XDECREF(envs);
        Py_XDECREF(agents);
        return NULL;
    }
    return Py_BuildValue("NLLNNy#y#", ids, (long long)check->num_rows, (long long)check->newest_version, envs, agents,
                         (const char *)check->begins, begins, (const char *)check->places, places);
}

/* Whether the numbers of a plan stay within its own bytes; it comes from our own Python, but is read without asking again. */
static int plan_fits(const Check *check, Py_ssize_t template_bytes, Py_ssize_t mask_bytes, Py_ssize_t heads_bytes) {
    static const int64_t kind_bytes[] = {0, 4, 8, 0, 1, 2, 4, 8, 1, 2, 4};
    if (template_bytes != mask_bytes || heads_bytes != 8 * NUM_HEAD * (NUM_DICTIONARIES + 1)) return 0;
    int64_t num_nodes = NUM_DICTIONARIES + 2, num_buffers = 2 * NUM_DICTIONARIES + 3;
    for (int64_t k = 0; k < check->num_columns + check->num_finals; k++) {
        const int64_t of_finals = k - check->num_columns;
        const int64_t *column = of_finals < 0 ? check->columns + k * NUM_COLUMN : check->finals + of_finals * NUM_COLUMN;
        const int64_t role = column[ROLE], kind = column[KIND];
        if (role < 0 || role > END_STEP || kind < 0 || kind > UINT32 || column[WIDTH] < 0 || column[ITEM_BYTES] < 1) return 0;
        if (kind_bytes[kind] && kind_bytes[kind] != column[ITEM_BYTES]) return 0;
        const int is_flag = role >= ENDS && role <= VALID;
        if (role != ANY && (column[WIDTH] || is_flag != (kind == BITS) || (!is_flag && column[ITEM_BYTES] != 8))) return 0;
        num_nodes += column[WIDTH] ? 2 : 1;
        num_buffers += column[WIDTH] ? 3 : 2;
    }
    for (int which = 0; which <= NUM_DICTIONARIES; which++) {
        const int64_t *head = check->heads + which * NUM_HEAD, framed = head[FRAMED];
        const int is_batch = which == NUM_DICTIONARIES;
        if (head[TEMPLATE_BEGIN] < 0 || framed < 8 || head[TEMPLATE_BEGIN] > template_bytes - framed) return 0;
        if (head[LENGTH] < 0 || head[LENGTH] > framed - 8 || head[BODY] < 0 || head[BODY] > framed - 8) return 0;
        if (head[NODES] < 0 || head[NODES] > framed - 16 * (is_batch ? num_nodes : 1)) return 0;
        if (head[BUFFERS] < 0 || head[BUFFERS] > framed - 16 * (is_batch ? num_buffers : 3)) return 0;
    }
    return 1;
}

PyObject *check_stream(PyObject *module, PyObject *args) {
    enum { DATA, SCHEMA, TEMPLATE, MASK, GROUP, HEADS, COLUMNS, FINALS, NUM_GIVEN };
    Py_buffer given[NUM_GIVEN] = {{0}};
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(args, "y*(y*y*y*y*y*y*y*):check_stream", &given[DATA], &given[SCHEMA], &given[TEMPLATE], &given[MASK],
                          &given[GROUP], &given[HEADS], &given[COLUMNS], &given[FINALS]))
        return NULL;
    Check check = {
        .data = given[DATA].buf, .size = given[DATA].len, .schema = given[SCHEMA].buf, .template = given[TEMPLATE].buf,
        .mask = given[MASK].buf, .group = given[GROUP].buf, .schema_bytes = given[SCHEMA].len, .group_bytes = given[GROUP].len,
        .heads = given[HEADS].buf, .columns = given[COLUMNS].buf, .finals = given[FINALS].buf,
        .num_columns = given[COLUMNS].len / (8 * NUM_COLUMN), .num_finals = given[FINALS].len / (8 * NUM_COLUMN),
    };
    if (!plan_fits(&check, given[TEMPLATE].len, given[MASK].len, given[HEADS].len)) {
        PyErr_SetString(PyExc_ValueError, "the plan of a stream reaches outside of its template");
    } else {
        int is_so;
        if (check.size < RELEASE_BYTES) {
            is_so = is_checked(&check);
        } else {
            Py_BEGIN_ALLOW_THREADS
            is_so = is_checked(&check);
            Py_END_ALLOW_THREADS
        }
        answer = is_so ? described(&check) : Py_NewRef(Py_None);
    }
    free(check.begins);
    free(check.places);
    for (int i = 0; i < NUM_GIVEN; i++) PyBuffer_Release(&given[i]);
    return answer;
}
