/* Passes over minibatches: forward, loss, backward, a step of Adam. */

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

/* The loss of a shared batch and its derivatives by the outputs, in the tiles of a block that one thread takes alone. */
static void lose_shared(Minibatch *m, const SharedBatch *batch, PolicyScratch *policy) {
    const Training *t = m->learning->training;
    MLP view = batch->net;
    int64_t rows[TILE_ROWS];
    for (int64_t row = 0; row < m->count; row += TILE_ROWS) {
        const int count = view_rows(batch, &view, row, m->count);
        const float inverse_count = 1.0f / (float)m->count;
        number_rows(batch, rows, row, m->count);
        if (t->policy) policy_loss(t->policy, policy, &view, rows, count, inverse_count, &m->sums[0]);
        else value_loss(t->value, &view, rows, count, inverse_count, &m->sums[0]);
    }
}

/* The gradient of a minibatch that is not in blocks, on several threads. */
static void add_shared(Minibatch *m, int num_shares) {
    const Training *t = m->learning->training;
    float *gradient = m->learning->gradients;
    const int outputs = t->shape.sizes[t->shape.num_layers], num_parts = t->policy ? t->policy->num_parts : 0;
    const int64_t start = m->pass * t->rows.num_rows + m->start, deviations = t->adam.num_parameters - outputs;
    SharedBatch batch = {.network = &t->shape, .inputs = &t->rows.inputs, .num_rows = m->count, .num_blocks = 1};
    PolicyScratch policy = {0};
    int64_t numbers[MIN_BLOCKED_ROWS];
    for (int r = 0; !t->rows.order && r < m->count; r++) numbers[r] = m->start + r;
    batch.rows = t->rows.order ? t->rows.order + start : numbers;
    batch.gradients[0] = gradient;
    const int64_t used = lay_out_shared(&batch, num_shares, NULL);
    float *memory = thread_memory(used + (t->policy ? lay_out_scratch(&policy, outputs, num_parts, NULL) : 0));
    if (!memory) {
        m->failed = 1;
        return;
    }
    lay_out_shared(&batch, num_shares, memory);
    if (t->policy) lay_out_scratch(&policy, outputs, num_parts, memory + used);
    if (has_deviations(t)) read_deviations(&policy, t->adam.vector + deviations, t->policy->scale, outputs);
    over_shares(&batch, 1, num_shares, read_units, num_shares);
    over_shares(&batch, 1, num_shares, forward_share, num_shares);
    lose_shared(m, &batch, &policy);
    over_shares(&batch, 1, num_shares, derive_share, num_shares);
    over_shares(&batch, 1, num_shares, differentiate_share, num_shares);
    if (has_deviations(t)) memcpy(gradient + deviations, policy.deviation_gradient, (size_t)outputs * sizeof(float));
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
    const int num_shares = shares_of(t, count), num_threads = m.num_blocks > 1 || num_shares > 1 ? t->num_threads : 1;
    const int useful = threads_worth(count * num_products(&t->shape), MIN_PRODUCTS_PER_THREAD, num_threads);
    if (num_shares > 1) add_shared(&m, num_shares);
    else parallel_for(m.num_blocks, add_blocks, &m, useful);
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
