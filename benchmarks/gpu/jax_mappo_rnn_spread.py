"""MAPPO-RNN on simple_spread in the way of JaxMARL: a scanned GRU that restarts with its episode, a central critic, one jit.

Actor and critic: a layer of 128 relu units, a GRU of 128, a layer of 128 relu units, the head. The critic sees the observations
of all agents. Minibatches are whole sequences of a quarter of the lanes; each passes once through a `lax.scan` of the rollout's
length, forward and backward, for actor and critic: 8,192 dependent steps in an update of 4 epochs × 4 minibatches × 128 steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gpu_program import Program, run
from jax import lax
from jax_spread import SPREAD
from jax_training import (
    Key,
    Params,
    Row,
    Worlds,
    adam_of,
    adam_step,
    advantages,
    begin_all,
    dense,
    logp_and_entropy,
    mean_return,
    policy_loss,
    step_envs,
    value_loss,
)
from work import PpoWork

PROGRAM = Program("jax_mappo_rnn_spread", "simple_spread", 4_096, 128, num_iterations=6, learning_rate=2e-3, width=128)
NUM_AGENTS = SPREAD.num_agents


class Memories(NamedTuple):
    """The GRUs' states [L, H] of actor and critic."""

    actor: jax.Array
    critic: jax.Array


class Seen(NamedTuple):
    """A step as the recurrent networks need it: what was kept, all agents' observations, whether an episode began."""

    row: Row
    joint: jax.Array
    began: jax.Array


def network(key: Key, num_inputs: int, width: int, num_outputs: int, last_gain: float) -> Params:
    keys = jax.random.split(key, 5)
    return {
        "embed": dense(keys[0], num_inputs, width, 2**0.5),
        "input": dense(keys[1], width, 3 * width, 1.0),
        "recurrent": dense(keys[2], width, 3 * width, 1.0),
        "hidden": dense(keys[3], width, width, 2.0),
        "head": dense(keys[4], width, num_outputs, last_gain),
    }


def linear(layer: Params, x: jax.Array) -> jax.Array:
    return x @ layer[0] + layer[1]


def gru(params: Params, memory: jax.Array, x: jax.Array) -> jax.Array:
    """h' = (1 − z) n + z h with n = tanh(Wx + r ⊙ Uh)."""
    x_reset, x_update, x_new = jnp.split(linear(params["input"], x), 3, -1)
    h_reset, h_update, h_new = jnp.split(linear(params["recurrent"], memory), 3, -1)
    update = jax.nn.sigmoid(x_update + h_update)
    new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
    return (1 - update) * new + update * memory


