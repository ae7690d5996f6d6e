/* Attention within teams, over those who are there, for the value and for the baselines, and its derivatives.
 *
 * Agent i attends by its query. For the value, to everybody's keys and values of what they observe. For its baseline, to its own of
 * what it observes, and to the others' of what they observe and do. A call is about one head of a vector of teams.
 */

/* Where numbers of agents lie, of which agent i's own are those of agent i itself, and all others' those of others. */
typedef struct {
    const float *own, *others; /* [D, N, T] */
} Entries;

typedef struct {
    int N, D;
    int64_t stride, T; /* between dimensions, and between agents */
    float scale;
    const float *query, *unseen;
    Entries keys, values;
} Head;

/* out[j] (+)= Σ x_d y_d[j] over DIMS dimensions, of x at agent i and the entries that it attends to. */
#define DEFINE_HEAD(DIMS)                                                                                              \
    static void dots_##DIMS(const Head *head, const float *x, Entries y, int i, int adds, float *out) {                \
        const int64_t T = head->T, stride = head->stride;                                                              \
        vec factor[DIMS];                                                                                              \
        _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) factor[d] = load(x + d * stride + i * T);               \
        for (int j = 0; j < head->N; j++) {                                                                            \
            const float *at = (i == j ? y.own : y.others) + j * T;                                                     \
            vec sum = adds ? load(out + j * T) : (vec){0};                                                             \
            _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) sum += factor[d] * load(at + d * stride);           \
            store(out + j * T, sum);                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    /* out_d (+)= Σ_j factor[j] y_d[j] over the entries that agent i attends to. */                                    \
    static void mix_##DIMS(const Head *head, const float *factor, Entries y, int i, int adds, float *out) {            \
        const int64_t T = head->T, stride = head->stride;                                                              \
        vec sum[DIMS];                                                                                                 \
        _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) {                                                       \
            sum[d] = adds ? load(out + d * stride + i * T) : (vec){0};                                                 \
        }                                                                                                              \
        for (int j = 0; j < head->N; j++) {                                                                            \
            const float *at = (i == j ? y.own : y.others) + j * T;                                                     \
            const vec weight = load(factor + j * T);                                                                   \
            _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) sum[d] += weight * load(at + d * stride);           \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) store(out + d * stride + i * T, sum[d]);                \
    }                                                                                                                  \
    /* out_d = Σ_i factor[i][j] x_d[i] for entry j; without what is agent j's own, where that is added to `own`. */    \
    static void gather_##DIMS(                                                                                         \
        const Head *head, const float *factor, int64_t row, const float *x, int j, float *own, float *out              \
    ) {                                                                                                                \
        const int64_t T = head->T, stride = head->stride;                                                              \
        vec sum[DIMS];                                                                                                 \
        _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) sum[d] = (vec){0};                                      \
        for (int i = 0; i < head->N; i++) {                                                                            \
            const vec weight = load(factor + i * row + j * T);                                                         \
            if (own && i == j) {                                                                                       \
                _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) {                                               \
                    const int64_t at = d * stride + j * T;                                                             \
                    store(own + at, load(own + at) + weight * load(x + at));                                           \
                }                                                                                                      \
                continue;                                                                                              \
            }                                                                                                          \
            _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) sum[d] += weight * load(x + d * stride + i * T);    \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int d = 0; d < DIMS; d++) store(out + d * stride + j * T, sum[d]);                \
    }

DEFINE_HEAD(8)
DEFINE_HEAD(1)

/* The same over all dimensions. */
static Entries entries_from(const Head *head, Entries y, int d) {
    return (Entries){y.own + d * head->stride, y.others + d * head->stride};
}

static void dots(const Head *head, const float *x, Entries y, int i, float *out) {
    int d = 0;
    for (; d + 8 <= head->D; d += 8) dots_8(head, x + d * head->stride, entries_from(head, y, d), i, d > 0, out);
    for (; d < head->D; d++) dots_1(head, x + d * head->stride, entries_from(head, y, d), i, d > 0, out);
}

static void mix(const Head *head, const float *factor, Entries y, int i, int adds, float *out) {
    int d = 0;
    for (; d + 8 <= head->D; d += 8) mix_8(head, factor, entries_from(head, y, d), i, adds, out + d * head->stride);
    for (; d < head->D; d++) mix_1(head, factor, entries_from(head, y, d), i, adds, out + d * head->stride);
}

