"""PPO in plain JAX for any environment of arrays: acting, advantages and updates of the whole run inside one jit.

Written for these comparisons in the way of PureJaxRL and JaxMARL: environments are functions over a batch, training is one
`lax.scan`, finished environments begin anew within a step, and the limit of an episode counts as its end. A lane is one agent
in one environment; lanes share one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from work import ADAM_EPSILON, CLIP, ENTROPY, GAE_LAMBDA, GAMMA, MAX_GRAD_NORM, VALUE, PpoWork

Params = Any
State = Any
Key = jax.Array


class Game(NamedTuple):
    """An environment as functions; a state is a tree of arrays over B environments, lanes are environment-major."""

    num_agents: int
    num_observations: int
    num_actions: int
    begin: Callable[[Key, int], State]
    """The states of that many new episodes."""
    observe: Callable[[State], jax.Array]
    """[L, O] what every lane observes."""
    advance: Callable[[State, jax.Array], tuple[State, jax.Array, jax.Array]]
    """One step with actions [L]: the next states, rewards [L], and which episodes ended [B]."""


class Worlds(NamedTuple):
    """The environments of a run, and the return [L] of each lane's episode so far."""

    state: State
    running_return: jax.Array


class Row(NamedTuple):
    """What is kept of a step, over T and L; flattened for minibatches."""

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


def adam_of(params: Params) -> Adam:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(zeros, zeros, jnp.zeros((), jnp.int32))


def dense(key: Key, fan_in: int, fan_out: int, gain: float) -> Params:
    return jax.nn.initializers.orthogonal(gain)(key, (fan_in, fan_out)), jnp.zeros(fan_out)


def mlp(key: Key, sizes: Sequence[int], last_gain: float) -> Params:
    gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
    keys = jax.random.split(key, len(gains))
    return [dense(k, i, o, gain) for k, (i, o), gain in zip(keys, pairwise(sizes), gains, strict=True)]


def forward(layers: Params, x: Any, xp: Any = jnp) -> Any:
    for weight, bias in layers[:-1]:
        x = xp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def begin_all(game: Game, key: Key, num_envs: int) -> Worlds:
    return Worlds(game.begin(key, num_envs), jnp.zeros(num_envs * game.num_agents))


def step_envs(
    game: Game, envs: Worlds, action: jax.Array, key: Key
) -> tuple[Worlds, jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """One step; ended environments begin anew within it.

    Gives the environments, rewards and ends of lanes, and sum and number of the returns of the episodes that ended.
    """
    state, reward, ended = game.advance(envs.state, action)
    fresh = game.begin(key, len(ended))

    def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    lane_ended = jnp.repeat(ended, game.num_agents)
    returns = envs.running_return + reward
    finished = (jnp.where(lane_ended, returns, 0.0).sum(), lane_ended.sum())
    envs = Worlds(jax.tree.map(chosen, fresh, state), jnp.where(lane_ended, 0.0, returns))
    return envs, reward, lane_ended, finished


def mean_return(finished: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Mean return of the episodes that ended in a rollout; NaN where none did."""
    total, count = (x.sum() for x in finished)
    return total / count


def logp_and_entropy(logits: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_probabilities = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probabilities, action[..., None], -1)[..., 0]
    return chosen, -(jnp.exp(log_probabilities) * log_probabilities).sum(-1)


def policy_loss(logits: jax.Array, row: Row, advantage: jax.Array) -> jax.Array:
    """The clipped surrogate of normalised advantages, less the entropy bonus."""
    logp, entropy = logp_and_entropy(logits, row.action)
    ratio = jnp.exp(logp - row.logp)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    return -surrogate.mean() - ENTROPY * entropy.mean()


def value_loss(value: jax.Array, row: Row, target: jax.Array) -> jax.Array:
    clipped = row.value + jnp.clip(value - row.value, -CLIP, CLIP)
    return VALUE * 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()


def loss(params: Params, row: Row, advantage: jax.Array, target: jax.Array) -> jax.Array:
    actor, critic = params
    value = forward(critic, row.observation)[..., 0]
    return policy_loss(forward(actor, row.observation), row, advantage) + value_loss(value, row, target)


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


def collect(game: Game, params: Params, envs: Worlds, key: Key, num_steps: int) -> tuple[Worlds, tuple[Row, Any]]:
    actor, critic = params

    def one(envs: Worlds, key: Key) -> tuple[Worlds, tuple[Row, Any]]:
        act_key, reset_key = jax.random.split(key)
        observation = game.observe(envs.state)
        logits = forward(actor, observation)
        action = jax.random.categorical(act_key, logits)
        logp, _ = logp_and_entropy(logits, action)
        value = forward(critic, observation)[..., 0]
        envs, reward, ended, finished = step_envs(game, envs, action, reset_key)
        return envs, (Row(observation, action, logp, value, reward, ended), finished)

    return lax.scan(one, envs, jax.random.split(key, num_steps))


def advantages(rows: Row, last_value: jax.Array) -> jax.Array:
    """Generalised advantage estimates [T, L]."""

    def one(carry: tuple[jax.Array, jax.Array], row: Row) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        goes_on = 1.0 - row.ended
        error = row.reward + GAMMA * next_value * goes_on - row.value
        advantage = error + GAMMA * GAE_LAMBDA * goes_on * advantage
        return (advantage, row.value), advantage

    _, result = lax.scan(one, (jnp.zeros_like(last_value), last_value), rows, reverse=True)
    return result


def train(key: Key, game: Game, work: PpoWork, num_iterations: int, learning_rate: float) -> tuple[Params, jax.Array]:
    """The whole run: the parameters, and the mean return of the episodes of each iteration."""
    key, actor_key, critic_key, env_key = jax.random.split(key, 4)
    trunk = (game.num_observations, work.width, work.width)
    params = (mlp(actor_key, (*trunk, game.num_actions), 0.01), mlp(critic_key, (*trunk, 1), 1.0))
    envs = begin_all(game, env_key, work.num_envs)
    num_rows = work.batch * game.num_agents

    def iteration(carry: Any, step: tuple[Key, jax.Array]) -> tuple[Any, jax.Array]:
        params, adam, envs = carry
        key, index = step
        collect_key, *epoch_keys = jax.random.split(key, 1 + work.epochs)
        envs, (rows, finished) = collect(game, params, envs, collect_key, work.rollout)
        advantage = advantages(rows, forward(params[1], game.observe(envs.state))[..., 0])
        batch = (rows, advantage, advantage + rows.value)
        batch = jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), batch)
        rate = learning_rate * (1.0 - index / num_iterations)

        def epoch(carry: Any, key: Key) -> tuple[Any, None]:
            order = jax.random.permutation(key, num_rows).reshape(work.minibatches, -1)

            def minibatch(carry: Any, rows: jax.Array) -> tuple[Any, None]:
                params, adam = carry
                gradient = jax.grad(loss)(params, *jax.tree.map(lambda x: x[rows], batch))
                return adam_step(params, gradient, adam, rate), None

            return lax.scan(minibatch, carry, order)

        (params, adam), _ = lax.scan(epoch, (params, adam), jnp.stack(epoch_keys))
        return (params, adam, envs), mean_return(finished)

    steps = (jax.random.split(key, num_iterations), jnp.arange(num_iterations))
    (params, _, _), returns = lax.scan(iteration, (params, adam_of(params), envs), steps)
    return params, returns
