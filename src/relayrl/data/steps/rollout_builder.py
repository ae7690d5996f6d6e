"""`RolloutBuilder`: steps of lanes that step together, for the collector. Arrays are written into columns, nothing else
happens per row.

    builder.add(obs, action, active, action_mask, logp, value)           before the environment steps
    builder.finish_row(reward, terminated, truncated, failed, final, episode_over)     after it
    rollout = builder.build(next_obs, policy_version, next_mask, next_active)     after the block's last row

Arrays have leading axes `[B, N, …]` or, the same thing, `[L, …]`. They are copied, so an environment may reuse them.

Columns live in two sets of buffers that take turns: a `Rollout` stays as it is while the next block is filled and built,
and is overwritten by the first `add` after that. Whoever keeps one longer copies it, or takes its `trajectories()`.

Not its job: stepping environments, or lanes that each step at their own pace (`step_pages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy as np

from relayrl.data.columns import COLUMNS, OPTIONAL_COLUMNS, LaneHeader, Rollout, Successors
from relayrl.data.steps.step_columns import step_columns, zero_columns
from relayrl.data.trees import Array, Space, Tree, index, map_tree, write
from relayrl.errors import ConfigError, EnvError


class EndedLanes(Protocol):
    """Lanes `(env[k], agent[k])` that ended on a row, sorted, each with what it saw last in `obs[k]`, and its mask then."""

    env: Array
    agent: Array
    obs: Tree
    action_mask: Array | None


class EmptyBlock(NamedTuple):
    """Columns `[T, L, …]` of a block without rows, which one call fills."""

    obs: Any
    action: Any
    logp: Array | None
    reward: Array
    terminated: Array
    truncated: Array
    clock: tuple[Array, Array, Array, Array] | None
    """Episode and step of each row `[T, B]`, and those of the next row `[B]`, where environments are counted."""


class RolloutBuilder:
    """Fills blocks of at most `num_steps` rows for the lanes of one group; episode and step numbers run on."""

    def __init__(
        self,
        header: LaneHeader,
        num_steps: int,
        *,
        mask_width: int | None = None,
        with_logp: bool = False,
        with_value: bool = False,
        memory_space: Space | None = None,
        with_clock: bool = False,
    ) -> None:
        """`with_clock`: several agents share an environment, here or in other groups, whose episodes and steps are counted."""
        if num_steps < 1 or header.num_lanes < 1:
            raise ConfigError(f"a block needs at least one step and one lane, not {num_steps} and {header.num_lanes}")
        self._header = header
        self._num_steps = num_steps
        step = step_columns(
            header.observation_space,
            header.action_space,
            mask_width=mask_width,
            with_logp=with_logp,
            with_value=with_value,
            memory_space=memory_space,
        )
        self._filling, self._resting = (_Columns(header, num_steps, step, with_clock) for _ in range(2))
        self._row = 0
        self._row_is_open = False
        self._first_episode = np.zeros(header.num_lanes, dtype=np.int64)
        self._first_step = np.zeros(header.num_lanes, dtype=np.int64)
        self._clock = _Clock(len(header.env_ids)) if with_clock else None

    @property
    def num_rows(self) -> int:
        """Rows finished in the present block."""
        return self._row

    def add(
        self,
        obs: Tree,
        action: Tree,
        active: Array,
        action_mask: Array | None = None,
        logp: Array | None = None,
        value: Array | None = None,
        memory: Tree | None = None,
    ) -> None:
        """Begin a row: what the lanes saw and did; `active` where they acted. No mask means that all is allowed."""
        row, columns = self._row, self._filling
        if self._row_is_open or row == self._num_steps:
            raise ConfigError(f"add() on row {row} of {self._num_steps}; call finish_row() or build() before it")
        if (columns.logp is None) != (logp is None) or (columns.value is None) != (value is None):
            raise ConfigError("logp and value must be given exactly when the builder was made with them")
        if (columns.memory is None) != (memory is None) or (columns.action_mask is None and action_mask is not None):
            raise ConfigError("memory and action_mask must be given only when the builder was made with them")
        _write_lanes(columns.obs, row, obs)
        _write_lanes(columns.action, row, action)
        columns.valid[row] = active.reshape(-1)
        if columns.action_mask is not None:
            if action_mask is None:
                columns.action_mask[row] = True
            else:
                _write_lanes(columns.action_mask, row, action_mask)
        if logp is not None:
            _write_lanes(columns.logp, row, logp)
        if value is not None:
            _write_lanes(columns.value, row, value)
        if memory is not None:
            _write_lanes(columns.memory, row, memory)
        self._row_is_open = True

    def finish_row(
        self,
        reward: Array,
        terminated: Array,
        truncated: Array,
        failed: Array | None = None,
        final: EndedLanes | None = None,
        episode_over: Array | None = None,
    ) -> None:
        """Complete the row: what came of it. `failed` [B] marks environments that broke down: their lanes' rows are void.

        `episode_over` [B], which a builder with a clock needs, marks environments whose next row begins an episode.
        """
        row, columns = self._row, self._filling
        if not self._row_is_open:
            raise ConfigError("finish_row() without add(); every row begins with what the lanes saw and did")
        if (self._clock is None) != (episode_over is None):
            raise ConfigError("episode_over must be given exactly when the builder was made with_clock")
        if self._clock is not None and episode_over is not None:
            columns.env_episode[row], columns.env_step[row] = self._clock.episode, self._clock.step
            self._clock.tick(episode_over if failed is None else episode_over | failed)
        columns.reward[row] = reward.reshape(-1)
        columns.terminated[row] = terminated.reshape(-1)
        columns.truncated[row] = truncated.reshape(-1)
        num_agents = len(self._header.agent_ids)
        if failed is not None and failed.any():
            columns.void_row(row, np.repeat(failed.reshape(-1), num_agents), final, num_agents)
        elif final is not None:
            mask = None if columns.action_mask is None else final.action_mask
            columns.successors.append(row, final.env * num_agents + final.agent, final.obs, mask)
        self._row = row + 1
        self._row_is_open = False

    def begin_block(self, num_rows: int) -> EmptyBlock:
        """Where all of `num_rows` rows go at once; `finish_block` must follow."""
        columns, clock = self._filling, self._clock
        if self._row or self._row_is_open or num_rows > self._num_steps:
            raise ConfigError(f"begin_block({num_rows}) on row {self._row} of {self._num_steps}; call build() before")
        numbers = None
        if clock is not None:
            clock.renew()
            numbers = columns.env_episode[:num_rows], columns.env_step[:num_rows], clock.episode, clock.step
        return EmptyBlock(
            columns.obs[:num_rows],
            columns.action[:num_rows],
            None if columns.logp is None else columns.logp[:num_rows],
            columns.reward[:num_rows],
            columns.terminated[:num_rows],
            columns.truncated[:num_rows],
            numbers,
        )

    def finish_block(self, num_rows: int, last_obs: Array) -> Array:
        """Complete the rows, on which all lanes acted; `last_obs` [T, L, …] is what lanes saw last where they ended.

        Gives where that is: numbers `step * L + lane`, ascending."""
        columns, L = self._filling, self._header.num_lanes
        columns.valid[:num_rows] = True
        ended = np.flatnonzero(columns.terminated[:num_rows] | columns.truncated[:num_rows])
        if len(ended):
            seen = last_obs.reshape(-1, *last_obs.shape[2:])[ended]
            columns.successors.append(ended // L, ended % L, seen, None)
        self._row = num_rows
        return ended

    def fail_row(self, obs: Tree, action_mask: Array | None = None) -> None:
        """Every environment broke down: the open row, or else a new one on which lanes saw `obs`, is void and ends all
        episodes."""
        row, columns = self._row, self._filling
        if row == self._num_steps:
            raise ConfigError(f"fail_row() on row {row} of {self._num_steps}; call build() before it")
        if not self._row_is_open:
            _write_lanes(columns.obs, row, obs)
            if columns.action_mask is not None:
                columns.action_mask[row] = True
                if action_mask is not None:
                    _write_lanes(columns.action_mask, row, action_mask)
            self._row_is_open = True
        envs, lanes = np.ones(len(self._header.env_ids), bool), np.zeros(self._header.num_lanes, bool)
        self.finish_row(lanes, lanes, lanes, envs, None, None if self._clock is None else envs)

    def build(
        self,
        next_obs: Tree,
        policy_version: int,
        next_mask: Array | None = None,
        next_active: Array | None = None,
    ) -> Rollout:
        """The block, with `next_obs` as what followed for lanes that go on; the next `add` begins a new one.

        `next_mask` is what those lanes are allowed to do then, `next_active` which of them act; None means everything and all.
        """
        columns, T = self._filling, self._row
        if self._row_is_open or T == 0:
            raise ConfigError(f"build() after {T} finished rows; finish the open row, or fill at least one, before it")
        ended = np.logical_or(columns.terminated[:T], columns.truncated[:T])
        if columns.successors.size or np.count_nonzero(ended):
            self._require_final_observations(ended)
        columns.successors.complete_last_row(T - 1, ended[-1], next_obs, next_mask)
        rollout = columns.rollout(self._header, T, policy_version, self._first_episode, self._first_step)
        if next_active is not None and np.count_nonzero(next_active) < next_active.size:
            rollout = replace(rollout, waits=~next_active.reshape(-1))
        if self._clock is None:
            self._count(ended, rollout.valid)
        else:
            rollout = replace(rollout, next_episode=self._clock.episode)
            self._count_by_clock(self._clock, rollout)
        self._filling, self._resting = self._resting, columns
        self._filling.clear()
        self._row = 0
        return rollout

    def name_envs(self, env_ids: tuple[UUID, ...]) -> None:
        """Give the environments of the next blocks these ids."""
        self._header = replace(self._header, env_ids=env_ids)

    def get_state(self) -> dict[str, Array]:
        """Episode and step numbers, which is all that outlives a block."""
        if self._row or self._row_is_open:
            raise ConfigError("get_state() inside a block; build() it before")
        numbers = {"first_episode": self._first_episode.copy(), "first_step": self._first_step.copy()}
        clock = self._clock
        return numbers if clock is None else numbers | {"env_episode": clock.episode, "env_step": clock.step}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Number episodes and steps on from `get_state`; the present block is dropped."""
        self._first_episode = np.array(state["first_episode"], np.int64)
        self._first_step = np.array(state["first_step"], np.int64)
        if self._clock is not None:
            self._clock.set_from(state)
        self._row, self._row_is_open = 0, False
        self._filling.clear()

    def _require_final_observations(self, ended: Array) -> None:
        L = ended.shape[1]
        given, needed = self._filling.successors.rows(L), np.flatnonzero(ended)
        if np.array_equal(given, needed):
            return
        wrong = np.setxor1d(given, needed)
        row, lane = divmod(int(wrong[0]) if len(wrong) else int(given[0]), L)
        env, agent = divmod(lane, len(self._header.agent_ids))
        raise EnvError(
            f"agent {self._header.agent_ids[agent]!r} of environment {self._header.env_ids[env]} on row {row}: "
            "every lane that ends, and no other, must have one final observation, in the order of lanes"
        )

    def _count(self, ended: Array, valid: Array) -> None:
        """Number the next block's first row. Rows before a lane's first action of an episode do not count across blocks:
        the fragment that begins the lane's part of an episode has `first_step` 0, however late its turn came."""
        T = len(ended)
        if not np.count_nonzero(ended):
            self._first_step = self._first_step + T
            if np.count_nonzero(valid) < valid.size:
                self._first_step *= valid.any(0) | (self._first_step > T)
            return
        last_end, last_valid = (
            np.where(flags.any(0), T - 1 - np.argmax(flags[::-1], axis=0), -1) for flags in (ended, valid)
        )
        rows_since = np.where(last_end >= 0, T - 1 - last_end, self._first_step + T)
        has_acted = (last_valid > last_end) | ((last_end < 0) & (self._first_step > 0))
        self._first_episode = self._first_episode + ended.sum(0)
        self._first_step = np.where(has_acted, rows_since, 0)

    def _count_by_clock(self, clock: _Clock, rollout: Rollout) -> None:
        """The same where environments are counted."""
        ended, valid, episodes = rollout.ended, rollout.valid, rollout.env_episode
        assert episodes is not None
        T, num_agents = len(ended), len(self._header.agent_ids)
        last_end, last_valid = (
            np.where(flags.any(0), T - 1 - np.argmax(flags[::-1], axis=0), -1) for flags in (ended, valid)
        )
        episode, step = np.repeat(clock.episode, num_agents), np.repeat(clock.step, num_agents)
        end_episode = np.repeat(episodes, num_agents, 1)[last_end, np.arange(len(last_end))]
        has_left = np.where(last_end >= 0, end_episode == episode, self._first_episode > episode)
        goes_on = (last_end < 0) & (self._first_step > 0)
        self._first_episode = episode + has_left
        self._first_step = np.where((last_valid > last_end) | goes_on, step, 0)


