/* Inputs that lie in parts, of which many rows may share a line.
 *
 * A row's inputs are a line of each part side by side. As they are, lines are copied together tile by tile. Factored, with
 * x = (u, v) and the first layer's weights W = (U, V) accordingly,
 *
 *     W x = U u + V v,    ∂loss/∂U = Σ over lines u of (Σ δ over the rows that share u) uᵀ,    and so for V:
 *
 * both passes multiply each line once instead of once for every row, and a row costs a sum of its lines' products.
 */

#define PIECE_COLUMNS 512                 /* of a tile of lines: a piece and the weights for it stay in the cache */
#define PIECE_STRIDE (PIECE_COLUMNS + 16) /* no power of two, with which rows would displace each other */

typedef struct {
    int64_t first_line[MAX_INPUT_PARTS]; /* those of the rows that are worked on lie from here on */
    int64_t num_lines[MAX_INPUT_PARTS];
    float *product[MAX_INPUT_PARTS]; /* [num_lines, wide] what each line adds to the first layer */
    float *delta[MAX_INPUT_PARTS];   /* the loss's derivatives by that, over all rows that share it */
    float *piece;                    /* [TILE_ROWS, PIECE_STRIDE] */
    float *gradient;                 /* [units, PIECE_COLUMNS] */
    float *memory;
} Factors;

static int at_most(int64_t count, int limit) { return count < limit ? (int)count : limit; }

static int64_t line_of(const InputPart *part, int64_t row) { return part->line ? part->line[row] : row; }

/* The lines among which those of the rows [first, end) are: threads that share rows out do not multiply each other's. */
static void find_lines(Factors *f, const Inputs *inputs, int64_t first, int64_t end) {
    memset(f, 0, sizeof *f);
    for (int p = 0; inputs->is_factored && first < end && p < inputs->num_parts; p++) {
        int64_t smallest = line_of(&inputs->parts[p], first), largest = smallest;
        for (int64_t row = first + 1; row < end; row++) {
            const int64_t line = line_of(&inputs->parts[p], row);
            smallest = line < smallest ? line : smallest;
            largest = line > largest ? line : largest;
        }
        f->first_line[p] = smallest;
        f->num_lines[p] = largest - smallest + 1;
    }
}

/* Lay the arrays out for the lines that were found: in numbers only where `next` is NULL. */
static int64_t lay_out_factors(Factors *f, const MLP *net, const Inputs *inputs, int trains, float *next) {
    if (!inputs->is_factored) return 0;
    int64_t num_lines = 0;
    for (int p = 0; p < inputs->num_parts; p++) num_lines += f->num_lines[p];
    const int64_t table = num_lines * net->wide[1], piece = TILE_ROWS * PIECE_STRIDE;
    if (next) {
        f->piece = next;
        next += piece;
        for (int p = 0; p < inputs->num_parts; p++) {
            f->product[p] = next;
            f->delta[p] = trains ? next + table : NULL;
            next += f->num_lines[p] * net->wide[1];
        }
        f->gradient = trains ? next + table : NULL;
    }
    return piece + table + (trains ? table + (int64_t)net->size[1] * PIECE_COLUMNS : 0);
}

/* Factors of the rows [first, end). */
static int open_factors(Factors *f, const MLP *net, const Inputs *inputs, int64_t first, int64_t end, int trains) {
    find_lines(f, inputs, first, end);
    if (!inputs->is_factored) return 0;
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)lay_out_factors(f, net, inputs, trains, NULL) * sizeof(float))) return -1;
    f->memory = memory;
    lay_out_factors(f, net, inputs, trains, f->memory);
    return 0;
}

static void close_factors(Factors *f) { free(f->memory); }

/* MLPs that train, and factors of the rows [first, end) for each of them, as `borrow_mlp`. */
static int borrow_factored(
    MLP *nets, Factors *factors, const Network *const *networks, int num_networks, const Inputs *inputs,
    int64_t first, int64_t end
) {
    const int has_inputs = !inputs->is_factored;
    int64_t used = 0;
    find_lines(&factors[0], inputs, first, end);
    for (int t = 0; t < num_networks; t++) {
        take_shape(&nets[t], networks[t]);
        factors[t] = factors[0];
        used += lay_out(&nets[t], 1, has_inputs, NULL) + lay_out_factors(&factors[t], &nets[t], inputs, 1, NULL);
    }
    float *next = thread_memory(used);
    if (!next) return -1;
    for (int t = 0; t < num_networks; t++) {
        place(&nets[t], 1, has_inputs, next);
        next += lay_out(&nets[t], 1, has_inputs, NULL);
        next += lay_out_factors(&factors[t], &nets[t], inputs, 1, next);
    }
    return 0;
}

/* The numbers of the tile of rows that begins with `first`; gives how many. */
static int number_tile(int64_t *rows, int64_t first, int64_t end) {
    const int count = at_most(end - first, TILE_ROWS);
    for (int r = 0; r < count; r++) rows[r] = first + r;
    return count;
}

/* Some columns of a tile of lines, for products. */
static Left copy_piece(Factors *f, const InputPart *part, int64_t line, int num_lines, int column, int num_columns) {
    for (int r = 0; r < num_lines; r++) {
        const float *source = part->table + (line + r) * part->width + column;
        memcpy(f->piece + (int64_t)r * PIECE_STRIDE, source, (size_t)num_columns * sizeof(float));
    }
    return (Left){f->piece, PIECE_STRIDE, 1};
}

