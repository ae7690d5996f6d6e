/* A mlp on tiles of rows: every activation of a tile stays in the cache from the forward to the backward pass.
 *
 * Widths are padded to whole vectors with units that are 0 and stay 0.
 */

#define TILE_ROWS 144 /* a multiple of every BLOCK_ROWS and of LANES */

typedef struct {
    int num_layers, is_tanh;
    int size[MAX_LAYERS + 1], wide[MAX_LAYERS + 1]; /* widths, and padded ones */
    int64_t capacity;                               /* rows that there is room for: a tile's, but in a shared batch */
    float *across[MAX_LAYERS];                      /* weights for the forward pass: [in, wide out]; narrow: [out, wide in] */
    const float *along[MAX_LAYERS];                 /* those above the first layer as [out, wide in], for the backward pass */
    float *along_copy[MAX_LAYERS];                  /* where they lie if they need padding */
    float *bias[MAX_LAYERS];                        /* [wide out] */
    float *value[MAX_LAYERS + 1];                   /* [capacity, wide]: inputs, activations, outputs */
    float *delta[MAX_LAYERS + 1];                   /* the loss's derivatives by them, but not by the inputs */
    float *weight_gradient[MAX_LAYERS];             /* [out, wide in] where that is less padding, else [in, wide out] */
    int is_in_place[MAX_LAYERS];                    /* whether it lies where the gradients are wanted */
    float *bias_gradient[MAX_LAYERS];               /* [wide out] */
    int32_t *live;                                  /* the units of a layer that `find_live` found */
    int32_t order[TILE_ROWS];                       /* rows as `order_rows` has them */
    float *memory;
} MLP;

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static int is_along(const MLP *net, int l) { return net->size[l] >= net->size[l + 1]; }

static int64_t gradient_size(const MLP *net, int l) {
    return is_along(net, l) ? (int64_t)net->size[l + 1] * net->wide[l] : (int64_t)net->size[l] * net->wide[l + 1];
}

/* Whether a layer has so few outputs that a dot product for each costs less than a padded matrix product. */
static int is_narrow(const MLP *net, int l) { return l > 0 && net->size[l + 1] <= LANES / 4; }

static int64_t across_size(const MLP *net, int l) {
    return is_narrow(net, l) ? (int64_t)net->size[l + 1] * net->wide[l] : (int64_t)net->size[l] * net->wide[l + 1];
}

/* Lay the arrays out: in numbers only where `next` is NULL. */
static int64_t lay_out(MLP *net, int trains, int has_inputs, float *next) {
    int64_t used = 0, widest = 0;
#define TAKE(pointer, count)                                                                                           \
    do {                                                                                                               \
        if (next) (pointer) = next + used;                                                                             \
        used += (int64_t)(count) + 16 - (int64_t)(count) % 16;                                                         \
    } while (0)
    for (int l = has_inputs ? 0 : 1; l <= net->num_layers; l++) {
        TAKE(net->value[l], net->capacity * net->wide[l]);
        if (trains && l > 0) TAKE(net->delta[l], net->capacity * net->wide[l]);
    }
    for (int l = 0; l < net->num_layers; l++) {
        TAKE(net->across[l], across_size(net, l));
        TAKE(net->bias[l], net->wide[l + 1]);
        if (!trains) continue;
        if (l > 0 && net->size[l] != net->wide[l]) TAKE(net->along_copy[l], (int64_t)net->size[l + 1] * net->wide[l]);
        TAKE(net->weight_gradient[l], gradient_size(net, l));
        TAKE(net->bias_gradient[l], net->wide[l + 1]);
        widest = net->wide[l + 1] > widest ? net->wide[l + 1] : widest;
    }
    if (trains && next) net->live = (int32_t *)(next + used);
    used += trains ? widest + LANES : 0;
#undef TAKE
    return used;
}

static void take_shape(MLP *net, const Network *network) {
    memset(net, 0, sizeof *net);
    net->num_layers = network->num_layers;
    net->is_tanh = network->is_tanh;
    net->capacity = TILE_ROWS;
    for (int l = 0; l <= net->num_layers; l++) {
        net->size[l] = network->sizes[l];
        net->wide[l] = (int)padded(net->size[l]);
    }
}

static void place(MLP *net, int trains, int has_inputs, float *memory) {
    lay_out(net, trains, has_inputs, memory);
    const size_t count = (size_t)net->capacity * sizeof(float);
    if (has_inputs) memset(net->value[0], 0, count * (size_t)net->wide[0]);
    if (trains) memset(net->delta[net->num_layers], 0, count * (size_t)net->wide[net->num_layers]);
}

