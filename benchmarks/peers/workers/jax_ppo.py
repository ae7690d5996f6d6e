"""PPO on CartPole as one compiled JAX program, in the way of PureJaxRL.

Compiling is timed apart. With one thread the process keeps to one core, as XLA has no other way to be held to it.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cart_pole_equations import MAX_STEPS, START_RANGE, advance, has_fallen
from jax_training import Game, Key, forward, train
from measuring import greedy_return, peak_mib, report
from work import LEARNING_RATE, task_from_command_line


class Carts(NamedTuple):
    """Motion [B, 4] and the length of each episode so far [B]."""

    motion: jax.Array
    length: jax.Array


def begin(key: Key, num_envs: int) -> Carts:
    motion = jax.random.uniform(key, (num_envs, 4), minval=-START_RANGE, maxval=START_RANGE)
    return Carts(motion, jnp.zeros(num_envs, jnp.int32))


def step(carts: Carts, action: jax.Array) -> tuple[Carts, jax.Array, jax.Array]:
    carts = Carts(advance(jnp, carts.motion, action), carts.length + 1)
    return carts, jnp.ones(len(action)), has_fallen(jnp, carts.motion) | (carts.length >= MAX_STEPS)


CART_POLE = Game(1, 4, 2, begin, lambda carts: carts.motion, step)


def main() -> None:
    task = task_from_command_line()
    if task.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = task.ppo
    key = jax.random.PRNGKey(task.seed)
    num_iterations = task.num_steps // work.batch
    program: Any = jax.jit(
        partial(train, game=CART_POLE, work=work, num_iterations=num_iterations, learning_rate=LEARNING_RATE)
    )
    before = time.perf_counter()
    compiled = program.lower(key).compile()
    compile_seconds = time.perf_counter() - before
    before = time.perf_counter()
    (actor, _), _ = jax.block_until_ready(compiled(key))
    seconds = time.perf_counter() - before
    layers = [(np.asarray(weight), np.asarray(bias)) for weight, bias in actor]
    figures = {
        "env_steps_per_s": task.num_steps / seconds,
        "timed_steps": task.num_steps,
        "timed_seconds": seconds,
        "compile_seconds": compile_seconds,
        "training_peak_mib": peak_mib(),
    }
    mean_return = greedy_return(work.env, lambda observation: int(forward(layers, observation, np).argmax()))
    report(jax.__version__, figures, mean_return=mean_return, return_kind="greedy")


if __name__ == "__main__":
    main()
