/* Passes over minibatches: forward, loss, backward, clipping of the gradient's norm, Adam. */

static double sum_of_squares(const float *x, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i += 256) {
        const int64_t end = i + 256 < count ? i + 256 : count;
        vec part = {0};
        int64_t j = i;
        for (; j + LANES <= end; j += LANES) part += load(x + j) * load(x + j);
        float rest = total(part);
        for (; j < end; j++) rest += x[j] * x[j];
        sum += rest;
    }
    return sum;
}

/* What all parameters have in common in one step of Adam. */
typedef struct {
    Adam *adam;
    const float *gradient;
    float factor, rate, inverse; /* that clip the gradient and correct both moments */
} AdamStep;

static void step_parameters(const AdamStep *step, int64_t first, int64_t end) {
    const Adam *adam = step->adam;
    const float *gradient = step->gradient;
    const float factor = step->factor, rate = step->rate, inverse = step->inverse, epsilon = (float)adam->epsilon;
    const float keep1 = (float)adam->beta1, new1 = (float)(1.0 - adam->beta1);
    const float keep2 = (float)adam->beta2, new2 = (float)(1.0 - adam->beta2);
    float *restrict theta = adam->vector, *restrict m = adam->first_moment, *restrict v = adam->second_moment;
    for (int64_t i = first; i < end; i++) {
        const float g = gradient[i] * factor;
        m[i] = keep1 * m[i] + new1 * g;
        v[i] = keep2 * v[i] + new2 * g * g;
        theta[i] -= rate * m[i] / (sqrtf(v[i]) * inverse + epsilon);
    }
}

typedef struct {
    AdamStep *step;
    int64_t first, end;
    double square;
} AdamHalf;

static void square_half(void *argument) {
    AdamHalf *half = argument;
    half->square = sum_of_squares(half->step->gradient + half->first, half->end - half->first);
}

static void step_half(void *argument) {
    const AdamHalf *half = argument;
    step_parameters(half->step, half->first, half->end);
}

#define MIN_SHARED_PARAMETERS 20000 /* that take longer than waking the helper */

/* θ ← θ − α m̂ / (√v̂ + ε), with m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²; gives the norm before clipping. The halves
 * are the same with one thread and with two, and so are the numbers. */
static double adam_step(Adam *adam, const float *gradient, int num_threads) {
    const int64_t middle = adam->num_parameters / 512 * 256;
    AdamStep step = {.adam = adam, .gradient = gradient, .factor = 1.0f};
    AdamHalf halves[2] = {{&step, 0, middle, 0.0}, {&step, middle, adam->num_parameters, 0.0}};
    const int is_shared = num_threads > 1 && adam->num_parameters >= MIN_SHARED_PARAMETERS;
    do_both(square_half, &halves[0], &halves[1], is_shared);
    const double norm = sqrt(halves[0].square + halves[1].square);
    adam->num_steps++;
    const double correction1 = 1.0 - pow(adam->beta1, (double)adam->num_steps);
    const double correction2 = 1.0 - pow(adam->beta2, (double)adam->num_steps);
    if (norm > adam->max_norm) step.factor = (float)(adam->max_norm / (norm + 1e-6));
    step.inverse = (float)(1.0 / sqrt(correction2));
    step.rate = (float)(adam->learning_rate / correction1);
    do_both(step_half, &halves[0], &halves[1], is_shared);
    return norm;
}

typedef struct {
    float *target;
    const float *source;
    float share;
    int64_t first, end;
} FollowHalf;

static void follow_half(void *argument) {
    const FollowHalf *half = argument;
    for (int64_t i = half->first; i < half->end; i++) half->target[i] += half->share * (half->source[i] - half->target[i]);
}

/* target ← target + share (source − target) */
static void follow(float *target, const float *source, int64_t count, double share, int num_threads) {
    FollowHalf first = {target, source, (float)share, 0, count / 2}, second = {target, source, (float)share, count / 2, count};
    do_both(follow_half, &first, &second, num_threads > 1 && count >= MIN_SHARED_PARAMETERS);
}

static void point_into(Network *network, const float *vector) {
    for (int l = 0; l < network->num_layers; l++) {
        network->weight[l] = vector;
        vector += (int64_t)network->sizes[l] * network->sizes[l + 1];
        network->bias[l] = vector;
        vector += network->sizes[l + 1];
    }
}

/* Whether log deviations of a normal distribution lie behind the network's parameters. */
static int has_deviations(const Training *t) { return t->policy && !t->policy->num_parts; }

/* What the passes of one network, or over half of the rows, work in. */
typedef struct {
    Perceptron net;
    Factors factors;
    PolicyScratch policy;
    float *gradient; /* in the order of the parameters */
} Workspace;

static void begin_minibatch(Training *t, Workspace *w) {
    Perceptron *net = &w->net;
    read_parameters(net, &t->shape, 1);
    multiply_lines(&w->factors, net, &t->rows.inputs);
    forget_deltas(&w->factors, net, &t->rows.inputs);
    if (!has_deviations(t)) return;
    const int outputs = net->size[net->num_layers];
    read_deviations(&w->policy, t->adam.vector + t->adam.num_parameters - outputs, t->policy->scale, outputs);
}

