/* Values of teams, baselines of their agents, and the gradient of both losses: models/teams/team_critic.py, tile by tile. */

/* Teams of a tile, as numbers of teams, and T, which is whole vectors of them. */
typedef struct {
    const int64_t *teams;
    int count, T;
} Tile;

static void multiply(
    int units, int depth, Left left, const float *x, int64_t stride, float *out, int columns, Beginning beginning
) {
    for (int c = 0; c < columns; c += PANEL_COLUMNS) {
        const int width = columns - c < PANEL_COLUMNS ? columns - c : PANEL_COLUMNS;
        product(units, width, depth, left, x + c, stride, out + c, stride, beginning, NULL);
    }
}

/* Units from `first` on. */
static void linear(const Linear *layer, int first, const float *x, int64_t stride, int columns, float *out) {
    const Left left = {layer->weight + (int64_t)first * layer->in, layer->in, 1, NULL, 0};
    for (int o = first; layer->bias && o < layer->out; o++) {
        for (int c = 0; c < columns; c += LANES) store(out + (o - first) * stride + c, splat(layer->bias[o]));
    }
    multiply(layer->out - first, layer->in, left, x, stride, out, columns, layer->bias ? FROM_TARGET : FROM_ZERO);
}

/* Derivatives by the first `num_inputs` of the inputs from those by units. */
static void linear_below(
    const Linear *layer, int first, const float *by_out, int64_t stride, int columns, int num_inputs, float *by_x, Beginning beginning
) {
    const Left left = {layer->weight + (int64_t)first * layer->in, 1, layer->in, NULL, 0};
    multiply(num_inputs, layer->out - first, left, by_out, stride, by_x, columns, beginning);
}

/* Gradients of the units from `first` on, added up, from rows of the first `wide` numbers of what the layer saw. */
static void add_weight_gradients(
    Linear *layer, int first, const float *by_out, int64_t stride, const float *rows, int64_t wide, int num_rows
) {
    const Left left = {by_out, stride, 1, NULL, 0};
    float *gradient = layer->weight_gradient + first * layer->wide_in;
    product(layer->out - first, wide, num_rows, left, rows, wide, gradient, layer->wide_in, FROM_TARGET, NULL);
}

/* The same by the layer's last input, for which a whole vector of columns would be dear. */
static void add_last_gradients(Linear *layer, const float *by_out, int64_t stride, const float *x, int columns) {
    for (int o = 0; o < layer->out; o++) {
        vec sum = {0};
        for (int c = 0; c < columns; c += LANES) sum += load(by_out + o * stride + c) * load(x + (layer->in - 1) * stride + c);
        layer->weight_gradient[o * layer->wide_in + layer->in - 1] += lane_sum(sum);
    }
}

/* The same of the only unit of a layer, from what the layer saw. */
static void add_single_gradients(Linear *layer, const float *by_out, int64_t stride, const float *x, int columns) {
    for (int i = 0; i < layer->in; i++) {
        vec sum = {0};
        for (int c = 0; c < columns; c += LANES) sum += load(by_out + c) * load(x + i * stride + c);
        layer->weight_gradient[i] += lane_sum(sum);
    }
}

static void add_column_sums(float *sums, const float *x, int units, int64_t stride, int columns) {
    for (int u = 0; u < units; u++) {
        vec sum = load(sums + (int64_t)u * LANES);
        for (int c = 0; c < columns; c += LANES) sum += load(x + u * stride + c);
        store(sums + (int64_t)u * LANES, sum);
    }
}

/* Rows of columns. */
static const float *as_rows(TeamNet *net, const float *x, int64_t wide, int64_t stride, int columns) {
    for (int c = 0; c < columns; c += LANES) {
        for (int64_t u = 0; u < wide; u += LANES) transpose(x + u * stride + c, stride, net->rows + c * wide + u, wide);
    }
    return net->rows;
}

