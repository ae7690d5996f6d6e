/* Min-Q: the minimum of several networks' values and its derivative by each row's own numbers: what a policy climbs.
 *
 * Rows are independent, so that how they are shared out between threads changes nothing. Nothing is kept between calls.
 */

typedef struct {
    const MinQ *query;
    int num_blocks;
    atomic_int failed;
} MinQWork;

/* What a column of a row is in its tables. */
static float shared_number(const Inputs *inputs, int64_t row, int64_t column) {
    const InputPart *part = inputs->parts;
    for (; column >= part->width; part++) column -= part->width;
    return part->table[line_of(part, row) * part->width + column];
}

/* Let a tile of rows that was gathered see its own numbers. */
static void put_own(MLP *net, const MinQ *j, int64_t row, int num_rows) {
    const int is_factored = j->inputs->is_factored, wide = net->wide[is_factored], width = j->own.width;
    for (int r = 0; r < num_rows; r++) {
        const int64_t first = j->own.first[row + r];
        const float *own = j->own.numbers + (row + r) * width;
        float *seen = net->value[is_factored] + (int64_t)r * wide;
        if (!is_factored) memcpy(seen + first, own, (size_t)width * sizeof(float));
        for (int i = 0; is_factored && i < width; i++) {
            const vec change = splat(own[i] - shared_number(j->inputs, row + r, first + i));
            const float *weights = net->across[0] + (first + i) * wide;
            for (int o = 0; o < wide; o += LANES) store(seen + o, load(seen + o) + change * load(weights + o));
        }
    }
}

/* The minimum value of each row, and the outputs' derivatives of Σ share · minimum; a row's one output is a vector's first lane. */
static void choose_min(MLP *nets, const MinQ *j, int64_t row, int num_rows) {
    for (int r = 0; r < num_rows; r++) {
        int which = 0;
        float minimum = nets[0].value[nets[0].num_layers][r * LANES];
        for (int t = 1; t < j->num_networks; t++) {
            const float value = nets[t].value[nets[t].num_layers][r * LANES];
            if (!(value < minimum || isnan(value))) continue; /* as in NumPy, what is not a number is minimum */
            which = t;
            minimum = value;
        }
        j->minimum[row + r] = minimum;
        for (int t = 0; t < j->num_networks; t++) {
            nets[t].delta[nets[t].num_layers][r * LANES] = t == which ? j->share[row + r] : 0.0f;
        }
    }
}

static void add_own_gradients(const MLP *net, const MinQ *j, int64_t row, int num_rows, int is_first) {
    const int wide = net->wide[1], width = j->own.width;
    for (int r = 0; r < num_rows; r++) {
        const float *delta = net->delta[1] + (int64_t)r * wide;
        for (int i = 0; i < width; i++) {
            const float *weights = net->across[0] + (j->own.first[row + r] + i) * wide;
            vec products = {0};
            for (int o = 0; o < wide; o += LANES) products += load(delta + o) * load(weights + o);
            float *sum = j->by_own + (row + r) * width + i;
            *sum = (is_first ? 0.0f : *sum) + total(products);
        }
    }
}

/* Rows [first, end); -1: out of memory. */
static int min_q_rows(const MinQ *j, int64_t first, int64_t end) {
    MLP nets[MAX_CRITICS];
    Factors factors[MAX_CRITICS];
    int64_t rows[TILE_ROWS];
    if (borrow_factored(nets, factors, j->networks, j->num_networks, j->inputs, first, end)) return -1;
    for (int t = 0; t < j->num_networks; t++) {
        read_parameters(&nets[t], j->networks[t], 1);
        multiply_lines(&factors[t], &nets[t], j->inputs);
    }
    for (int64_t row = first; row < end; row += TILE_ROWS) {
        const int num_rows = number_tile(rows, row, end);
        for (int t = 0; t < j->num_networks; t++) {
            gather_inputs(&nets[t], j->inputs, &factors[t], rows, num_rows);
            put_own(&nets[t], j, row, num_rows);
            forward_gathered(&nets[t], j->inputs->is_factored, num_rows);
        }
        choose_min(nets, j, row, num_rows);
        for (int t = 0; t < j->num_networks; t++) {
            deltas_below(&nets[t], num_rows);
            add_own_gradients(&nets[t], j, row, num_rows, t == 0);
        }
    }
    return 0;
}

static void min_q_blocks(void *argument, Blocks *blocks) {
    MinQWork *work = argument;
    const int64_t num_rows = work->query->num_rows;
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t first = block_start(num_rows, block, work->num_blocks);
        if (min_q_rows(work->query, first, block_start(num_rows, block + 1, work->num_blocks))) work->failed = 1;
    }
}

static int min_q(const MinQ *query, int num_threads) {
    int64_t products = 0;
    for (int t = 0; t < query->num_networks; t++) products += num_products(query->networks[t]);
    const int useful = threads_worth(query->num_rows * products, MIN_PRODUCTS_PER_THREAD, num_threads);
    MinQWork work = {.query = query, .num_blocks = useful};
    parallel_for(useful, min_q_blocks, &work, useful);
    return work.failed ? -1 : 0;
}
