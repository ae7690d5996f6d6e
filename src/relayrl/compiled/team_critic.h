/* Values of teams, baselines of their agents, and the gradient of both losses: models/teams/team_critic.py, tile by tile. */

/* (x − mean) / std of rows, and gain and shift on it into `out`, which may be `x`. */
static void normalize(const TeamNet *net, const Norm *norm, Normed *kept, const float *x, int num_rows, float *out) {
    const int wide = net->wide;
    for (int r = 0; r < num_rows; r++) {
        const float *row = x + (int64_t)r * wide;
        float *scaled = kept->scaled + (int64_t)r * wide;
        vec sum = {0}, squares = {0};
        for (int j = 0; j < wide; j += LANES) sum += load(row + j);
        const float mean = lane_sum(sum) / (float)net->W;
        for (int j = 0; j < wide; j += LANES) {
            const vec centered = (load(row + j) - mean) * load(net->is_real + j);
            squares += centered * centered;
            store(scaled + j, centered);
        }
        const float inverse = kept->inverse_std[r] = 1.0f / sqrtf(lane_sum(squares) / (float)net->W + NORM_EPSILON);
        for (int j = 0; j < wide; j += LANES) {
            store(scaled + j, load(scaled + j) * inverse);
            store(out + (int64_t)r * wide + j, load(scaled + j) * load(norm->gain + j) + load(norm->shift + j));
        }
    }
}

/* Derivatives by `x`, into `by_x`, from those by `out`; those by gain and shift are added up. */
static void normalize_backward(
    const TeamNet *net, Norm *norm, const Normed *kept, const float *by_out, int num_rows, float *by_x
) {
    const int wide = net->wide;
    for (int r = 0; r < num_rows; r++) {
        const float *by_row = by_out + (int64_t)r * wide, *scaled = kept->scaled + (int64_t)r * wide;
        vec sum = {0}, along = {0};
        for (int j = 0; j < wide; j += LANES) {
            const vec d = load(by_row + j), y = load(scaled + j), by_scaled = d * load(norm->gain + j);
            store(norm->gain_gradient + j, load(norm->gain_gradient + j) + d * y);
            store(norm->shift_gradient + j, load(norm->shift_gradient + j) + d);
            sum += by_scaled;
            along += by_scaled * y;
        }
        const float mean = lane_sum(sum) / (float)net->W, slope = lane_sum(along) / (float)net->W;
        for (int j = 0; j < wide; j += LANES) {
            const vec by_scaled = load(by_row + j) * load(norm->gain + j);
            const vec by = (by_scaled - mean - load(scaled + j) * slope) * kept->inverse_std[r];
            store(by_x + (int64_t)r * wide + j, by * load(net->is_real + j));
        }
    }
}

/* Units from `first` on, of rows with `stride` numbers. */
static void linear(const Linear *layer, int first, const float *x, int num_rows, float *out, int out_wide) {
    Left left = {x, layer->wide_in, 1};
    const int width = layer->wide_out - first;
    product(
        num_rows, width, layer->in, left, layer->across + first, layer->wide_out, out, out_wide, FROM_ROW, layer->bias + first
    );
}

static void linear_backward(
    Linear *layer, int first, const float *x, const float *by_out, int num_rows, float *by_x, Beginning beginning
) {
    const int width = layer->wide_out - first;
    const int num_units = layer->out - first;
    Left columns = {by_out, 1, width}, rows = {by_out, width, 1};
    float *gradient = layer->weight_gradient + (int64_t)first * layer->wide_in;
    const float *along = layer->along + (int64_t)first * layer->wide_in;
    product(num_units, layer->wide_in, num_rows, columns, x, layer->wide_in, gradient, layer->wide_in, FROM_TARGET, NULL);
    add_rows(layer->bias_gradient + first, by_out, num_rows, width, 0, width, FROM_TARGET);
    product(num_rows, layer->wide_in, num_units, rows, along, layer->wide_in, by_x, layer->wide_in, beginning, NULL);
}

/* Teams of a tile, as numbers of teams. */
typedef struct {
    const int64_t *teams;
    int count; /* teams */
} Tile;

static const uint8_t *present_in(const TeamNet *net, const Tile *tile, int t) {
    return net->teams->present + tile->teams[t] * net->N;
}

