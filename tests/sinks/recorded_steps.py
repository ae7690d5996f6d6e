"""Trajectories that follow from two numbers, so that two processes can agree on what was recorded."""

from __future__ import annotations

import uuid

import numpy as np
from gymnasium import spaces

from relayrl.data.columns import Trajectory, trajectory_id

OBSERVATION = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION = spaces.Discrete(2)


def plain_trajectory(seed: int, number: int, num_steps: int = 20, *, group: str = "agent") -> Trajectory:
    """Episode `number` of environment `seed`: reward 1 in each step, policy version `number // 10`."""
    rng = np.random.default_rng((seed, number))
    env_id = uuid.UUID(int=seed)
    return Trajectory(
        trajectory_id=trajectory_id(env_id, group, number, 0),
        env_id=env_id,
        agent_id=group,
        group=group,
        observation_space=OBSERVATION,
        action_space=ACTION,
        episode=number,
        first_step=0,
        obs=rng.standard_normal((num_steps, 4), dtype=np.float32),
        action=rng.integers(0, 2, num_steps),
        reward=np.ones(num_steps, np.float32),
        policy_version=np.full(num_steps, number // 10),
        terminated=True,
        truncated=False,
        failed=False,
        final_obs=rng.standard_normal(4, dtype=np.float32),
        logp=rng.standard_normal(num_steps, dtype=np.float32),
        value=rng.standard_normal(num_steps, dtype=np.float32),
    )
