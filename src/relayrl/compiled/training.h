/* Passes over minibatches: forward, loss, backward, clipping of the gradient's norm, Adam. */

static double sum_of_squares(const float *x, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i += 256) {
        const int64_t end = i + 256 < count ? i + 256 : count;
        vec part = {0};
        int64_t j = i;
        for (; j + LANES <= end; j += LANES) part += load(x + j) * load(x + j);
        float rest = total(part);
        for (; j < end; j++) rest += x[j] * x[j];
        sum += rest;
    }
    return sum;
}

/* What all parameters have in common in one step of Adam. */
typedef struct {
    Adam *adam;
    const float *gradient;
    float factor, rate, inverse; /* that clip the gradient and correct both moments */
} AdamStep;

static void step_parameters(const AdamStep *step, int64_t first, int64_t end) {
    const Adam *adam = step->adam;
    const float *gradient = step->gradient;
    const float factor = step->factor, rate = step->rate, inverse = step->inverse, epsilon = (float)adam->epsilon;
    const float keep1 = (float)adam->beta1, new1 = (float)(1.0 - adam->beta1);
    const float keep2 = (float)adam->beta2, new2 = (float)(1.0 - adam->beta2);
    float *restrict theta = adam->vector, *restrict m = adam->first_moment, *restrict v = adam->second_moment;
    for (int64_t i = first; i < end; i++) {
        const float g = gradient[i] * factor;
        m[i] = keep1 * m[i] + new1 * g;
        v[i] = keep2 * v[i] + new2 * g * g;
        theta[i] -= rate * m[i] / (sqrtf(v[i]) * inverse + epsilon);
    }
}

#define MIN_PARAMETERS_PER_THREAD 10000 /* that take longer than waking a thread */
#define CHUNK_PARAMETERS 1024
#define MAX_CHUNKS 1024

/* Parameters are cut into chunks of a size that depends on their number alone: sums over each are added in the chunks' order. */
static int64_t chunk_size(int64_t count) {
    const int64_t at_once = (int64_t)CHUNK_PARAMETERS * MAX_CHUNKS;
    return CHUNK_PARAMETERS * ((count + at_once - 1) / at_once);
}

static int num_chunks(int64_t count) { return count ? (int)((count - 1) / chunk_size(count)) + 1 : 0; }

/* What is done with each of `count` parameters, in whole chunks for each thread: it then has the same ones in its cache in every
 * pass over them. */
typedef struct {
    void (*do_range)(void *argument, int64_t first, int64_t end);
    void *argument;
    int64_t count;
    int num_threads;
} ParameterPass;

static void do_ranges(void *argument, Blocks *blocks) {
    const ParameterPass *pass = argument;
    const int64_t size = chunk_size(pass->count);
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t first = block_start(num_chunks(pass->count), block, pass->num_threads) * size;
        const int64_t end = block_start(num_chunks(pass->count), block + 1, pass->num_threads) * size;
        pass->do_range(pass->argument, first, end < pass->count ? end : pass->count);
    }
}

static void over_parameters(void (*do_range)(void *, int64_t, int64_t), void *argument, int64_t count, int num_threads) {
    ParameterPass pass = {do_range, argument, count, threads_worth(count, MIN_PARAMETERS_PER_THREAD, num_threads)};
    parallel_for(pass.num_threads, do_ranges, &pass, pass.num_threads);
}

static void step_range(void *argument, int64_t first, int64_t end) { step_parameters(argument, first, end); }

typedef struct {
    const float *numbers;
    int64_t chunk_size;
    double *squares; /* of each chunk */
} Squares;

static void square_range(void *argument, int64_t first, int64_t end) {
    Squares *sums = argument;
    for (int64_t i = first; i < end; i += sums->chunk_size) {
        const int64_t count = end - i < sums->chunk_size ? end - i : sums->chunk_size;
        sums->squares[i / sums->chunk_size] = sum_of_squares(sums->numbers + i, count);
    }
}

static double norm_of(const float *numbers, int64_t count, int num_threads) {
    double squares[MAX_CHUNKS], sum = 0.0;
    Squares sums = {numbers, chunk_size(count), squares};
    over_parameters(square_range, &sums, count, num_threads);
    for (int i = 0; i < num_chunks(count); i++) sum += squares[i];
    return sqrt(sum);
}

/* θ ← θ − α m̂ / (√v̂ + ε), with m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²; gives the norm before clipping. */
static double adam_step(Adam *adam, const float *gradient, int num_threads) {
    AdamStep step = {.adam = adam, .gradient = gradient, .factor = 1.0f};
    const double norm = norm_of(gradient, adam->num_parameters, num_threads);
    adam->num_steps++;
    const double correction1 = 1.0 - pow(adam->beta1, (double)adam->num_steps);
    const double correction2 = 1.0 - pow(adam->beta2, (double)adam->num_steps);
    if (norm > adam->max_norm) step.factor = (float)(adam->max_norm / (norm + 1e-6));
    step.inverse = (float)(1.0 / sqrt(correction2));
    step.rate = (float)(adam->learning_rate / correction1);
    over_parameters(step_range, &step, adam->num_parameters, num_threads);
    return norm;
}