static int num_present(const TeamNet *net, const Tile *tile, int t) {
    int count = 0;
    for (int i = 0; i < net->N; i++) count += present_in(net, tile, t)[i];
    return count;
}

static void encode(TeamNet *net, const Tile *tile) {
    const Teams *teams = net->teams;
    const int N = net->N, R = tile->count * N, F = net->nets[0].size[0], A = net->nets[1].size[0] - F;
    for (int r = 0; r < R; r++) {
        const int64_t row = tile->teams[r / N] * N + r % N;
        float *own = net->nets[0].value[0] + (int64_t)r * net->nets[0].wide[0];
        float *acted = net->nets[1].value[0] + (int64_t)r * net->nets[1].wide[0];
        memcpy(own, teams->features + row * F, (size_t)F * sizeof(float));
        memcpy(acted, teams->features + row * F, (size_t)F * sizeof(float));
        memcpy(acted + F, teams->actions + row * A, (size_t)A * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        MLP *mlp = &net->nets[i];
        forward_tile(mlp, mlp->value[0], mlp->wide[0], R);
        normalize(net, &net->entity_norm, &net->entity[i], mlp->value[mlp->num_layers], R, net->entities[i]);
    }
}

/* What the hidden layer sees: the mean over who is there, for the team, and each agent's own, for its baseline. */
static void pool(TeamNet *net, const Tile *tile) {
    const int N = net->N, R = tile->count * N, wide = net->wide;
    const float *of_agents = net->pooled + (int64_t)R * wide;
    memset(net->seen, 0, (size_t)tile->count * wide * sizeof(float));
    for (int t = 0; t < tile->count; t++) {
        const uint8_t *present = present_in(net, tile, t);
        const int count = num_present(net, tile, t);
        for (int i = 0; i < N; i++) {
            if (present[i]) add_scaled(net->seen + (int64_t)t * wide, 1.0f / (float)count, net->pooled + (int64_t)(t * N + i) * wide, wide);
            net->log_count[tile->count + t * N + i] = log1pf((float)count);
        }
        net->log_count[t] = log1pf((float)count);
    }
    memcpy(net->seen + (int64_t)tile->count * wide, of_agents, (size_t)R * wide * sizeof(float));
}

static void forward_team(TeamNet *net, const Tile *tile) {
    const int N = net->N, R = tile->count * N, wide = net->wide, heads = net->heads_wide, both = tile->count + R;
    encode(net, tile);
    linear(&net->qkv, 0, net->entities[0], R, net->own, 3 * heads);
    linear(&net->qkv, heads, net->entities[1], R, net->others, 2 * heads);
    for (int t = 0; t < tile->count; t++) {
        attend(net, (int64_t)t * N, present_in(net, tile, t), 0, net->attended);
        attend(net, (int64_t)t * N, present_in(net, tile, t), 1, net->attended + (int64_t)R * heads);
    }
    linear(&net->joined, 0, net->attended, 2 * R, net->pooled, wide);
    for (int i = 0; i < 2; i++) add_scaled(net->pooled + (int64_t)i * R * wide, 1.0f, net->entities[0], R * wide);
    normalize(net, &net->output_norm, &net->residual, net->pooled, 2 * R, net->pooled);
    pool(net, tile);
    linear(&net->hidden, 0, net->seen, both, net->outcome, wide);
    for (int r = 0; r < both; r++) add_scaled(net->outcome + (int64_t)r * wide, net->log_count[r], net->count_weight, wide);
    activate(net->outcome, (int64_t)both * wide, net->nets[0].is_tanh);
    for (int r = 0; r < both; r++) {
        net->estimate[r] = dot(net->outcome + (int64_t)r * wide, net->output_weight, wide) + net->output_bias;
    }
}

typedef struct {
    double value_loss, baseline_loss;
} TeamSums;

/* Derivatives of both losses by the estimates, in place of these. */
static void team_losses(TeamNet *net, const Tile *tile, const float *shares, TeamSums *sums) {
    const Teams *teams = net->teams;
    const int N = net->N;
    const float clip = (float)teams->clip;
    for (int t = 0; t < tile->count; t++) {
        const int64_t team = tile->teams[t];
        const float target = teams->target[team];
        float *value = net->estimate + t, square;
        *value = shares[0] * clipped_error(*value, target, teams->old_value[team], clip, &square);
        sums->value_loss += 0.5f * square;
        for (int i = 0; i < N; i++) {
            float *baseline = net->estimate + tile->count + t * N + i;
            const float old = teams->old_baseline[team * N + i];
            if (!teams->present[team * N + i]) {
                *baseline = 0.0f;
                continue;
            }
            *baseline = shares[1] * clipped_error(*baseline, target, old, clip, &square);
            sums->baseline_loss += 0.5f * square;
        }
    }
}

/* From the estimates' derivatives to those by what the attention's residual gave, of values and of baselines. */
static void head_backward(TeamNet *net, const Tile *tile) {
    const int N = net->N, R = tile->count * N, wide = net->wide, both = tile->count + R;
    for (int r = 0; r < both; r++) {
        float *by = net->by_outcome + (int64_t)r * wide;
        const float share = net->estimate[r];
        for (int j = 0; j < wide; j += LANES) store(by + j, share * load(net->output_weight + j));
        add_scaled(net->output_gradient, share, net->outcome + (int64_t)r * wide, wide);
        net->output_bias_gradient += share;
    }
    multiply_by_slope(net->by_outcome, net->outcome, (int64_t)both * wide, net->nets[0].is_tanh);
    for (int r = 0; r < both; r++) add_scaled(net->count_gradient, net->log_count[r], net->by_outcome + (int64_t)r * wide, wide);
    linear_backward(&net->hidden, 0, net->seen, net->by_outcome, both, net->by_seen, FROM_ZERO);
    memset(net->by_pooled, 0, (size_t)R * wide * sizeof(float));
    for (int r = 0; r < R; r++) {
        const int t = r / N;
        if (!present_in(net, tile, t)[r % N]) continue;
        add_scaled(net->by_pooled + (int64_t)r * wide, 1.0f / (float)num_present(net, tile, t), net->by_seen + (int64_t)t * wide, wide);
    }
    memcpy(net->by_pooled + (int64_t)R * wide, net->by_seen + (int64_t)tile->count * wide, (size_t)R * wide * sizeof(float));
}

static void backward_team(TeamNet *net, const Tile *tile, int is_first) {
    const int N = net->N, R = tile->count * N, wide = net->wide, heads = net->heads_wide;
    head_backward(net, tile);
    normalize_backward(net, &net->output_norm, &net->residual, net->by_pooled, 2 * R, net->by_pooled);
    linear_backward(&net->joined, 0, net->attended, net->by_pooled, 2 * R, net->by_attended, FROM_ZERO);
    memset(net->by_own, 0, (size_t)3 * R * heads * sizeof(float));
    memset(net->by_others, 0, (size_t)2 * R * heads * sizeof(float));
    for (int t = 0; t < tile->count; t++) {
        const uint8_t *present = present_in(net, tile, t);
        attend_backward(net, (int64_t)t * N, present, 0, net->by_attended);
        attend_backward(net, (int64_t)t * N, present, 1, net->by_attended + (int64_t)R * heads);
    }
    for (int64_t i = 0; i < (int64_t)R * wide; i += LANES) {
        store(net->by_entities[0] + i, load(net->by_pooled + i) + load(net->by_pooled + (int64_t)R * wide + i));
    }
    linear_backward(&net->qkv, 0, net->entities[0], net->by_own, R, net->by_entities[0], FROM_TARGET);
    linear_backward(&net->qkv, heads, net->entities[1], net->by_others, R, net->by_entities[1], FROM_ZERO);
    for (int i = 0; i < 2; i++) {
        MLP *mlp = &net->nets[i];
        normalize_backward(
            net, &net->entity_norm, &net->entity[i], net->by_entities[i], R, mlp->delta[mlp->num_layers]
        );
        backward_tile(mlp, R, is_first);
    }
}

typedef struct {
    Teams *teams;
    int num_blocks;
    int64_t stride;
    float *gradients; /* [num_blocks, stride]; NULL: values alone */
    float shares[2];  /* of a value and of a baseline in the loss's derivative */
    TeamSums sums[MAX_ROW_BLOCKS];
    atomic_int failed;
} TeamWork;

static void write_estimates(const TeamNet *net, const Tile *tile) {
    for (int t = 0; t < tile->count; t++) {
        net->teams->value[tile->teams[t]] = net->estimate[t];
        memcpy(
            net->teams->baseline + tile->teams[t] * net->N, net->estimate + tile->count + t * net->N,
            (size_t)net->N * sizeof(float)
        );
    }
}

static void forget_team_gradients(TeamNet *net) {
    Linear *layers[] = {&net->qkv, &net->joined, &net->hidden};
    Norm *norms[] = {&net->entity_norm, &net->output_norm};
    const size_t wide = (size_t)net->wide * sizeof(float);
    for (int i = 0; i < 3; i++) {
        memset(layers[i]->weight_gradient, 0, (size_t)layers[i]->wide_in * layers[i]->wide_out * sizeof(float));
        memset(layers[i]->bias_gradient, 0, (size_t)layers[i]->wide_out * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        memset(norms[i]->gain_gradient, 0, wide);
        memset(norms[i]->shift_gradient, 0, wide);
    }
    memset(net->count_gradient, 0, wide);
    memset(net->output_gradient, 0, wide);
    net->output_bias_gradient = 0.0f;
}

static void team_block(TeamWork *work, TeamNet *net, int block) {
    const Teams *teams = work->teams;
    const int64_t first = block_start(teams->num_chosen, block, work->num_blocks);
    const int64_t end = block_start(teams->num_chosen, block + 1, work->num_blocks);
    int64_t numbers[TEAM_TILE_ROWS];
    float *flat = work->gradients ? work->gradients + block * work->stride : NULL;
    if (flat) {
        forget_team_gradients(net);
        aim_gradients(&net->nets[0], flat);
        aim_gradients(&net->nets[1], flat + num_parameters(&teams->observed));
    }
    for (int64_t at = first; at < end; at += net->tile_teams) {
        Tile tile = {numbers, (int)(end - at < net->tile_teams ? end - at : net->tile_teams)};
        for (int t = 0; t < tile.count; t++) numbers[t] = teams->chosen ? teams->chosen[at + t] : at + t;
        forward_team(net, &tile);
        if (!flat) {
            write_estimates(net, &tile);
            continue;
        }
        team_losses(net, &tile, work->shares, &work->sums[block]);
        backward_team(net, &tile, at == first);
    }
    if (flat) write_team_gradients(net, flat);
}

static void team_blocks(void *argument, Blocks *blocks) {
    TeamWork *work = argument;
    TeamNet net;
    if (borrow_team(&net, work->teams)) {
        work->failed = 1;
        return;
    }
    for (int block; (block = next_block(blocks)) >= 0;) team_block(work, &net, block);
}

static int64_t agents_there(const Teams *teams) {
    int64_t count = 0;
    for (int64_t t = 0; t < teams->num_chosen; t++) {
        const uint8_t *present = teams->present + (teams->chosen ? teams->chosen[t] : t) * teams->num_agents;
        for (int i = 0; i < teams->num_agents; i++) count += present[i];
    }
    return count;
}

/* Values and baselines or, where there is a `gradient`, that of both losses. -1: out of memory. */
static int evaluate_teams(Teams *teams, int num_threads) {
    TeamWork work = {.teams = teams, .stride = (teams->num_parameters + 15) / 16 * 16};
    const int64_t num_rows = teams->num_chosen * teams->num_agents;
    void *memory = NULL;
    work.num_blocks = num_gradient_blocks(num_rows, teams->num_parameters);
    if (work.num_blocks > teams->num_chosen) work.num_blocks = (int)teams->num_chosen;
    if (teams->gradient) {
        if (posix_memalign(&memory, 64, (size_t)(work.num_blocks * work.stride) * sizeof(float))) return -1;
        work.gradients = memory;
        const int64_t there = agents_there(teams);
        work.shares[0] = 1.0f / (float)teams->num_chosen;
        work.shares[1] = there ? (float)teams->baseline_weight / (float)there : 0.0f;
        teams->num_there = there;
    }
    parallel_for(work.num_blocks, team_blocks, &work, threads_worth(num_rows * teams->num_parameters, MIN_PRODUCTS_PER_THREAD, num_threads));
    if (teams->gradient && !work.failed) {
        add_gradients(work.gradients, work.gradients + work.stride, work.num_blocks - 1, work.stride, teams->num_parameters, num_threads);
        memcpy(teams->gradient, work.gradients, (size_t)teams->num_parameters * sizeof(float));
        for (int b = 0; b < work.num_blocks; b++) {
            teams->value_loss += work.sums[b].value_loss;
            teams->baseline_loss += work.sums[b].baseline_loss;
        }
    }
    free(memory);
    return work.failed ? -1 : 0;
}