/* (x − mean) / std of columns, and gain and shift on it into `out`. */
static void normalize(
    const TeamNet *net, const Norm *norm, const Normed *kept, const float *x, int columns, float *out, int64_t out_stride
) {
    const int S = net->S;
    const int64_t stride = net->stride;
    for (int c = 0; c < columns; c += LANES) {
        vec sum = {0}, squares = {0};
        for (int u = 0; u < S; u++) sum += load(x + u * stride + c);
        const vec mean = sum / (float)S;
        for (int u = 0; u < S; u++) {
            const vec centered = load(x + u * stride + c) - mean;
            squares += centered * centered;
        }
        const vec inverse = 1.0f / vector_sqrt(squares / (float)S + NORM_EPSILON);
        store(kept->inverse_std + c, inverse);
        for (int u = 0; u < S; u++) {
            const vec scaled = (load(x + u * stride + c) - mean) * inverse;
            store(kept->scaled + u * stride + c, scaled);
            store(out + u * out_stride + c, scaled * norm->gain[u] + norm->shift[u]);
        }
    }
}

/* Derivatives by `x`, into `by_x`, from those by `out`; those by gain and shift are added up. */
static void normalize_backward(
    const TeamNet *net, const Norm *norm, const Normed *kept, const float *by_out, int64_t out_stride, int columns, float *by_x
) {
    const int S = net->S;
    const int64_t stride = net->stride;
    for (int u = 0; u < S; u++) {
        vec by_gain = load(norm->gain_sums + (int64_t)u * LANES), by_shift = load(norm->shift_sums + (int64_t)u * LANES);
        for (int c = 0; c < columns; c += LANES) {
            const vec by = load(by_out + u * out_stride + c);
            by_gain += by * load(kept->scaled + u * stride + c);
            by_shift += by;
        }
        store(norm->gain_sums + (int64_t)u * LANES, by_gain);
        store(norm->shift_sums + (int64_t)u * LANES, by_shift);
    }
    for (int c = 0; c < columns; c += LANES) {
        vec sum = {0}, along = {0};
        for (int u = 0; u < S; u++) {
            const vec by = load(by_out + u * out_stride + c) * norm->gain[u];
            sum += by;
            along += by * load(kept->scaled + u * stride + c);
        }
        const vec inverse = load(kept->inverse_std + c), mean = sum / (float)S, slope = along / (float)S;
        for (int u = 0; u < S; u++) {
            const vec by = load(by_out + u * out_stride + c) * norm->gain[u];
            store(by_x + u * stride + c, (by - mean - load(kept->scaled + u * stride + c) * slope) * inverse);
        }
    }
}

/* Numbers into a row of whole vectors. */
INLINE void copy_row(float *to, const float *from, int count) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
#if LANES == 16
    if (i < count) _mm512_storeu_ps(to + i, _mm512_maskz_loadu_ps((__mmask16)((1u << (count - i)) - 1u), from + i));
#else
    for (; i < count; i++) to[i] = from[i];
#endif
}

/* Who is there, and inputs of agents as rows. Teams that fill a vector up have nobody. */
static void read_tile(TeamNet *net, const Tile *tile) {
    const Teams *teams = net->teams;
    const int N = net->N, T = tile->T, F = teams->num_features, A = teams->num_actions;
    float *log_count = net->value[0] + net->S * net->far;
    for (int t = 0; t < T; t++) {
        const int64_t team = t < tile->count ? tile->teams[t] : -1;
        const uint8_t *present = team < 0 ? NULL : teams->present + team * N;
        int count = 0;
        for (int i = 0; present && i < N; i++) count += present[i];
        log_count[t] = net->log_counts[count];
        for (int i = 0; i < N; i++) {
            const int64_t column = (int64_t)i * T + t;
            const int is_there = present && present[i];
            float *features = net->features + column * net->observed.wide_in, *actions = net->actions + column * net->acted.wide_in;
            log_count[T + column] = log_count[t];
            net->unseen[column] = is_there || !count ? 0.0f : -INFINITY;
            net->share[column] = is_there ? 1.0f / (float)count : 0.0f;
            if (present) {
                copy_row(features, teams->features + (team * N + i) * F, F);
                copy_row(actions, teams->actions + (team * N + i) * A, A);
            } else {
                memset(features, 0, (size_t)F * sizeof(float));
                memset(actions, 0, (size_t)A * sizeof(float));
            }
        }
    }
}