static void gather(const Head *head, const float *factor, int64_t row, const float *x, int j, float *own, float *out) {
    int d = 0;
    for (; d + 8 <= head->D; d += 8) {
        const int64_t at = d * head->stride;
        gather_8(head, factor, row, x + at, j, own ? own + at : NULL, out + at);
    }
    for (; d < head->D; d++) {
        const int64_t at = d * head->stride;
        gather_1(head, factor, row, x + at, j, own ? own + at : NULL, out + at);
    }
}

/* Of scores, to those who are there. */
static void softmax_of_teams(const Head *head, float *scores) {
    const int64_t T = head->T;
    vec largest = splat(-INFINITY), sum = {0};
    for (int j = 0; j < head->N; j++) {
        const vec score = load(scores + j * T) * head->scale + load(head->unseen + j * T);
        store(scores + j * T, score);
        largest = larger(largest, score);
    }
    for (int j = 0; j < head->N; j++) {
        const vec share = vector_exp(load(scores + j * T) - largest);
        store(scores + j * T, share);
        sum += share;
    }
    const vec inverse = 1.0f / sum;
    for (int j = 0; j < head->N; j++) store(scores + j * T, load(scores + j * T) * inverse);
}

/* Head h of the teams from number `first` of a tile on. */
static Head head_of(const TeamNet *net, int T, int first, int is_baseline, int h) {
    const int64_t units = (int64_t)h * net->D * net->stride + first, part = net->S * net->stride;
    const float *own = net->own + units, *others = is_baseline ? net->others + units : own + part;
    return (Head){
        .N = net->N, .D = net->D, .stride = net->stride, .T = T, .scale = 1.0f / sqrtf((float)net->D), .query = own,
        .unseen = net->unseen + first, .keys = {own + part, others}, .values = {own + 2 * part, others + part},
    };
}

static float *weights_of(const TeamNet *net, int T, int first, int is_baseline, int h) {
    return net->weights[is_baseline] + (int64_t)h * net->N * net->N * T + first;
}

static void attend(TeamNet *net, int T, int first, int is_baseline, int h) {
    const Head head = head_of(net, T, first, is_baseline, h);
    float *weights = weights_of(net, T, first, is_baseline, h);
    float *out = net->attended[is_baseline] + (int64_t)h * net->D * net->stride + first;
    for (int i = 0; i < net->N; i++) {
        float *of_agent = weights + (int64_t)i * net->N * T;
        dots(&head, head.query, head.keys, i, of_agent);
        softmax_of_teams(&head, of_agent);
        mix(&head, of_agent, head.values, i, 0, out);
    }
}

/* From derivatives by what agents attended to, those by queries, keys and values: the value's first, to which the baselines' own are
 * added. */
static void attend_backward(TeamNet *net, int T, int first, int is_baseline, int h) {
    const Head head = head_of(net, T, first, is_baseline, h);
    const int64_t units = (int64_t)h * net->D * net->stride + first, part = net->S * net->stride, row = (int64_t)net->N * T;
    const float *by_out = net->by_attended[is_baseline] + units;
    float *weights = weights_of(net, T, first, is_baseline, h), *by_scores = net->by_scores;
    float *by_own = net->by_own + units, *by_others = is_baseline ? net->by_others + units : by_own + part;
    for (int i = 0; i < net->N; i++) {
        float *by = by_scores + i * row;
        const float *of_agent = weights + i * row;
        vec mean = {0};
        dots(&head, by_out, head.values, i, by);
        for (int j = 0; j < net->N; j++) mean += load(of_agent + j * T) * load(by + j * T);
        for (int j = 0; j < net->N; j++) {
            store(by + j * T, head.scale * load(of_agent + j * T) * (load(by + j * T) - mean));
        }
        mix(&head, by, head.keys, i, is_baseline, by_own);
    }
    for (int j = 0; j < net->N; j++) {
        gather(&head, by_scores, row, head.query, j, is_baseline ? by_own + part : NULL, by_others);
        gather(&head, weights, row, by_out, j, is_baseline ? by_own + 2 * part : NULL, by_others + part);
    }
}
