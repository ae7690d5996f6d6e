/* What is minimised, and its derivatives by the networks' outputs, for one tile of a minibatch. */

typedef struct {
    double loss, kl, entropy, clipped; /* sums over rows */
} TileSums;

/* Scratch of a policy's tile; tables are [outputs, TILE_ROWS]. */
typedef struct {
    float *logits, *probability, *entropy, *gradient;
    float logp[TILE_ROWS], slope[TILE_ROWS];
    float *deviation_gradient; /* [outputs] */
    float *inverse_deviation;  /* [outputs] of a normal distribution, for the minibatch */
    double log_deviation_sum;
} PolicyScratch;

/* Lay the arrays out: in numbers only where `next` is NULL. */
static int64_t lay_out_scratch(PolicyScratch *s, int outputs, int num_parts, float *next) {
    const int64_t table = (int64_t)outputs * TILE_ROWS, entropies = (int64_t)num_parts * TILE_ROWS;
    if (next) {
        s->logits = next;
        s->probability = s->logits + table;
        s->gradient = s->probability + table;
        s->entropy = s->gradient + table;
        s->deviation_gradient = s->entropy + entropies;
        s->inverse_deviation = s->deviation_gradient + padded(outputs);
    }
    return 3 * table + entropies + 2 * padded(outputs);
}

/* Deviations of a normal distribution for one minibatch, from their logarithms in units of `scale`. */
static void read_deviations(PolicyScratch *s, const float *log_std, const float *scale, int outputs) {
    s->log_deviation_sum = 0.0;
    for (int a = 0; a < outputs; a++) {
        const double log_deviation = (double)log_std[a] + log((double)scale[a]);
        s->log_deviation_sum += log_deviation;
        s->inverse_deviation[a] = (float)exp(-log_deviation);
        s->deviation_gradient[a] = 0.0f;
    }
}

/* The loss of the tile's log-probabilities: sums, and the slope by each of them. */
static void differentiate_log_probabilities(
    const PolicyLoss *loss, PolicyScratch *s, const int64_t *rows, int num_rows, float inverse_count, TileSums *sums
) {
    float old[TILE_ROWS], advantage[TILE_ROWS], counts[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; r++) {
        old[r] = r < num_rows ? loss->logp[rows[r]] : s->logp[r];
        advantage[r] = r < num_rows ? loss->advantage[rows[r]] : 0.0f;
        counts[r] = r < num_rows ? 1.0f : 0.0f;
    }
    const vec low = splat((float)(1.0 - loss->clip_ratio)), high = splat((float)(1.0 + loss->clip_ratio));
    vec loss_sum = {0}, kl_sum = {0}, clip_sum = {0};
    FOR_VECTORS(r, num_rows) {
        vec log_ratio = load(s->logp + r) - load(old + r), gain = load(advantage + r), own = load(counts + r);
        vec ratio = vector_exp(log_ratio);
        kl_sum += own * (ratio - 1.0f - log_ratio);
        if (loss->is_surrogate) {
            /* The slope in log r is −r Â where the free term is the smaller, and 0 where the clip holds. */
            vec free_term = ratio * gain, clipped = larger(smaller(ratio, high), low) * gain;
            loss_sum -= choose(free_term <= clipped, free_term, clipped);
            store(s->slope + r, choose(free_term <= clipped, free_term, (vec){0}) * -inverse_count);
            clip_sum += choose(magnitude(ratio - 1.0f) > splat((float)loss->clip_ratio), own, (vec){0});
        } else {
            loss_sum -= load(s->logp + r) * gain;
            store(s->slope + r, gain * -inverse_count);
        }
    }
    sums->loss += total(loss_sum);
    sums->kl += total(kl_sum);
    sums->clipped += total(clip_sum);
}

static void categorical_loss(
    const PolicyLoss *loss, PolicyScratch *s, const int64_t *rows, int num_rows, float inverse_count, TileSums *sums
) {
    int outputs = 0;
    for (int part = 0; part < loss->num_parts; part++) outputs += loss->part_size[part];
    if (loss->mask) {
        for (int r = 0; r < num_rows; r++) forbid(s->logits, loss->mask + rows[r] * outputs, outputs, r);
    }
    memset(s->logp, 0, sizeof s->logp);
    int first = 0;
    for (int part = 0; part < loss->num_parts; part++) {
        const int size = loss->part_size[part];
        float *logits = s->logits + (int64_t)first * TILE_ROWS, *p = s->probability + (int64_t)first * TILE_ROWS;
        log_softmax(logits, p, size, num_rows);
        for (int r = 0; r < num_rows; r++) s->logp[r] += logits[loss->choice[rows[r] * loss->num_parts + part] * TILE_ROWS + r];
        FOR_VECTORS(r, num_rows) {
            vec entropy = {0};
            for (int a = 0; a < size; a++) entropy -= load(p + a * TILE_ROWS + r) * load(logits + a * TILE_ROWS + r);
            store(s->entropy + part * TILE_ROWS + r, entropy);
        }
        for (int r = 0; r < num_rows; r++) sums->entropy += s->entropy[part * TILE_ROWS + r];
        first += size;
    }
    differentiate_log_probabilities(loss, s, rows, num_rows, inverse_count, sums);
    /* ∂ log p_a / ∂z = 1_a − p;   ∂H / ∂z = −p (log p + H) */
    const vec by_entropy = splat((float)-loss->entropy_coef * inverse_count);
    first = 0;
    for (int part = 0; part < loss->num_parts; part++) {
        const int size = loss->part_size[part];
        for (int a = first; a < first + size; a++) {
            FOR_VECTORS(r, num_rows) {
                vec p = load(s->probability + a * TILE_ROWS + r), logp = load(s->logits + a * TILE_ROWS + r);
                vec entropy = load(s->entropy + part * TILE_ROWS + r);
                store(s->gradient + a * TILE_ROWS + r, -p * (load(s->slope + r) + by_entropy * (logp + entropy)));
            }
        }
        for (int r = 0; r < num_rows; r++) {
            s->gradient[(first + loss->choice[rows[r] * loss->num_parts + part]) * TILE_ROWS + r] += s->slope[r];
        }
        first += size;
    }
}

