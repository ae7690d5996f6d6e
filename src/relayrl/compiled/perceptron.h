/* A perceptron on tiles of rows: every activation of a tile stays in the cache from the forward to the backward pass.
 *
 * Widths are padded to whole vectors with units that are 0 and stay 0.
 */

#define TILE_ROWS 144 /* a multiple of every BLOCK_ROWS and of LANES */

typedef struct {
    int num_layers, is_tanh;
    int size[MAX_LAYERS + 1], wide[MAX_LAYERS + 1]; /* widths, and padded ones */
    float *across[MAX_LAYERS];                      /* weights as [in, wide out], for the forward pass */
    const float *along[MAX_LAYERS];                 /* weights as [out, wide in], for the backward pass */
    float *along_copy[MAX_LAYERS];                  /* where they lie if they need padding */
    float *bias[MAX_LAYERS];                        /* [wide out] */
    float *value[MAX_LAYERS + 1];                   /* [TILE_ROWS, wide]: inputs, activations, outputs */
    float *delta[MAX_LAYERS + 1];                   /* the loss's derivatives by them */
    float *weight_gradient[MAX_LAYERS];             /* [out, wide in] where that is less padding, else [in, wide out] */
    float *bias_gradient[MAX_LAYERS];               /* [wide out] */
    float *memory;
} Perceptron;

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static int is_along(const Perceptron *net, int l) { return net->size[l] >= net->size[l + 1]; }

static int64_t gradient_size(const Perceptron *net, int l) {
    return is_along(net, l) ? (int64_t)net->size[l + 1] * net->wide[l] : (int64_t)net->size[l] * net->wide[l + 1];
}

/* Lay the arrays out: in numbers only where `next` is NULL. */
static int64_t lay_out(Perceptron *net, int trains, int has_inputs, float *next) {
    int64_t used = 0;
#define TAKE(pointer, count)                                                                                           \
    do {                                                                                                               \
        if (next) (pointer) = next + used;                                                                             \
        used += (int64_t)(count) + 16 - (int64_t)(count) % 16;                                                         \
    } while (0)
    for (int l = has_inputs ? 0 : 1; l <= net->num_layers; l++) {
        TAKE(net->value[l], TILE_ROWS * net->wide[l]);
        if (trains) TAKE(net->delta[l], TILE_ROWS * net->wide[l]);
    }
    for (int l = 0; l < net->num_layers; l++) {
        TAKE(net->across[l], net->size[l] * net->wide[l + 1]);
        TAKE(net->bias[l], net->wide[l + 1]);
        if (!trains) continue;
        if (net->size[l] != net->wide[l]) TAKE(net->along_copy[l], net->size[l + 1] * net->wide[l]);
        TAKE(net->weight_gradient[l], gradient_size(net, l));
        TAKE(net->bias_gradient[l], net->wide[l + 1]);
    }
#undef TAKE
    return used;
}

/* Without inputs, which are wide where many see each other, tiles begin with the first layer's sums in value[1]. */
static int open_layers(Perceptron *net, const Network *network, int trains, int has_inputs) {
    memset(net, 0, sizeof *net);
    net->num_layers = network->num_layers;
    net->is_tanh = network->is_tanh;
    for (int l = 0; l <= net->num_layers; l++) {
        net->size[l] = network->sizes[l];
        net->wide[l] = (int)padded(net->size[l]);
    }
    size_t bytes = (size_t)lay_out(net, trains, has_inputs, NULL) * sizeof(float);
    void *memory;
    if (posix_memalign(&memory, 64, bytes)) return -1;
    net->memory = memory;
    lay_out(net, trains, has_inputs, net->memory);
    if (has_inputs) memset(net->value[0], 0, (size_t)TILE_ROWS * net->wide[0] * sizeof(float));
    if (trains) memset(net->delta[net->num_layers], 0, (size_t)TILE_ROWS * net->wide[net->num_layers] * sizeof(float));
    return 0;
}

static int open_perceptron(Perceptron *net, const Network *network, int trains) {
    return open_layers(net, network, trains, 1);
}

static void close_perceptron(Perceptron *net) { free(net->memory); }

/* Take over the weights for the forward pass, of every `count`-th block of units from number `first` on. */
static void read_weights_across(Perceptron *net, const Network *network, int first, int count) {
    for (int l = 0; l < net->num_layers; l++) {
        const int in = net->size[l], out = net->size[l + 1], wide_out = net->wide[l + 1];
        const float *weight = network->weight[l];
        for (int start = first * LANES; start < wide_out; start += count * LANES) {
            const int end = start + LANES < out ? start + LANES : out;
            int i = 0;
            for (; end == start + LANES && i + LANES <= in; i += LANES) {
                transpose(weight + (int64_t)start * in + i, in, net->across[l] + (int64_t)i * wide_out + start, wide_out);
            }
            for (; i < in; i++) {
                float *line = net->across[l] + (int64_t)i * wide_out;
                for (int o = start; o < end; o++) line[o] = weight[(int64_t)o * in + i];
                for (int o = end; o < start + LANES; o++) line[o] = 0.0f;
            }
        }
    }
}

/* Take over everything else. */
static void read_other_parameters(Perceptron *net, const Network *network, int trains) {
    for (int l = 0; l < net->num_layers; l++) {
        const int in = net->size[l], out = net->size[l + 1], wide_in = net->wide[l], wide_out = net->wide[l + 1];
        const float *weight = network->weight[l];
        memcpy(net->bias[l], network->bias[l], (size_t)out * sizeof(float));
        for (int o = out; o < wide_out; o++) net->bias[l][o] = 0.0f;
        if (!trains) continue;
        net->along[l] = in == wide_in ? weight : net->along_copy[l];
        for (int o = 0; in != wide_in && o < out; o++) {
            float *line = net->along_copy[l] + (int64_t)o * wide_in;
            memcpy(line, weight + (int64_t)o * in, (size_t)in * sizeof(float));
            for (int i = in; i < wide_in; i++) line[i] = 0.0f;
        }
    }
}

