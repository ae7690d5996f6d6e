/* What is done with all parameters: clipping of the gradient's norm, Adam, soft updates, sums of gradients. */

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

ONE_COPY void step_parameters(const AdamStep *step, int64_t first, int64_t end) {
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

#define MIN_PARAMETERS_PER_THREAD 10000 /* that take longer than waking a thread */
#define CHUNK_PARAMETERS 1024
#define MAX_CHUNKS 1024

/* Parameters are cut into chunks of a size that depends on their number alone: sums over each are added in the chunks' order. */
static int64_t chunk_size(int64_t count) {
    const int64_t at_once = (int64_t)CHUNK_PARAMETERS * MAX_CHUNKS;
    return CHUNK_PARAMETERS * ((count + at_once - 1) / at_once);
}

static int num_chunks(int64_t count) { return count ? (int)((count - 1) / chunk_size(count)) + 1 : 0; }

/* What is done with each of `count` parameters, in whole chunks for each thread: it then has the same ones in its cache in every
 * pass over them. */
typedef struct {
    void (*do_range)(void *argument, int64_t first, int64_t end);
    void *argument;
    int64_t count;
    int num_threads;
} ParameterPass;

static void do_ranges(void *argument, Blocks *blocks) {
    const ParameterPass *pass = argument;
    const int64_t size = chunk_size(pass->count);
    for (int block; (block = next_block(blocks)) >= 0;) {
        const int64_t first = block_start(num_chunks(pass->count), block, pass->num_threads) * size;
        const int64_t end = block_start(num_chunks(pass->count), block + 1, pass->num_threads) * size;
        pass->do_range(pass->argument, first, end < pass->count ? end : pass->count);
    }
}

/* Where `times` numbers are read for each parameter. */
static void over_parameters_times(
    int times, void (*do_range)(void *, int64_t, int64_t), void *argument, int64_t count, int num_threads
) {
    const int useful = threads_worth(times * count, MIN_PARAMETERS_PER_THREAD, num_threads);
    ParameterPass pass = {do_range, argument, count, useful < num_chunks(count) ? useful : num_chunks(count)};
    parallel_for(pass.num_threads, do_ranges, &pass, pass.num_threads);
}

static void over_parameters(void (*do_range)(void *, int64_t, int64_t), void *argument, int64_t count, int num_threads) {
    over_parameters_times(1, do_range, argument, count, num_threads);
}

static void step_range(void *argument, int64_t first, int64_t end) { step_parameters(argument, first, end); }

typedef struct {
    const float *numbers;
    int64_t chunk_size;
    double *squares; /* of each chunk */
} Squares;

static void square_range(void *argument, int64_t first, int64_t end) {
    Squares *sums = argument;
    for (int64_t i = first; i < end; i += sums->chunk_size) {
        const int64_t count = end - i < sums->chunk_size ? end - i : sums->chunk_size;
        sums->squares[i / sums->chunk_size] = sum_of_squares(sums->numbers + i, count);
    }
}

static double norm_of(const float *numbers, int64_t count, int num_threads) {
    double squares[MAX_CHUNKS], sum = 0.0;
    Squares sums = {numbers, chunk_size(count), squares};
    over_parameters(square_range, &sums, count, num_threads);
    for (int i = 0; i < num_chunks(count); i++) sum += squares[i];
    return sqrt(sum);
}

/* θ ← θ − α m̂ / (√v̂ + ε), with m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²; gives the norm before clipping. */
static double adam_step(Adam *adam, const float *gradient, int num_threads) {
    AdamStep step = {.adam = adam, .gradient = gradient, .factor = 1.0f};
    const double norm = norm_of(gradient, adam->num_parameters, num_threads);
    adam->num_steps++;
    const double correction1 = 1.0 - pow(adam->beta1, (double)adam->num_steps);
    const double correction2 = 1.0 - pow(adam->beta2, (double)adam->num_steps);
    if (norm > adam->max_norm) step.factor = (float)(adam->max_norm / (norm + 1e-6));
    step.inverse = (float)(1.0 / sqrt(correction2));
    step.rate = (float)(adam->learning_rate / correction1);
    over_parameters(step_range, &step, adam->num_parameters, num_threads);
    return norm;
}

typedef struct {
    float *target;
    const float *source;
    float share;
} SoftUpdate;

static void update_range(void *argument, int64_t first, int64_t end) {
    const SoftUpdate *update = argument;
    for (int64_t i = first; i < end; i++) update->target[i] += update->share * (update->source[i] - update->target[i]);
}

/* target ← target + share (source − target) */
static void soft_update(float *target, const float *source, int64_t count, double share, int num_threads) {
    SoftUpdate update = {target, source, (float)share};
    over_parameters(update_range, &update, count, num_threads);
}

/* Gradients of blocks of rows, `stride` numbers apart. */
typedef struct {
    float *sum; /* begins as that of the first block */
    const float *others;
    int64_t stride;
    int num_others;
} BlockGradients;

static void add_range(void *argument, int64_t first, int64_t end) {
    const BlockGradients *all = argument;
    for (int64_t start = first; start < end; start += CHUNK_PARAMETERS) {
        const int64_t stop = end - start < CHUNK_PARAMETERS ? end : start + CHUNK_PARAMETERS;
        for (int b = 0; b < all->num_others; b++) {
            const float *other = all->others + b * all->stride;
            for (int64_t i = start; i < stop; i++) all->sum[i] += other[i];
        }
    }
}

/* Add the other blocks' gradients to the first one's, in their order. */
static void add_gradients(float *sum, const float *others, int num_others, int64_t stride, int64_t count, int num_threads) {
    BlockGradients all = {sum, others, stride, num_others};
    if (num_others) over_parameters_times(num_others, add_range, &all, count, num_threads);
}
