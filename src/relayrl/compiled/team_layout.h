/* The critic of a team (models/teams/team_critic.py): its parameters as the kernels read them, and what a tile of teams fills.
 *
 * Heads are padded to whole vectors, Dp for D, so that an entity's queries, keys and values have H · Dp numbers. Queries are
 * divided by √D when their parameters are read.
 */

#define TEAM_TILE_ROWS 48 /* agents of a tile, at least one team: what a tile fills then stays in the cache */
#define NORM_EPSILON 1e-5f

/* A linear layer [out, in] with padded widths. */
typedef struct {
    int in, out, wide_in, wide_out;
    float *across, *along, *bias;             /* [wide in, wide out], [wide out, wide in], [wide out] */
    float *weight_gradient, *bias_gradient;   /* as `along` and `bias` */
} Linear;

typedef struct {
    float *gain, *shift, *gain_gradient, *shift_gradient; /* [wide] each */
} Norm;

/* What a layer normalisation keeps of its rows. */
typedef struct {
    float *scaled, *inverse_std; /* [rows, wide], [rows] */
} Normed;

typedef struct {
    const Teams *teams;
    MLP nets[2]; /* of what agents observe, and of what they observe and do */
    int N, W, H, D, wide, head_wide, heads_wide, score_wide, tile_teams;
    Linear qkv, joined, hidden;
    Norm entity_norm, output_norm;
    float *is_real;                                                     /* [wide] 1, and 0 in padding */
    float *count_weight, *count_gradient, *output_weight, *output_gradient; /* [wide] */
    float output_bias, output_bias_gradient;
    /* Rows: agents of the tile's teams, R; both values of agents, 2R; teams and agents, m + R. */
    Normed entity[2], residual;
    float *entities[2], *by_entities[2];      /* [R, wide] */
    float *own, *by_own;                      /* [R, 3 · heads wide]: queries, keys, values */
    float *others, *by_others;                /* [R, 2 · heads wide]: keys and values of those who have acted */
    float *weights[2], *by_scores;            /* [R, H, score wide] of the value's and the baselines' attention */
    float *columns;                           /* [head wide, score wide] */
    float *attended, *by_attended;            /* [2R, heads wide] */
    float *pooled, *by_pooled;                /* [2R, wide] */
    float *seen, *by_seen, *outcome, *by_outcome; /* [m + R, wide] into and out of the hidden layer */
    float *log_count, *estimate;              /* [m + R] */
} TeamNet;

static void shape_linear(Linear *layer, int in, int out, int wide_in, int wide_out) {
    layer->in = in, layer->out = out, layer->wide_in = wide_in, layer->wide_out = wide_out;
}

static void take_team_shape(TeamNet *net, const Teams *teams) {
    memset(net, 0, sizeof *net);
    net->teams = teams;
    take_shape(&net->nets[0], &teams->observed);
    take_shape(&net->nets[1], &teams->acted);
    net->N = teams->num_agents, net->H = teams->num_heads;
    net->W = teams->observed.sizes[teams->observed.num_layers];
    net->D = net->W / net->H;
    net->wide = (int)padded(net->W), net->head_wide = (int)padded(net->D), net->heads_wide = net->H * net->head_wide;
    net->score_wide = (int)padded(net->N);
    net->tile_teams = net->N < TEAM_TILE_ROWS ? TEAM_TILE_ROWS / net->N : 1;
    shape_linear(&net->qkv, net->W, 3 * net->heads_wide, net->wide, 3 * net->heads_wide);
    shape_linear(&net->joined, net->heads_wide, net->W, net->heads_wide, net->wide);
    shape_linear(&net->hidden, net->W, net->W, net->wide, net->wide);
}

