/* What passes between the Python binding and the kernels: plain structs, no vector types.
 *
 * Matrices are row-major. A perceptron's parameters are those of torch's linear layers, weight [out, in] before bias [out].
 */
#ifndef RELAYRL_KERNELS_H
#define RELAYRL_KERNELS_H

#include <stdint.h>

#define MAX_LAYERS 16
#define MAX_WIDTH (1 << 20) /* of a layer: products of two of them are far from overflowing */
#define MAX_PARTS 64
#define MAX_INPUT_PARTS 4

typedef struct {
    int num_layers;
    int sizes[MAX_LAYERS + 1]; /* from input to output */
    int is_tanh;               /* else relu */
    const float *weight[MAX_LAYERS];
    const float *bias[MAX_LAYERS];
} Network;

static inline int64_t num_parameters(const Network *n) {
    int64_t count = 0;
    for (int l = 0; l < n->num_layers; l++) count += (int64_t)(n->sizes[l] + 1) * n->sizes[l + 1];
    return count;
}

/* Adam's state over the flat vector of a network's parameters, with log deviations behind them where there are any. */
typedef struct {
    float *vector, *first_moment, *second_moment;
    int64_t num_parameters, num_steps;
    double learning_rate, beta1, beta2, epsilon;
    double max_norm; /* infinity: no clipping */
} Adam;

/* A part of every row's inputs: row r has the line line[r] of a table, or line r where `line` is NULL. */
typedef struct {
    const float *table; /* [num_lines, width] */
    int64_t num_lines;
    int width;
    const int64_t *line;
} InputPart;

/* What goes into a network: its parts side by side. Factored, the first layer multiplies each line once, see inputs.h. */
typedef struct {
    InputPart parts[MAX_INPUT_PARTS];
    int num_parts, is_factored;
} Inputs;

/* Rows of all minibatches: pass p trains on order[p * num_rows …], cut into pieces of minibatch_rows. */
typedef struct {
    Inputs inputs;
    int64_t num_rows, num_passes, minibatch_rows;
    const int64_t *order; /* NULL: rows as they are */
} Rows;

enum { STATUS_DONE = 0, STATUS_KL_EXCEEDED = 1, STATUS_NOT_FINITE = 2 };

typedef struct {
    double loss, kl, entropy, clip_fraction, gradient_norm; /* sums over gradient steps */
    int64_t num_steps;
    int status;
    double bad_loss;
} Sums;

typedef struct {
    int is_surrogate; /* else the plain log-likelihood */
    double clip_ratio, entropy_coef, kl_limit;
    int num_parts, part_size[MAX_PARTS]; /* categorical choices; no part: a normal distribution */
    const int64_t *choice;               /* [M, num_parts], from 0 */
    const uint8_t *mask;                 /* [M, outputs], or NULL */
    const float *action;                 /* [M, outputs] of a normal distribution */
    const float *scale, *center;         /* [outputs] of a normal distribution */
    const float *logp, *advantage;       /* [M] */
} PolicyLoss;

typedef struct {
    double clip; /* negative: no clipping */
    const float *target, *old_value;
} ValueLoss;

typedef struct {
    Network shape; /* pointers are set by the trainer, into adam.vector */
    Adam adam;
    Rows rows;
    PolicyLoss *policy; /* exactly one of the two */
    ValueLoss *value;
    Sums sums;
    int num_threads; /* that halves of minibatches may have */
    int out_of_memory;
} Training;

#define MIN_HALVED_ROWS 1024 /* of a minibatch whose halves take far longer than to give one away */

/* Whether minibatches are in halves. Factored inputs are not: each half would multiply all lines. */
static inline int is_halved(const Training *t) {
    return t->rows.minibatch_rows >= MIN_HALVED_ROWS && !t->rows.inputs.is_factored;
}

typedef struct Frozen Frozen; /* a perceptron that has taken its parameters over for good, see acting.h; one caller at a time */

typedef struct {
    const Network *network;
    Frozen *frozen; /* NULL: the parameters as they are now */
    const float *x; /* [M, in] */
    int64_t num_rows;
    int num_parts, part_size[MAX_PARTS]; /* as in PolicyLoss */
    const float *draws;                  /* [num_parts, M] uniform in [0, 1), or [M, outputs] standard normal */
    const uint8_t *mask;
    const float *log_std, *scale, *center; /* [outputs] of a normal distribution */
    int64_t *choice;                       /* [M, num_parts] */
    float *action;                         /* [M, outputs] of a normal distribution */
    float *logp;                           /* [M], or NULL */
} Acting;

typedef struct Tape Tape; /* a perceptron with what its backward pass needs, see tape.h */

/* How a pass goes over the rows of a tape; the first two give the same numbers, the third others in their last digits. */
typedef enum { HALVES_SIDE_BY_SIDE, HALVES_IN_TURN, WHOLE } Cut;

/* Rows whose outputs should be `target`; `share` weighs each output in the loss. */
typedef struct {
    int64_t num_rows;
    const Inputs *inputs;
    const float *target, *share;
    float *out;
    double loss; /* Σ ½ share (out − target)² */
} Regression;

#define MAX_JUDGES 16

/* Numbers of each row's own: they replace those of its inputs in the columns from first[r] on. */
typedef struct {
    const float *numbers; /* [M, width] */
    const int64_t *first; /* [M] */
    int width;
} OwnColumns;

/* Networks with one output that see the same rows. */
typedef struct {
    const Network *networks[MAX_JUDGES];
    int num_networks;
    int64_t num_rows;
    const Inputs *inputs;
    OwnColumns own;
    const float *share;     /* [M] */
    float *lowest, *by_own; /* [M], and the derivatives of Σ share · lowest by `own` */
} Judging;

/* The kernels of one instruction set. */
typedef struct {
    const char *name;
    Frozen *(*freeze)(const Network *network); /* NULL: out of memory */
    void (*thaw)(Frozen *frozen);
    int (*forward)(const Network *network, Frozen *frozen, const float *x, int64_t num_rows, float *out); /* -1: out of memory */
    int (*forward_parts)(const Network *network, const Inputs *inputs, int64_t first, int64_t end, float *out);
    int (*act)(const Acting *acting, int num_threads);
    void (*train)(Training *training);
    Tape *(*open_tape)(const Network *network, int is_kept); /* NULL: out of memory */
    void (*close_tape)(Tape *tape);
    int (*tape_forward)(Tape *tape, const float *x, int64_t num_rows, float *out, Cut cut); /* -1: out of memory, as below */
    int (*tape_backward)(Tape *tape, const float *gradient, float *flat, Cut cut);
    int (*tape_regress)(Tape *tape, Regression *rows, float *flat, Cut cut);
    int (*judge)(const Judging *judging, int num_threads);
    double (*adam_step)(Adam *adam, const float *gradient, int num_threads);
    void (*follow)(float *target, const float *source, int64_t count, double share, int num_threads);
} Kernels;

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels;
#endif

void generalised_advantages(
    int64_t T, int64_t L, const float *reward, const float *value, const float *next_value, const uint8_t *terminated,
    const uint8_t *truncated, double gamma, double lam, float *advantage
);

#endif