static void normal_loss(
    const PolicyLoss *loss, PolicyScratch *s, int outputs, const int64_t *rows, int num_rows, float inverse_count,
    TileSums *sums
) {
    /* With z = (a − μ) / σ:  ∂ log p / ∂μ = z / σ;   ∂ log p / ∂ log σ = z² − 1;   ∂H / ∂ log σ = 1 */
    const double log_2pi = 1.8378770664093453;
    const float constant = (float)(-s->log_deviation_sum - 0.5 * log_2pi * outputs);
    for (int r = 0; r < TILE_ROWS; r++) s->logp[r] = constant;
    for (int a = 0; a < outputs; a++) {
        float *z = s->probability + (int64_t)a * TILE_ROWS, *output = s->logits + (int64_t)a * TILE_ROWS;
        for (int r = 0; r < num_rows; r++) z[r] = loss->action[rows[r] * outputs + a];
        for (int r = num_rows; r < TILE_ROWS; r++) z[r] = loss->center[a];
        FOR_VECTORS(r, num_rows) {
            vec mean = load(output + r) * loss->scale[a] + loss->center[a];
            vec scaled = (load(z + r) - mean) * s->inverse_deviation[a];
            store(z + r, scaled);
            store(s->logp + r, load(s->logp + r) - 0.5f * scaled * scaled);
        }
    }
    differentiate_log_probabilities(loss, s, rows, num_rows, inverse_count, sums);
    sums->entropy += num_rows * (s->log_deviation_sum + 0.5 * (1.0 + log_2pi) * outputs);
    for (int a = 0; a < outputs; a++) {
        const float *z = s->probability + (int64_t)a * TILE_ROWS;
        vec by_deviation = {0};
        FOR_VECTORS(r, num_rows) {
            vec slope = load(s->slope + r), own = load(z + r);
            by_deviation += (own * own - 1.0f) * slope; /* the slope is 0 beyond the rows */
            store(s->gradient + (int64_t)a * TILE_ROWS + r, own * slope * (s->inverse_deviation[a] * loss->scale[a]));
        }
        s->deviation_gradient[a] += total(by_deviation) - (float)loss->entropy_coef * inverse_count * num_rows;
    }
}

ONE_COPY void policy_loss(
    const PolicyLoss *loss, PolicyScratch *s, MLP *net, const int64_t *rows, int num_rows, float inverse_count,
    TileSums *sums
) {
    const int outputs = net->size[net->num_layers], wide = net->wide[net->num_layers];
    to_columns(s->logits, net->value[net->num_layers], wide, outputs, num_rows);
    if (loss->num_parts) categorical_loss(loss, s, rows, num_rows, inverse_count, sums);
    else normal_loss(loss, s, outputs, rows, num_rows, inverse_count, sums);
    float *delta = net->delta[net->num_layers];
    for (int a = 0; a < outputs; a++) {
        for (int r = 0; r < num_rows; r++) delta[r * wide + a] = s->gradient[(int64_t)a * TILE_ROWS + r];
    }
}

/* The derivative of ½ square, where `square` is the larger of the squared error and that of a value moved by at most `clip`;
 * a negative clip: there is none. */
static float clipped_error(float value, float target, float old, float clip, float *square) {
    const float error = value - target;
    *square = error * error;
    if (clip < 0.0f) return error;
    const float step = value - old, moved = old + fmaxf(-clip, fminf(step, clip)) - target;
    if (!(moved * moved > *square)) return error;
    /* Where the clipped loss is the larger, it has a slope only while the value is inside the clip. */
    *square = moved * moved;
    return fabsf(step) < clip ? moved : 0.0f;
}

ONE_COPY void value_loss(
    const ValueLoss *loss, MLP *net, const int64_t *rows, int num_rows, float inverse_count, TileSums *sums
) {
    const int wide = net->wide[net->num_layers];
    const float *values = net->value[net->num_layers];
    float *delta = net->delta[net->num_layers];
    const float clip = (float)loss->clip;
    float tile_sum = 0.0f;
    for (int r = 0; r < num_rows; r++) {
        const float value = values[(int64_t)r * wide], target = loss->target[rows[r]];
        const float old = clip >= 0.0f ? loss->old_value[rows[r]] : 0.0f;
        float square;
        const float error = clipped_error(value, target, old, clip, &square);
        tile_sum += 0.5f * square;
        delta[(int64_t)r * wide] = error * inverse_count;
    }
    sums->loss += tile_sum;
}