/* Without inputs, which are wide where many see each other, tiles begin with the first layer's sums in value[1]. */
static int open_layers(MLP *net, const Network *network, int trains, int has_inputs) {
    take_shape(net, network);
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)lay_out(net, trains, has_inputs, NULL) * sizeof(float))) return -1;
    net->memory = memory;
    place(net, trains, has_inputs, net->memory);
    return 0;
}

static int open_mlp(MLP *net, const Network *network, int trains) {
    return open_layers(net, network, trains, 1);
}

static void close_mlp(MLP *net) { free(net->memory); }

/* A mlp in the thread's own memory: there until the next is borrowed, and not to be closed. */
static int borrow_mlp(MLP *net, const Network *network) {
    take_shape(net, network);
    float *memory = thread_memory(lay_out(net, 1, 1, NULL));
    if (!memory) return -1;
    place(net, 1, 1, memory);
    return 0;
}

/* Where a block of rows begins: halves, or several blocks of whole tiles. */
static int64_t row_block_start(int64_t num_rows, int block, int num_blocks) {
    if (num_blocks <= 2 || block == num_blocks) return block_start(num_rows, block, num_blocks);
    return block_start((num_rows + TILE_ROWS - 1) / TILE_ROWS, block, num_blocks) * TILE_ROWS;
}

#define MIN_PRODUCTS_PER_THREAD 500000 /* multiplications that take longer than waking a thread */

static int64_t num_products(const Network *network) {
    int64_t products = 0;
    for (int l = 0; l < network->num_layers; l++) products += (int64_t)network->sizes[l] * network->sizes[l + 1];
    return products;
}

/* Rows of `width` numbers, padded with zeros. */
static void copy_padded(float *to, const float *from, int num_rows, int width, int wide) {
    for (int r = 0; r < num_rows; r++) {
        memcpy(to + (int64_t)r * wide, from + (int64_t)r * width, (size_t)width * sizeof(float));
        for (int i = width; i < wide; i++) to[(int64_t)r * wide + i] = 0.0f;
    }
}

/* The units [first, last) of a layer; bounds are whole vectors. */
static void read_across(float *across, const float *weight, int in, int out, int wide_out, int first, int last) {
    for (int start = first; start < last; start += LANES) {
        const int end = start + LANES < out ? start + LANES : out;
        int i = 0;
        for (; end == start + LANES && i + LANES <= in; i += LANES) {
            transpose(weight + (int64_t)start * in + i, in, across + (int64_t)i * wide_out + start, wide_out);
        }
        for (; i < in; i++) {
            float *line = across + (int64_t)i * wide_out;
            for (int o = start; o < end; o++) line[o] = weight[(int64_t)o * in + i];
            for (int o = end; o < start + LANES; o++) line[o] = 0.0f;
        }
    }
}

/* Take over the parameters as they are now, for the forward pass. */
static void read_for_forward(MLP *net, const Network *network) {
    for (int l = 0; l < net->num_layers; l++) {
        const int in = net->size[l], out = net->size[l + 1];
        if (is_narrow(net, l)) copy_padded(net->across[l], network->weight[l], out, in, net->wide[l]);
        else read_across(net->across[l], network->weight[l], in, out, net->wide[l + 1], 0, net->wide[l + 1]);
        copy_padded(net->bias[l], network->bias[l], 1, out, net->wide[l + 1]);
    }
}

/* The parameters of another mlp of the same shape, where they lie, for the forward pass. */
static void share_parameters(MLP *net, const MLP *from) {
    for (int l = 0; l < net->num_layers; l++) {
        net->across[l] = from->across[l];
        net->bias[l] = from->bias[l];
    }
}

/* Take over the parameters as they are now, for the backward pass. */
static void read_for_backward(MLP *net, const Network *network) {
    for (int l = 1; l < net->num_layers; l++) {
        const int in = net->size[l], wide = net->wide[l];
        net->along[l] = in == wide ? network->weight[l] : net->along_copy[l];
        if (in != wide) copy_padded(net->along_copy[l], network->weight[l], net->size[l + 1], in, wide);
    }
}

static void read_parameters(MLP *net, const Network *network, int trains) {
    read_for_forward(net, network);
    if (trains) read_for_backward(net, network);
}

static void activate(float *x, int64_t count, int is_tanh) {
    if (is_tanh) {
        for (int64_t i = 0; i < count; i += LANES) store(x + i, vector_tanh(load(x + i)));
    } else {
        for (int64_t i = 0; i < count; i += LANES) store(x + i, larger((vec){0}, load(x + i)));
    }
}

