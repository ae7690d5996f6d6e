"""PPO on CartPole as one compiled JAX program: environments, acting, advantages and updates of the whole run inside one jit.

The way of PureJaxRL, written for this comparison. Compiling is timed apart. With one thread the process keeps to one core, as
XLA has no other way to be held to it.
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
from jax import lax
from measuring import greedy_return, peak_mib, report
from work import (
    ADAM_EPSILON,
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE,
    PpoWork,
    task_from_command_line,
)

NUM_OBSERVATIONS, NUM_ACTIONS = 4, 2
Params = Any
Key = jax.Array


class Worlds(NamedTuple):
    """The environments of a run: states [B, 4] and the length of each episode so far [B]."""

    state: jax.Array
    length: jax.Array


class Row(NamedTuple):
    """What is kept of a step, over T and B; flattened for minibatches."""

    observation: jax.Array
    action: jax.Array
    logp: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array


class Adam(NamedTuple):
    """Moments of the optimiser and the number of its steps."""

    first: Params
    second: Params
    count: jax.Array


def start_states(key: Key, num_envs: int) -> jax.Array:
    return jax.random.uniform(key, (num_envs, NUM_OBSERVATIONS), minval=-START_RANGE, maxval=START_RANGE)


def step_envs(envs: Worlds, action: jax.Array, key: Key) -> tuple[Worlds, jax.Array]:
    """One step; ended environments begin anew within it. Gives the environments and which episodes ended."""
    state, length = advance(jnp, envs.state, action), envs.length + 1
    ended = has_fallen(jnp, state) | (length >= MAX_STEPS)
    fresh = start_states(key, len(length))
    return Worlds(jnp.where(ended[:, None], fresh, state), jnp.where(ended, 0, length)), ended


def mlp(key: Key, num_outputs: int, width: int, last_gain: float) -> Params:
    sizes = [(NUM_OBSERVATIONS, width, 2**0.5), (width, width, 2**0.5), (width, num_outputs, last_gain)]
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.nn.initializers.orthogonal(gain)(k, (i, o)), jnp.zeros(o))
        for k, (i, o, gain) in zip(keys, sizes, strict=True)
    ]


def forward(layers: Params, x: Any, xp: Any = jnp) -> Any:
    for weight, bias in layers[:-1]:
        x = xp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def logp_and_entropy(logits: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_probabilities = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probabilities, action[..., None], -1)[..., 0]
    return chosen, -(jnp.exp(log_probabilities) * log_probabilities).sum(-1)


def loss(params: Params, row: Row, advantage: jax.Array, target: jax.Array) -> jax.Array:
    actor, critic = params
    logp, entropy = logp_and_entropy(forward(actor, row.observation), row.action)
    value = forward(critic, row.observation)[..., 0]
    ratio = jnp.exp(logp - row.logp)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    clipped = row.value + jnp.clip(value - row.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
    return policy_loss + VALUE * value_loss - ENTROPY * entropy.mean()


def adam_step(params: Params, gradient: Params, adam: Adam, rate: jax.Array) -> tuple[Params, Adam]:
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, MAX_GRAD_NORM / (norm + 1e-6))
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    count = adam.count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, adam.second, gradient)
    step, root = rate / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
    params = jax.tree.map(lambda p, m, v: p - step * m / (jnp.sqrt(v) / root + ADAM_EPSILON), params, first, second)
    return params, Adam(first, second, count)


def collect(params: Params, envs: Worlds, key: Key, num_steps: int) -> tuple[Worlds, Row]:
    actor, critic = params

    def one(envs: Worlds, key: Key) -> tuple[Worlds, Row]:
        act_key, reset_key = jax.random.split(key)
        observation = envs.state
        logits = forward(actor, observation)
        action = jax.random.categorical(act_key, logits)
        logp, _ = logp_and_entropy(logits, action)
        value = forward(critic, observation)[..., 0]
        envs, ended = step_envs(envs, action, reset_key)
        return envs, Row(observation, action, logp, value, jnp.ones(len(action)), ended)

    return lax.scan(one, envs, jax.random.split(key, num_steps))


def advantages(rows: Row, last_value: jax.Array) -> jax.Array:
    def one(carry: tuple[jax.Array, jax.Array], row: Row) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        goes_on = 1.0 - row.ended
        error = row.reward + GAMMA * next_value * goes_on - row.value
        advantage = error + GAMMA * GAE_LAMBDA * goes_on * advantage
        return (advantage, row.value), advantage

    _, result = lax.scan(one, (jnp.zeros_like(last_value), last_value), rows, reverse=True)
    return result


def train(key: Key, work: PpoWork, num_iterations: int) -> Params:
    """The whole run; gives the parameters."""
    key, actor_key, critic_key, env_key = jax.random.split(key, 4)
    params = (mlp(actor_key, NUM_ACTIONS, work.width, 0.01), mlp(critic_key, 1, work.width, 1.0))
    zeros = jax.tree.map(jnp.zeros_like, params)
    envs = Worlds(start_states(env_key, work.num_envs), jnp.zeros(work.num_envs, jnp.int32))

    def iteration(carry: Any, step: tuple[Key, jax.Array]) -> tuple[Any, None]:
        params, adam, envs = carry
        key, index = step
        collect_key, *epoch_keys = jax.random.split(key, 1 + work.epochs)
        envs, rows = collect(params, envs, collect_key, work.rollout)
        advantage = advantages(rows, forward(params[1], envs.state)[..., 0])
        batch = (rows, advantage, advantage + rows.value)
        batch = jax.tree.map(lambda x: x.reshape(work.batch, *x.shape[2:]), batch)
        rate = LEARNING_RATE * (1.0 - index / num_iterations)

        def epoch(carry: Any, key: Key) -> tuple[Any, None]:
            order = jax.random.permutation(key, work.batch).reshape(work.minibatches, -1)

            def minibatch(carry: Any, rows: jax.Array) -> tuple[Any, None]:
                params, adam = carry
                gradient = jax.grad(loss)(params, *jax.tree.map(lambda x: x[rows], batch))
                return adam_step(params, gradient, adam, rate), None

            return lax.scan(minibatch, carry, order)

        (params, adam), _ = lax.scan(epoch, (params, adam), jnp.stack(epoch_keys))
        return (params, adam, envs), None

    steps = (jax.random.split(key, num_iterations), jnp.arange(num_iterations))
    (params, _, _), _ = lax.scan(iteration, (params, Adam(zeros, zeros, jnp.zeros((), jnp.int32)), envs), steps)
    return params


def main() -> None:
    task = task_from_command_line()
    if task.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = task.ppo
    key = jax.random.PRNGKey(task.seed)
    program = jax.jit(partial(train, work=work, num_iterations=task.num_steps // work.batch))
    before = time.perf_counter()
    compiled = program.lower(key).compile()
    compile_seconds = time.perf_counter() - before
    before = time.perf_counter()
    actor, _ = jax.block_until_ready(compiled(key))
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
