/* What passes between the Python binding and the kernels: plain structs, no vector types.
 *
 * Matrices are row-major. A mlp's parameters are those of torch's linear layers, weight [out, in] before bias [out].
 */
#ifndef RELAYRL_KERNELS_H
#define RELAYRL_KERNELS_H

#include <stdint.h>

#include "thread_pool.h"

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

#define MAX_ROW_BLOCKS 16
#define ROWS_PER_BLOCK 512                    /* at least: they take far longer than a thread's preparations */
#define MAX_BLOCK_PARAMETERS ((int64_t)1 << 24) /* of all blocks' gradients together, where there are more than two */

/* Blocks of rows whose gradients are added up apart, where there are two or more. It depends on nothing but the shape, so that
 * the sums are the same with any number of threads. */
static inline int num_gradient_blocks(int64_t num_rows, int64_t num_parameters) {
    int64_t count = num_rows / ROWS_PER_BLOCK, limit = MAX_BLOCK_PARAMETERS / (num_parameters + 1);
    limit = limit < MAX_ROW_BLOCKS ? limit : MAX_ROW_BLOCKS;
    count = count < limit ? count : limit;
    count = count < 2 ? 2 : count;
    return (int)(count < num_rows ? count : num_rows);
}

enum { STATUS_DONE = 0, STATUS_KL_EXCEEDED = 1, STATUS_NOT_FINITE = 2, STATUS_OUT_OF_MEMORY = 3 };

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
    int num_threads; /* that blocks of a minibatch may have */
    int out_of_memory;
} Training;


#define MIN_BLOCKED_ROWS 1024 /* of a minibatch whose blocks take far longer than to give one away */

/* Whether minibatches are in blocks. Factored inputs are not: each block would multiply all lines. */
static inline int is_blocked(const Training *t) {
    return t->rows.minibatch_rows >= MIN_BLOCKED_ROWS && !t->rows.inputs.is_factored;
}

/* Threads that a minibatch which is not in blocks is worth, with `MIN_PRODUCTS_PER_SHARE` multiplications of a forward pass each:
 * with both passes, far longer than to wait for each other five times. */
#define MIN_PRODUCTS_PER_SHARE 1000000

static inline int shares_of(const Training *t, int64_t count) {
    if (is_blocked(t) || t->rows.inputs.is_factored) return 1;
    const int num_threads = threads_that_wait(t->num_threads);
    return threads_worth(count * num_parameters(&t->shape), MIN_PRODUCTS_PER_SHARE, num_threads);
}

/* Whether all threads can take part in a minibatch. */
static inline int is_shareable(const Training *t) {
    const int64_t count = t->rows.minibatch_rows < t->rows.num_rows ? t->rows.minibatch_rows : t->rows.num_rows;
    return is_blocked(t) || shares_of(t, count) > 1;
}

static inline int num_row_blocks(const Training *t, int64_t count) {
    return is_blocked(t) ? num_gradient_blocks(count, t->adam.num_parameters) : 1;
}

typedef struct Frozen Frozen; /* a mlp that has taken its parameters over, see acting.h; one caller at a time */

#define FEW_ROWS 2 /* whose outputs are there before the parameters would have been taken over */

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
    int is_shared;                         /* whether other threads act with `frozen` at the same time */
} Acting;

typedef struct Tape Tape; /* a mlp with what its backward pass needs, see tape.h */

#define MAX_TAPES 16

/* A tape's part of a pass over several: forward, backward, or both, of a regression in which outputs should be `target`. */
typedef struct {
    Tape *tape;
    int64_t num_rows;
    const float *in;      /* inputs, or derivatives by the outputs */
    float *out;           /* outputs, but of a backward pass */
    float *flat;          /* gradients of all parameters, but of a forward pass */
    const Inputs *inputs; /* of a regression, as below */
    const float *target, *share; /* `share` weighs each output in the loss */
    double loss;                 /* Σ ½ share (out − target)² */
} TapePart;

#define MAX_CRITICS 16

/* Numbers of each row's own: they replace those of its inputs in the columns from first[r] on. */
typedef struct {
    const float *numbers; /* [M, width] */
    const int64_t *first; /* [M] */
    int width;
} OwnColumns;

/* Networks with one output that see the same rows. */
typedef struct {
    const Network *networks[MAX_CRITICS];
    int num_networks;
    int64_t num_rows;
    const Inputs *inputs;
    OwnColumns own;
    const float *share;     /* [M] */
    float *minimum, *by_own; /* [M], and the derivatives of Σ share · minimum by `own` */
} MinQ;

#define MAX_AGENTS 144        /* of a team: what its attention weighs still has room */
#define MAX_ATTENTION 1024    /* units */

/* The critic of a team, see team_critic.h: teams of up to N agents, of which `chosen` are looked at. */
typedef struct {
    int num_features, num_actions, attention_size, num_heads, num_agents;
    Network estimate; /* the shape of what lies behind the attention */
    const float *vector; /* parameters in torch's order */
    int64_t num_parameters, num_teams;
    const float *features, *actions; /* [num_teams, N, F], [num_teams, N, A] */
    const uint8_t *present;          /* [num_teams, N] */
    const int64_t *chosen;           /* [num_chosen] numbers of teams; NULL: all */
    int64_t num_chosen;
    float *value, *baseline; /* [num_teams], [num_teams, N]: where they go, unless there is a gradient */
    float *gradient;         /* [num_parameters] of value loss + weight · baseline loss, means over teams and agents */
    const float *target, *old_value, *old_baseline; /* [num_teams], [num_teams], [num_teams, N] */
    double clip, baseline_weight;                   /* clip negative: no clipping */
    double value_loss, baseline_loss;               /* sums */
    int64_t num_there;                              /* agents over which the second is summed */
} Teams;

/* Passes over minibatches of teams: pass p trains on order[p * num_teams …], cut into pieces of minibatch_teams. */
typedef struct {
    Teams teams;
    Adam adam;
    const int64_t *order; /* NULL: teams as they are, all of them in a minibatch */
    int64_t num_passes, minibatch_teams;
    int num_threads;
    double value_loss, baseline_loss, gradient_norm; /* sums over gradient steps */
    int64_t num_steps;
    double bad_loss;
    int out_of_memory;
} TeamTraining;

/* The kernels of one instruction set. */
typedef struct {
    const char *name;
    Frozen *(*freeze)(const Network *network); /* NULL: out of memory */
    void (*thaw)(Frozen *frozen);
    void (*refreeze)(Frozen *frozen, const Network *network); /* take the parameters over as they are now */
    int (*forward)(const Network *network, Frozen *frozen, const float *x, int64_t num_rows, float *out); /* -1: out of memory */
    int (*forward_parts)(const Network *network, const Inputs *inputs, int64_t first, int64_t end, float *out);
    int (*act)(const Acting *acting, int num_threads);
    void (*train)(Training *training);
    Tape *(*open_tape)(const Network *network, int is_kept); /* NULL: out of memory */
    void (*close_tape)(Tape *tape);
    int (*forward_tapes)(TapePart *parts, int num_parts, int num_threads); /* -1: out of memory, as below */
    int (*backward_tapes)(TapePart *parts, int num_parts, int num_threads);
    int (*regress_tapes)(TapePart *parts, int num_parts, int num_threads);
    int (*min_q)(const MinQ *query, int num_threads);
    int (*evaluate_teams)(Teams *teams, int num_threads);
    void (*train_teams)(TeamTraining *training);
    double (*adam_step)(Adam *adam, const float *gradient, int num_threads);
    void (*soft_update)(float *target, const float *source, int64_t count, double share, int num_threads);
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
