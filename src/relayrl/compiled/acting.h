/* Forward passes without gradients, and actions drawn from them. */

struct Frozen {
    MLP net;
};

static int open_with_parameters(MLP *net, const Network *network) {
    if (open_mlp(net, network, 0)) return -1;
    read_parameters(net, network, 0);
    return 0;
}

static Frozen *freeze(const Network *network) {
    Frozen *frozen = malloc(sizeof *frozen);
    if (frozen && open_with_parameters(&frozen->net, network)) {
        free(frozen);
        return NULL;
    }
    return frozen;
}

static void refreeze(Frozen *frozen, const Network *network) { read_parameters(&frozen->net, network, 0); }

static void thaw(Frozen *frozen) {
    close_mlp(&frozen->net);
    free(frozen);
}

/* y[o] = bias[o] + weight[o] · x, for units [first, first + LANES). */
static void few_units(const float *weight, const float *bias, const float *x, int in, int first, int num_units, float *y) {
    vec sum[LANES] = {{0}};
    float lines[LANES * LANES];
    int i = 0;
    for (; i + LANES <= in; i += LANES) {
        const vec part = load(x + i);
        for (int o = 0; o < num_units; o++) sum[o] += part * load(weight + (int64_t)(first + o) * in + i);
    }
    for (int o = 0; o < LANES; o++) store(lines + o * LANES, sum[o]);
    transpose(lines, LANES, lines, LANES);
    vec all = load(lines);
    for (int o = 1; o < LANES; o++) all += load(lines + o * LANES);
    for (int o = 0; o < num_units; o++) {
        float rest = all[o];
        for (int j = i; j < in; j++) rest += x[j] * weight[(int64_t)(first + o) * in + j];
        y[first + o] = bias[first + o] + rest;
    }
}

/* The same with the parameters where they lie, which is faster for a few rows. */
static int forward_few(const Network *n, const float *x, int64_t num_rows, float *out) {
    int widest = 0;
    for (int l = 1; l <= n->num_layers; l++) widest = n->sizes[l] > widest ? n->sizes[l] : widest;
    const int64_t wide = padded(widest);
    float *values = malloc((size_t)(2 * wide) * sizeof(float));
    if (!values) return -1;
    for (int64_t r = 0; r < num_rows; r++) {
        const float *below = x + r * n->sizes[0];
        for (int l = 0; l < n->num_layers; l++) {
            float *above = values + (l % 2) * wide;
            for (int o = 0; o < n->sizes[l + 1]; o += LANES) {
                const int left = n->sizes[l + 1] - o;
                few_units(n->weight[l], n->bias[l], below, n->sizes[l], o, left < LANES ? left : LANES, above);
            }
            if (l + 1 < n->num_layers) activate(above, padded(n->sizes[l + 1]), n->is_tanh);
            below = above;
        }
        memcpy(out + r * n->sizes[n->num_layers], below, (size_t)n->sizes[n->num_layers] * sizeof(float));
    }
    free(values);
    return 0;
}

static int forward(const Network *network, Frozen *frozen, const float *x, int64_t num_rows, float *out) {
    MLP own, *net = frozen ? &frozen->net : &own;
    if (!frozen && num_rows <= FEW_ROWS) return forward_few(network, x, num_rows, out);
    if (!frozen && open_with_parameters(&own, network)) return -1;
    const int width = net->size[0], outputs = net->size[net->num_layers];
    for (int64_t first = 0; first < num_rows; first += TILE_ROWS) {
        const int count = (int)(num_rows - first < TILE_ROWS ? num_rows - first : TILE_ROWS);
        forward_tile(net, x + first * width, width, count);
        copy_outputs(net, count, out + first * outputs);
    }
    if (!frozen) close_mlp(&own);
    return 0;
}

/* The same for rows [first, end) of inputs that lie in parts. */
static int forward_parts(const Network *network, const Inputs *inputs, int64_t first, int64_t end, float *out) {
    MLP net;
    Factors factors;
    int64_t rows[TILE_ROWS];
    if (open_layers(&net, network, 0, !inputs->is_factored)) return -1;
    if (open_factors(&factors, &net, inputs, first, end, 0)) {
        close_mlp(&net);
        return -1;
    }
    read_parameters(&net, network, 0);
    multiply_lines(&factors, &net, inputs);
    for (; first < end; first += TILE_ROWS) {
        const int count = number_tile(rows, first, end);
        forward_inputs(&net, inputs, &factors, rows, count);
        copy_outputs(&net, count, out + first * network->sizes[network->num_layers]);
    }
    close_factors(&factors);
    close_mlp(&net);
    return 0;
}

