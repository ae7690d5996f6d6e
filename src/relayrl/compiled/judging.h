/* The lowest of several networks' values and its derivative by what they see: what a policy climbs.
 *
 * Rows are independent, so that how they are shared out between threads changes nothing. Nothing is kept between calls.
 */

typedef struct {
    const Judging *judging;
    int64_t first, end;
    int failed;
} JudgingWork;

/* Perceptrons side by side in the thread's own memory. */
static int borrow_perceptrons(Perceptron *nets, const Judging *j) {
    int64_t used = 0;
    for (int t = 0; t < j->num_networks; t++) {
        take_shape(&nets[t], j->networks[t]);
        used += lay_out(&nets[t], 1, 1, NULL);
    }
    float *next = thread_memory(used);
    if (!next) return -1;
    for (int t = 0; t < j->num_networks; t++) {
        place(&nets[t], 1, 1, next);
        next += lay_out(&nets[t], 1, 1, NULL);
    }
    return 0;
}

/* The lowest value of each row, and the outputs' derivatives of Σ share · lowest; a row's one output is a vector's first lane. */
static void choose_lowest(Perceptron *nets, const Judging *j, int64_t row, int num_rows) {
    for (int r = 0; r < num_rows; r++) {
        int which = 0;
        float lowest = nets[0].value[nets[0].num_layers][r * LANES];
        for (int t = 1; t < j->num_networks; t++) {
            const float value = nets[t].value[nets[t].num_layers][r * LANES];
            if (!(value < lowest || isnan(value))) continue; /* as in NumPy, what is not a number is lowest */
            which = t;
            lowest = value;
        }
        j->lowest[row + r] = lowest;
        for (int t = 0; t < j->num_networks; t++) {
            nets[t].delta[nets[t].num_layers][r * LANES] = t == which ? j->share[row + r] : 0.0f;
        }
    }
}

static void add_input_gradients(Perceptron *net, const Judging *j, int64_t row, int num_rows, int is_first) {
    const int width = net->size[0];
    for (int r = 0; r < num_rows; r++) {
        for (int i = 0; i < width; i++) {
            float *sum = j->by_input + (row + r) * width + i;
            *sum = (is_first ? 0.0f : *sum) + net->delta[0][(int64_t)r * net->wide[0] + i];
        }
    }
}

static void judge_rows(void *argument) {
    JudgingWork *work = argument;
    const Judging *j = work->judging;
    Perceptron nets[MAX_JUDGES];
    work->failed = borrow_perceptrons(nets, j);
    if (work->failed) return;
    for (int t = 0; t < j->num_networks; t++) read_parameters(&nets[t], j->networks[t], 1);
    const int width = nets[0].size[0];
    for (int64_t row = work->first; row < work->end; row += TILE_ROWS) {
        const int num_rows = (int)(work->end - row < TILE_ROWS ? work->end - row : TILE_ROWS);
        for (int t = 0; t < j->num_networks; t++) {
            copy_padded(nets[t].value[0], j->x + row * width, num_rows, width, nets[t].wide[0]);
            forward_tile(&nets[t], nets[t].value[0], nets[t].wide[0], num_rows);
        }
        choose_lowest(nets, j, row, num_rows);
        for (int t = 0; t < j->num_networks; t++) {
            deltas_below(&nets[t], num_rows);
            add_input_gradients(&nets[t], j, row, num_rows, t == 0);
        }
    }
}

static int judge(const Judging *judging, int num_threads) {
    int64_t products = 0;
    for (int t = 0; t < judging->num_networks; t++) products += num_products(judging->networks[t]);
    const int64_t num_rows = judging->num_rows, middle = (num_rows + 1) / 2;
    JudgingWork first = {.judging = judging, .end = middle}, second = {.judging = judging, .first = middle, .end = num_rows};
    do_both(judge_rows, &first, &second, num_threads > 1 && num_rows * products >= MIN_SHARED_PRODUCTS);
    return first.failed || second.failed ? -1 : 0;
}
