/* A perceptron that keeps memory between calls: packed weights and, for its backward pass, the activations of every row.
 *
 * Rows lie in two halves. Each has gradients of its own, which are added in a fixed order, so that one thread and two give
 * the same numbers.
 */

struct Tape {
    Perceptron whole;                  /* packed weights; value[l] are [capacity, wide] */
    Perceptron half[2];                /* views of `whole` at one tile, with deltas and gradients of their own */
    int64_t num_rows, capacity;
    int is_kept; /* else every tile lies where the last one lay, and there is no backward pass */
    const Network *network;
    float *values;
};

static void close_tape(Tape *tape) {
    if (!tape) return;
    close_perceptron(&tape->whole);
    for (int h = 0; h < 2; h++) close_perceptron(&tape->half[h]);
    free(tape->values);
    free(tape);
}

static Tape *open_tape(const Network *network, int is_kept) {
    Tape *tape = calloc(1, sizeof *tape);
    if (!tape) return NULL;
    tape->network = network;
    tape->is_kept = is_kept;
    if (open_perceptron(&tape->whole, network, 1) || open_perceptron(&tape->half[0], network, 1) ||
        open_perceptron(&tape->half[1], network, 1)) {
        close_tape(tape);
        return NULL;
    }
    return tape;
}

static int reserve_rows(Tape *tape, int64_t num_rows) {
    Perceptron *net = &tape->whole;
    tape->num_rows = num_rows;
    if (!tape->is_kept || num_rows <= tape->capacity) return 0;
    int64_t width = 0;
    for (int l = 0; l <= net->num_layers; l++) width += net->wide[l];
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)(num_rows * width) * sizeof(float))) return -1;
    free(tape->values);
    tape->values = memory;
    tape->capacity = num_rows;
    float *next = tape->values;
    for (int l = 0; l <= net->num_layers; l++) {
        net->value[l] = next;
        next += num_rows * net->wide[l];
    }
    memset(net->value[0], 0, (size_t)(num_rows * net->wide[0]) * sizeof(float));
    return 0;
}

/* Where half `h` begins. The first is as long as the second or one row longer. */
static int64_t half_start(const Tape *tape, int h) { return h == 0 ? 0 : h == 1 ? (tape->num_rows + 1) / 2 : tape->num_rows; }

/* Let a half's view see the rows from `row` on. */
static Perceptron *at_tile(Tape *tape, int h, int64_t row) {
    Perceptron *view = &tape->half[h];
    for (int l = 0; tape->is_kept && l <= view->num_layers; l++) view->value[l] = tape->whole.value[l] + row * view->wide[l];
    return view;
}

static int tile_size(const Tape *tape, int h, int64_t row) {
    const int64_t left = half_start(tape, h + 1) - row;
    return (int)(left < TILE_ROWS ? left : TILE_ROWS);
}

typedef struct {
    Tape *tape;
    int h;
    const float *in;
    float *out;
    const float *target, *share; /* of a regression */
} TapeWork;

static void read_half(void *argument) {
    const TapeWork *work = argument;
    read_weights_across(&work->tape->whole, work->tape->network, work->h, 2);
}

/* Rows from number `row` on through the network, and their outputs to where they are wanted. */
static void pass_rows_on(Perceptron *net, const TapeWork *work, int64_t row, int num_rows) {
    const int last = net->num_layers, width = net->size[0], outputs = net->size[last];
    for (int r = 0; r < num_rows; r++) {
        memcpy(net->value[0] + (int64_t)r * net->wide[0], work->in + (row + r) * width, (size_t)width * sizeof(float));
    }
    forward_tile(net, net->value[0], net->wide[0], num_rows);
    for (int r = 0; r < num_rows; r++) {
        const float *found = net->value[last] + (int64_t)r * net->wide[last];
        memcpy(work->out + (row + r) * outputs, found, (size_t)outputs * sizeof(float));
    }
}

static void forward_half(void *argument) {
    const TapeWork *work = argument;
    Tape *tape = work->tape;
    for (int64_t row = half_start(tape, work->h); row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        pass_rows_on(at_tile(tape, work->h, row), work, row, tile_size(tape, work->h, row));
    }
}

/* The outputs' derivatives of a tile, as the backward pass takes them. */
static void take_gradient(Perceptron *net, const float *gradient, int num_rows) {
    const int last = net->num_layers, outputs = net->size[last];
    for (int r = 0; r < num_rows; r++) {
        memcpy(net->delta[last] + (int64_t)r * net->wide[last], gradient + (int64_t)r * outputs, (size_t)outputs * sizeof(float));
    }
}

