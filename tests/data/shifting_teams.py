"""Environments with several groups whose agents appear, die, wait, leave and fail; and what is learned from their rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.algorithms.critics.critic_sight import CriticSight, StateOffer
from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralGroup
from relayrl.algorithms.returns import gae, with_successor_values
from relayrl.data.columns import LaneHeader, Rollout, Trajectory, copied_rollout
from relayrl.data.state_rows import StateBuilder
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.envs.environment_contract import FinalObservations

SEEN, DONE, STATE = (spaces.Box(-np.inf, np.inf, (width,), np.float32) for width in (2, 1, 3))
GROUPS = {"wolf": ("w0", "w1"), "sheep": ("s0",)}
AGENTS = [(group, agent) for group, agents in GROUPS.items() for agent in agents]
HEADERS = {name: LaneHeader(name, (), agents, SEEN, DONE) for name, agents in GROUPS.items()}


@dataclass
class Moods:
    """How often things happen in an environment."""

    appear: float
    wait: float
    terminate: float
    truncate: float
    fail: float


class ShiftingTeams:
    """Environments whose agents do as they like; everything that means nothing is noise."""

    def __init__(self, seed: int, num_envs: int, moods: Moods) -> None:
        self.rng, self.num_envs, self.moods = np.random.default_rng(seed), num_envs, moods
        self.alive = [self._begin() for _ in range(num_envs)]
        self.gone: list[set[int]] = [set() for _ in range(num_envs)]

    def _begin(self) -> set[int]:
        found = {i for i in range(len(AGENTS)) if self.rng.random() > self.moods.appear}
        return found or {int(self.rng.integers(len(AGENTS)))}

    def acting(self) -> np.ndarray:
        acts = np.zeros((self.num_envs, len(AGENTS)), bool)
        for b, alive in enumerate(self.alive):
            for i in alive:
                acts[b, i] = self.rng.random() >= self.moods.wait
        return acts

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Flags [B, G], and [B] whose episode is over, and which failed."""
        terminated, truncated = (np.zeros((self.num_envs, len(AGENTS)), bool) for _ in range(2))
        over, failed = np.zeros(self.num_envs, bool), self.rng.random(self.num_envs) < self.moods.fail
        for b in range(self.num_envs):
            if not failed[b]:
                for i in sorted(self.alive[b]):
                    draw = self.rng.random()
                    terminated[b, i] = draw < self.moods.terminate
                    truncated[b, i] = self.moods.terminate <= draw < self.moods.terminate + self.moods.truncate
                ended = set(np.flatnonzero(terminated[b] | truncated[b]).tolist())
                self.alive[b] -= ended
                self.gone[b] |= ended
                if self.alive[b]:
                    late = set(range(len(AGENTS))) - self.alive[b] - self.gone[b]
                    self.alive[b] |= {i for i in late if self.rng.random() < self.moods.appear / 2}
            if failed[b] or not self.alive[b]:
                over[b] = True
                self.alive[b], self.gone[b] = self._begin(), set()
        return terminated, truncated, over, failed


def collect(teams: ShiftingTeams, lengths: list[int]) -> list[dict[str, Rollout]]:
    """Consecutive blocks, as the collector makes them."""
    rng, B = teams.rng, teams.num_envs
    env_ids = tuple(UUID(int=b + 1) for b in range(B))
    builders = {
        name: RolloutBuilder(LaneHeader(name, env_ids, agents, SEEN, DONE), max(lengths), with_clock=True)
        for name, agents in GROUPS.items()
    }
    states = StateBuilder(STATE, B, max(lengths))

    def noise(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    found, columns = [], {name: [AGENTS.index((name, a)) for a in agents] for name, agents in GROUPS.items()}
    state, views = noise(B, 3), {name: noise(B, len(a), 2) for name, a in GROUPS.items()}
    acts = teams.acting()
    for length in lengths:
        for _ in range(length):
            states.add(state)
            for name, own in columns.items():
                builders[name].add(views[name], noise(B, len(own), 1), acts[:, own])
            terminated, truncated, over, failed = teams.step()
            for name, own in columns.items():
                env, agent = np.nonzero((terminated | truncated)[:, own])
                final = FinalObservations(env, agent, noise(len(env), 2))
                builders[name].finish_row(
                    noise(B, len(own)),
                    terminated[:, own],
                    truncated[:, own],
                    failed if failed.any() else None,
                    final if len(env) or not failed.any() else None,
                    over,
                )
            # Of an environment that failed, the last good state is the one that was acted in.
            states.finish_row(over, np.where(failed[:, None], state, noise(B, 3))[over])
            state, views = noise(B, 3), {name: noise(B, len(a), 2) for name, a in GROUPS.items()}
            acts = teams.acting()
        rollouts = {
            name: builder.build(views[name].reshape(-1, 2), 0, next_active=acts[:, columns[name]])
            for name, builder in builders.items()
        }
        block = states.build(state)
        found.append({name: copied_rollout(block.beside(rollout)) for name, rollout in rollouts.items()})
    return found


def trajectories_of(rollouts: Mapping[str, Rollout]) -> list[Trajectory]:
    return [trajectory for rollout in rollouts.values() for trajectory in rollout.trajectories()]


def critics() -> CentralCritics:
    sight = CriticSight(observations=True, state=True)
    groups = {name: CentralGroup(SEEN, len(agents), sight) for name, agents in GROUPS.items()}
    return CentralCritics(groups, StateOffer(STATE))


def advantages(rollouts: Mapping[str, Rollout]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """By environment, agent, episode and step: what the critic saw, and the advantage by a critic of fixed random weights."""
    found = {}
    for name, inputs in critics().inputs(rollouts).items():
        rollout = rollouts[name]
        rows, successors = inputs.rows.laid_out(), inputs.successors.laid_out()
        weights = np.random.default_rng(len(name)).normal(size=rows.shape[1])
        value = (rows @ weights).astype(np.float32).reshape(rollout.reward.shape)
        after = with_successor_values(value, rollout.successors, (successors @ weights).astype(np.float32))
        advantage = gae(
            rollout.reward, value, after, rollout.terminated, rollout.truncated, rollout.valid, gamma=0.9, lam=0.8
        )
        seen = rows.reshape(*rollout.reward.shape, -1)
        for t, lane in np.argwhere(rollout.valid).tolist():
            found[key(rollout, t, lane)] = (seen[t, lane].tobytes(), advantage[t, lane].tobytes())
    return found


def key(rollout: Rollout, t: int, lane: int) -> tuple[Any, ...]:
    env, agent = divmod(lane, len(rollout.header.agent_ids))
    assert rollout.env_episode is not None
    assert rollout.env_step is not None
    return (
        rollout.header.env_ids[env],
        rollout.header.agent_ids[agent],
        int(rollout.env_episode[t, env]),
        int(rollout.env_step[t, env]),
    )