/* What the first layers make of rows, as columns. */
static void embed(TeamNet *net, int R) {
    const float *inputs[] = {net->features, net->actions};
    const Linear *layers[] = {&net->observed, &net->acted};
    for (int i = 0; i < 2; i++) {
        const Left left = {inputs[i], layers[i]->wide_in, 1, NULL, 0};
        product(R, net->wide, layers[i]->in, left, net->across[i], net->wide, net->rows, net->wide, FROM_ROW, net->bias[i]);
        for (int c = 0; c < R; c += LANES) {
            for (int64_t u = 0; u < net->wide; u += LANES) {
                transpose(net->rows + c * net->wide + u, net->wide, net->embedded[i] + u * net->stride + c, net->stride);
            }
        }
    }
}

static void activate_embedded(TeamNet *net, int R) {
    const int is_tanh = net->teams->estimate.is_tanh;
    for (int u = 0; u < net->S; u++) {
        float *own = net->embedded[0] + u * net->stride, *acted = net->embedded[1] + u * net->stride;
        for (int c = 0; c < R; c += LANES) store(acted + c, load(acted + c) + load(own + c));
        activate(own, R, is_tanh);
        activate(acted, R, is_tanh);
    }
}

/* What lies behind the attention: the mean over who is there, for the team, and each agent's own, for its baseline. */
static void pool(TeamNet *net, int T, const float *of_agents) {
    for (int u = 0; u < net->S; u++) {
        const float *from = of_agents + u * net->stride;
        for (int t = 0; t < T; t += LANES) {
            vec sum = {0};
            for (int i = 0; i < net->N; i++) sum += load(net->share + i * T + t) * load(from + i * T + t);
            store(net->value[0] + u * net->far + t, sum);
        }
    }
}

static void forward_team(TeamNet *net, const Tile *tile) {
    const int T = tile->T, R = T * net->N, S = net->S;
    read_tile(net, tile);
    embed(net, R);
    activate_embedded(net, R);
    for (int i = 0; i < 2; i++) {
        normalize(net, &net->entity_norm, &net->entities[i], net->embedded[i], R, net->entity[i], net->stride);
    }
    linear(&net->qkv, 0, net->entity[0], net->stride, R, net->own);
    linear(&net->qkv, S, net->entity[1], net->stride, R, net->others);
    for (int i = 0; i < 2; i++) {
        for (int h = 0; h < net->H; h++) {
            for (int first = 0; first < T; first += LANES) attend(net, T, first, i, h);
        }
        for (int u = 0; u < S; u++) {
            float *to = net->attended[i] + u * net->stride;
            const float *entity = net->entity[0] + u * net->stride;
            for (int c = 0; c < R; c += LANES) store(to + c, load(to + c) + load(entity + c));
        }
    }
    normalize(net, &net->output_norm, &net->residual[0], net->attended[0], R, net->attended[0], net->stride);
    normalize(net, &net->output_norm, &net->residual[1], net->attended[1], R, net->value[0] + T, net->far);
    pool(net, T, net->attended[0]);
    for (int l = 0; l < net->num_layers; l++) {
        linear(&net->layers[l], 0, net->value[l], net->far, T + R, net->value[l + 1]);
        for (int u = 0; l + 1 < net->num_layers && u < net->layers[l].out; u++) {
            activate(net->value[l + 1] + u * net->far, T + R, net->teams->estimate.is_tanh);
        }
    }
}

typedef struct {
    double value_loss, baseline_loss;
} TeamSums;

/* Derivatives of both losses by the estimates. */
static void team_losses(TeamNet *net, const Tile *tile, const float *shares, TeamSums *sums) {
    const Teams *teams = net->teams;
    const int N = net->N, T = tile->T;
    const float clip = (float)teams->clip, *estimate = net->value[net->num_layers];
    float *by = net->delta[net->num_layers], square;
    memset(by, 0, (size_t)(T + N * T) * sizeof(float));
    for (int t = 0; t < tile->count; t++) {
        const int64_t team = tile->teams[t];
        const float target = teams->target[team];
        by[t] = shares[0] * clipped_error(estimate[t], target, teams->old_value[team], clip, &square);
        sums->value_loss += 0.5f * square;
        for (int i = 0; i < N; i++) {
            const int column = T + i * T + t;
            if (!teams->present[team * N + i]) continue;
            by[column] = shares[1] * clipped_error(estimate[column], target, teams->old_baseline[team * N + i], clip, &square);
            sums->baseline_loss += 0.5f * square;
        }
    }
}

