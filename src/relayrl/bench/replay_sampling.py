"""Drawing minibatches from a replay of a million Pendulum transitions, beside one of ten thousand: the cost of its size.

Both hold the same columns and give the same minibatches of 256; only where in memory the rows lie differs.
"""

from __future__ import annotations

import uuid

import numpy as np
from gymnasium import spaces

from relayrl.bench.rows import Row, interleaved, seconds_of
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.training.replay.joint_replay import JointReplay

NUM_ENVS = 8
BLOCK_STEPS = 1_250
SMALL, LARGE = 10_000, 1_000_000
BATCH_SIZE = 256
BATCHES_PER_MEASUREMENT = 200
GAMMA = 0.99
PRIORITY_EXPONENT = 0.6
TARGET_RATIO = 0.65


def replay_rows() -> list[Row]:
    """One row for uniform draws, one for prioritised ones."""
    rollout = pendulum_rollout(BLOCK_STEPS, NUM_ENVS)
    return [
        _row("sample 256 of 1M transitions", rollout, 0.0),
        _row("sample 256 of 1M transitions by priority", rollout, PRIORITY_EXPONENT),
    ]


def _row(name: str, rollout: Rollout, priority_exponent: float) -> Row:
    small, large = (filled_replay(capacity, rollout, priority_exponent) for capacity in (SMALL, LARGE))
    rng = np.random.default_rng(0)
    rate, small_rate = interleaved(lambda: _rate(large, rng), lambda: _rate(small, rng), repetitions=15)
    return Row(
        name=name,
        figure=rate,
        unit="transitions/s",
        against="the same from 10k transitions",
        against_figure=small_rate,
        ratio=rate / small_rate,
        target=TARGET_RATIO,
    )


def filled_replay(capacity: int, rollout: Rollout, priority_exponent: float) -> JointReplay:
    """A full replay of `capacity` transitions, the rollout over and over."""
    replay = JointReplay(capacity, len(rollout.header.env_ids), priority_exponent=priority_exponent)
    while len(replay) < replay.capacity:
        replay.add({rollout.header.group: rollout})
    return replay


def _rate(replay: JointReplay, rng: np.random.Generator) -> float:
    """Transitions drawn per second."""

    def work() -> None:
        for _ in range(BATCHES_PER_MEASUREMENT):
            replay.sample(BATCH_SIZE, rng, gamma=GAMMA)

    return BATCH_SIZE * BATCHES_PER_MEASUREMENT / seconds_of(work)


def pendulum_rollout(num_steps: int, num_envs: int) -> Rollout:
    """Random numbers in the columns of Pendulum-v1: three observations, one action; no episode ends."""
    rng = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    observations, actions = spaces.Box(-8.0, 8.0, (3,), np.float32), spaces.Box(-2.0, 2.0, (1,), np.float32)
    env_ids = tuple(uuid.UUID(int=b) for b in range(num_envs))
    running = np.zeros(shape, dtype=bool)
    lanes = np.arange(num_envs)
    return Rollout(
        header=LaneHeader("agent", env_ids, ("agent",), observations, actions),
        obs=rng.standard_normal((*shape, 3), dtype=np.float32),
        action=rng.standard_normal((*shape, 1), dtype=np.float32),
        reward=rng.standard_normal(shape, dtype=np.float32),
        terminated=running,
        truncated=running,
        valid=~running,
        failed=running,
        policy_version=np.zeros(shape, dtype=np.int64),
        first_episode=np.zeros(num_envs, dtype=np.int64),
        first_step=np.zeros(num_envs, dtype=np.int64),
        successors=Successors(np.full(num_envs, num_steps - 1), lanes, rng.standard_normal((num_envs, 3), np.float32)),
    )
