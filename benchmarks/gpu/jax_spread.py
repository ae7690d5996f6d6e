"""simple_spread as a game of the JAX programs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import spread_equations as equations
from jax_training import Game, Key
from spread_equations import MAX_STEPS, NUM_AGENTS, NUM_MOVES, NUM_OBSERVATIONS


class Particles(NamedTuple):
    """Positions and velocities of agents, positions of landmarks [B, N, 2], and the length of each episode so far [B]."""

    position: jax.Array
    velocity: jax.Array
    landmark: jax.Array
    length: jax.Array


def begin(key: Key, num_envs: int) -> Particles:
    places = jax.random.uniform(key, (2, num_envs, NUM_AGENTS, 2), minval=-1.0, maxval=1.0)
    return Particles(places[0], jnp.zeros_like(places[0]), places[1], jnp.zeros(num_envs, jnp.int32))


def observe(state: Particles) -> jax.Array:
    seen = equations.observe(jnp, state.position, state.velocity, state.landmark)
    return seen.reshape(-1, NUM_OBSERVATIONS)


def step(state: Particles, action: jax.Array) -> tuple[Particles, jax.Array, jax.Array]:
    moves = action.reshape(-1, NUM_AGENTS)
    position, velocity = equations.advance(jnp, state.position, state.velocity, moves)
    reward = equations.reward(jnp, position, state.landmark).reshape(-1)
    length = state.length + 1
    return Particles(position, velocity, state.landmark, length), reward, length >= MAX_STEPS


SPREAD = Game(NUM_AGENTS, NUM_OBSERVATIONS, NUM_MOVES, begin, observe, step)
