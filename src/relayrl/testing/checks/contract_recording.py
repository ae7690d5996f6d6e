"""Playing an environment and keeping what it gave, so that checks look at copies and not at arrays that change.

A `Recording` is one `reset` and the steps after it; `Workbench` makes fresh environments for the checks that need more than
one, and closes them all. What the contract says is not known here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Space, index, leaves, map_tree
from relayrl.envs.environment_contract import (
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    VectorEnvironment,
    VectorReset,
    VectorStep,
)
from relayrl.envs.vector.on_host import on_host
from relayrl.testing.random_play import Player


@dataclass(slots=True)
class Recording:
    """What an environment gave: `first` from `reset`, then `steps`."""

    groups: Mapping[str, AgentGroup]
    state_space: Space | None
    env_ids: tuple[uuid.UUID, ...]
    first: VectorReset
    steps: list[VectorStep] = field(default_factory=list)

    @property
    def num_envs(self) -> int:
        return len(self.env_ids)

    @property
    def last(self) -> VectorReset | VectorStep:
        return self.steps[-1] if self.steps else self.first

    def moments(self) -> Iterator[tuple[str, VectorReset | VectorStep]]:
        """All results with their names: `"reset"`, `"step 1"`, …"""
        yield "reset", self.first
        yield from ((f"step {t}", step) for t, step in enumerate(self.steps, start=1))

    def ends(self) -> Iterator[tuple[int, int]]:
        """`(t, b)` for every end of an episode: step number and environment."""
        for t, step in enumerate(self.steps, start=1):
            yield from ((t, int(b)) for b in np.flatnonzero(step.episode_over))


def _kept(array: Any) -> Array:
    # Not np.array(): it asks torch's tensors for a copy in a way that they do not know yet.
    return np.asarray(array).copy()


def _copied_group(group: GroupObservation) -> Any:
    mask = None if group.action_mask is None else _kept(group.action_mask)
    seen = GroupObservation(map_tree(_kept, group.obs), _kept(group.active), mask)
    if not isinstance(group, GroupStep):
        return seen
    final = group.final
    return GroupStep(
        seen.obs,
        seen.active,
        seen.action_mask,
        reward=_kept(group.reward),
        terminated=_kept(group.terminated),
        truncated=_kept(group.truncated),
        final=None if final is None else _copied_final(final),
    )


def _copied_final(final: FinalObservations) -> FinalObservations:
    mask = None if final.action_mask is None else _kept(final.action_mask)
    return FinalObservations(_kept(final.env), _kept(final.agent), map_tree(_kept, final.obs), mask)


def copied(result: Any) -> Any:
    """A `VectorReset` or `VectorStep` whose arrays stay as they are, without its infos."""
    groups = {name: _copied_group(group) for name, group in result.groups.items()}
    state = None if result.state is None else map_tree(_kept, result.state)
    if isinstance(result, VectorStep):
        final_state = None if result.final_state is None else map_tree(_kept, result.final_state)
        return VectorStep(groups, _kept(result.episode_over), state=state, final_state=final_state)
    return VectorReset(groups, state)


def begin(env: VectorEnvironment, seed: int) -> Recording:
    """Reset all environments and begin a recording."""
    return Recording(env.groups, env.state_space, env.env_ids, copied(env.reset(seed=seed)))


def play(env: VectorEnvironment, recording: Recording, player: Player, num_steps: int) -> Recording:
    """Append `num_steps` steps to `recording`."""
    for _ in range(num_steps):
        recording.steps.append(copied(env.step(player.act(recording.last.groups))))
    return recording


@dataclass(slots=True)
class Workbench:
    """Where checks get environments and recordings of them from."""

    make: Callable[[int], VectorEnvironment]
    num_envs: int
    num_steps: int
    seed: int
    _base: Recording | None = None
    _firsts: list[VectorReset] = field(default_factory=list)
    _made: list[VectorEnvironment] = field(default_factory=list)

    def fresh_unconverted(self, num_envs: int | None = None) -> VectorEnvironment:
        """A new environment as `make` gives it, with its environments."""
        count = num_envs or self.num_envs
        env = self.make(count)
        self._made.append(env)
        if not env.env_ids:
            env.init_num_envs(count)
        return env

    def fresh(self, num_envs: int | None = None) -> VectorEnvironment:
        """A new environment that gives NumPy arrays."""
        return on_host(self.fresh_unconverted(num_envs))

    def player(self, env: VectorEnvironment, idle_seed: int = 0) -> Player:
        return Player(env.groups, env.num_envs, self.seed, idle_seed)

    def record(self, env: VectorEnvironment, idle_seed: int = 0) -> Recording:
        """The recording that all checks compare with, of another environment or once more."""
        return play(env, begin(env, self.seed), self.player(env, idle_seed), self.num_steps)

    @property
    def recording(self) -> Recording:
        """The recording of the first environment."""
        if self._base is None:
            self._base = self.record(self.fresh())
        return self._base

    @property
    def firsts(self) -> list[VectorReset]:
        """What resets give under four seeds, the suite's own first."""
        if not self._firsts:
            env = self.fresh()
            self._firsts = [copied(env.reset(seed=self.seed + i)) for i in range(4)]
        return self._firsts

    def release(self) -> None:
        """Close what the check in hand has made."""
        made = list(self._made)
        self.forget()
        for env in made:
            env.close()

    def forget(self) -> None:
        """Leave what was made so far to the check in hand."""
        self._made.clear()