/* Lay the arrays out: in numbers only where `next` is NULL. */
static int64_t lay_out_team(TeamNet *net, float *next) {
    int64_t used = 0;
    const int64_t R = (int64_t)net->tile_teams * net->N, wide = net->wide, heads = net->heads_wide;
    const int64_t both = R + net->tile_teams;
    Linear *layers[] = {&net->qkv, &net->joined, &net->hidden};
    Norm *norms[] = {&net->entity_norm, &net->output_norm};
#define TAKE(pointer, count)                                                                                           \
    do {                                                                                                               \
        if (next) (pointer) = next + used;                                                                             \
        used += (int64_t)(count) + 16 - (int64_t)(count) % 16;                                                         \
    } while (0)
    for (int i = 0; i < 2; i++) {
        used += lay_out(&net->nets[i], 1, 1, next ? next + used : NULL);
        used += 16 - used % 16;
        TAKE(norms[i]->gain, wide);
        TAKE(norms[i]->shift, wide);
        TAKE(norms[i]->gain_gradient, wide);
        TAKE(norms[i]->shift_gradient, wide);
        TAKE(net->entity[i].scaled, R * wide);
        TAKE(net->entity[i].inverse_std, R);
        TAKE(net->entities[i], R * wide);
        TAKE(net->by_entities[i], R * wide);
        TAKE(net->weights[i], R * net->H * net->score_wide);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t size = (int64_t)layers[i]->wide_in * layers[i]->wide_out;
        TAKE(layers[i]->across, size);
        TAKE(layers[i]->along, size);
        TAKE(layers[i]->weight_gradient, size);
        TAKE(layers[i]->bias, layers[i]->wide_out);
        TAKE(layers[i]->bias_gradient, layers[i]->wide_out);
    }
    TAKE(net->by_scores, R * net->H * net->score_wide);
    TAKE(net->columns, (int64_t)net->head_wide * net->score_wide);
    TAKE(net->is_real, wide);
    TAKE(net->count_weight, wide);
    TAKE(net->count_gradient, wide);
    TAKE(net->output_weight, wide);
    TAKE(net->output_gradient, wide);
    TAKE(net->residual.scaled, 2 * R * wide);
    TAKE(net->residual.inverse_std, 2 * R);
    TAKE(net->own, 3 * R * heads);
    TAKE(net->by_own, 3 * R * heads);
    TAKE(net->others, 2 * R * heads);
    TAKE(net->by_others, 2 * R * heads);
    TAKE(net->attended, 2 * R * heads);
    TAKE(net->by_attended, 2 * R * heads);
    TAKE(net->pooled, 2 * R * wide);
    TAKE(net->by_pooled, 2 * R * wide);
    TAKE(net->seen, both * wide);
    TAKE(net->by_seen, both * wide);
    TAKE(net->outcome, both * wide);
    TAKE(net->by_outcome, both * wide);
    TAKE(net->log_count, both);
    TAKE(net->estimate, both);
#undef TAKE
    return used;
}

/* A weight [out, in] at `vector` and its bias behind it, times `scale`, into a padded layer: unit o goes to `unit_of[o]`, input i to
 * `input_of[i]`; NULL: to itself. A row of the vector has `stride` numbers. */
typedef struct {
    int out, in, stride, first_unit, unit_head, input_head, head_wide;
    float scale;
} Placement;

static int placed(int i, int head, int head_wide) { return head ? i / head * head_wide + i % head : i; }

static void read_linear(Linear *layer, const float *weight, const float *bias, Placement p) {
    for (int o = 0; o < p.out; o++) {
        const int unit = p.first_unit + placed(o, p.unit_head, p.head_wide);
        for (int i = 0; i < p.in; i++) {
            const int input = placed(i, p.input_head, p.head_wide);
            const float number = p.scale * weight[(int64_t)o * p.stride + i];
            layer->across[(int64_t)input * layer->wide_out + unit] = number;
            layer->along[(int64_t)unit * layer->wide_in + input] = number;
        }
        layer->bias[unit] = p.scale * bias[o];
    }
}

static void write_linear(const Linear *layer, float *weight, float *bias, Placement p) {
    for (int o = 0; o < p.out; o++) {
        const int unit = p.first_unit + placed(o, p.unit_head, p.head_wide);
        const float *line = layer->weight_gradient + (int64_t)unit * layer->wide_in;
        for (int i = 0; i < p.in; i++) {
            weight[(int64_t)o * p.stride + i] = p.scale * line[placed(i, p.input_head, p.head_wide)];
        }
        bias[o] = p.scale * layer->bias_gradient[unit];
    }
}

/* Where the layers behind the encoders lie in the flat vector, in the order of torch's parameters. */
typedef struct {
    int64_t norms, qkv[3], joined, hidden, output, end;
} TeamOffsets;

