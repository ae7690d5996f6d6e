/* Passes over tapes: how their rows, blocks and units are shared out between threads. */

static int threads_of(const TapePart *parts, int num_parts, int64_t per_thread, int num_threads) {
    int64_t products = 0;
    for (int i = 0; i < num_parts; i++) products += parts[i].num_rows * num_products(parts[i].tape->network);
    return threads_worth(products, per_thread, num_threads);
}

/* Blocks of every tape, where gradients are added up: by the shape alone. */
static int num_tape_blocks(const TapePart *parts, int num_parts) {
    int64_t num_rows = parts[0].num_rows, most_parameters = 0;
    for (int i = 0; i < num_parts; i++) {
        const int64_t count = num_parameters(parts[i].tape->network);
        num_rows = parts[i].num_rows < num_rows ? parts[i].num_rows : num_rows; /* no block is empty */
        most_parameters = count > most_parameters ? count : most_parameters;
    }
    const int is_factored = parts[0].inputs && parts[0].inputs->is_factored;
    if (num_parts > 1 && (num_rows < MIN_BLOCKED_ROWS || is_factored)) return 1;
    if (num_rows < 2) return 1;
    return is_factored ? 2 : num_gradient_blocks(num_rows, num_parts * most_parameters);
}

static int reserve_gradients(Tape *tape, int num_others) {
    if (num_others <= tape->num_others) return 0;
    float *larger = malloc((size_t)(num_others * num_parameters(tape->network)) * sizeof(float));
    if (!larger) return -1;
    free(tape->other_gradients);
    tape->other_gradients = larger;
    tape->num_others = num_others;
    return 0;
}

/* Rows do not depend on each other here: there is a block for each thread. */
static int forward_tapes(TapePart *parts, int num_parts, int num_threads) {
    if (!num_parts) return 0;
    const int useful = threads_of(parts, num_parts, MIN_PRODUCTS_PER_THREAD, num_threads);
    TapePass pass = {.parts = parts, .num_parts = num_parts, .num_blocks = (useful + num_parts - 1) / num_parts};
    for (int i = 0; i < num_parts; i++) {
        if (reserve_rows(parts[i].tape, parts[i].num_rows)) return -1;
    }
    parallel_for(num_parts * pass.num_blocks, forward_blocks, &pass, useful);
    return pass.failed ? -1 : 0;
}

/* What tapes with few rows share out. Their threads have units instead of rows, so there may be more of them than blocks. */
typedef struct {
    SharedBatch batches[MAX_TAPES];
    int num_batches, num_shares, num_threads;
} SharedTapes;

typedef void (*DoShared)(TapePass *pass, SharedTapes *all);

static int open_shared(SharedTapes *all, const TapePass *pass) {
    int64_t used[MAX_TAPES], total = 0;
    all->num_batches = pass->num_parts;
    for (int i = 0; i < pass->num_parts; i++) {
        const TapePart *part = &pass->parts[i];
        SharedBatch *batch = &all->batches[i];
        *batch = (SharedBatch){.network = part->tape->network, .inputs = part->inputs, .num_rows = part->num_rows};
        batch->num_blocks = pass->num_blocks;
        batch->gradients[0] = part->flat;
        batch->gradients[1] = part->tape->other_gradients;
        total += used[i] = lay_out_shared(batch, all->num_shares, NULL);
    }
    float *next = thread_memory(total);
    for (int i = 0; next && i < pass->num_parts; next += used[i++]) lay_out_shared(&all->batches[i], all->num_shares, next);
    return next ? 0 : -1;
}

static void share_out(SharedTapes *all, DoShare do_share) {
    over_shares(all->batches, all->num_batches, all->num_shares, do_share, all->num_threads);
}

/* As `regress_blocks`. */
static void regress_shared(TapePass *pass, SharedTapes *all) {
    share_out(all, read_units);
    share_out(all, forward_share);
    for (int item = 0; item < pass->num_parts * pass->num_blocks; item++) {
        const TapeBlock block = block_of(pass, item);
        const SharedBatch *batch = &all->batches[item % pass->num_parts];
        MLP view = batch->net;
        for (int64_t row = block.first; row < block.end; row += TILE_ROWS) {
            const int num_rows = view_rows(batch, &view, row, block.end);
            regress_tile(&view, &block, row, num_rows);
        }
    }
    share_out(all, derive_share);
    share_out(all, differentiate_share);
}

/* As `backward_blocks`. */
static void backward_shared(TapePass *pass, SharedTapes *all) {
    for (int i = 0; i < pass->num_parts; i++) {
        const TapePart *part = &pass->parts[i];
        MLP *net = &all->batches[i].net;
        const int last = net->num_layers;
        for (int l = 0; l <= last; l++) net->value[l] = part->tape->values[l];
        copy_padded(net->delta[last], part->in, (int)part->num_rows, net->size[last], net->wide[last]);
    }
    share_out(all, read_units);
    share_out(all, derive_share);
    share_out(all, differentiate_share);
}

/* Gradients of all parameters, from all blocks of the rows. */
static int gradients_of_tapes(Work work, DoShared do_shared, TapePass pass, int num_threads) {
    if (!pass.num_parts) return 0;
    pass.num_blocks = num_tape_blocks(pass.parts, pass.num_parts);
    for (int i = 0; i < pass.num_parts; i++) {
        if (reserve_gradients(pass.parts[i].tape, pass.num_blocks - 1)) return -1;
    }
    const int num_items = pass.num_parts * pass.num_blocks;
    const int waiting = threads_that_wait(num_threads);
    SharedTapes all = {.num_threads = threads_of(pass.parts, pass.num_parts, MIN_PRODUCTS_PER_SHARE, waiting)};
    all.num_shares = (all.num_threads + pass.num_parts - 1) / pass.num_parts;
    const int is_factored = pass.parts[0].inputs && pass.parts[0].inputs->is_factored;
    if (all.num_threads > num_items && pass.num_blocks <= MAX_SHARED_BLOCKS && !is_factored) {
        if (open_shared(&all, &pass)) return -1;
        do_shared(&pass, &all);
    } else {
        parallel_for(num_items, work, &pass, threads_of(pass.parts, pass.num_parts, MIN_PRODUCTS_PER_THREAD, num_threads));
    }
    if (pass.failed) return -1;
    for (int i = 0; i < pass.num_parts; i++) {
        const Tape *tape = pass.parts[i].tape;
        const int64_t count = num_parameters(tape->network);
        add_gradients(pass.parts[i].flat, tape->other_gradients, pass.num_blocks - 1, count, count, num_threads);
    }
    return 0;
}

static int backward_tapes(TapePart *parts, int num_parts, int num_threads) {
    const TapePass pass = {.parts = parts, .num_parts = num_parts};
    return gradients_of_tapes(backward_blocks, backward_shared, pass, num_threads);
}

static int regress_tapes(TapePart *parts, int num_parts, int num_threads) {
    double losses[MAX_TAPES][MAX_ROW_BLOCKS] = {{0.0}};
    TapePass pass = {.parts = parts, .num_parts = num_parts, .losses = losses};
    const int status = gradients_of_tapes(regress_blocks, regress_shared, pass, num_threads);
    for (int i = 0; i < num_parts; i++) {
        parts[i].loss = 0.0;
        for (int b = 0; b < MAX_ROW_BLOCKS; b++) parts[i].loss += losses[i][b];
    }
    return status;
}