def unroll(params: Params, memory: jax.Array, x: jax.Array, began: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Outputs [T, L, …] of a sequence, memories restarting where an episode began."""

    def one(memory: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, began = step
        memory = gru(params, jnp.where(began[:, None], 0.0, memory), x)
        return memory, memory

    embedded = jax.nn.relu(linear(params["embed"], x))
    memory, states = lax.scan(one, memory, (embedded, began))
    return memory, linear(params["head"], jax.nn.relu(linear(params["hidden"], states)))


def joint_of(observation: jax.Array) -> jax.Array:
    """[L, N · O] what the agents of a lane's environment observe, for each of them."""
    joint = observation.reshape(-1, NUM_AGENTS * observation.shape[-1])
    return jnp.repeat(joint, NUM_AGENTS, 0)


def once(params: Params, memory: jax.Array, x: jax.Array, began: jax.Array) -> tuple[jax.Array, jax.Array]:
    memory, output = unroll(params, memory, x[None], began[None])
    return memory, output[0]


def collect(params: Any, carry: Any, key: Key, num_steps: int) -> tuple[Any, tuple[Seen, Any]]:
    """`carry`: environments, memories, and which lanes are at the beginning of an episode."""
    actor, critic = params

    def one(carry: tuple[Worlds, Memories, jax.Array], key: Key) -> tuple[Any, tuple[Seen, Any]]:
        envs, memories, began = carry
        act_key, reset_key = jax.random.split(key)
        observation = SPREAD.observe(envs.state)
        joint = joint_of(observation)
        actor_memory, logits = once(actor, memories.actor, observation, began)
        critic_memory, value = once(critic, memories.critic, joint, began)
        action = jax.random.categorical(act_key, logits)
        logp, _ = logp_and_entropy(logits, action)
        envs, reward, ended, finished = step_envs(SPREAD, envs, action, reset_key)
        row = Row(observation, action, logp, value[:, 0], reward, ended)
        return (envs, Memories(actor_memory, critic_memory), ended), (Seen(row, joint, began), finished)

    return lax.scan(one, carry, jax.random.split(key, num_steps))


def actor_loss(actor: Params, memory: jax.Array, seen: Seen, advantage: jax.Array) -> jax.Array:
    return policy_loss(unroll(actor, memory, seen.row.observation, seen.began)[1], seen.row, advantage)


def critic_loss(critic: Params, memory: jax.Array, seen: Seen, target: jax.Array) -> jax.Array:
    return value_loss(unroll(critic, memory, seen.joint, seen.began)[1][..., 0], seen.row, target)


def train(key: Key, work: PpoWork, num_iterations: int, learning_rate: float) -> tuple[Params, jax.Array]:
    """The whole run: the parameters, and the mean return of the episodes of each iteration."""
    key, actor_key, critic_key, env_key = jax.random.split(key, 4)
    num_lanes, width = work.num_envs * NUM_AGENTS, work.width
    params = (
        network(actor_key, SPREAD.num_observations, width, SPREAD.num_actions, 0.01),
        network(critic_key, NUM_AGENTS * SPREAD.num_observations, width, 1, 1.0),
    )
    adams = (adam_of(params[0]), adam_of(params[1]))
    memories = Memories(*(jnp.zeros((num_lanes, width)) for _ in range(2)))
    acting = (begin_all(SPREAD, env_key, work.num_envs), memories, jnp.ones(num_lanes, bool))

    def iteration(carry: Any, step: tuple[Key, jax.Array]) -> tuple[Any, jax.Array]:
        params, adams, acting = carry
        key, index = step
        collect_key, *epoch_keys = jax.random.split(key, 1 + work.epochs)
        memories = acting[1]
        acting, (seen, finished) = collect(params, acting, collect_key, work.rollout)
        envs, after, began = acting
        last_value = once(params[1], after.critic, joint_of(SPREAD.observe(envs.state)), began)[1][:, 0]
        advantage = advantages(seen.row, last_value)
        rate = learning_rate * (1.0 - index / num_iterations)

        def minibatch(carry: Any, lanes: jax.Array) -> tuple[Any, None]:
            (actor, critic), (actor_adam, critic_adam) = carry
            part, part_advantage = jax.tree.map(lambda x: x[:, lanes], (seen, advantage))
            start = jax.tree.map(lambda x: x[lanes], memories)
            target = part_advantage + part.row.value
            actor_gradient = jax.grad(actor_loss)(actor, start.actor, part, part_advantage)
            critic_gradient = jax.grad(critic_loss)(critic, start.critic, part, target)
            actor, actor_adam = adam_step(actor, actor_gradient, actor_adam, rate)
            critic, critic_adam = adam_step(critic, critic_gradient, critic_adam, rate)
            return ((actor, critic), (actor_adam, critic_adam)), None

        def epoch(carry: Any, key: Key) -> tuple[Any, None]:
            return lax.scan(minibatch, carry, jax.random.permutation(key, num_lanes).reshape(work.minibatches, -1))

        (params, adams), _ = lax.scan(epoch, (params, adams), jnp.stack(epoch_keys))
        return (params, adams, acting), mean_return(finished)

    steps = (jax.random.split(key, num_iterations), jnp.arange(num_iterations))
    (params, _, _), returns = lax.scan(iteration, (params, adams, acting), steps)
    return params, returns


if __name__ == "__main__":
    run(PROGRAM, __doc__, train)