typedef struct {
    float *target;
    const float *source;
    float share;
} SoftUpdate;

static void update_range(void *argument, int64_t first, int64_t end) {
    const SoftUpdate *update = argument;
    for (int64_t i = first; i < end; i++) update->target[i] += update->share * (update->source[i] - update->target[i]);
}

/* target ← target + share (source − target) */
static void soft_update(float *target, const float *source, int64_t count, double share, int num_threads) {
    SoftUpdate update = {target, source, (float)share};
    over_parameters(update_range, &update, count, num_threads);
}

/* Gradients of blocks of rows, `stride` numbers apart. */
typedef struct {
    float *sum; /* begins as that of the first block */
    const float *others;
    int64_t stride;
    int num_others;
} BlockGradients;

static void add_range(void *argument, int64_t first, int64_t end) {
    const BlockGradients *all = argument;
    for (int64_t start = first; start < end; start += CHUNK_PARAMETERS) {
        const int64_t stop = end - start < CHUNK_PARAMETERS ? end : start + CHUNK_PARAMETERS;
        for (int b = 0; b < all->num_others; b++) {
            const float *other = all->others + b * all->stride;
            for (int64_t i = start; i < stop; i++) all->sum[i] += other[i];
        }
    }
}

/* Add the other blocks' gradients to the first one's, in their order. */
static void add_gradients(float *sum, const float *others, int num_others, int64_t stride, int64_t count, int num_threads) {
    BlockGradients all = {sum, others, stride, num_others};
    if (num_others) over_parameters(add_range, &all, count, num_threads);
}

static void point_into(Network *network, const float *vector) {
    for (int l = 0; l < network->num_layers; l++) {
        network->weight[l] = vector;
        vector += (int64_t)network->sizes[l] * network->sizes[l + 1];
        network->bias[l] = vector;
        vector += network->sizes[l + 1];
    }
}

/* Whether log deviations of a normal distribution lie behind the network's parameters. */
static int has_deviations(const Training *t) { return t->policy && !t->policy->num_parts; }

/* What a network's minibatches have in common: each is cut into blocks of rows, with a gradient for each block. */
typedef struct {
    Training *training;
    int num_blocks; /* of the largest minibatch */
    int64_t stride;
    float *gradients; /* [num_blocks, stride], in the order of the parameters */
    Factors factors;
} Learning;

typedef struct {
    Learning *learning;
    int64_t pass, start, count; /* rows [start, start + count) of a pass */
    int num_blocks;
    TileSums sums[MAX_ROW_BLOCKS];
    atomic_int failed;
} Minibatch;

/* What a thread works in, in its own memory. */
typedef struct {
    MLP net;
    PolicyScratch policy;
} Workspace;

static int borrow_workspace(Workspace *w, const Training *t) {
    const int has_inputs = !t->rows.inputs.is_factored, num_outputs = t->shape.sizes[t->shape.num_layers];
    const int num_parts = t->policy ? t->policy->num_parts : 0;
    memset(&w->policy, 0, sizeof w->policy);
    take_shape(&w->net, &t->shape);
    const int64_t used = lay_out(&w->net, 1, has_inputs, NULL);
    float *memory = thread_memory(used + (t->policy ? lay_out_scratch(&w->policy, num_outputs, num_parts, NULL) : 0));
    if (!memory) return -1;
    place(&w->net, 1, has_inputs, memory);
    if (t->policy) lay_out_scratch(&w->policy, num_outputs, num_parts, memory + used);
    return 0;
}

static void add_tile(
    Learning *learning, Workspace *w, const int64_t *rows, int num_rows, float inverse_count, int is_first, TileSums *sums
) {
    const Training *t = learning->training;
    MLP *net = &w->net;
    forward_inputs(net, &t->rows.inputs, &learning->factors, rows, num_rows);
    if (t->policy) policy_loss(t->policy, &w->policy, net, rows, num_rows, inverse_count, sums);
    else value_loss(t->value, net, rows, num_rows, inverse_count, sums);
    backward_inputs(net, &t->rows.inputs, &learning->factors, rows, num_rows, is_first);
}

