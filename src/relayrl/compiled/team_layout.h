/* The critic of a team (models/teams/team_critic.py): its layers, and what a tile of teams fills.
 *
 * Arrays are [units, columns], so that whatever happens to every row is done for whole vectors of them, however small teams, heads
 * and layers are: normalisation, attention and pooling have no sums across lanes. A column is an agent's: agent i of team t of a tile
 * has column i · T + t, where T teams are whole vectors. Behind the attention there are columns of the T teams, then those of agents.
 */

#define TEAM_TILE_COLUMNS 192 /* agents of a tile, at least a vector of teams: what a tile fills then stays in the cache */
#define PANEL_COLUMNS 64      /* columns that a product takes at once: what they hold stays in the nearest cache */
#define NORM_EPSILON 1e-5f

/* A linear layer as it lies in the parameters, [out, in] before [out], with its gradients: [out, wide in], [out, LANES]. */
typedef struct {
    int in, out;
    int64_t wide_in;
    const float *weight, *bias; /* no bias: NULL */
    float *weight_gradient, *bias_sums;
} Linear;

typedef struct {
    const float *gain, *shift; /* [S] */
    float *gain_sums, *shift_sums; /* [S, LANES] */
} Norm;

typedef struct {
    float *scaled, *inverse_std; /* [S, columns], [columns] */
} Normed;

typedef struct {
    const Teams *teams;
    int N, S, H, D, num_layers;
    int tile_teams;          /* T of a whole tile */
    int64_t stride, far;     /* between the units of arrays of agents, and of those behind the attention */
    int64_t wide;            /* S in whole vectors */
    Linear observed, acted, qkv, layers[MAX_LAYERS];
    Norm entity_norm, output_norm;
    float *across[2], *bias[2];       /* of the first layers: [in, wide], [wide] */
    float *features, *actions;        /* [R, wide in] rows of agents */
    float *rows;                      /* [columns, widest] room for rows of what lies in columns */
    float *embedded[2];               /* [S, R] behind the activation */
    float *entity[2], *by_entity[2];  /* [S, R] */
    Normed entities[2], residual[2];
    float *own, *by_own;              /* [3S, R]: queries, keys, values */
    float *others, *by_others;        /* [2S, R]: keys and values of those who have acted */
    float *weights[2], *by_scores;    /* [H, N, N, T] of the value's and the baselines' attention */
    float *attended[2], *by_attended[2]; /* [S, R] with the residual */
    float *value[MAX_LAYERS + 1], *delta[MAX_LAYERS + 1]; /* [units, T + R] into and out of the layers behind the attention */
    float log_counts[MAX_AGENTS + 1]; /* log(1 + n) */
    float *unseen, *share;            /* [N, T]: 0, or −∞ for who is absent; of an agent in its team's mean */
} TeamNet;

static void shape_linear(Linear *layer, int in, int out) {
    layer->in = in, layer->out = out, layer->wide_in = padded(in);
}

/* An odd number of vectors: units do not all lie in the same sets of the cache. */
static int64_t column_stride(int64_t columns) { return (columns / LANES | 1) * LANES; }

static void take_team_shape(TeamNet *net, const Teams *teams) {
    memset(net, 0, sizeof *net);
    net->teams = teams;
    net->N = teams->num_agents, net->H = teams->num_heads, net->S = teams->attention_size;
    net->D = net->S / net->H, net->wide = padded(net->S), net->num_layers = teams->estimate.num_layers;
    const int vectors = TEAM_TILE_COLUMNS / (net->N * LANES);
    net->tile_teams = LANES * (vectors > 1 ? vectors : 1);
    net->stride = column_stride((int64_t)net->N * net->tile_teams);
    net->far = column_stride((int64_t)(net->N + 1) * net->tile_teams);
    shape_linear(&net->observed, teams->num_features, net->S);
    shape_linear(&net->acted, teams->num_actions, net->S);
    shape_linear(&net->qkv, net->S, 3 * net->S);
    for (int l = 0; l < net->num_layers; l++) {
        shape_linear(&net->layers[l], teams->estimate.sizes[l], teams->estimate.sizes[l + 1]);
    }
}

/* The next numbers of a vector of parameters. */
static const float *take_numbers(const float **vector, int64_t count) {
    const float *numbers = *vector;
    *vector += count;
    return numbers;
}

static void point_linear(Linear *layer, const float **vector, int has_bias) {
    layer->weight = take_numbers(vector, (int64_t)layer->in * layer->out);
    layer->bias = has_bias ? take_numbers(vector, layer->out) : NULL;
}

/* Parameters, in the order of torch's. */
static void point_team(TeamNet *net) {
    const float *vector = net->teams->vector;
    Norm *norms[] = {&net->entity_norm, &net->output_norm};
    point_linear(&net->observed, &vector, 1);
    point_linear(&net->acted, &vector, 1);
    for (int i = 0; i < 2; i++) {
        norms[i]->gain = take_numbers(&vector, net->S);
        norms[i]->shift = take_numbers(&vector, net->S);
    }
    point_linear(&net->qkv, &vector, 0);
    for (int l = 0; l < net->num_layers; l++) point_linear(&net->layers[l], &vector, 1);
}

/* Room for `count` numbers behind those that are taken; none where `next` is NULL, which counts only. */
static float *take_room(float *next, int64_t *used, int64_t count) {
    float *room = next ? next + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return room;
}

