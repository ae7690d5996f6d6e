/* Attention within teams, over those who are there, for the value and for the baselines, and its derivatives.
 *
 * Agent i attends by its query. For the value, to everybody's keys and values of what they observe. For its baseline, to its own of
 * what it observes, and to the others' of what they observe and do: there, agent i's own entry replaces the other's.
 */

INLINE float lane_sum(vec x) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    return total(x);
#endif
}

static float dot(const float *a, const float *b, int wide) {
    vec sum = {0};
    for (int d = 0; d < wide; d += LANES) sum += load(a + d) * load(b + d);
    return lane_sum(sum);
}

static void add_scaled(float *to, float factor, const float *from, int64_t wide) {
    for (int64_t d = 0; d < wide; d += LANES) store(to + d, load(to + d) + factor * load(from + d));
}

/* The agents of a team that are attended to: those who are there, or all where nobody is, whom nobody asks. */
static int seen_agents(const uint8_t *present, int N, int *seen) {
    int count = 0;
    for (int j = 0; j < N; j++) {
        if (present[j]) seen[count++] = j;
    }
    for (int j = 0; !count && j < N; j++) seen[j] = j;
    return count ? count : N;
}

/* A head of a team: S agents are seen. Numbers of agent j lie at `…[j * stride]`. */
typedef struct {
    const int *seen;
    int S, D, wide, score_wide;
    int64_t own_stride, stride;
    const float *query, *own_key, *own_value; /* of what agents observe */
    const float *key, *value;                 /* of what is attended to */
    float *columns;                           /* [D, score wide] room for numbers of all who are seen */
} Head;

/* Keys or values of those seen as columns, so that one product gives all scores of an agent. */
static void read_columns(const Head *head, const float *numbers) {
    for (int s = 0; s < head->S; s++) {
        const float *from = numbers + head->seen[s] * head->stride;
        for (int d = 0; d < head->D; d++) head->columns[d * head->score_wide + s] = from[d];
    }
}

/* Dot products of `x` with all columns. */
static void times_columns(const Head *head, const float *x, float *out) {
    for (int j = 0; j < head->score_wide; j += LANES) {
        vec sum = {0};
        for (int d = 0; d < head->D; d++) sum += x[d] * load(head->columns + d * head->score_wide + j);
        store(out + j, sum);
    }
}

/* out += Σ factors[k · step] numbers[rows[k]], in rows `stride` apart; NULL: row k. */
INLINE void add_sum(
    float *out, int wide, const float *factors, int64_t step, int count, const float *numbers, const int *rows, int64_t stride
) {
    for (int d = 0; d < wide; d += LANES) {
        vec sum = load(out + d), second = {0};
        int k = 0;
        for (; k + 1 < count; k += 2) {
            sum += factors[k * step] * load(numbers + (rows ? rows[k] : k) * stride + d);
            second += factors[(k + 1) * step] * load(numbers + (rows ? rows[k + 1] : k + 1) * stride + d);
        }
        if (k < count) sum += factors[k * step] * load(numbers + (rows ? rows[k] : k) * stride + d);
        store(out + d, sum + second);
    }
}

static void softmax(float *scores, int count, int wide) {
    float largest = scores[0];
    for (int j = 1; j < count; j++) largest = scores[j] > largest ? scores[j] : largest;
    for (int j = count; j < wide; j++) scores[j] = -INFINITY;
    vec sum = {0};
    for (int j = 0; j < wide; j += LANES) {
        const vec share = vector_exp(load(scores + j) - largest);
        store(scores + j, share);
        sum += share;
    }
    const float inverse = 1.0f / lane_sum(sum);
    for (int j = 0; j < wide; j += LANES) store(scores + j, load(scores + j) * inverse);
}

static Head head_of(TeamNet *net, int64_t first, const int *seen, int count, int is_baseline, int h) {
    const int heads = net->heads_wide;
    const int64_t at = first * 3 * heads + h * net->head_wide, other = first * 2 * heads + h * net->head_wide;
    const float *key = is_baseline ? net->others + other : net->own + at + heads;
    return (Head){
        .seen = seen, .S = count, .D = net->D, .wide = net->head_wide, .score_wide = net->score_wide, .own_stride = 3 * heads,
        .stride = is_baseline ? 2 * heads : 3 * heads, .query = net->own + at, .own_key = net->own + at + heads,
        .own_value = net->own + at + 2 * heads, .key = key, .value = key + heads, .columns = net->columns,
    };
}