static TeamOffsets team_offsets(const TeamNet *net, int64_t encoders) {
    const int64_t W = net->W, square = W * W + W;
    TeamOffsets at = {.norms = encoders};
    for (int i = 0; i < 3; i++) at.qkv[i] = encoders + 4 * W + i * square;
    at.joined = at.qkv[2] + square;
    at.hidden = at.joined + square;
    at.output = at.hidden + square + W;
    at.end = at.output + W + 1;
    return at;
}

static Placement place_of_qkv(const TeamNet *net, int part) {
    const float scale = part ? 1.0f : 1.0f / sqrtf((float)net->D);
    return (Placement){net->W, net->W, net->W, part * net->heads_wide, net->D, 0, net->head_wide, scale};
}

static Placement place_of_joined(const TeamNet *net) {
    return (Placement){net->W, net->W, net->W, 0, 0, net->D, net->head_wide, 1.0f};
}

/* The last input is how many agents there are: it has a weight apart. */
static Placement place_of_hidden(const TeamNet *net) {
    return (Placement){net->W, net->W, net->W + 1, 0, 0, 0, 0, 1.0f};
}

static void read_team(TeamNet *net) {
    const Teams *teams = net->teams;
    const float *vector = teams->vector;
    const int64_t W = net->W, square = W * W, encoders = num_parameters(&teams->observed) + num_parameters(&teams->acted);
    const TeamOffsets at = team_offsets(net, encoders);
    Network networks[] = {teams->observed, teams->acted};
    point_into(&networks[0], vector);
    point_into(&networks[1], vector + num_parameters(&teams->observed));
    for (int i = 0; i < 2; i++) read_parameters(&net->nets[i], &networks[i], 1);
    for (int i = 0; i < W; i++) net->is_real[i] = 1.0f;
    Norm *norms[] = {&net->entity_norm, &net->output_norm};
    for (int i = 0; i < 2; i++) {
        memcpy(norms[i]->gain, vector + at.norms + 2 * i * W, (size_t)W * sizeof(float));
        memcpy(norms[i]->shift, vector + at.norms + (2 * i + 1) * W, (size_t)W * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        read_linear(&net->qkv, vector + at.qkv[i], vector + at.qkv[i] + square, place_of_qkv(net, i));
    }
    read_linear(&net->joined, vector + at.joined, vector + at.joined + square, place_of_joined(net));
    read_linear(&net->hidden, vector + at.hidden, vector + at.hidden + square + W, place_of_hidden(net));
    for (int o = 0; o < W; o++) net->count_weight[o] = vector[at.hidden + o * (W + 1) + W];
    memcpy(net->output_weight, vector + at.output, (size_t)W * sizeof(float));
    net->output_bias = vector[at.output + W];
}

static void write_team_gradients(TeamNet *net, float *flat) {
    const Teams *teams = net->teams;
    const int64_t W = net->W, square = W * W, encoders = num_parameters(&teams->observed) + num_parameters(&teams->acted);
    const TeamOffsets at = team_offsets(net, encoders);
    write_gradients(&net->nets[0], flat);
    write_gradients(&net->nets[1], flat + num_parameters(&teams->observed));
    const Norm *norms[] = {&net->entity_norm, &net->output_norm};
    for (int i = 0; i < 2; i++) {
        memcpy(flat + at.norms + 2 * i * W, norms[i]->gain_gradient, (size_t)W * sizeof(float));
        memcpy(flat + at.norms + (2 * i + 1) * W, norms[i]->shift_gradient, (size_t)W * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        write_linear(&net->qkv, flat + at.qkv[i], flat + at.qkv[i] + square, place_of_qkv(net, i));
    }
    write_linear(&net->joined, flat + at.joined, flat + at.joined + square, place_of_joined(net));
    write_linear(&net->hidden, flat + at.hidden, flat + at.hidden + square + W, place_of_hidden(net));
    for (int o = 0; o < W; o++) flat[at.hidden + o * (W + 1) + W] = net->count_gradient[o];
    memcpy(flat + at.output, net->output_gradient, (size_t)W * sizeof(float));
    flat[at.output + W] = net->output_bias_gradient;
}

static int borrow_team(TeamNet *net, const Teams *teams) {
    take_team_shape(net, teams);
    const int64_t size = lay_out_team(net, NULL);
    float *memory = thread_memory(size);
    if (!memory) return -1;
    memset(memory, 0, (size_t)size * sizeof(float)); /* padding is 0 and stays so */
    lay_out_team(net, memory);
    read_team(net);
    return 0;
}