/* Every line's product with its weights; the bias goes with the first part. */
static void multiply_lines(Factors *f, const MLP *net, const Inputs *inputs) {
    const int wide = net->wide[1];
    const float *weights = net->across[0];
    for (int p = 0; inputs->is_factored && p < inputs->num_parts; p++) {
        const InputPart *part = &inputs->parts[p];
        for (int column = 0; column < part->width; column += PIECE_COLUMNS) {
            const int num_columns = at_most(part->width - column, PIECE_COLUMNS);
            const Beginning beginning = column ? FROM_TARGET : p ? FROM_ZERO : FROM_ROW;
            const float *own = weights + (int64_t)column * wide;
            for (int64_t line = 0; line < f->num_lines[p]; line += TILE_ROWS) {
                const int num_lines = at_most(f->num_lines[p] - line, TILE_ROWS);
                const Left left = copy_piece(f, part, f->first_line[p] + line, num_lines, column, num_columns);
                float *target = f->product[p] + line * wide;
                product(num_lines, wide, num_columns, left, own, wide, target, wide, beginning, net->bias[0]);
            }
        }
        weights += (int64_t)part->width * wide;
    }
}

static void forget_deltas(Factors *f, const MLP *net, const Inputs *inputs) {
    for (int p = 0; inputs->is_factored && p < inputs->num_parts; p++) {
        memset(f->delta[p], 0, (size_t)(f->num_lines[p] * net->wide[1]) * sizeof(float));
    }
}

/* What a tile of rows sees, into value[0]; of factored inputs, the first layer's sums into value[1]. */
static void gather_inputs(MLP *net, const Inputs *inputs, const Factors *f, const int64_t *rows, int num_rows) {
    const int wide = net->wide[inputs->is_factored];
    float *target = net->value[inputs->is_factored];
    for (int p = 0; p < inputs->num_parts; p++) {
        const InputPart *part = &inputs->parts[p];
        for (int r = 0; r < num_rows; r++) {
            float *own = target + (int64_t)r * wide;
            if (inputs->is_factored) {
                const float *line = f->product[p] + (line_of(part, rows[r]) - f->first_line[p]) * wide;
                for (int j = 0; j < wide; j += LANES) {
                    const vec before = p ? load(own + j) : (vec){0};
                    store(own + j, before + load(line + j));
                }
            } else {
                memcpy(own, part->table + line_of(part, rows[r]) * part->width, (size_t)part->width * sizeof(float));
            }
        }
        if (!inputs->is_factored) target += part->width;
    }
}

/* Outputs into value[num_layers] of a tile of rows that was gathered. */
static void forward_gathered(MLP *net, int is_factored, int num_rows) {
    const int wide = net->wide[is_factored];
    if (is_factored && net->num_layers > 1) activate(net->value[1], (int64_t)num_rows * wide, net->is_tanh);
    forward_layers(net, is_factored, net->value[is_factored], wide, num_rows);
}

static void forward_inputs(MLP *net, const Inputs *inputs, const Factors *f, const int64_t *rows, int num_rows) {
    gather_inputs(net, inputs, f, rows, num_rows);
    forward_gathered(net, inputs->is_factored, num_rows);
}

/* Gradients of a tile of rows, as `backward_tile`; of factored inputs, the first layer's derivatives are left with its lines. */
static void backward_inputs(
    MLP *net, const Inputs *inputs, const Factors *f, const int64_t *rows, int num_rows, int is_first
) {
    backward_layers(net, inputs->is_factored, num_rows, is_first);
    const int wide = net->wide[1];
    for (int p = 0; inputs->is_factored && p < inputs->num_parts; p++) {
        for (int r = 0; r < num_rows; r++) {
            const float *own = net->delta[1] + (int64_t)r * wide;
            float *sum = f->delta[p] + (line_of(&inputs->parts[p], rows[r]) - f->first_line[p]) * wide;
            for (int j = 0; j < wide; j += LANES) store(sum + j, load(sum + j) + load(own + j));
        }
    }
}

/* The first layer's gradient, from the derivatives that were left with its lines. */
static void differentiate_by_lines(Factors *f, MLP *net, const Inputs *inputs) {
    if (!inputs->is_factored) return;
    const int units = net->size[1], wide = net->wide[1];
    const int64_t unit_stride = is_along(net, 0) ? net->wide[0] : 1, stride = is_along(net, 0) ? 1 : wide;
    float *first = net->weight_gradient[0];
    for (int p = 0; p < inputs->num_parts; p++) {
        const InputPart *part = &inputs->parts[p];
        for (int column = 0; column < part->width; column += PIECE_COLUMNS) {
            const int num_columns = at_most(part->width - column, PIECE_COLUMNS);
            for (int64_t line = 0; line < f->num_lines[p]; line += TILE_ROWS) {
                const int num_lines = at_most(f->num_lines[p] - line, TILE_ROWS);
                copy_piece(f, part, f->first_line[p] + line, num_lines, column, num_columns);
                Left deltas = {f->delta[p] + line * wide, 1, wide};
                const Beginning beginning = line ? FROM_TARGET : FROM_ZERO;
                product(
                    units, padded(num_columns), num_lines, deltas, f->piece, PIECE_STRIDE, f->gradient, PIECE_COLUMNS,
                    beginning, NULL
                );
            }
            for (int o = 0; o < units; o++) {
                const float *own = f->gradient + (int64_t)o * PIECE_COLUMNS;
                float *target = first + o * unit_stride + column * stride;
                for (int i = 0; i < num_columns; i++) target[i * stride] = own[i];
            }
        }
        first += part->width * stride;
    }
    add_rows(net->bias_gradient[0], f->delta[0], (int)f->num_lines[0], wide, 0, wide, FROM_ZERO);
}