class _Clock:
    """The episode that each of `B` environments is in, and the step of its next row."""

    def __init__(self, num_envs: int) -> None:
        self.episode, self.step = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def tick(self, episode_over: Array) -> None:
        """Go on to the next row; new arrays, as the old ones may be in a state that somebody keeps."""
        self.step = self.step + 1
        if np.count_nonzero(episode_over):
            self.episode = self.episode + episode_over
            self.step[episode_over] = 0

    def renew(self) -> None:
        """Make new arrays of the numbers, which may then change in place."""
        self.episode, self.step = self.episode.copy(), self.step.copy()

    def set_from(self, state: Mapping[str, Array]) -> None:
        """Go on from a builder's state; of one from before environments were counted, from the lane that is furthest on."""
        num_envs = len(self.episode)
        if "env_episode" in state:
            self.episode, self.step = (np.array(state[name], np.int64) for name in ("env_episode", "env_step"))
        else:
            lanes = (np.asarray(state[name]).reshape(num_envs, -1) for name in ("first_episode", "first_step"))
            self.episode, self.step = (numbers.max(1) for numbers in lanes)


class _Columns:
    """One set of buffers `[T, L, …]`."""

    def __init__(self, header: LaneHeader, num_steps: int, step: dict[str, Any], with_clock: bool) -> None:
        leading = (num_steps, header.num_lanes)
        columns: dict[str, Any] = zero_columns(step, leading)
        self.obs, self.action, self.reward, self.policy_version = (
            columns[name] for name in ("obs", "action", "reward", "policy_version")
        )
        self.action_mask, self.logp, self.value, self.memory = (
            columns.get(name) for name in ("action_mask", "logp", "value", "memory")
        )
        self.terminated, self.truncated, self.valid, self.failed = (np.zeros(leading, dtype=bool) for _ in range(4))
        clock = (num_steps, len(header.env_ids))
        self.env_episode: Any = np.zeros(clock, np.int64) if with_clock else None
        self.env_step: Any = np.zeros(clock, np.int64) if with_clock else None
        self.successors = _SuccessorRows(step, 2 * header.num_lanes)
        self._has_failed_rows = False
        self._views: dict[str, Any] = {}  # of the rows of the last block

    def clear(self) -> None:
        """Everything else is overwritten row by row."""
        self.successors.size = 0
        if self._has_failed_rows:
            self.failed[:] = False
            self._has_failed_rows = False

    def void_row(self, row: int, lanes: Array, final: EndedLanes | None, num_agents: int) -> None:
        """Mark `lanes` [L] as failed. Where the environment kept no last observation, it is what the lane acted on."""
        self._has_failed_rows = True
        self.failed[row, lanes] = self.truncated[row, lanes] = True
        self.valid[row, lanes] = self.terminated[row, lanes] = False
        self.reward[row, lanes] = 0.0
        if final is None:
            where = np.flatnonzero(lanes)
            own_mask = None if self.action_mask is None else self.action_mask[row, where]
            self.successors.append(row, where, index(self.obs, (row, where)), own_mask)
            return
        given = final.env * num_agents + final.agent
        missing = np.setdiff1d(np.flatnonzero(lanes), given)
        order = np.argsort(np.concatenate([given, missing]))
        ended = np.concatenate([given, missing])[order]
        obs = map_tree(lambda last, own: np.concatenate([last, own[row, missing]])[order], final.obs, self.obs)
        mask = None
        if self.action_mask is not None:
            # The last good observation is the one that the lane acted on, under the mask of its row.
            mask = self.action_mask[row, ended]
            mask[np.searchsorted(ended, given[~lanes[given]])] = (
                True if final.action_mask is None else final.action_mask[~lanes[given]]
            )
        self.successors.append(row, ended, obs, mask)

    def rollout(self, header: LaneHeader, T: int, version: int, first_episode: Array, first_step: Array) -> Rollout:
        self.policy_version[:T] = version
        if len(self._views.get("reward", ())) != T:
            present = (name for name in (*COLUMNS, *OPTIONAL_COLUMNS) if getattr(self, name, None) is not None)
            self._views = {name: index(getattr(self, name), slice(T)) for name in present}
        return Rollout(
            header=header,
            first_episode=first_episode,
            first_step=first_step,
            successors=self.successors.view(),
            **self._views,
        )