/* From the estimates' derivatives to those by what lies behind the attention. */
static void layers_backward(TeamNet *net, int columns) {
    for (int l = net->num_layers - 1; l >= 0; l--) {
        Linear *layer = &net->layers[l];
        const int num_inputs = l ? layer->in : net->S;
        add_column_sums(layer->bias_sums, net->delta[l + 1], layer->out, net->far, columns);
        if (layer->out == 1) {
            add_single_gradients(layer, net->delta[l + 1], net->far, net->value[l], columns);
        } else {
            const int is_last_apart = layer->in % LANES == 1;
            const int64_t wide = padded(layer->in - is_last_apart);
            const float *rows = as_rows(net, net->value[l], wide, net->far, columns);
            add_weight_gradients(layer, 0, net->delta[l + 1], net->far, rows, wide, columns);
            if (is_last_apart) add_last_gradients(layer, net->delta[l + 1], net->far, net->value[l], columns);
        }
        linear_below(layer, 0, net->delta[l + 1], net->far, columns, num_inputs, net->delta[l], FROM_ZERO);
        for (int u = 0; l && u < num_inputs; u++) {
            multiply_by_slope(net->delta[l] + u * net->far, net->value[l] + u * net->far, columns, net->teams->estimate.is_tanh);
        }
    }
}

/* By what agents attended to, with the residual, of value and baselines; both by the entities themselves. */
static void residual_backward(TeamNet *net, int T, int R) {
    float *by_mean = net->by_entity[0];
    for (int u = 0; u < net->S; u++) {
        const float *by_team = net->delta[0] + u * net->far;
        for (int c = 0; c < R; c += LANES) store(by_mean + u * net->stride + c, load(net->share + c) * load(by_team + c % T));
    }
    normalize_backward(net, &net->output_norm, &net->residual[0], by_mean, net->stride, R, net->by_attended[0]);
    normalize_backward(net, &net->output_norm, &net->residual[1], net->delta[0] + T, net->far, R, net->by_attended[1]);
    for (int u = 0; u < net->S; u++) {
        const float *of_value = net->by_attended[0] + u * net->stride, *of_baseline = net->by_attended[1] + u * net->stride;
        for (int c = 0; c < R; c += LANES) store(by_mean + u * net->stride + c, load(of_value + c) + load(of_baseline + c));
    }
}

/* By the sums of the first layers: the second's inputs are seen by both. */
static void embed_backward(TeamNet *net, int R) {
    const int is_tanh = net->teams->estimate.is_tanh;
    for (int i = 0; i < 2; i++) {
        normalize_backward(net, &net->entity_norm, &net->entities[i], net->by_entity[i], net->stride, R, net->by_entity[i]);
        for (int u = 0; u < net->S; u++) {
            multiply_by_slope(net->by_entity[i] + u * net->stride, net->embedded[i] + u * net->stride, R, is_tanh);
        }
    }
    for (int u = 0; u < net->S; u++) {
        float *by_own = net->by_entity[0] + u * net->stride;
        const float *by_acted = net->by_entity[1] + u * net->stride;
        for (int c = 0; c < R; c += LANES) store(by_own + c, load(by_own + c) + load(by_acted + c));
    }
    add_column_sums(net->observed.bias_sums, net->by_entity[0], net->S, net->stride, R);
    add_column_sums(net->acted.bias_sums, net->by_entity[1], net->S, net->stride, R);
    add_weight_gradients(&net->observed, 0, net->by_entity[0], net->stride, net->features, net->observed.wide_in, R);
    add_weight_gradients(&net->acted, 0, net->by_entity[1], net->stride, net->actions, net->acted.wide_in, R);
}

static void backward_team(TeamNet *net, const Tile *tile) {
    const int T = tile->T, R = T * net->N, S = net->S;
    layers_backward(net, T + R);
    residual_backward(net, T, R);
    for (int i = 0; i < 2; i++) {
        for (int h = 0; h < net->H; h++) {
            for (int first = 0; first < T; first += LANES) attend_backward(net, T, first, i, h);
        }
    }
    linear_below(&net->qkv, 0, net->by_own, net->stride, R, S, net->by_entity[0], FROM_TARGET);
    linear_below(&net->qkv, S, net->by_others, net->stride, R, S, net->by_entity[1], FROM_ZERO);
    for (int i = 0; i < 2; i++) {
        const float *rows = as_rows(net, net->entity[i], net->wide, net->stride, R);
        add_weight_gradients(&net->qkv, i * S, i ? net->by_others : net->by_own, net->stride, rows, net->wide, R);
    }
    embed_backward(net, R);
}

