"""PPO on CartPole in the way of PureJaxRL: two 64-64 tanh trunks, 4 epochs of 4 minibatches, one jit.

python benchmarks/gpu/jax_ppo_cartpole.py                                               16,384 environments × 32 steps
python benchmarks/gpu/jax_ppo_cartpole.py --num-envs 4 --rollout 128 --iterations 200
"""

from functools import partial

from gpu_program import Program, run
from jax_ppo import CART_POLE
from jax_training import train

PROGRAM = Program("jax_ppo_cartpole", "CartPole", 16_384, 32, num_iterations=100, learning_rate=2.5e-3, width=64)

if __name__ == "__main__":
    run(PROGRAM, __doc__, partial(train, game=CART_POLE))