class _SuccessorRows:
    """Observations that followed rows where `obs[t + 1]` is not them, in the order of rows; masks as well where there are any.

    Grows by doubling.
    """

    def __init__(self, step: dict[str, Any], capacity: int) -> None:
        number = np.dtype(np.int64)
        seen = {name: step[name] for name in ("obs", "action_mask") if name in step}
        self._columns: dict[str, Any] = zero_columns({"step": number, "lane": number, **seen}, (capacity,))
        self.size = 0

    def append(self, row: int | Array, lanes: Array, obs: Tree, mask: Array | None) -> None:
        """What lanes saw after `row`, or each after its own, and were allowed to do then; no mask means everything."""
        where = self._reserve(len(lanes))
        self._columns["step"][where] = row
        self._columns["lane"][where] = lanes
        write(self._columns["obs"], where, obs)
        if "action_mask" in self._columns:
            self._columns["action_mask"][where] = True if mask is None else mask
        self.size = where.stop

    def complete_last_row(self, row: int, ended: Array, next_obs: Tree, next_mask: Array | None) -> None:
        """`next_obs` for lanes that go on, beside what is already here of those that ended on `row`."""
        num_ended = int(np.count_nonzero(ended))
        self.size -= num_ended
        names = ("obs", "action_mask") if "action_mask" in self._columns else ("obs",)
        last: dict[str, Any] = {}
        if num_ended:
            ending = slice(self.size, self.size + num_ended)
            last = {name: map_tree(np.copy, index(self._columns[name], ending)) for name in names}
        where = self._reserve(len(ended))
        self._columns["step"][where] = row
        self._columns["lane"][where] = np.arange(len(ended))
        _write_lanes(self._columns["obs"], where, next_obs)
        if "action_mask" in self._columns:
            self._columns["action_mask"][where] = True if next_mask is None else next_mask.reshape(len(ended), -1)
        for name, column in last.items():
            write(self._columns[name], where.start + np.flatnonzero(ended), column)
        self.size = where.stop

    def rows(self, num_lanes: int) -> Array:
        """Flat indices `step * L + lane`."""
        view = self.view()
        return np.asarray(view.step * num_lanes + view.lane)

    def view(self) -> Successors:
        return Successors(**index(self._columns, slice(self.size)))

    def _reserve(self, num_rows: int) -> slice:
        """Where the next `num_rows` rows go."""
        end, capacity = self.size + num_rows, len(self._columns["step"])
        if end > capacity:
            longer = max(end, 2 * capacity)
            self._columns = map_tree(lambda leaf: np.resize(leaf, (longer, *leaf.shape[1:])), self._columns)
        return slice(self.size, end)


def _write_lanes(target: Any, where: int | slice, source: Any) -> None:
    """`target[where] = source`, where source leaves have leading axes `[B, N]` or `[L]`."""
    if isinstance(target, np.ndarray):
        rows = target[where]
        rows[...] = source if source.shape == rows.shape else source.reshape(rows.shape)
    elif isinstance(target, dict):
        for key, part in target.items():
            _write_lanes(part, where, source[key])
    else:
        for part, other in zip(target, source, strict=True):
            _write_lanes(part, where, other)
