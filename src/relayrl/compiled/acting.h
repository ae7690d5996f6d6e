/* Forward passes without gradients, and actions drawn from them. */

struct Frozen {
    Perceptron net;
};

static int open_with_parameters(Perceptron *net, const Network *network) {
    if (open_perceptron(net, network, 0)) return -1;
    read_parameters(net, network, 0);
    return 0;
}

static Frozen *freeze(const Network *network) {
    Frozen *frozen = malloc(sizeof *frozen);
    if (frozen && open_with_parameters(&frozen->net, network)) {
        free(frozen);
        return NULL;
    }
    return frozen;
}

static void thaw(Frozen *frozen) {
    close_perceptron(&frozen->net);
    free(frozen);
}

static int forward(const Network *network, Frozen *frozen, const float *x, int64_t num_rows, float *out) {
    Perceptron own, *net = frozen ? &frozen->net : &own;
    if (!frozen && open_with_parameters(&own, network)) return -1;
    const int width = net->size[0], outputs = net->size[net->num_layers], wide = net->wide[net->num_layers];
    for (int64_t first = 0; first < num_rows; first += TILE_ROWS) {
        const int count = (int)(num_rows - first < TILE_ROWS ? num_rows - first : TILE_ROWS);
        forward_tile(net, x + first * width, width, count);
        for (int r = 0; r < count; r++) {
            memcpy(out + (first + r) * outputs, net->value[net->num_layers] + (int64_t)r * wide, (size_t)outputs * sizeof(float));
        }
    }
    if (!frozen) close_perceptron(&own);
    return 0;
}

/* Choices of a tile. A draw from (0, total], compared strictly: neither rounding nor a draw of zero picks a masked one. */
static void choose_tile(const Acting *a, PolicyScratch *s, int outputs, int64_t first_row, int num_rows) {
    if (a->mask) {
        for (int r = 0; r < num_rows; r++) forbid(s->logits, a->mask + (first_row + r) * outputs, outputs, r);
    }
    memset(s->logp, 0, sizeof s->logp);
    int first = 0;
    for (int part = 0; part < a->num_parts; part++) {
        const int size = a->part_size[part];
        const float *logits = s->logits + (int64_t)first * TILE_ROWS, *p = s->probability + (int64_t)first * TILE_ROWS;
        log_softmax(s->logits + (int64_t)first * TILE_ROWS, s->probability + (int64_t)first * TILE_ROWS, size, num_rows);
        for (int r = 0; r < num_rows; r++) {
            const int64_t row = first_row + r;
            float sum = 0.0f, cumulative = 0.0f;
            for (int i = 0; i < size; i++) sum += p[i * TILE_ROWS + r];
            const float bound = (1.0f - a->draws[part * a->num_rows + row]) * sum;
            int64_t choice = 0;
            for (int i = 0; i < size; i++) {
                cumulative += p[i * TILE_ROWS + r];
                choice += cumulative < bound;
            }
            if (choice == size) choice = size - 1; /* where the probabilities are not numbers */
            a->choice[row * a->num_parts + part] = choice;
            s->logp[r] += logits[choice * TILE_ROWS + r];
        }
        first += size;
    }
}

static void draw_normal_tile(const Acting *a, PolicyScratch *s, int outputs, int64_t first_row, int num_rows) {
    for (int r = 0; r < num_rows; r++) {
        const int64_t row = first_row + r;
        s->logp[r] = (float)(-s->log_deviation_sum - 0.5 * 1.8378770664093453 * outputs);
        for (int i = 0; i < outputs; i++) {
            const float noise = a->draws[row * outputs + i], mean = s->logits[i * TILE_ROWS + r] * a->scale[i] + a->center[i];
            a->action[row * outputs + i] = mean + noise / s->inverse_deviation[i];
            s->logp[r] -= 0.5f * noise * noise;
        }
    }
}

static int act(const Acting *a) {
    Perceptron own, *net = a->frozen ? &a->frozen->net : &own;
    PolicyScratch scratch = {0};
    if (!a->frozen && open_with_parameters(&own, a->network)) return -1;
    const int width = net->size[0], outputs = net->size[net->num_layers], wide = net->wide[net->num_layers];
    if (open_scratch(&scratch, outputs, a->num_parts)) {
        if (!a->frozen) close_perceptron(&own);
        return -1;
    }
    if (!a->num_parts) read_deviations(&scratch, a->log_std, a->scale, outputs);
    for (int64_t first = 0; first < a->num_rows; first += TILE_ROWS) {
        const int count = (int)(a->num_rows - first < TILE_ROWS ? a->num_rows - first : TILE_ROWS);
        forward_tile(net, a->x + first * width, width, count);
        to_columns(scratch.logits, net->value[net->num_layers], wide, outputs, count);
        if (a->num_parts) choose_tile(a, &scratch, outputs, first, count);
        else draw_normal_tile(a, &scratch, outputs, first, count);
        if (a->logp) memcpy(a->logp + first, scratch.logp, (size_t)count * sizeof(float));
    }
    close_scratch(&scratch);
    if (!a->frozen) close_perceptron(&own);
    return 0;
}
