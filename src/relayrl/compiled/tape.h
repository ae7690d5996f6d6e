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
} TapeWork;

static void read_half(void *argument) {
    const TapeWork *work = argument;
    read_weights_across(&work->tape->whole, work->tape->network, work->h, 2);
}

static void forward_half(void *argument) {
    const TapeWork *work = argument;
    Tape *tape = work->tape;
    const int last = tape->whole.num_layers, width = tape->whole.size[0], outputs = tape->whole.size[last];
    for (int64_t row = half_start(tape, work->h); row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        Perceptron *net = at_tile(tape, work->h, row);
        const int n = tile_size(tape, work->h, row);
        for (int r = 0; r < n; r++) {
            memcpy(net->value[0] + (int64_t)r * net->wide[0], work->in + (row + r) * width, (size_t)width * sizeof(float));
        }
        forward_tile(net, net->value[0], net->wide[0], n);
        for (int r = 0; r < n; r++) {
            const float *found = net->value[last] + (int64_t)r * net->wide[last];
            memcpy(work->out + (row + r) * outputs, found, (size_t)outputs * sizeof(float));
        }
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
    forget_gradients(&tape->half[work->h]);
    for (int64_t row = half_start(tape, work->h); row < half_start(tape, work->h + 1); row += TILE_ROWS) {
        Perceptron *net = at_tile(tape, work->h, row);
        const int n = tile_size(tape, work->h, row);
        take_gradient(net, work->in + row * outputs, n);
        backward_tile(net, n);
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

static void both_halves(Tape *tape, void (*do_half)(void *), const float *in, float *out, int num_threads) {
    int64_t products = 0;
    for (int l = 0; l < tape->whole.num_layers; l++) products += (int64_t)tape->whole.size[l] * tape->whole.size[l + 1];
    TapeWork first = {tape, 0, in, out}, second = {tape, 1, in, out};
    if (num_threads > 1 && tape->num_rows * products >= MIN_SHARED_PRODUCTS) {
        do_both(do_half, &first, &second);
        return;
    }
    do_half(&first);
    do_half(&second);
}

static int tape_forward(Tape *tape, const float *x, int64_t num_rows, float *out, int num_threads) {
    if (reserve_rows(tape, num_rows)) return -1;
    both_halves(tape, read_half, NULL, NULL, num_threads);
    read_other_parameters(&tape->whole, tape->network, 1);
    for (int h = 0; h < 2; h++) {
        memcpy(tape->half[h].across, tape->whole.across, sizeof tape->whole.across);
        memcpy(tape->half[h].along, tape->whole.along, sizeof tape->whole.along);
        memcpy(tape->half[h].bias, tape->whole.bias, sizeof tape->whole.bias);
    }
    both_halves(tape, forward_half, x, out, num_threads);
    return 0;
}

static void tape_backward(Tape *tape, const float *gradient, float *flat, int num_threads) {
    both_halves(tape, backward_half, gradient, NULL, num_threads);
    Perceptron *first = &tape->half[0], *second = &tape->half[1];
    for (int l = 0; l < first->num_layers; l++) {
        const int64_t count = gradient_size(first, l);
        for (int64_t i = 0; i < count; i++) first->weight_gradient[l][i] += second->weight_gradient[l][i];
        for (int i = 0; i < first->wide[l + 1]; i++) first->bias_gradient[l][i] += second->bias_gradient[l][i];
    }
    write_gradients(first, flat);
}

static void tape_input_gradient(Tape *tape, const float *gradient, float *by_input, int num_threads) {
    both_halves(tape, input_gradient_half, gradient, by_input, num_threads);
}
