"""Rollouts of several groups whose agents appear, die, wait, leave and fail: split into trajectories and stacked again, they give
the same advantages, critic inputs and replayed transitions as the rollouts themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relayrl.algorithms.critics.critic_sight import CriticSight, StateOffer
from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralGroup
from relayrl.algorithms.returns import gae, with_successor_values
from relayrl.data.arrow.codec import decode_rollout, decode_trajectory, encode
from relayrl.data.builders import RolloutBuilder
from relayrl.data.columns import LaneHeader, Rollout, Trajectory, copied_rollout, joined_rollouts
from relayrl.data.stacking import joint_envs, stack_jointly
from relayrl.data.state_rows import StateBuilder
from relayrl.envs.environment_contract import FinalObservations
from relayrl.training.replay.joint_replay import JointReplay

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


class Worlds:
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


def collect(worlds: Worlds, lengths: list[int]) -> list[dict[str, Rollout]]:
    """Consecutive blocks, as the collector makes them."""
    rng, B = worlds.rng, worlds.num_envs
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
    for length in lengths:
        for _ in range(length):
            acts = worlds.acting()
            states.add(state)
            for name, own in columns.items():
                builders[name].add(views[name], noise(B, len(own), 1), acts[:, own])
            terminated, truncated, over, failed = worlds.step()
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
        rollouts = {name: builder.build(views[name].reshape(-1, 2), 0) for name, builder in builders.items()}
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
    assert rollout.env_episode is not None and rollout.env_step is not None
    return (
        rollout.header.env_ids[env],
        rollout.header.agent_ids[agent],
        int(rollout.env_episode[t, env]),
        int(rollout.env_step[t, env]),
    )


moods = st.builds(
    Moods,
    appear=st.sampled_from([0.0, 0.4]),
    wait=st.sampled_from([0.0, 0.3, 0.7]),
    terminate=st.sampled_from([0.0, 0.1, 0.4]),
    truncate=st.sampled_from([0.0, 0.1, 0.4]),
    fail=st.sampled_from([0.0, 0.1]),
)
slow_enough = settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 9), moods)
@slow_enough
def test_advantages_and_what_critics_see_are_those_of_the_rollout(seed: int, envs: int, length: int, mood: Moods) -> None:
    for block in collect(Worlds(seed, envs, mood), [length, length]):
        trajectories = [decode_trajectory(encode(t)) for t in trajectories_of(block)]
        if trajectories and not any(map(has_silent_lanes, block.values())):
            assert advantages(stack_jointly(trajectories, HEADERS)) == advantages(block)


def has_silent_lanes(rollout: Rollout) -> bool:
    """Whether a lane acted before the block and not in it: it leaves no trajectory that says it is still there."""
    before_end = np.cumsum(rollout.ended, 0) - rollout.ended == 0
    return bool(((rollout.first_step > 0) & ~(rollout.valid & before_end).any(0)).any())


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 9), moods)
@slow_enough
def test_a_stack_is_split_into_the_same_trajectories(seed: int, envs: int, length: int, mood: Moods) -> None:
    (block,) = collect(Worlds(seed, envs, mood), [length])
    sent = {name: decode_rollout(encode(rollout)) for name, rollout in block.items()}
    trajectories = trajectories_of(sent)
    if trajectories:
        back = trajectories_of(stack_jointly(trajectories, HEADERS))
        assert sorted(map(outline, back)) == sorted(map(outline, map(closed, trajectories)))


def closed(t: Trajectory) -> Trajectory:
    """A stack ends a lane that goes on with a void row."""
    goes_on = not (t.terminated or t.truncated)
    return replace(t, truncated=True, failed=True, end_step=t.end_step + 1) if goes_on else t


def outline(t: Trajectory) -> tuple[Any, ...]:
    flags = (t.terminated, t.truncated, t.failed)
    return (str(t.trajectory_id), t.agent_id, t.episode, t.first_step, t.end_step, t.steps.tolist(), flags, t.reward.tolist())


@given(st.integers(0, 2**32), st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=4), moods)
@slow_enough
def test_the_trajectories_of_a_lane_tile_its_episodes(seed: int, envs: int, lengths: list[int], mood: Moods) -> None:
    found: dict[tuple[Any, ...], list[Trajectory]] = {}
    ids = set()
    for block in collect(Worlds(seed, envs, mood), lengths):
        for t in trajectories_of(block):
            found.setdefault((t.env_id, t.agent_id, t.episode), []).append(t)
            assert t.trajectory_id not in ids
            ids.add(t.trajectory_id)
    for fragments in found.values():
        assert fragments[0].first_step == 0
        for one, other in zip(fragments[:-1], fragments[1:], strict=True):
            assert one.end_step == other.first_step
            assert not (one.terminated or one.truncated)


def replayed(rollouts: list[dict[str, Rollout]], n: int) -> Iterator[tuple[Any, ...]]:
    """Every joint transition: what is seen of those that act, and of what follows."""
    size = sum(next(iter(block.values())).num_steps for block in rollouts)
    replay = JointReplay(size, 1, state_space=STATE)
    for block in rollouts:
        replay.add(block)
    batch = replay.sample(size, _InOrder(), gamma=0.9, num_step_returns=n)  # type: ignore[arg-type]
    for row in range(size):
        parts = []
        for group in batch.groups.values():
            valid, sees = group.valid[row], group.next_valid[row] | group.valid[row]
            parts += [valid.tolist(), group.next_valid[row].tolist()]
            parts += [np.asarray(column)[row][valid].tolist() for column in (group.obs, group.action, group.reward)]
            parts += [np.asarray(group.next_obs)[row][sees].tolist(), group.discount[row][valid].tolist()]
        if any(group.valid[row].any() for group in batch.groups.values()):
            yield (*parts, np.asarray(batch.state)[row].tolist(), np.asarray(batch.next_state)[row].tolist())


class _InOrder:
    """Draws every row once."""

    def integers(self, high: int, size: int) -> np.ndarray:
        assert high == size
        return np.arange(size)


@pytest.mark.parametrize("n", [1, 3])
@given(st.integers(0, 2**32), st.integers(1, 9), moods)
@slow_enough
def test_replay_holds_the_transitions_of_the_rollout(n: int, seed: int, length: int, mood: Moods) -> None:
    worlds = Worlds(seed, 1, Moods(mood.appear, 0.0, mood.terminate, mood.truncate, mood.fail))
    blocks = collect(worlds, [length, length])
    whole = {name: joined_rollouts([block[name] for block in blocks]) for name in GROUPS}
    episodes = joint_envs(t for block in blocks for t in trajectories_of(block))
    rebuilt = [stack_jointly(members, HEADERS) for members in sorted(episodes, key=lambda e: e[0].episode)]
    if rebuilt:
        assert list(replayed(rebuilt, n)) == list(replayed([whole], n))