/* Gradients, which begin at 0. */
static int64_t lay_out_gradients(TeamNet *net, float *next) {
    int64_t used = 0;
    Linear *firsts[] = {&net->observed, &net->acted, &net->qkv};
    Norm *norms[] = {&net->entity_norm, &net->output_norm};
    for (int i = 0; i < 3 + net->num_layers; i++) {
        Linear *layer = i < 3 ? firsts[i] : &net->layers[i - 3];
        layer->weight_gradient = take_room(next, &used, layer->out * layer->wide_in);
        layer->bias_sums = take_room(next, &used, (int64_t)layer->out * LANES);
    }
    for (int i = 0; i < 2; i++) {
        norms[i]->gain_sums = take_room(next, &used, (int64_t)net->S * LANES);
        norms[i]->shift_sums = take_room(next, &used, (int64_t)net->S * LANES);
    }
    return used;
}

/* Arrays of [units in whole vectors, columns]. Nothing sets the padding, which reaches nothing but padding of gradients. */
static int64_t lay_out_columns(TeamNet *net, float *next) {
    int64_t used = 0;
    const int64_t units = net->wide * net->stride;
    for (int i = 0; i < 2; i++) {
        net->embedded[i] = take_room(next, &used, units);
        net->entity[i] = take_room(next, &used, units);
        net->by_entity[i] = take_room(next, &used, units);
        net->entities[i].scaled = take_room(next, &used, units);
        net->residual[i].scaled = take_room(next, &used, units);
        net->attended[i] = take_room(next, &used, units);
        net->by_attended[i] = take_room(next, &used, units);
        net->entities[i].inverse_std = take_room(next, &used, net->stride);
        net->residual[i].inverse_std = take_room(next, &used, net->stride);
    }
    net->own = take_room(next, &used, 3 * units);
    net->by_own = take_room(next, &used, 3 * units);
    net->others = take_room(next, &used, 2 * units);
    net->by_others = take_room(next, &used, 2 * units);
    for (int l = 0; l <= net->num_layers; l++) {
        const int64_t wide = padded(net->teams->estimate.sizes[l]);
        net->value[l] = take_room(next, &used, wide * net->far);
        net->delta[l] = take_room(next, &used, wide * net->far);
    }
    return used;
}

static int64_t lay_out_rows(TeamNet *net, float *next) {
    int64_t used = 0, widest = net->wide;
    const int64_t R = (int64_t)net->N * net->tile_teams;
    Linear *firsts[] = {&net->observed, &net->acted};
    for (int l = 0; l < net->num_layers; l++) widest = net->layers[l].wide_in > widest ? net->layers[l].wide_in : widest;
    for (int i = 0; i < 2; i++) {
        net->across[i] = take_room(next, &used, firsts[i]->in * net->wide);
        net->bias[i] = take_room(next, &used, net->wide);
    }
    net->features = take_room(next, &used, R * net->observed.wide_in);
    net->actions = take_room(next, &used, R * net->acted.wide_in);
    net->rows = take_room(next, &used, (R + net->tile_teams) * widest);
    net->unseen = take_room(next, &used, R);
    net->share = take_room(next, &used, R);
    return used;
}

/* What agents attend to: all of it is written before it is read. */
static int64_t lay_out_weights(TeamNet *net, float *next) {
    int64_t used = 0;
    const int64_t pairs = (int64_t)net->N * net->N * net->tile_teams;
    for (int i = 0; i < 2; i++) net->weights[i] = take_room(next, &used, net->H * pairs);
    net->by_scores = take_room(next, &used, pairs);
    return used;
}

static int borrow_team(TeamNet *net, const Teams *teams) {
    take_team_shape(net, teams);
    const int64_t gradients = lay_out_gradients(net, NULL), columns = lay_out_columns(net, NULL), rows = lay_out_rows(net, NULL);
    float *memory = thread_memory(gradients + columns + rows + lay_out_weights(net, NULL));
    if (!memory) return -1;
    lay_out_gradients(net, memory);
    lay_out_columns(net, memory + gradients);
    lay_out_rows(net, memory + gradients + columns);
    lay_out_weights(net, memory + gradients + columns + rows);
    point_team(net);
    for (int n = 0; n <= net->N; n++) net->log_counts[n] = log1pf((float)n);
    Linear *firsts[] = {&net->observed, &net->acted};
    for (int i = 0; i < 2; i++) {
        read_across(net->across[i], firsts[i]->weight, firsts[i]->in, net->S, (int)net->wide, 0, (int)net->wide);
        memcpy(net->bias[i], firsts[i]->bias, (size_t)net->S * sizeof(float));
    }
    return 0;
}

INLINE float lane_sum(vec x) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    return total(x);
#endif
}

static float *write_sums(float *flat, const float *sums, int count) {
    for (int i = 0; i < count; i++) flat[i] = lane_sum(load(sums + (int64_t)i * LANES));
    return flat + count;
}

static float *write_linear(float *flat, const Linear *layer) {
    for (int o = 0; o < layer->out; o++) {
        memcpy(flat + (int64_t)o * layer->in, layer->weight_gradient + o * layer->wide_in, (size_t)layer->in * sizeof(float));
    }
    flat += (int64_t)layer->in * layer->out;
    return layer->bias ? write_sums(flat, layer->bias_sums, layer->out) : flat;
}

static void write_team_gradients(const TeamNet *net, float *flat) {
    const Norm *norms[] = {&net->entity_norm, &net->output_norm};
    flat = write_linear(flat, &net->observed);
    flat = write_linear(flat, &net->acted);
    for (int i = 0; i < 2; i++) {
        flat = write_sums(flat, norms[i]->gain_sums, net->S);
        flat = write_sums(flat, norms[i]->shift_sums, net->S);
    }
    flat = write_linear(flat, &net->qkv);
    for (int l = 0; l < net->num_layers; l++) flat = write_linear(flat, &net->layers[l]);
}

static void forget_team_gradients(TeamNet *net) {
    float *first = net->observed.weight_gradient;
    memset(first, 0, (size_t)lay_out_gradients(net, first) * sizeof(float));
}
