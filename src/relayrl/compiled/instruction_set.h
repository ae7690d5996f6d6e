/* Everything that is compiled once for each instruction set, in the order in which it builds up. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "thread_memory.h"
#include "thread_pool.h"
#include "vector_math.h"
#include "matrix_product.h"
#include "mlp.h"
#include "inputs.h"
#include "distributions.h"
#include "losses.h"
#include "acting.h"
#include "shared_batch.h"
#include "adam.h"
#include "training.h"
#include "tape.h"
#include "tape_passes.h"
#include "min_q.h"
#include "team_layout.h"
#include "team_attention.h"
#include "team_critic.h"

const Kernels KERNELS_SYMBOL = {
    KERNELS_NAME, freeze,     thaw,         refreeze,      forward,       forward_parts, act,   train,
    open_tape,    close_tape, forward_tapes, backward_tapes, regress_tapes, min_q, evaluate_teams,
    train_teams,  adam_step,  soft_update,
};
