/* A perceptron that is differentiated step by step; it keeps the activations of every row for its backward pass.
 *
 * Rows of a single tape lie in two halves. Each has gradients of its own, which are added in a fixed order, so that one
 * thread and two give the same numbers. A tape among several is one thread's affair as a whole.
 */

struct Tape {
    const Network *network;
    int is_kept; /* else there is no backward pass */
    int64_t num_rows, capacity;
    float *values[MAX_LAYERS + 1]; /* [capacity, wide] each, where they are kept */
    float *second_gradient;        /* that of the second half, or NULL as long as there was none */
};

static void close_tape(Tape *tape) {
    if (!tape) return;
    free(tape->values[0]);
    free(tape->second_gradient);
    free(tape);
}

static Tape *open_tape(const Network *network, int is_kept) {
    Tape *tape = calloc(1, sizeof *tape);
    if (!tape) return NULL;
    tape->network = network;
    tape->is_kept = is_kept;
    return tape;
}

static int reserve_rows(Tape *tape, int64_t num_rows) {
    const Network *network = tape->network;
    tape->num_rows = num_rows;
    if (!tape->is_kept || num_rows <= tape->capacity) return 0;
    int64_t width = 0;
    for (int l = 0; l <= network->num_layers; l++) width += padded(network->sizes[l]);
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)(num_rows * width) * sizeof(float))) return -1;
    free(tape->values[0]);
    tape->capacity = num_rows;
    float *next = memory;
    for (int l = 0; l <= network->num_layers; l++) {
        tape->values[l] = next;
        next += num_rows * padded(network->sizes[l]);
    }
    return 0;
}

/* Rows [first, end) of a tape, and what is done with them. */
typedef struct {
    Tape *tape;
    int64_t first, end;
    const float *in;             /* inputs, or derivatives by the outputs */
    float *out;                  /* outputs */
    const Inputs *inputs;        /* of a regression */
    const float *target, *share; /* of a regression */
    float *gradient;             /* by the parameters, in their order */
    double *loss;                /* of a regression: one for each half */
    int failed;
} TapeWork;

/* Let a perceptron see the kept rows from `row` on; gives how many of them are its tile. */
static int see_tile(Perceptron *net, const TapeWork *work, int64_t row) {
    const Tape *tape = work->tape;
    for (int l = 0; tape->is_kept && l <= net->num_layers; l++) net->value[l] = tape->values[l] + row * net->wide[l];
    return (int)(work->end - row < TILE_ROWS ? work->end - row : TILE_ROWS);
}

static void forward_rows(void *argument) {
    TapeWork *work = argument;
    Perceptron net;
    work->failed = borrow_perceptron(&net, work->tape->network);
    if (work->failed) return;
    read_for_forward(&net, work->tape->network);
    const int width = net.size[0];
    for (int64_t row = work->first; row < work->end; row += TILE_ROWS) {
        const int num_rows = see_tile(&net, work, row);
        copy_padded(net.value[0], work->in + row * width, num_rows, width, net.wide[0]);
        forward_tile(&net, net.value[0], net.wide[0], num_rows);
        copy_outputs(&net, num_rows, work->out + row * net.size[net.num_layers]);
    }
}

/* The outputs' derivatives of a tile, as the backward pass takes them. */
static void take_gradient(Perceptron *net, const float *gradient, int num_rows) {
    const int last = net->num_layers;
    copy_padded(net->delta[last], gradient, num_rows, net->size[last], net->wide[last]);
}

static void backward_rows(void *argument) {
    TapeWork *work = argument;
    Perceptron net;
    work->failed = borrow_perceptron(&net, work->tape->network);
    if (work->failed) return;
    read_for_backward(&net, work->tape->network);
    aim_gradients(&net, work->gradient);
    for (int64_t row = work->first; row < work->end; row += TILE_ROWS) {
        const int num_rows = see_tile(&net, work, row);
        take_gradient(&net, work->in + row * net.size[net.num_layers], num_rows);
        backward_tile(&net, num_rows, row == work->first);
    }
    write_gradients(&net, work->gradient);
}

