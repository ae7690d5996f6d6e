/* Passes over minibatches: forward, loss, backward, clipping of the gradient's norm, Adam. */

/* θ ← θ − α m̂ / (√v̂ + ε), with m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²; gives the norm before clipping. */
static double adam_step(Adam *adam, float *gradient) {
    double square = 0.0;
    for (int64_t i = 0; i < adam->num_parameters; i += 256) {
        const int64_t end = i + 256 < adam->num_parameters ? i + 256 : adam->num_parameters;
        vec part = {0};
        int64_t j = i;
        for (; j + LANES <= end; j += LANES) part += load(gradient + j) * load(gradient + j);
        float rest = total(part);
        for (; j < end; j++) rest += gradient[j] * gradient[j];
        square += rest;
    }
    const double norm = sqrt(square);
    const float factor = norm > adam->max_norm ? (float)(adam->max_norm / (norm + 1e-6)) : 1.0f;
    adam->num_steps++;
    const double correction1 = 1.0 - pow(adam->beta1, (double)adam->num_steps);
    const double correction2 = 1.0 - pow(adam->beta2, (double)adam->num_steps);
    const float inverse = (float)(1.0 / sqrt(correction2)), rate = (float)(adam->learning_rate / correction1);
    const float keep1 = (float)adam->beta1, new1 = (float)(1.0 - adam->beta1);
    const float keep2 = (float)adam->beta2, new2 = (float)(1.0 - adam->beta2), epsilon = (float)adam->epsilon;
    float *restrict theta = adam->vector, *restrict m = adam->first_moment, *restrict v = adam->second_moment;
    for (int64_t i = 0; i < adam->num_parameters; i++) {
        const float g = gradient[i] * factor;
        m[i] = keep1 * m[i] + new1 * g;
        v[i] = keep2 * v[i] + new2 * g * g;
        theta[i] -= rate * m[i] / (sqrtf(v[i]) * inverse + epsilon);
    }
    return norm;
}

static void point_into(Network *network, const float *vector) {
    for (int l = 0; l < network->num_layers; l++) {
        network->weight[l] = vector;
        vector += (int64_t)network->sizes[l] * network->sizes[l + 1];
        network->bias[l] = vector;
        vector += network->sizes[l + 1];
    }
}

static void begin_minibatch(Training *t, Perceptron *net, PolicyScratch *scratch) {
    read_parameters(net, &t->shape, 1);
    forget_gradients(net);
    if (!t->policy || t->policy->num_parts) return;
    const int outputs = net->size[net->num_layers];
    read_deviations(scratch, t->adam.vector + t->adam.num_parameters - outputs, t->policy->scale, outputs);
}

static void add_tile(
    Training *t, Perceptron *net, PolicyScratch *scratch, const int64_t *rows, int num_rows, float inverse_count,
    TileSums *sums
) {
    const int width = net->size[0], wide = net->wide[0];
    for (int r = 0; r < num_rows; r++) {
        memcpy(net->value[0] + (int64_t)r * wide, t->rows.features + rows[r] * width, (size_t)width * sizeof(float));
    }
    forward_tile(net, net->value[0], wide, num_rows);
    if (t->policy) policy_loss(t->policy, scratch, net, rows, num_rows, inverse_count, sums);
    else value_loss(t->value, net, rows, num_rows, inverse_count, sums);
    backward_tile(net, num_rows);
}

/* One gradient step; the status says whether there will be another. */
static int train_minibatch(
    Training *t, Perceptron *net, PolicyScratch *scratch, float *gradient, int64_t pass, int64_t start, int64_t count
) {
    TileSums sums = {0};
    int64_t rows[TILE_ROWS];
    begin_minibatch(t, net, scratch);
    for (int64_t first = 0; first < count; first += TILE_ROWS) {
        const int num_rows = (int)(count - first < TILE_ROWS ? count - first : TILE_ROWS);
        const int64_t at = start + first;
        for (int r = 0; r < num_rows; r++) rows[r] = t->rows.order ? t->rows.order[pass * t->rows.num_rows + at + r] : at + r;
        add_tile(t, net, scratch, rows, num_rows, 1.0f / (float)count, &sums);
    }
    const double loss = sums.loss / (double)count, kl = sums.kl / (double)count;
    if (t->policy && kl > t->policy->kl_limit) return STATUS_KL_EXCEEDED;
    if (!isfinite(loss)) {
        t->sums.bad_loss = loss;
        return STATUS_NOT_FINITE;
    }
    const int64_t written = write_gradients(net, gradient);
    if (written < t->adam.num_parameters) {
        memcpy(gradient + written, scratch->deviation_gradient, (size_t)(t->adam.num_parameters - written) * sizeof(float));
    }
    t->sums.gradient_norm += adam_step(&t->adam, gradient);
    t->sums.loss += loss;
    t->sums.kl += kl;
    t->sums.entropy += sums.entropy / (double)count;
    t->sums.clip_fraction += sums.clipped / (double)count;
    t->sums.num_steps++;
    return STATUS_DONE;
}

static void run_passes(Training *t, Perceptron *net, PolicyScratch *scratch, float *gradient) {
    for (int64_t pass = 0; pass < t->rows.num_passes; pass++) {
        for (int64_t start = 0; start < t->rows.num_rows; start += t->rows.minibatch_rows) {
            const int64_t left = t->rows.num_rows - start;
            const int64_t count = left < t->rows.minibatch_rows ? left : t->rows.minibatch_rows;
            t->sums.status = train_minibatch(t, net, scratch, gradient, pass, start, count);
            if (t->sums.status != STATUS_DONE) return;
        }
    }
}

static void train(Training *t) {
    Perceptron net;
    PolicyScratch scratch = {0};
    point_into(&t->shape, t->adam.vector);
    float *gradient = malloc((size_t)t->adam.num_parameters * sizeof(float));
    t->out_of_memory = !gradient || open_perceptron(&net, &t->shape, 1);
    if (t->out_of_memory) {
        free(gradient);
        return;
    }
    if (t->policy) t->out_of_memory = open_scratch(&scratch, net.size[net.num_layers], t->policy->num_parts);
    if (!t->out_of_memory) run_passes(t, &net, &scratch, gradient);
    close_scratch(&scratch);
    close_perceptron(&net);
    free(gradient);
}