def first_difference(one: Recording, other: Recording, envs: Array) -> str | None:
    """Where two recordings of `envs` part: the first difference in what a learner may look at, or None."""
    for (moment, a), (_, b) in zip(one.moments(), other.moments(), strict=True):
        found = result_difference(a, b, envs)
        if found:
            return f"{moment}, {found}"
    return None


def result_difference(a: Any, b: Any, envs: Array) -> str | None:
    """The first difference between two results in `envs`, where observations of lanes that do not act do not count."""
    for name in a.groups:
        for what, left, right in zip(_NAMES, _facts(a.groups[name], envs), _facts(b.groups[name], envs), strict=False):
            for (path, x), (_, y) in zip(leaves(left), leaves(right), strict=True):
                if x.shape != y.shape or not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                    return f"group {name!r}: {what}{path and '.' + path} is {_shown(x, y)}"
    for what in ("state", "episode_over"):
        x, y = getattr(a, what, None), getattr(b, what, None)
        if x is not None and y is not None:
            for (_, one), (_, other) in zip(leaves(index(x, envs)), leaves(index(y, envs)), strict=True):
                if not np.array_equal(one, other):
                    return f"{what} is {_shown(one, other)}"
    return None


_NAMES = ("active", "obs", "action_mask", "reward", "terminated", "truncated", "final lanes", "final obs", "final mask")


def _facts(group: GroupObservation, envs: Array) -> Iterator[Any]:
    """What a learner may look at, in the order of `_NAMES`."""
    active = group.active[envs]
    yield active
    yield index(index(group.obs, envs), active)
    yield np.zeros(0) if group.action_mask is None else group.action_mask[envs][active]
    if isinstance(group, GroupStep):
        yield from (group.reward[envs], group.terminated[envs], group.truncated[envs])
        if group.final is not None:
            rows = np.isin(group.final.env, envs)
            yield np.stack([group.final.env[rows], group.final.agent[rows]])
            yield index(group.final.obs, rows)
            yield np.zeros(0) if group.final.action_mask is None else group.final.action_mask[rows]


def _shown(x: Array, y: Array) -> str:
    if x.shape != y.shape:
        return f"of shape {x.shape} and {y.shape}"
    where = tuple(np.argwhere(~((x == y) | ((x != x) & (y != y))))[0])
    return f"{x[where]} and {y[where]} at {[int(i) for i in where]}"
