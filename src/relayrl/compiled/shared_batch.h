/* A batch of few rows that several threads take together: too few for blocks of rows with a gradient each.
 *
 * Threads share out rows in the forward pass and for the derivatives, and units where gradients are added up over the rows. So
 * every sum is the one that a single thread makes, in its order: the bits are the same with any number of threads. Parameters are
 * taken over once for all threads; activations and derivatives of all rows are kept until the gradients are there.
 */

#define MAX_SHARED_BLOCKS 2

typedef struct {
    const Network *network;
    const Inputs *inputs; /* NULL: activations are there already */
    const int64_t *rows;  /* their numbers among the inputs; NULL: from 0 on */
    int64_t num_rows;
    int num_blocks; /* of rows, each with a gradient of its own */
    float *gradients[MAX_SHARED_BLOCKS];
    MLP net;
    int32_t *live; /* [shares, live_stride] */
    int64_t live_stride;
} SharedBatch;

/* Lay the arrays out: in numbers only where `next` is NULL. */
static int64_t lay_out_shared(SharedBatch *b, int num_shares, float *next) {
    take_shape(&b->net, b->network);
    b->net.capacity = b->num_rows;
    const int64_t used = lay_out(&b->net, 1, 1, NULL);
    b->live_stride = 0;
    for (int l = 0; l <= b->net.num_layers; l++) {
        b->live_stride = b->net.wide[l] > b->live_stride ? b->net.wide[l] : b->live_stride;
    }
    b->live_stride += LANES;
    if (next) {
        place(&b->net, 1, 1, next);
        b->live = (int32_t *)(next + used);
        for (int l = 1; l < b->net.num_layers; l++) {
            b->net.along[l] = b->net.along_copy[l] ? b->net.along_copy[l] : b->network->weight[l];
        }
    }
    return used + num_shares * b->live_stride;
}

/* Something to do with a share of each of some batches. */
typedef void (*DoShare)(SharedBatch *batch, int share, int num_shares);

typedef struct {
    SharedBatch *batches;
    int num_batches, num_shares;
    DoShare do_share;
} SharedPass;

static void do_shares(void *argument, Blocks *blocks) {
    const SharedPass *pass = argument;
    for (int item; (item = next_block(blocks)) >= 0;) {
        pass->do_share(&pass->batches[item % pass->num_batches], item / pass->num_batches, pass->num_shares);
    }
}

static void over_shares(SharedBatch *batches, int num_batches, int num_shares, DoShare do_share, int num_threads) {
    SharedPass pass = {batches, num_batches, num_shares, do_share};
    parallel_for(num_batches * num_shares, do_shares, &pass, num_threads);
}

/* Where a share of a layer's units begins: whole vectors. */
static int unit_start(const MLP *net, int l, int share, int num_shares) {
    return (int)block_start(net->wide[l + 1] / LANES, share, num_shares) * LANES;
}

/* The parameters of some units, as `read_parameters`. */
static void read_units(SharedBatch *b, int share, int num_shares) {
    MLP *net = &b->net;
    for (int l = 0; l < net->num_layers; l++) {
        const int in = net->size[l], out = net->size[l + 1], wide = net->wide[l];
        const int first = unit_start(net, l, share, num_shares), last = unit_start(net, l, share + 1, num_shares);
        const float *weight = b->network->weight[l];
        if (!is_narrow(net, l)) read_across(net->across[l], weight, in, out, net->wide[l + 1], first, last);
        else if (!share) copy_padded(net->across[l], weight, out, in, wide);
        const int count = (last < out ? last : out) - first;
        if (net->along_copy[l] && count > 0) {
            copy_padded(net->along_copy[l] + (int64_t)first * wide, weight + (int64_t)first * in, count, in, wide);
        }
        if (!share) copy_padded(net->bias[l], b->network->bias[l], 1, out, net->wide[l + 1]);
    }
}

/* The batch's network at the rows from `row` on; gives how many before `end` are a tile. */
static int view_rows(const SharedBatch *b, MLP *view, int64_t row, int64_t end) {
    for (int l = 0; l <= view->num_layers; l++) {
        view->value[l] = b->net.value[l] + row * view->wide[l];
        if (l) view->delta[l] = b->net.delta[l] + row * view->wide[l];
    }
    return at_most(end - row, TILE_ROWS);
}

static int number_rows(const SharedBatch *b, int64_t *rows, int64_t first, int64_t end) {
    const int count = number_tile(rows, first, end);
    for (int r = 0; b->rows && r < count; r++) rows[r] = b->rows[first + r];
    return count;
}

static void forward_share(SharedBatch *b, int share, int num_shares) {
    MLP view = b->net;
    int64_t rows[TILE_ROWS];
    const int64_t end = block_start(b->num_rows, share + 1, num_shares);
    for (int64_t row = block_start(b->num_rows, share, num_shares); row < end; row += TILE_ROWS) {
        const int count = view_rows(b, &view, row, end);
        number_rows(b, rows, row, end);
        forward_inputs(&view, b->inputs, NULL, rows, count);
    }
}

static void derive_share(SharedBatch *b, int share, int num_shares) {
    MLP view = b->net;
    const int64_t end = block_start(b->num_rows, share + 1, num_shares);
    for (int64_t row = block_start(b->num_rows, share, num_shares); row < end; row += TILE_ROWS) {
        const int count = view_rows(b, &view, row, end);
        deltas_below(&view, count);
    }
}

/* Gradients of some units of all layers, for one block of rows. */
static void differentiate_block(const SharedBatch *b, MLP *view, int block, int share, int num_shares) {
    float *flat = b->gradients[block];
    const int64_t start = row_block_start(b->num_rows, block, b->num_blocks);
    const int64_t end = row_block_start(b->num_rows, block + 1, b->num_blocks);
    aim_gradients(view, flat);
    for (int l = 0; l < view->num_layers; l++) {
        const int first = unit_start(view, l, share, num_shares), last = unit_start(view, l, share + 1, num_shares);
        for (int64_t row = start; first < last && row < end; row += TILE_ROWS) {
            const int count = view_rows(b, view, row, end);
            differentiate_units(view, l, first, last, count, row == start ? FROM_ZERO : FROM_TARGET);
        }
        write_units(view, flat, l, first, last);
        flat += (int64_t)(view->size[l] + 1) * view->size[l + 1];
    }
}

static void differentiate_share(SharedBatch *b, int share, int num_shares) {
    MLP view = b->net;
    view.live = b->live + share * b->live_stride;
    for (int block = 0; block < b->num_blocks; block++) differentiate_block(b, &view, block, share, num_shares);
}
