"""What RelayRL adds to vector environments that others wrote: checked observations, and errors that name an environment.

The contract is kept by the environment inside; here its results are looked at and its exceptions are translated. Whole batches
are tested: one pass of array comparisons per step when all is well; only a failed pass looks for the rows and entries to name.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree, all_finite, leaves, map_tree, space_leaves
from relayrl.envs.environment_contract import (
    GroupObservation,
    Relabelled,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    actions_by_group,
    env_seeds,
)
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import EnvFailure, FailureKind
from relayrl.envs.rendering import RenderMode
from relayrl.errors import RelayRLError

_MAX_NAMED_ENTRIES = 5


def guard(env: VectorEnvironment, check: ObservationCheck) -> VectorEnvironment:
    """`env`, with its observations checked and its exceptions raised as RelayRL's."""
    if isinstance(env, StatefulEnvironment):
        return _StatefulGuardedVector(env, env, check)
    return _GuardedVector(env, check)


class _GuardedVector(VectorEnvironment):
    """A vector environment behind the guard."""

    def __init__(self, env: VectorEnvironment, check: ObservationCheck) -> None:
        self._env = env
        # Arrays on a device are not looked at: a check there would wait for the device in every step.
        self._check = check if env.device == "cpu" else ObservationCheck.OFF
        self._seed: int | None = None
        self._num_steps = 0

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        with self._translated("init_num_envs()"):
            self.env_ids = self._env.init_num_envs(num_envs)
        self.groups = self._env.groups
        self._checkers = {
            name: ObservationChecker(group.observation_space, self._check) for name, group in self.groups.items()
        }
        self.state_space = self._env.state_space
        self.state_repeats_observations, self.has_goals = self._env.state_repeats_observations, self._env.has_goals
        self.device = self._env.device
        self.independent_streams = self._env.independent_streams
        self.drawing = self._env.drawing
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        if seed is not None:
            self._seed, self._num_steps = seed, 0
        with self._translated("reset()"):
            result = self._env.reset(seed=seed, env_ids=env_ids)
        self._check_groups(result.groups)
        return result

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self._num_steps += 1
        if isinstance(next(iter(actions), None), uuid.UUID):
            actions = actions_by_group(self, actions)  # type: ignore[arg-type]
        try:  # as `_translated`, which takes longer to enter than this does
            result = self._env.step(actions)
        except (RelayRLError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._failed("step()", error) from error
        self._check_groups(result.groups)
        for name, group in result.groups.items():
            if self._check is not ObservationCheck.OFF and not all_finite(group.reward):
                b, n = np.argwhere(~np.isfinite(group.reward))[0].tolist()
                who = self.groups[name].agent_ids[n]
                raise self._error(
                    EnvFailure(b, FailureKind.RAISED, f"agent {who!r}: the reward is {group.reward[b, n]}")
                )
            if group.final is not None:
                everyone = np.ones((len(group.final.env), 1), dtype=np.bool_)
                column: Tree = map_tree(lambda leaf: leaf[:, None], group.final.obs)
                self._check_lanes(name, column, everyone, group.final.env)
        return result

    def build_observation(self) -> Any:
        return self._env.build_observation()

    def set_parameters(self, values: Mapping[str, Array]) -> None:
        with self._translated("set_parameters()"):
            self._env.set_parameters(values)

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        with self._translated("set_parameters()"):
            self._env.begin_lessons(lessons)

    def give_states(self, wanted: bool) -> None:
        self._env.give_states(wanted)

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        return self._env.relabel(achieved, desired)

    @property
    def rates_episodes(self) -> bool:
        return self._env.rates_episodes

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        with self._translated("performance_return()"):
            return float(self._env.performance_return(rewards))

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        with self._translated("render()"):
            return self._env.frames(envs, mode)

    def final_frames(self) -> Mapping[int, Array]:
        return self._env.final_frames()

    def close(self) -> None:
        with self._translated("close()"):
            self._env.close()

    def _check_groups(self, groups: Mapping[str, GroupObservation]) -> None:
        if self._check is not ObservationCheck.OFF:
            for name, group in groups.items():
                self._check_lanes(name, group.obs, group.active, None)

    def _check_lanes(self, name: str, obs: Tree, rows: Array, envs: Array | None) -> None:
        for lane in self._checkers[name].find_bad(obs, rows):
            env = lane.env if envs is None else int(envs[lane.env])
            who = f"agent {self.groups[name].agent_ids[lane.agent]!r}: " if envs is None else "final "
            raise self._error(EnvFailure(env, FailureKind.OBSERVATION, f"{who}{lane.reason}"))

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RelayRLError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._failed(doing, error) from error

    def _failed(self, doing: str, error: BaseException) -> RelayRLError:
        return self._error(EnvFailure.of_exception(0, error, doing))

    def _error(self, failure: EnvFailure) -> RelayRLError:
        b = failure.env
        env_id = self.env_ids[b] if self.env_ids else uuid.uuid4()
        seed = env_seeds(self._seed, b + 1)[b]
        return failure.as_error(env_id, seed, self._num_steps)


class _StatefulGuardedVector(_GuardedVector, StatefulEnvironment):
    """The same for an environment whose state can be saved."""

    def __init__(self, env: VectorEnvironment, state: StatefulEnvironment, check: ObservationCheck) -> None:
        super().__init__(env, check)
        self._state = state

    def get_state(self) -> dict[str, Array]:
        return self._state.get_state()

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._state.set_state(state)


@dataclass(frozen=True, slots=True)
class BadObservation:
    """Lane `(env, agent)` of a batch, and what is wrong with it."""

    env: int
    agent: int
    reason: str


class ObservationChecker:
    """Checks one group's observations; remembers which leaves there are to look at."""

    def __init__(self, space: Space, check: ObservationCheck) -> None:
        self._space_leaves = list(space_leaves(space))
        self._check = check

    def find_bad(self, obs: Tree, rows: Array) -> list[BadObservation]:
        """The lanes among `rows` ([B, N] bool) whose observation (`obs` [B, N, …]) fails the check."""
        if self._check is ObservationCheck.OFF:
            return []
        bad: list[BadObservation] = []
        for (path, leaf), (_, space) in zip(leaves(obs), self._space_leaves, strict=True):
            if not all_finite(leaf):
                bad.extend(_describe(leaf, rows, path, np.isfinite(leaf), "is not finite"))
            elif self._check is ObservationCheck.SPACE and not (inside := _inside(leaf, space))[rows].all():
                bad.extend(_describe(leaf, rows, path, inside, f"lies outside {space}"))
        return bad


def _inside(leaf: Array, space: Space) -> Array:
    """[B, N, …] bool: which entries lie inside."""
    low, high = bounds(space)
    return np.asarray((leaf >= low) & (leaf <= high))


def bounds(space: Space) -> tuple[Any, Any]:
    """Smallest and largest value of each number of a leaf."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1  # MultiBinary


def _describe(leaf: Array, rows: Array, path: str, good: Array, what: str) -> Iterator[BadObservation]:
    lanes = ~good.reshape(*rows.shape, -1).all(axis=-1) & rows
    for env, agent in np.argwhere(lanes).tolist():
        entries = np.argwhere(~good[env, agent])
        named = ", ".join(_entry(leaf[env, agent], tuple(entry)) for entry in entries[:_MAX_NAMED_ENTRIES].tolist())
        more = f" and {len(entries) - _MAX_NAMED_ENTRIES} more" if len(entries) > _MAX_NAMED_ENTRIES else ""
        where = f"observation[{path!r}]" if path else "observation"
        yield BadObservation(env, agent, f"{where} {what} at {named}{more}")


def _entry(row: Any, at: tuple[int, ...]) -> str:
    return f"{list(at)} = {row[at]}" if at else f"value {row}"