/* Choices of a tile. A draw from (0, total], compared strictly: neither rounding nor a draw of zero picks a masked one. */
static void choose_tile(const Acting *a, PolicyScratch *s, int outputs, int64_t first_row, int num_rows) {
    if (a->mask) {
        for (int r = 0; r < num_rows; r++) forbid(s->logits, a->mask + (first_row + r) * outputs, outputs, r);
    }
    memset(s->logp, 0, sizeof s->logp);
    int first = 0;
    for (int part = 0; part < a->num_parts; part++) {
        const int size = a->part_size[part];
        const float *logits = s->logits + (int64_t)first * TILE_ROWS, *p = s->probability + (int64_t)first * TILE_ROWS;
        log_softmax(s->logits + (int64_t)first * TILE_ROWS, s->probability + (int64_t)first * TILE_ROWS, size, num_rows);
        for (int r = 0; r < num_rows; r++) {
            const int64_t row = first_row + r;
            float sum = 0.0f, cumulative = 0.0f;
            for (int i = 0; i < size; i++) sum += p[i * TILE_ROWS + r];
            const float bound = (1.0f - a->draws[part * a->num_rows + row]) * sum;
            int64_t choice = 0;
            for (int i = 0; i < size; i++) {
                cumulative += p[i * TILE_ROWS + r];
                choice += cumulative < bound;
            }
            if (choice == size) choice = size - 1; /* where the probabilities are not numbers */
            a->choice[row * a->num_parts + part] = choice;
            s->logp[r] += logits[choice * TILE_ROWS + r];
        }
        first += size;
    }
}

static void draw_normal_tile(const Acting *a, PolicyScratch *s, int outputs, int64_t first_row, int num_rows) {
    for (int r = 0; r < num_rows; r++) {
        const int64_t row = first_row + r;
        s->logp[r] = (float)(-s->log_deviation_sum - 0.5 * 1.8378770664093453 * outputs);
        for (int i = 0; i < outputs; i++) {
            const float noise = a->draws[row * outputs + i], mean = s->logits[i * TILE_ROWS + r] * a->scale[i] + a->center[i];
            a->action[row * outputs + i] = mean + noise / s->inverse_deviation[i];
            s->logp[r] -= 0.5f * noise * noise;
        }
    }
}

/* Rows are independent: how they are cut changes no number. */
typedef struct {
    const Acting *acting;
    int num_blocks;
    atomic_int failed;
} ActingWork;

/* A mlp that has its parameters and scratch, in the thread's own memory but where it is frozen: then several threads have the
 * parameters in common and one alone the scratch too. NULL: out of memory. */
static MLP *borrow_for_acting(const Acting *a, int is_alone, MLP *own, PolicyScratch *scratch) {
    const int outputs = a->network->sizes[a->network->num_layers], has_all = a->frozen && is_alone;
    if (!has_all) take_shape(own, a->network);
    const int64_t used = has_all ? 0 : lay_out(own, 0, 1, NULL);
    float *memory = thread_memory(used + lay_out_scratch(scratch, outputs, a->num_parts, NULL));
    if (!memory) return NULL;
    lay_out_scratch(scratch, outputs, a->num_parts, memory + used);
    if (!a->num_parts) read_deviations(scratch, a->log_std, a->scale, outputs);
    if (has_all) return &a->frozen->net;
    place(own, 0, 1, memory);
    if (a->frozen) share_parameters(own, &a->frozen->net);
    else read_for_forward(own, a->network);
    return own;
}

static void act_rows(void *argument, Blocks *blocks) {
    ActingWork *work = argument;
    const Acting *a = work->acting;
    MLP own;
    PolicyScratch scratch;
    MLP *net = borrow_for_acting(a, work->num_blocks == 1 && !a->is_shared, &own, &scratch);
    if (!net) {
        work->failed = 1;
        return;
    }
    const int width = net->size[0], outputs = net->size[net->num_layers], wide = net->wide[net->num_layers];
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t end = block_start(a->num_rows, block + 1, work->num_blocks);
        for (int64_t row = block_start(a->num_rows, block, work->num_blocks); row < end; row += TILE_ROWS) {
            const int count = at_most(end - row, TILE_ROWS);
            forward_tile(net, a->x + row * width, width, count);
            to_columns(scratch.logits, net->value[net->num_layers], wide, outputs, count);
            if (a->num_parts) choose_tile(a, &scratch, outputs, row, count);
            else draw_normal_tile(a, &scratch, outputs, row, count);
            if (a->logp) memcpy(a->logp + row, scratch.logp, (size_t)count * sizeof(float));
        }
    }
}

#define MIN_PRODUCTS_PER_ACTOR 250000 /* the pool looks for work between two steps of a fast environment: nobody needs to be woken */
#define MIN_PRODUCTS_TO_WAKE 1000000  /* behind a slow one it sleeps, and waking a thread takes as long as so many products */

static int act(const Acting *a, int num_threads) {
    const int64_t products = num_threads > 1 ? a->num_rows * num_products(a->network) : 0;
    const int awake = threads_worth(products, MIN_PRODUCTS_PER_ACTOR, threads_awake(num_threads));
    const int woken = threads_worth(products, MIN_PRODUCTS_TO_WAKE, num_threads);
    ActingWork work = {.acting = a, .num_blocks = awake > woken ? awake : woken};
    parallel_for(work.num_blocks, act_rows, &work, work.num_blocks);
    return work.failed ? -1 : 0;
}