typedef struct {
    Teams *teams;
    int num_blocks, tile_teams;
    int64_t stride;
    float *gradients; /* [num_blocks, stride]; NULL: values alone */
    float shares[2];  /* of a value and of a baseline in the loss's derivative */
    TeamSums sums[MAX_ROW_BLOCKS];
    atomic_int failed;
} TeamWork;

static void write_estimates(const TeamNet *net, const Tile *tile) {
    const float *estimate = net->value[net->num_layers];
    for (int t = 0; t < tile->count; t++) {
        float *baseline = net->teams->baseline + tile->teams[t] * net->N;
        net->teams->value[tile->teams[t]] = estimate[t];
        for (int i = 0; i < net->N; i++) baseline[i] = estimate[(1 + i) * tile->T + t];
    }
}

/* Blocks of whole tiles. */
static void team_block(TeamWork *work, TeamNet *net, int block) {
    const Teams *teams = work->teams;
    const int64_t size = net->tile_teams, num_tiles = (teams->num_chosen + size - 1) / size;
    const int64_t first = block_start(num_tiles, block, work->num_blocks), end = block_start(num_tiles, block + 1, work->num_blocks);
    int64_t numbers[TEAM_TILE_COLUMNS];
    if (work->gradients) forget_team_gradients(net);
    for (int64_t at = first * size; at < end * size && at < teams->num_chosen; at += size) {
        const int64_t left = teams->num_chosen - at;
        Tile tile = {numbers, (int)(left < size ? left : size), 0};
        tile.T = (int)padded(tile.count);
        for (int t = 0; t < tile.count; t++) numbers[t] = teams->chosen ? teams->chosen[at + t] : at + t;
        forward_team(net, &tile);
        if (!work->gradients) {
            write_estimates(net, &tile);
            continue;
        }
        team_losses(net, &tile, work->shares, &work->sums[block]);
        backward_team(net, &tile);
    }
    if (work->gradients) write_team_gradients(net, work->gradients + block * work->stride);
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
    TeamNet shape;
    void *memory = NULL;
    take_team_shape(&shape, teams);
    const int64_t num_tiles = (teams->num_chosen + shape.tile_teams - 1) / shape.tile_teams;
    work.num_blocks = num_gradient_blocks(num_rows, teams->num_parameters);
    if (work.num_blocks > num_tiles) work.num_blocks = (int)num_tiles;
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

/* One gradient step; -1 where there is to be no other. */
static int train_team_minibatch(TeamTraining *t, const int64_t *chosen, int64_t count) {
    Teams *teams = &t->teams;
    teams->chosen = chosen, teams->num_chosen = count;
    teams->value_loss = teams->baseline_loss = 0.0;
    t->out_of_memory = evaluate_teams(teams, t->num_threads) != 0;
    if (t->out_of_memory) return -1;
    const double value_loss = teams->value_loss / (double)count;
    const double baseline_loss = teams->baseline_loss / (double)(teams->num_there ? teams->num_there : 1);
    if (!isfinite(value_loss + baseline_loss)) {
        t->bad_loss = value_loss + baseline_loss;
        return -1;
    }
    t->gradient_norm += adam_step(&t->adam, teams->gradient, t->num_threads);
    t->value_loss += value_loss;
    t->baseline_loss += baseline_loss;
    t->num_steps++;
    return 0;
}

static void train_teams(TeamTraining *t) {
    const int64_t num_teams = t->teams.num_teams;
    t->teams.gradient = malloc((size_t)t->adam.num_parameters * sizeof(float));
    t->out_of_memory = !t->teams.gradient;
    int failed = t->out_of_memory;
    for (int64_t pass = 0; !failed && pass < t->num_passes; pass++) {
        for (int64_t start = 0; !failed && start < num_teams; start += t->minibatch_teams) {
            const int64_t left = num_teams - start, count = left < t->minibatch_teams ? left : t->minibatch_teams;
            failed = train_team_minibatch(t, t->order ? t->order + pass * num_teams + start : NULL, count);
        }
    }
    free(t->teams.gradient);
}
