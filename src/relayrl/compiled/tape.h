/* MLPs that are differentiated step by step; they keep the activations of every row for their backward pass.
 *
 * Rows are cut into blocks. Each has gradients of its own, which are added in a fixed order, so that any number of threads gives
 * the same numbers. Few rows of a tape among several are not cut: each tape is one thread's affair then, whose cache holds it.
 */

struct Tape {
    const Network *network;
    int is_kept; /* else there is no backward pass */
    int64_t capacity;              /* of rows */
    float *values[MAX_LAYERS + 1]; /* [capacity, wide] each, where they are kept */
    float *other_gradients;        /* those of all blocks but the first, as many as there have been */
    int num_others;
};

static void close_tape(Tape *tape) {
    if (!tape) return;
    free(tape->values[0]);
    free(tape->other_gradients);
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

/* A pass over tapes: item i is block i / num_parts of tape i % num_parts, so that threads begin with different tapes. */
typedef struct {
    TapePart *parts;
    int num_parts, num_blocks;
    double (*losses)[MAX_ROW_BLOCKS]; /* of a regression: of each part, of each block */
    atomic_int failed;
} TapePass;

/* One block of one tape. */
typedef struct {
    const TapePart *part;
    int64_t first, end;
    float *gradient; /* by the parameters, in their order */
    double *loss;
} TapeBlock;

static TapeBlock block_of(const TapePass *pass, int item) {
    const int which = item % pass->num_parts, block = item / pass->num_parts;
    const TapePart *part = &pass->parts[which];
    TapeBlock own = {.part = part, .gradient = part->flat};
    own.first = row_block_start(part->num_rows, block, pass->num_blocks);
    own.end = row_block_start(part->num_rows, block + 1, pass->num_blocks);
    if (block) own.gradient = part->tape->other_gradients + (block - 1) * num_parameters(part->tape->network);
    if (pass->losses) own.loss = &pass->losses[which][block];
    return own;
}

/* Let a mlp see the kept rows from `row` on; gives how many of them are its tile. */
static int see_tile(MLP *net, const TapeBlock *block, int64_t row) {
    const Tape *tape = block->part->tape;
    for (int l = 0; tape->is_kept && l <= net->num_layers; l++) net->value[l] = tape->values[l] + row * net->wide[l];
    return at_most(block->end - row, TILE_ROWS);
}

static void forward_blocks(void *argument, Blocks *blocks) {
    TapePass *pass = argument;
    const Tape *tape = NULL;
    MLP net;
    for (int item; (item = next_block(blocks)) >= 0;) {
        TapeBlock block = block_of(pass, item);
        const TapePart *part = block.part;
        block.first = block_start(part->num_rows, item / pass->num_parts, pass->num_blocks); /* nothing is added up: any rows will do */
        block.end = block_start(part->num_rows, item / pass->num_parts + 1, pass->num_blocks);
        if (part->tape != tape) {
            tape = part->tape;
            if (borrow_mlp(&net, tape->network)) {
                pass->failed = 1;
                return;
            }
            read_for_forward(&net, tape->network);
        }
        const int width = net.size[0];
        for (int64_t row = block.first; row < block.end; row += TILE_ROWS) {
            const int num_rows = see_tile(&net, &block, row);
            copy_padded(net.value[0], part->in + row * width, num_rows, width, net.wide[0]);
            forward_tile(&net, net.value[0], net.wide[0], num_rows);
            copy_outputs(&net, num_rows, part->out + row * net.size[net.num_layers]);
        }
    }
}

/* The outputs' derivatives of a tile, as the backward pass takes them. */
static void take_gradient(MLP *net, const float *gradient, int num_rows) {
    const int last = net->num_layers;
    copy_padded(net->delta[last], gradient, num_rows, net->size[last], net->wide[last]);
}

static void backward_blocks(void *argument, Blocks *blocks) {
    TapePass *pass = argument;
    const Tape *tape = NULL;
    MLP net;
    for (int item; (item = next_block(blocks)) >= 0;) {
        const TapeBlock block = block_of(pass, item);
        if (block.part->tape != tape) {
            tape = block.part->tape;
            if (borrow_mlp(&net, tape->network)) {
                pass->failed = 1;
                return;
            }
            read_for_backward(&net, tape->network);
        }
        aim_gradients(&net, block.gradient);
        for (int64_t row = block.first; row < block.end; row += TILE_ROWS) {
            const int num_rows = see_tile(&net, &block, row);
            take_gradient(&net, block.part->in + row * net.size[net.num_layers], num_rows);
            backward_tile(&net, num_rows, row == block.first);
        }
        write_gradients(&net, block.gradient);
    }
}

/* The outputs of a tile from `row` on, and their derivatives of the loss Σ ½ share (output − target)². */
ONE_COPY void regress_tile(MLP *net, const TapeBlock *block, int64_t row, int num_rows) {
    const TapePart *part = block->part;
    const int last = net->num_layers, outputs = net->size[last];
    copy_outputs(net, num_rows, part->out + row * outputs);
    for (int64_t i = 0; i < (int64_t)num_rows * outputs; i++) {
        const int64_t at = row * outputs + i;
        const float error = part->out[at] - part->target[at], slope = error * part->share[at];
        net->delta[last][i / outputs * net->wide[last] + i % outputs] = slope;
        *block->loss += 0.5 * (double)slope * (double)error;
    }
}

/* Forward and backward, tile by tile: activations do not leave the cache. */
static void regress_blocks(void *argument, Blocks *blocks) {
    TapePass *pass = argument;
    const Inputs *inputs = pass->parts[0].inputs;
    const Tape *tape = NULL;
    MLP net;
    Factors factors;
    int64_t rows[TILE_ROWS];
    for (int item; (item = next_block(blocks)) >= 0;) {
        const TapeBlock block = block_of(pass, item);
        if (block.part->tape != tape || inputs->is_factored) {
            tape = block.part->tape;
            if (borrow_factored(&net, &factors, &tape->network, 1, inputs, block.first, block.end)) {
                pass->failed = 1;
                return;
            }
            read_parameters(&net, tape->network, 1);
        }
        aim_gradients(&net, block.gradient);
        multiply_lines(&factors, &net, inputs);
        forget_deltas(&factors, &net, inputs);
        for (int64_t row = block.first; row < block.end; row += TILE_ROWS) {
            const int num_rows = number_tile(rows, row, block.end);
            forward_inputs(&net, inputs, &factors, rows, num_rows);
            regress_tile(&net, &block, row, num_rows);
            backward_inputs(&net, inputs, &factors, rows, num_rows, row == block.first);
        }
        differentiate_by_lines(&factors, &net, inputs);
        write_gradients(&net, block.gradient);
    }
}