/* Of rows [first, first + N) of a team: the weights of those seen, and what agents attended to. */
static void attend(TeamNet *net, int64_t first, const uint8_t *present, int is_baseline, float *attended) {
    int seen[TILE_ROWS];
    const int N = net->N, count = seen_agents(present, N, seen), scores = net->score_wide;
    for (int h = 0; h < net->H; h++) {
        const Head head = head_of(net, first, seen, count, is_baseline, h);
        read_columns(&head, head.key);
        for (int i = 0, s = 0; i < N; i++) {
            const int is_seen = s < count && seen[s] == i, at = s; /* who is absent attends to the others alone */
            const int64_t own = i * head.own_stride;
            float *weights = net->weights[is_baseline] + ((first + i) * net->H + h) * scores;
            float *out = attended + (first + i) * net->heads_wide + h * head.wide;
            s += is_seen;
            times_columns(&head, head.query + own, weights);
            if (is_baseline && is_seen) weights[at] = dot(head.query + own, head.own_key + own, head.wide);
            softmax(weights, count, scores);
            memset(out, 0, (size_t)head.wide * sizeof(float));
            add_sum(out, head.wide, weights, 1, count, head.value, seen, head.stride);
            if (!is_baseline || !is_seen) continue;
            const float *other = head.value + i * head.stride;
            for (int d = 0; d < head.wide; d += LANES) {
                store(out + d, load(out + d) + weights[at] * (load(head.own_value + own + d) - load(other + d)));
            }
        }
    }
}

/* Derivatives by the scores, [N, H, score wide] in place of the weights' derivatives, and by queries. */
static void scores_backward(TeamNet *net, const Head *head, int64_t first, int h, int is_baseline, const float *by_attended) {
    const int scores = net->score_wide;
    for (int s = 0; s < head->S; s++) {
        const int64_t i = head->seen[s], own = i * head->own_stride, row = ((first + i) * net->H + h) * scores;
        const float *weights = net->weights[is_baseline] + row;
        const float *by_out = by_attended + (first + i) * net->heads_wide + h * head->wide;
        float *by_scores = net->by_scores + row, *by_query = net->by_own + first * 3 * net->heads_wide + h * head->wide + own;
        times_columns(head, by_out, by_scores);
        if (is_baseline) by_scores[s] = dot(by_out, head->own_value + own, head->wide);
        vec sum = {0};
        for (int j = 0; j < scores; j += LANES) sum += load(weights + j) * load(by_scores + j);
        const float mean = lane_sum(sum);
        for (int j = 0; j < scores; j += LANES) {
            store(by_scores + j, load(weights + j) * (load(by_scores + j) - mean));
        }
        add_sum(by_query, head->wide, by_scores, 1, head->S, head->key, head->seen, head->stride);
        if (!is_baseline) continue;
        const float *other = head->key + i * head->stride;
        for (int d = 0; d < head->wide; d += LANES) {
            const vec exchanged = load(head->own_key + own + d) - load(other + d);
            store(by_query + d, load(by_query + d) + by_scores[s] * exchanged);
        }
    }
}

/* The same by keys and values; of a baseline, what is agent i's own is taken from the others' and given to its own. */
static void entries_backward(TeamNet *net, const Head *head, int64_t first, int h, int is_baseline, const float *by_attended) {
    const int heads = net->heads_wide, scores = net->score_wide;
    const int64_t step = (int64_t)net->H * scores;
    const float *weights = net->weights[is_baseline] + (first * net->H + h) * scores;
    const float *by_scores = net->by_scores + (first * net->H + h) * scores, *by_out = by_attended + first * heads + h * head->wide;
    float *by_own = net->by_own + first * 3 * heads + heads + h * head->wide;
    float *by_key = is_baseline ? net->by_others + first * 2 * heads + h * head->wide : by_own;
    for (int s = 0; s < head->S; s++) {
        const int64_t j = head->seen[s];
        float of_scores[TILE_ROWS], of_weights[TILE_ROWS];
        for (int k = 0; k < head->S; k++) {
            const int is_kept = !is_baseline || k != s;
            of_scores[k] = is_kept ? by_scores[head->seen[k] * step + s] : 0.0f;
            of_weights[k] = is_kept ? weights[head->seen[k] * step + s] : 0.0f;
        }
        add_sum(by_key + j * head->stride, head->wide, of_scores, 1, head->S, head->query, head->seen, head->own_stride);
        add_sum(by_key + j * head->stride + heads, head->wide, of_weights, 1, head->S, by_out, head->seen, heads);
        if (!is_baseline) continue;
        add_scaled(by_own + j * head->own_stride, by_scores[j * step + s], head->query + j * head->own_stride, head->wide);
        add_scaled(by_own + j * head->own_stride + heads, weights[j * step + s], by_out + j * heads, head->wide);
    }
}

/* Derivatives by queries, keys and values, added to those that are there. */
static void attend_backward(TeamNet *net, int64_t first, const uint8_t *present, int is_baseline, const float *by_attended) {
    int seen[TILE_ROWS];
    const int count = seen_agents(present, net->N, seen);
    for (int h = 0; h < net->H; h++) {
        const Head head = head_of(net, first, seen, count, is_baseline, h);
        read_columns(&head, head.value);
        scores_backward(net, &head, first, h, is_baseline, by_attended);
        entries_backward(net, &head, first, h, is_baseline, by_attended);
    }
}
