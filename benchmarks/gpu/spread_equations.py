"""simple_spread's equations over any array namespace: jax.numpy in the JAX programs, NumPy where they are tested.

Three agents and three landmarks on a plane, as in MPE: positions move with the old velocities, velocities are damped and
pushed, agents that overlap push each other apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_AGENTS, NUM_MOVES, MAX_STEPS = 3, 5, 25
NUM_OBSERVATIONS = 4 + 2 * NUM_AGENTS + 4 * (NUM_AGENTS - 1)
AGENT_SIZE, ACCELERATION, STEP_S, DAMPING = 0.15, 5.0, 0.1, 0.25
CONTACT_FORCE, CONTACT_MARGIN, LOCAL_RATIO = 100.0, 1e-3, 0.5
MOVES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
OTHERS = np.array([[1, 2], [0, 2], [0, 1]])


def advance(xp: Any, position: Any, velocity: Any, action: Any) -> tuple[Any, Any]:
    """Positions and velocities [B, N, 2] after a step with moves [B, N]."""
    force = ACCELERATION * xp.asarray(MOVES, dtype=position.dtype)[action] + _contact_force(xp, position)
    return position + STEP_S * velocity, (1 - DAMPING) * velocity + STEP_S * force


def _contact_force(xp: Any, position: Any) -> Any:
    """[B, N, 2]: 100 · softplus of the overlap, away from each agent that is near."""
    away = position[:, :, None] - position[:, OTHERS]
    distance = xp.sqrt((away**2).sum(-1))
    overlap = xp.logaddexp(0.0, (2 * AGENT_SIZE - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
    return (away * (CONTACT_FORCE * overlap / xp.maximum(distance, 1e-12))[..., None]).sum(2)


def reward(xp: Any, position: Any, landmark: Any) -> Any:
    """[B, N]: half of −Σ over landmarks of the distance to the nearest agent, half of −1 for each agent touched."""
    to_landmark = xp.sqrt(((position[:, :, None] - landmark[:, None]) ** 2).sum(-1))
    to_others = xp.sqrt(((position[:, :, None] - position[:, OTHERS]) ** 2).sum(-1))
    collisions = (to_others < 2 * AGENT_SIZE).sum(-1)
    return -(1 - LOCAL_RATIO) * to_landmark.min(1).sum(-1)[:, None] - LOCAL_RATIO * collisions


def observe(xp: Any, position: Any, velocity: Any, landmark: Any) -> Any:
    """[B, N, 18]: own velocity and position, landmarks and other agents relative to oneself, a silent channel."""
    num_envs = len(position)
    to_landmarks = (landmark[:, None] - position[:, :, None]).reshape(num_envs, NUM_AGENTS, -1)
    to_others = (position[:, OTHERS] - position[:, :, None]).reshape(num_envs, NUM_AGENTS, -1)
    return xp.concatenate([velocity, position, to_landmarks, to_others, xp.zeros_like(to_others)], -1)