static void add_tile(
    Training *t, Workspace *w, const int64_t *rows, int num_rows, float inverse_count, int is_first, TileSums *sums
) {
    Perceptron *net = &w->net;
    forward_inputs(net, &t->rows.inputs, &w->factors, rows, num_rows);
    if (t->policy) policy_loss(t->policy, &w->policy, net, rows, num_rows, inverse_count, sums);
    else value_loss(t->value, net, rows, num_rows, inverse_count, sums);
    backward_inputs(net, &t->rows.inputs, &w->factors, rows, num_rows, is_first);
}

/* The minibatch's gradient in the order of the parameters, from what its tiles added up. */
static void gather_gradient(Training *t, Workspace *w) {
    Perceptron *net = &w->net;
    differentiate_by_lines(&w->factors, net, &t->rows.inputs);
    write_gradients(net, w->gradient);
    if (has_deviations(t)) {
        const int outputs = net->size[net->num_layers];
        memcpy(
            w->gradient + t->adam.num_parameters - outputs, w->policy.deviation_gradient, (size_t)outputs * sizeof(float)
        );
    }
}

/* Some rows of a minibatch. */
typedef struct {
    Training *training;
    Workspace *workspace;
    int64_t pass, first, end, num_all;
    TileSums sums;
} MinibatchPart;

static void add_part(void *argument) {
    MinibatchPart *part = argument;
    Training *t = part->training;
    int64_t rows[TILE_ROWS];
    begin_minibatch(t, part->workspace);
    for (int64_t at = part->first; at < part->end; at += TILE_ROWS) {
        const int num_rows = number_tile(rows, at, part->end);
        for (int r = 0; t->rows.order && r < num_rows; r++) rows[r] = t->rows.order[part->pass * t->rows.num_rows + at + r];
        add_tile(t, part->workspace, rows, num_rows, 1.0f / (float)part->num_all, at == part->first, &part->sums);
    }
    gather_gradient(t, part->workspace);
}

static void add_sums(TileSums *sum, const TileSums *other) {
    sum->loss += other->loss;
    sum->kl += other->kl;
    sum->entropy += other->entropy;
    sum->clipped += other->clipped;
}

/* One gradient step; the status says whether there will be another. Rows in halves are added up alike by one thread and two. */
static int train_minibatch(Training *t, Workspace *w, int64_t pass, int64_t start, int64_t count) {
    const int has_halves = is_halved(t) && count > 1;
    const int64_t middle = has_halves ? start + count / 2 : start + count;
    MinibatchPart first = {t, &w[0], pass, start, middle, count, {0}}, second = {t, &w[1], pass, middle, start + count, count, {0}};
    if (has_halves) {
        do_both(add_part, &first, &second, t->num_threads > 1);
        add_sums(&first.sums, &second.sums);
        for (int64_t i = 0; i < t->adam.num_parameters; i++) w[0].gradient[i] += w[1].gradient[i];
    } else {
        add_part(&first);
    }
    const double loss = first.sums.loss / (double)count, kl = first.sums.kl / (double)count;
    if (t->policy && kl > t->policy->kl_limit) return STATUS_KL_EXCEEDED;
    if (!isfinite(loss)) {
        t->sums.bad_loss = loss;
        return STATUS_NOT_FINITE;
    }
    t->sums.gradient_norm += adam_step(&t->adam, w[0].gradient, 1);
    t->sums.loss += loss;
    t->sums.kl += kl;
    t->sums.entropy += first.sums.entropy / (double)count;
    t->sums.clip_fraction += first.sums.clipped / (double)count;
    t->sums.num_steps++;
    return STATUS_DONE;
}

static void run_passes(Training *t, Workspace *w) {
    for (int64_t pass = 0; pass < t->rows.num_passes; pass++) {
        for (int64_t start = 0; start < t->rows.num_rows; start += t->rows.minibatch_rows) {
            const int64_t left = t->rows.num_rows - start;
            const int64_t count = left < t->rows.minibatch_rows ? left : t->rows.minibatch_rows;
            t->sums.status = train_minibatch(t, w, pass, start, count);
            if (t->sums.status != STATUS_DONE) return;
        }
    }
}

static int open_workspace(Workspace *w, const Training *t) {
    memset(w, 0, sizeof *w);
    w->gradient = malloc((size_t)t->adam.num_parameters * sizeof(float));
    const Inputs *inputs = &t->rows.inputs;
    return !w->gradient || open_layers(&w->net, &t->shape, 1, !inputs->is_factored) ||
           open_factors(&w->factors, &w->net, inputs, 0, t->rows.num_rows, 1) ||
           (t->policy && open_scratch(&w->policy, w->net.size[w->net.num_layers], t->policy->num_parts));
}

static void close_workspace(Workspace *w) {
    close_scratch(&w->policy);
    close_factors(&w->factors);
    close_perceptron(&w->net);
    free(w->gradient);
}

static void train(Training *t) {
    Workspace workspaces[2];
    const int count = is_halved(t) ? 2 : 1;
    point_into(&t->shape, t->adam.vector);
    for (int i = 0; i < count; i++) {
        t->out_of_memory |= open_workspace(&workspaces[i], t);
        if (!t->out_of_memory) aim_gradients(&workspaces[i].net, workspaces[i].gradient);
    }
    if (!t->out_of_memory) run_passes(t, workspaces);
    for (int i = 0; i < count; i++) close_workspace(&workspaces[i]);
}