/* The outputs of a narrow layer. */
static void narrow_layer(MLP *net, int l, int num_rows) {
    const int wide = net->wide[l], out = net->size[l + 1];
    for (int r = 0; r < num_rows; r++) {
        const float *x = net->value[l] + (int64_t)r * wide;
        vec line = {0};
        for (int o = 0; o < out; o++) {
            vec sum = {0};
            for (int i = 0; i < wide; i += LANES) sum += load(x + i) * load(net->across[l] + (int64_t)o * wide + i);
            line[o] = total(sum) + net->bias[l][o];
        }
        store(net->value[l + 1] + (int64_t)r * net->wide[l + 1], line);
    }
}

/* Whether zeros of layer l, of which relu makes many, are worth skipping in a product with `width` columns. Where the weights
 * are finite, skipping changes no result, not even its last bit. */
static int has_zeros(const MLP *net, int l, int width) {
    const int is_relu = !net->is_tanh && l > 0 && l < net->num_layers;
    return is_relu && width >= MIN_SKIPPED_WIDTH && net->size[l] <= MAX_SKIPPED_DEPTH;
}

#define PATTERN_BITS 8 /* units that are looked at; twice as many hardly bring more zeros together */

/* The rows of a tile by the pattern in which some units of layer l are 0: rows side by side then have more zeros in common. */
static const int32_t *order_rows(MLP *net, int l, int num_rows) {
    const int wide = net->wide[l];
    uint8_t pattern[TILE_ROWS];
    int begin[(1 << PATTERN_BITS) + 1] = {0};
    for (int r = 0; r < num_rows; r++) {
        const float *row = net->value[l] + (int64_t)r * wide;
        int bits = 0;
        for (int j = 0; j < PATTERN_BITS; j++) bits = bits * 2 + (row[net->size[l] * j / PATTERN_BITS] > 0.0f);
        pattern[r] = (uint8_t)bits;
        begin[bits + 1]++;
    }
    for (int bits = 1; bits < 1 << PATTERN_BITS; bits++) begin[bits] += begin[bits - 1];
    for (int r = 0; r < num_rows; r++) net->order[begin[pattern[r]]++] = r;
    return net->order;
}

/* Outputs into value[num_layers], by the layers from number `first` on, from `x` with rows `stride` apart. */
ONE_COPY void forward_layers(MLP *net, int first, const float *x, int64_t stride, int num_rows) {
    for (int l = first; l < net->num_layers; l++) {
        const int wide = net->wide[l + 1];
        Left left = {l > first ? net->value[l] : x, l > first ? net->wide[l] : stride, 1, NULL, has_zeros(net, l, wide)};
        float *target = net->value[l + 1];
        if (left.skips_zeros) left.rows = order_rows(net, l, num_rows);
        if (is_narrow(net, l)) narrow_layer(net, l, num_rows);
        else product(num_rows, wide, net->size[l], left, net->across[l], wide, target, wide, FROM_ROW, net->bias[l]);
        if (l + 1 < net->num_layers) activate(target, (int64_t)num_rows * wide, net->is_tanh);
    }
}

static void forward_tile(MLP *net, const float *x, int64_t stride, int num_rows) {
    forward_layers(net, 0, x, stride, num_rows);
}

/* A tile's outputs, without padding. */
static void copy_outputs(const MLP *net, int num_rows, float *to) {
    const int last = net->num_layers, outputs = net->size[last];
    for (int r = 0; r < num_rows; r++) {
        memcpy(to + (int64_t)r * outputs, net->value[last] + (int64_t)r * net->wide[last], (size_t)outputs * sizeof(float));
    }
}

/* delta *= the activation's slope, from its output: 1 − tanh², or 1 where relu is positive. */
static void multiply_by_slope(float *delta, const float *output, int64_t count, int is_tanh) {
    for (int64_t i = 0; i < count; i += LANES) {
        vec y = load(output + i), d = load(delta + i);
        if (is_tanh) store(delta + i, d - d * (y * y));
        else store(delta + i, choose(y > 0.0f, d, (vec){0}));
    }
}

/* The units [first, last) of layer l with derivatives other than 0, from `first` on, into `live`; gives how many. Units of relu that
 * are silent in a whole tile, of which trained networks have many, have none. */
static int64_t find_live(MLP *net, int l, int first, int last, int num_rows) {
    int64_t count = 0;
    for (int i = first; i < last && i < net->size[l]; i += LANES) {
        ivec bits = {0};
        for (int r = 0; r < num_rows; r++) bits |= (ivec)load(net->delta[l] + (int64_t)r * net->wide[l] + i);
        count = append_lanes(net->live, count, bits << 1, i - first); /* without the sign: 0 may be negative */
    }
    return count;
}

/* The sums of the columns [first, last). */
static void add_rows(float *sum, const float *rows, int num_rows, int wide, int first, int last, Beginning beginning) {
    for (int j = first; j < last; j += LANES) {
        vec total_of_column = beginning == FROM_ZERO ? (vec){0} : load(sum + j);
        for (int r = 0; r < num_rows; r++) total_of_column += load(rows + (int64_t)r * wide + j);
        store(sum + j, total_of_column);
    }
}