/* Take over the parameters as they are now. */
static void read_parameters(Perceptron *net, const Network *network, int trains) {
    read_weights_across(net, network, 0, 1);
    read_other_parameters(net, network, trains);
}

static void activate(float *x, int64_t count, int is_tanh) {
    if (is_tanh) {
        for (int64_t i = 0; i < count; i += LANES) store(x + i, vector_tanh(load(x + i)));
    } else {
        for (int64_t i = 0; i < count; i += LANES) store(x + i, choose(load(x + i) < 0.0f, (vec){0}, load(x + i)));
    }
}

/* Outputs into value[num_layers], by the layers from number `first` on, from `x` with rows `stride` apart. */
static void forward_layers(Perceptron *net, int first, const float *x, int64_t stride, int num_rows) {
    for (int l = first; l < net->num_layers; l++) {
        Left left = {l > first ? net->value[l] : x, l > first ? net->wide[l] : stride, 1};
        float *target = net->value[l + 1];
        const int wide = net->wide[l + 1];
        product(num_rows, wide, net->size[l], left, net->across[l], wide, target, wide, FROM_ROW, net->bias[l]);
        if (l + 1 < net->num_layers) activate(target, (int64_t)num_rows * wide, net->is_tanh);
    }
}

static void forward_tile(Perceptron *net, const float *x, int64_t stride, int num_rows) {
    forward_layers(net, 0, x, stride, num_rows);
}

/* delta *= the activation's slope, from its output: 1 − tanh², or 1 where relu is positive. */
static void multiply_by_slope(float *delta, const float *output, int64_t count, int is_tanh) {
    for (int64_t i = 0; i < count; i += LANES) {
        vec y = load(output + i), d = load(delta + i);
        if (is_tanh) store(delta + i, d - d * (y * y));
        else store(delta + i, choose(y > 0.0f, d, (vec){0}));
    }
}

static void add_rows(float *sum, const float *rows, int num_rows, int wide, Beginning beginning) {
    for (int j = 0; j < wide; j += LANES) {
        vec total_of_column = beginning == FROM_ZERO ? (vec){0} : load(sum + j);
        for (int r = 0; r < num_rows; r++) total_of_column += load(rows + (int64_t)r * wide + j);
        store(sum + j, total_of_column);
    }
}

/* delta[l] from delta[l + 1]: by what went into layer l - 1's activation, or by the inputs. */
static void delta_below(Perceptron *net, int l, int num_rows) {
    const int wide_in = net->wide[l], wide_out = net->wide[l + 1];
    Left left = {net->delta[l + 1], wide_out, 1};
    product(num_rows, wide_in, net->size[l + 1], left, net->along[l], wide_in, net->delta[l], wide_in, FROM_ZERO, NULL);
    if (l > 0) multiply_by_slope(net->delta[l], net->value[l], (int64_t)num_rows * wide_in, net->is_tanh);
}

/* Gradients of the layers from number `first` on, for the tile whose outputs' derivatives are delta[num_layers], added to those
 * of the tiles before it where it is not the first. */
static void backward_layers(Perceptron *net, int first, int num_rows, int is_first) {
    const Beginning beginning = is_first ? FROM_ZERO : FROM_TARGET;
    for (int l = net->num_layers - 1; l >= first; l--) {
        const int wide_in = net->wide[l], wide_out = net->wide[l + 1];
        const float *input = net->value[l], *delta = net->delta[l + 1];
        float *gradient = net->weight_gradient[l];
        if (is_along(net, l)) {
            Left left = {delta, 1, wide_out};
            product(net->size[l + 1], wide_in, num_rows, left, input, wide_in, gradient, wide_in, beginning, NULL);
        } else {
            Left left = {input, 1, wide_in};
            product(net->size[l], wide_out, num_rows, left, delta, wide_out, gradient, wide_out, beginning, NULL);
        }
        add_rows(net->bias_gradient[l], delta, num_rows, wide_out, beginning);
        if (l > 0) delta_below(net, l, num_rows);
    }
}

/* The same for all layers, where the tile's inputs are value[0]. */
static void backward_tile(Perceptron *net, int num_rows, int is_first) { backward_layers(net, 0, num_rows, is_first); }

/* The gradients in the order of the parameters, of one part of every layer's units; with those of `other` rows added, where
 * there are any. */
static void write_gradients(const Perceptron *net, const Perceptron *other, int part, int num_parts, float *flat) {
    for (int l = 0; l < net->num_layers; l++) {
        const int in = net->size[l], out = net->size[l + 1], end = out * (part + 1) / num_parts;
        const int64_t unit_stride = is_along(net, l) ? net->wide[l] : 1, stride = is_along(net, l) ? 1 : net->wide[l + 1];
        float *bias = flat + (int64_t)in * out;
        for (int o = out * part / num_parts; o < end; o++) {
            const float *own = net->weight_gradient[l] + o * unit_stride;
            float *target = flat + (int64_t)o * in;
            if (stride == 1) memcpy(target, own, (size_t)in * sizeof(float));
            else for (int i = 0; i < in; i++) target[i] = own[i * stride];
            bias[o] = net->bias_gradient[l][o];
            if (!other) continue;
            const float *more = other->weight_gradient[l] + o * unit_stride;
            if (stride == 1) for (int i = 0; i < in; i++) target[i] += more[i];
            else for (int i = 0; i < in; i++) target[i] += more[i * stride];
            bias[o] += other->bias_gradient[l][o];
        }
        flat = bias + out;
    }
}