/* Forward and backward, tile by tile, of the loss Σ ½ share (output − target)²: activations do not leave the cache. */
static void regress_rows(void *argument) {
    TapeWork *work = argument;
    const Network *network = work->tape->network;
    const Inputs *inputs = work->inputs;
    Perceptron net;
    Factors factors;
    int64_t rows[TILE_ROWS];
    work->failed = borrow_factored(&net, &factors, &network, 1, inputs, work->first, work->end);
    if (work->failed) return;
    read_parameters(&net, network, 1);
    aim_gradients(&net, work->gradient);
    multiply_lines(&factors, &net, inputs);
    forget_deltas(&factors, &net, inputs);
    const int last = net.num_layers, outputs = net.size[last];
    for (int64_t row = work->first; row < work->end; row += TILE_ROWS) {
        const int num_rows = number_tile(rows, row, work->end);
        forward_inputs(&net, inputs, &factors, rows, num_rows);
        copy_outputs(&net, num_rows, work->out + row * outputs);
        for (int64_t i = 0; i < (int64_t)num_rows * outputs; i++) {
            const int64_t at = row * outputs + i;
            const float error = work->out[at] - work->target[at], slope = error * work->share[at];
            net.delta[last][i / outputs * net.wide[last] + i % outputs] = slope;
            *work->loss += 0.5 * (double)slope * (double)error;
        }
        backward_inputs(&net, inputs, &factors, rows, num_rows, row == work->first);
    }
    differentiate_by_lines(&factors, &net, inputs);
    write_gradients(&net, work->gradient);
}

static int is_worth_sharing(const Tape *tape, Cut cut) {
    return cut == HALVES_SIDE_BY_SIDE && tape->num_rows * num_products(tape->network) >= MIN_SHARED_PRODUCTS;
}

/* All rows of a tape; -1: out of memory. */
static int over_rows(void (*do_rows)(void *), TapeWork work, Cut cut) {
    const int64_t num_rows = work.tape->num_rows, middle = cut == WHOLE ? num_rows : (num_rows + 1) / 2;
    TapeWork second = work;
    second.first = work.end = middle;
    second.end = num_rows;
    if (work.gradient) second.gradient = work.tape->second_gradient;
    if (work.loss) second.loss = work.loss + 1;
    if (middle == num_rows) do_rows(&work);
    else do_both(do_rows, &work, &second, is_worth_sharing(work.tape, cut));
    return work.failed || second.failed ? -1 : 0;
}

static int tape_forward(Tape *tape, const float *x, int64_t num_rows, float *out, Cut cut) {
    if (reserve_rows(tape, num_rows)) return -1;
    return over_rows(forward_rows, (TapeWork){.tape = tape, .in = x, .out = out}, cut);
}

typedef struct {
    float *sum;
    const float *other;
    int64_t first, end;
} SumHalf;

static void sum_half(void *argument) {
    const SumHalf *half = argument;
    for (int64_t i = half->first; i < half->end; i++) half->sum[i] += half->other[i];
}

/* Gradients of all parameters, from both halves of the rows. */
static int gradients_over_rows(void (*do_rows)(void *), TapeWork work, Cut cut) {
    Tape *tape = work.tape;
    const int64_t count = num_parameters(tape->network);
    const int is_halved = cut != WHOLE && tape->num_rows > 1;
    if (is_halved && !tape->second_gradient) {
        tape->second_gradient = malloc((size_t)count * sizeof(float));
        if (!tape->second_gradient) return -1;
    }
    if (over_rows(do_rows, work, cut)) return -1;
    if (!is_halved) return 0;
    SumHalf first = {work.gradient, tape->second_gradient, 0, count / 2}, second = first;
    second.first = first.end;
    second.end = count;
    do_both(sum_half, &first, &second, is_worth_sharing(tape, cut));
    return 0;
}

static int tape_backward(Tape *tape, const float *gradient, float *flat, Cut cut) {
    return gradients_over_rows(backward_rows, (TapeWork){.tape = tape, .in = gradient, .gradient = flat}, cut);
}

static int tape_regress(Tape *tape, Regression *rows, float *flat, Cut cut) {
    double losses[2] = {0.0, 0.0};
    tape->num_rows = rows->num_rows;
    TapeWork work = {.tape = tape, .inputs = rows->inputs, .out = rows->out, .target = rows->target, .share = rows->share};
    work.gradient = flat;
    work.loss = losses;
    const int status = gradients_over_rows(regress_rows, work, cut);
    rows->loss = losses[0] + losses[1];
    return status;
}