/* delta[l] from delta[l + 1]: by what went into layer l - 1's activation. */
ONE_COPY void delta_below(MLP *net, int l, int num_rows) {
    const int wide_in = net->wide[l], wide_out = net->wide[l + 1];
    Left left = {net->delta[l + 1], wide_out, 1, NULL, has_zeros(net, l + 1, wide_in)};
    product(num_rows, wide_in, net->size[l + 1], left, net->along[l], wide_in, net->delta[l], wide_in, FROM_ZERO, NULL);
    multiply_by_slope(net->delta[l], net->value[l], (int64_t)num_rows * wide_in, net->is_tanh);
}

/* Derivatives by the first layer's sums, into delta[1], with those by the outputs in delta[num_layers]. */
static void deltas_below(MLP *net, int num_rows) {
    for (int l = net->num_layers - 1; l > 0; l--) delta_below(net, l, num_rows);
}

/* Gradients of the units [first, last) of layer l, for a tile; bounds are whole vectors. */
ONE_COPY void differentiate_units(MLP *net, int l, int first, int last, int num_rows, Beginning beginning) {
    const int wide_in = net->wide[l], wide_out = net->wide[l + 1];
    const float *input = net->value[l], *delta = net->delta[l + 1] + first;
    if (is_along(net, l)) {
        const int num_units = (last < net->size[l + 1] ? last : net->size[l + 1]) - first;
        float *gradient = net->weight_gradient[l] + (int64_t)first * wide_in;
        Left left = {delta, 1, wide_out, NULL, 0};
        int64_t num_live = num_units;
        if (has_zeros(net, l + 1, wide_in)) {
            num_live = find_live(net, l + 1, first, last, num_rows);
            left.rows = net->live;
            if (beginning == FROM_ZERO) memset(gradient, 0, (size_t)num_units * wide_in * sizeof(float));
        }
        product(num_live, wide_in, num_rows, left, input, wide_in, gradient, wide_in, beginning, NULL);
    } else {
        float *gradient = net->weight_gradient[l] + first;
        Left left = {input, 1, wide_in};
        product(net->size[l], last - first, num_rows, left, delta, wide_out, gradient, wide_out, beginning, NULL);
    }
    add_rows(net->bias_gradient[l], net->delta[l + 1], num_rows, wide_out, first, last, beginning);
}

/* Gradients of the layers from number `first` on, for the tile whose outputs' derivatives are delta[num_layers], added to those
 * of the tiles before it where it is not the first. */
static void backward_layers(MLP *net, int first, int num_rows, int is_first) {
    for (int l = net->num_layers - 1; l >= first; l--) {
        differentiate_units(net, l, 0, net->wide[l + 1], num_rows, is_first ? FROM_ZERO : FROM_TARGET);
        if (l > 0) delta_below(net, l, num_rows);
    }
}

/* The same for all layers, where the tile's inputs are value[0]. */
static void backward_tile(MLP *net, int num_rows, int is_first) { backward_layers(net, 0, num_rows, is_first); }

/* Have gradients computed where they are wanted, in the order of the parameters, as far as layouts agree. */
static void aim_gradients(MLP *net, float *flat) {
    for (int l = 0; l < net->num_layers; l++) {
        net->is_in_place[l] = is_along(net, l) && net->size[l] == net->wide[l];
        if (net->is_in_place[l]) net->weight_gradient[l] = flat;
        flat += (int64_t)(net->size[l] + 1) * net->size[l + 1];
    }
}

/* Gradients of the units [first, last) of layer l to `flat`, where `aim_gradients` wants that layer's. */
static void write_units(const MLP *net, float *flat, int l, int first, int last) {
    const int in = net->size[l], out = net->size[l + 1], end = last < out ? last : out;
    const int64_t unit_stride = is_along(net, l) ? net->wide[l] : 1, stride = is_along(net, l) ? 1 : net->wide[l + 1];
    for (int o = first; !net->is_in_place[l] && o < end; o++) {
        const float *own = net->weight_gradient[l] + o * unit_stride;
        for (int i = 0; i < in; i++) flat[(int64_t)o * in + i] = own[i * stride];
    }
    for (int o = first; o < end; o++) flat[(int64_t)in * out + o] = net->bias_gradient[l][o];
}

/* The rest of the gradients to where `aim_gradients` wants them. */
static void write_gradients(const MLP *net, float *flat) {
    for (int l = 0; l < net->num_layers; l++) {
        write_units(net, flat, l, 0, net->wide[l + 1]);
        flat += (int64_t)(net->size[l] + 1) * net->size[l + 1];
    }
}