/* The gradient of some rows of a minibatch, in the order of the parameters. */
static void add_block(Minibatch *m, Workspace *w, int block) {
    Learning *learning = m->learning;
    const Training *t = learning->training;
    MLP *net = &w->net;
    int64_t rows[TILE_ROWS];
    float *gradient = learning->gradients + block * learning->stride;
    const int64_t first = m->start + row_block_start(m->count, block, m->num_blocks);
    const int64_t end = m->start + row_block_start(m->count, block + 1, m->num_blocks);
    const int outputs = net->size[net->num_layers];
    float *by_deviations = gradient + t->adam.num_parameters - outputs;
    aim_gradients(net, gradient);
    if (has_deviations(t)) {
        read_deviations(&w->policy, t->adam.vector + t->adam.num_parameters - outputs, t->policy->scale, outputs);
    }
    for (int64_t at = first; at < end; at += TILE_ROWS) {
        const int num_rows = number_tile(rows, at, end);
        for (int r = 0; t->rows.order && r < num_rows; r++) rows[r] = t->rows.order[m->pass * t->rows.num_rows + at + r];
        add_tile(learning, w, rows, num_rows, 1.0f / (float)m->count, at == first, &m->sums[block]);
    }
    differentiate_by_lines(&learning->factors, net, &t->rows.inputs);
    write_gradients(net, gradient);
    if (has_deviations(t)) memcpy(by_deviations, w->policy.deviation_gradient, (size_t)outputs * sizeof(float));
}

static void add_blocks(void *argument, Blocks *blocks) {
    Minibatch *m = argument;
    Learning *learning = m->learning;
    const Training *t = learning->training;
    Workspace w;
    if (borrow_workspace(&w, t)) {
        m->failed = 1;
        return;
    }
    read_parameters(&w.net, &t->shape, 1);
    multiply_lines(&learning->factors, &w.net, &t->rows.inputs);
    forget_deltas(&learning->factors, &w.net, &t->rows.inputs);
    for (int block; (block = next_block(blocks)) >= 0;) add_block(m, &w, block);
}

static TileSums sum_over_blocks(const Minibatch *m) {
    TileSums sum = m->sums[0];
    for (int b = 1; b < m->num_blocks; b++) {
        sum.loss += m->sums[b].loss;
        sum.kl += m->sums[b].kl;
        sum.entropy += m->sums[b].entropy;
        sum.clipped += m->sums[b].clipped;
    }
    return sum;
}

/* One gradient step; the status says whether there will be another. */
static int train_minibatch(Learning *learning, int64_t pass, int64_t start, int64_t count) {
    Training *t = learning->training;
    Minibatch m = {.learning = learning, .pass = pass, .start = start, .count = count, .num_blocks = num_row_blocks(t, count)};
    const int num_threads = m.num_blocks > 1 ? t->num_threads : 1;
    const int64_t products = count * num_products(&t->shape);
    parallel_for(m.num_blocks, add_blocks, &m, threads_worth(products, MIN_PRODUCTS_PER_THREAD, num_threads));
    if (m.failed) {
        t->out_of_memory = 1;
        return STATUS_OUT_OF_MEMORY;
    }
    float *gradient = learning->gradients;
    const int64_t stride = learning->stride, num_parameters = t->adam.num_parameters;
    add_gradients(gradient, gradient + stride, m.num_blocks - 1, stride, num_parameters, num_threads);
    const TileSums sums = sum_over_blocks(&m);
    const double loss = sums.loss / (double)count, kl = sums.kl / (double)count;
    if (t->policy && kl > t->policy->kl_limit) return STATUS_KL_EXCEEDED;
    if (!isfinite(loss)) {
        t->sums.bad_loss = loss;
        return STATUS_NOT_FINITE;
    }
    t->sums.gradient_norm += adam_step(&t->adam, gradient, num_threads);
    t->sums.loss += loss;
    t->sums.kl += kl;
    t->sums.entropy += sums.entropy / (double)count;
    t->sums.clip_fraction += sums.clipped / (double)count;
    t->sums.num_steps++;
    return STATUS_DONE;
}

static void run_passes(Learning *learning) {
    Training *t = learning->training;
    for (int64_t pass = 0; pass < t->rows.num_passes; pass++) {
        for (int64_t start = 0; start < t->rows.num_rows; start += t->rows.minibatch_rows) {
            const int64_t left = t->rows.num_rows - start;
            const int64_t count = left < t->rows.minibatch_rows ? left : t->rows.minibatch_rows;
            t->sums.status = train_minibatch(learning, pass, start, count);
            if (t->sums.status != STATUS_DONE) return;
        }
    }
}

static int open_learning(Learning *learning, Training *t) {
    void *memory;
    MLP shape;
    memset(learning, 0, sizeof *learning);
    learning->training = t;
    learning->num_blocks = num_row_blocks(t, t->rows.minibatch_rows);
    learning->stride = (t->adam.num_parameters + 15) / 16 * 16;
    take_shape(&shape, &t->shape);
    if (posix_memalign(&memory, 64, (size_t)(learning->num_blocks * learning->stride) * sizeof(float))) return -1;
    learning->gradients = memory;
    return open_factors(&learning->factors, &shape, &t->rows.inputs, 0, t->rows.num_rows, 1);
}

static void close_learning(Learning *learning) {
    close_factors(&learning->factors);
    free(learning->gradients);
}

static void train(Training *t) {
    Learning learning;
    point_into(&t->shape, t->adam.vector);
    t->out_of_memory = open_learning(&learning, t) != 0;
    if (!t->out_of_memory) run_passes(&learning);
    close_learning(&learning);
}