static void backward_half(void *argument) {
    const TapeWork *work = argument;
    Tape *tape = work->tape;
    const int outputs = tape->whole.size[tape->whole.num_layers];
    const int64_t start = half_start(tape, work->h);
    for (int64_t row = start; row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        Perceptron *net = at_tile(tape, work->h, row);
        const int n = tile_size(tape, work->h, row);
        take_gradient(net, work->in + row * outputs, n);
        backward_tile(net, n, row == start);
    }
}

/* Forward and backward, tile by tile, of the loss Σ ½ share (output − target)²: activations do not leave the cache. */
static void regress_half(void *argument) {
    const TapeWork *work = argument;
    Tape *tape = work->tape;
    const int outputs = tape->whole.size[tape->whole.num_layers];
    const int64_t start = half_start(tape, work->h);
    for (int64_t row = start; row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        Perceptron *net = at_tile(tape, work->h, start);
        const int n = tile_size(tape, work->h, row), last = net->num_layers;
        pass_rows_on(net, work, row, n);
        for (int64_t i = 0; i < (int64_t)n * outputs; i++) {
            const int64_t at = row * outputs + i;
            net->delta[last][i / outputs * net->wide[last] + i % outputs] = (work->out[at] - work->target[at]) * work->share[at];
        }
        backward_tile(net, n, row == start);
    }
}

static void input_gradient_half(void *argument) {
    const TapeWork *work = argument;
    Tape *tape = work->tape;
    const int outputs = tape->whole.size[tape->whole.num_layers], width = tape->whole.size[0];
    for (int64_t row = half_start(tape, work->h); row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        Perceptron *net = at_tile(tape, work->h, row);
        const int n = tile_size(tape, work->h, row);
        take_gradient(net, work->in + row * outputs, n);
        for (int l = net->num_layers - 1; l >= 0; l--) delta_below(net, l, n);
        for (int r = 0; r < n; r++) {
            memcpy(work->out + (row + r) * width, net->delta[0] + (int64_t)r * net->wide[0], (size_t)width * sizeof(float));
        }
    }
}

#define MIN_SHARED_PRODUCTS 1000000 /* multiplications that take longer than waking the helper */

static void both_halves(void (*do_half)(void *), TapeWork work, int num_threads) {
    const Perceptron *net = &work.tape->whole;
    int64_t products = 0;
    for (int l = 0; l < net->num_layers; l++) products += (int64_t)net->size[l] * net->size[l + 1];
    TapeWork first = work, second = work;
    second.h = 1;
    do_both(do_half, &first, &second, num_threads > 1 && work.tape->num_rows * products >= MIN_SHARED_PRODUCTS);
}

/* Make room for rows, and take over the parameters as they are now. */
static int begin_rows(Tape *tape, int64_t num_rows, int num_threads) {
    if (reserve_rows(tape, num_rows)) return -1;
    both_halves(read_half, (TapeWork){.tape = tape}, num_threads);
    read_other_parameters(&tape->whole, tape->network, 1);
    for (int h = 0; h < 2; h++) {
        memcpy(tape->half[h].across, tape->whole.across, sizeof tape->whole.across);
        memcpy(tape->half[h].along, tape->whole.along, sizeof tape->whole.along);
        memcpy(tape->half[h].bias, tape->whole.bias, sizeof tape->whole.bias);
    }
    return 0;
}

static int tape_forward(Tape *tape, const float *x, int64_t num_rows, float *out, int num_threads) {
    if (begin_rows(tape, num_rows, num_threads)) return -1;
    both_halves(forward_half, (TapeWork){.tape = tape, .in = x, .out = out}, num_threads);
    return 0;
}

/* Put the gradients of a half of the units together, from both halves of the rows. */
static void write_half(void *argument) {
    const TapeWork *work = argument;
    const Tape *tape = work->tape;
    write_gradients(&tape->half[0], tape->num_rows > 1 ? &tape->half[1] : NULL, work->h, 2, work->out);
}

static void tape_backward(Tape *tape, const float *gradient, float *flat, int num_threads) {
    both_halves(backward_half, (TapeWork){.tape = tape, .in = gradient}, num_threads);
    both_halves(write_half, (TapeWork){.tape = tape, .out = flat}, num_threads);
}

static int tape_regress(Tape *tape, const Regression *rows, float *flat, int num_threads) {
    if (begin_rows(tape, rows->num_rows, num_threads)) return -1;
    TapeWork work = {.tape = tape, .in = rows->x, .out = rows->out, .target = rows->target, .share = rows->share};
    both_halves(regress_half, work, num_threads);
    both_halves(write_half, (TapeWork){.tape = tape, .out = flat}, num_threads);
    return 0;
}

static void tape_input_gradient(Tape *tape, const float *gradient, float *by_input, int num_threads) {
    both_halves(input_gradient_half, (TapeWork){.tape = tape, .in = gradient, .out = by_input}, num_threads);
}
