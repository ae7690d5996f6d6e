"""IPPO on simple_spread in the way of JaxMARL: three agents share two 64-64 tanh trunks, 4 epochs of 4 minibatches, one jit."""

from functools import partial

from gpu_program import Program, run
from jax_spread import SPREAD
from jax_training import train

PROGRAM = Program("jax_ippo_spread", "simple_spread", 4_096, 128, num_iterations=40, learning_rate=2.5e-3, width=64)

if __name__ == "__main__":
    run(PROGRAM, __doc__, partial(train, game=SPREAD))
