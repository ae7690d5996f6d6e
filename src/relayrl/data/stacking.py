"""Puts trajectories side by side as rollouts: the reverse of `splitting`, for learning from what sinks and programs hand in.

`stack_trajectories` gives each trajectory of one group a lane of its own, from row 0 on. `stack_jointly` puts the trajectories
of all agents of an environment where they were in time, so that central critics and joint replay see who acted at once: row
`k` of an environment is step `first + k` of its episode, fragments of one episode that follow each other become one lane again,
and an environment's next episode follows the one before it. So actions, flags and what followed stand on the rows and in the
order in which they stood in the rollout that was split.

Rows on which a lane has no step are not valid. In `stack_trajectories`, a lane that goes on waits there and sees its
`final_obs`, which is also its last successor, so that whatever bootstraps finds it; in `stack_jointly` it ends on a void row
behind its last fragment, or where the next one is missing, as if the environment had failed there: others see that it went on.
Before its first step, after its end, and where an agent is absent or waits, observations and actions are neutral (zeros, or a
choice's first option), so that they can be encoded. A failed trajectory ends on a void row, as in `columns`.

`stack_jointly` keeps global states, where trajectories have them: row `k` of an environment has what any of its agents
recorded there, zeros where nobody acted. `stack_trajectories` leaves them out, because its lanes of one environment are not
of the same moments.

All arrays are new and writable. An environment may occur several times in the header (episodes of which only a later part is
there), so a stack is for learning in this process, not for the codec. Trajectories that do not know the environment's steps
(files of version 1, programs that give none) are placed by their own decisions from `first_step` on; `unaligned` finds those
for which that may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.data.columns import LaneHeader, Rollout, Successors, Trajectory
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.state_rows import PlacedStates, joint_states
from relayrl.data.trees import Array, Space, allocate, index, map_tree, space_leaves, unflatten, write
from relayrl.errors import ConfigError

OPTIONAL = ("action_mask", "logp", "value", "memory")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A trajectory, its lane, the rows of its steps, and the one behind its end; a failure's void row is its last."""

    trajectory: Trajectory
    lane: int
    rows: slice | Array
    end: int
    first_step: int  # of the lane, if it begins with this trajectory


def stack_trajectories(trajectories: Sequence[Trajectory]) -> Rollout:
    """One group's trajectories as lanes of one rollout, `T` the longest; `Rollout.trajectories` gives them back."""
    if not trajectories:
        raise ConfigError("there is nothing to stack; give at least one trajectory")
    slots: list[tuple[UUID, set[str]]] = []
    agent_ids = tuple(dict.fromkeys(t.agent_id for t in trajectories))
    placed = []
    for trajectory in trajectories:
        slot = _free_slot(slots, trajectory)
        lane = slot * len(agent_ids) + agent_ids.index(trajectory.agent_id)
        length = len(trajectory)
        placed.append(_Placed(trajectory, lane, slice(0, length), length + trajectory.failed, trajectory.first_step))
    first = trajectories[0]
    env_ids = tuple(env_id for env_id, _ in slots)
    header = LaneHeader(first.group, env_ids, agent_ids, first.observation_space, first.action_space)
    return _filled(header, placed, max(p.end for p in placed))


def stack_jointly(
    trajectories: Iterable[Trajectory],
    headers: Mapping[str, LaneHeader] | None = None,
    mask_widths: Mapping[str, int] | None = None,
) -> dict[str, Rollout]:
    """All groups' trajectories as rollouts of the same environments and steps.

    `headers` name groups and agents that may be absent; their `env_ids` do not matter. Without them, groups and agents are
    those that occur. `mask_widths` are the widths of action masks, by group, for groups that may be absent altogether.
    A lane that goes on beyond its last step here bootstraps from its final observation.
    """
    given = list(trajectories)
    if not given:
        raise ConfigError("there is nothing to stack; give at least one trajectory")
    headers = _headers_of(sorted(given, key=lambda t: t.first_step)) if headers is None else headers
    columns = _columns_of(given)
    env_ids = tuple(column[0].env.env_id for column in columns)
    num_steps = max(part.end_row for column in columns for part in column)
    placed: dict[str, list[_Placed]] = {group: [] for group in headers}
    states: list[PlacedStates] = []
    clock, episode = (np.zeros((num_steps, len(columns)), np.int64) for _ in range(2))
    for i, column in enumerate(columns):
        for env, row, members, _ in column:
            clock[row:, i], episode[row:, i] = env.first_step + np.arange(num_steps - row), env.episode
            for trajectory in members:
                if trajectory.group not in headers:
                    raise ConfigError(f"no header for group {trajectory.group!r}; known are {sorted(headers)}")
                agents = headers[trajectory.group].agent_ids
                if trajectory.agent_id not in agents:
                    raise ConfigError(f"agent {trajectory.agent_id!r} is not in group {trajectory.group!r}: {agents}")
                lane = i * len(agents) + agents.index(trajectory.agent_id)
                zeroth = env.first_step - row
                rows, end = _rows(trajectory, zeroth), _end(trajectory) - zeroth
                first_step = trajectory.first_step if env.knows_steps else env.first_step
                placed[trajectory.group].append(_Placed(trajectory, lane, rows, end, first_step))
                states.append(PlacedStates(trajectory, i, rows, end))
    widths = mask_widths or {}
    rollouts = {
        group: _filled(replace(header, env_ids=env_ids), placed[group], num_steps, widths.get(group))
        for group, header in headers.items()
    }
    if all(part.env.knows_steps for column in columns for part in column):
        rollouts = {group: replace(own, env_episode=episode, env_step=clock) for group, own in rollouts.items()}
    block = joint_states(states, num_steps, len(columns))
    return rollouts if block is None else {group: block.beside(rollout) for group, rollout in rollouts.items()}


def empty_rollout(header: LaneHeader, mask_width: int | None = None) -> Rollout:
    """One row of a nameless environment on which none of the header's agents acts."""
    return _filled(replace(header, env_ids=(UUID(int=0),)), (), 1, mask_width)


@dataclass(slots=True)
class _Env:
    """One episode of one environment, or a part of it: what its members cover has no gap."""

    env_id: UUID
    episode: int
    members: list[Trajectory]
    ends: dict[tuple[str, str], int]  # the step behind the last one, by group and agent

    @property
    def first_step(self) -> int:
        """The first on which somebody acts."""
        return min(t.first_step if t.step is None else int(t.step[0]) for t in self.members)

    @property
    def num_steps(self) -> int:
        return max(self.ends.values()) - self.first_step

    @property
    def knows_steps(self) -> bool:
        return all(t.knows_steps for t in self.members)

    def takes(self, trajectory: Trajectory) -> bool:
        """Whether the agent has no step from there on, and others are not a gap away."""
        own = self.ends.get((trajectory.group, trajectory.agent_id), trajectory.first_step)
        return own <= trajectory.first_step <= max(self.ends.values())

    def closed(self) -> list[Trajectory]:
        """The members; those that go on, and that the agent's next one does not follow, end on the step behind them."""
        begins = {(t.group, t.agent_id, t.first_step) for t in self.members}

        def goes_on(t: Trajectory) -> bool:
            return not (t.terminated or t.truncated or (t.group, t.agent_id, _end(t)) in begins)

        return [
            replace(t, truncated=True, failed=True, end_step=_end(t) + 1) if goes_on(t) else t for t in self.members
        ]


class _Part(NamedTuple):
    """An episode, or a part of one, in the column of its environment: its first row, its trajectories, and the row behind."""

    env: _Env
    row: int
    members: list[Trajectory]
    end_row: int


def _columns_of(trajectories: Sequence[Trajectory]) -> list[list[_Part]]:
    """Environments in the order in which they occur, each with its episodes in order; one of which the beginning is missing has
    a column of its own, as only a column's first row can say who acted before."""
    columns: dict[UUID, list[list[_Part]]] = {t.env_id: [] for t in trajectories}
    parts = _joint_envs(sorted(trajectories, key=lambda t: t.first_step))
    for env in sorted(parts, key=lambda part: (part.episode, part.first_step)):
        own = columns[env.env_id]
        begins = all(t.first_step == 0 for t in env.members)
        if not own or not begins or own[-1][-1].env.episode == env.episode:
            own.append([])
        row = own[-1][-1].end_row if own[-1] else 0
        members = env.closed()
        own[-1].append(_Part(env, row, members, row + max(map(_end, members)) - env.first_step))
    return [column for of_env in columns.values() for column in of_env]


def _rows(trajectory: Trajectory, first_step: int) -> slice | Array:
    """Where its steps are, if row 0 is `first_step`."""
    if trajectory.step is not None:
        return trajectory.step - first_step
    first = trajectory.first_step - first_step
    return slice(first, first + len(trajectory))


def _end(trajectory: Trajectory) -> int:
    """The step behind the last one that it covers."""
    return trajectory.first_step + trajectory.num_env_steps


def count_env_steps(trajectories: Iterable[Trajectory]) -> int:
    """Steps of environments that trajectories cover, however many agents took part in each."""
    return sum(env.num_steps for env in _joint_envs(sorted(trajectories, key=lambda t: t.first_step)))


def joint_envs(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories by environment and episode, those of one together; each part is what `stack_jointly` makes one
    environment of."""
    return [env.members for env in _joint_envs(sorted(trajectories, key=lambda t: t.first_step))]


def unaligned(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Of `joint_envs`, those with several agents whose steps nobody knows, and which did not act equally often: if one of them
    came late, waited, or missed a turn, it stands beside others' steps that were not at the same time."""
    found = []
    for env in _joint_envs(sorted(trajectories, key=lambda t: t.first_step)):
        counts: dict[tuple[str, str], int] = {}
        for t in env.members:
            counts[t.group, t.agent_id] = counts.get((t.group, t.agent_id), 0) + len(t)
        if not env.knows_steps and len(set(counts.values())) > 1:
            found.append(env.members)
    return found


def _joint_envs(in_order: Iterable[Trajectory]) -> list[_Env]:
    """Parts in the order of their first trajectory."""
    by_episode: dict[tuple[UUID, int], list[_Env]] = {}
    envs: list[_Env] = []
    for trajectory in in_order:
        parts = by_episode.setdefault((trajectory.env_id, trajectory.episode), [])
        env = next((part for part in parts if part.takes(trajectory)), None)
        if env is None:
            env = _Env(trajectory.env_id, trajectory.episode, [], {})
            parts.append(env)
            envs.append(env)
        env.members.append(trajectory)
        env.ends[trajectory.group, trajectory.agent_id] = _end(trajectory)
    return envs


def _headers_of(trajectories: Sequence[Trajectory]) -> dict[str, LaneHeader]:
    headers: dict[str, LaneHeader] = {}
    for t in trajectories:
        known = headers.get(t.group, LaneHeader(t.group, (), (), t.observation_space, t.action_space))
        if t.agent_id not in known.agent_ids:
            headers[t.group] = replace(known, agent_ids=(*known.agent_ids, t.agent_id))
    return headers


def _free_slot(slots: list[tuple[UUID, set[str]]], trajectory: Trajectory) -> int:
    for i, (env_id, agents) in enumerate(slots):
        if env_id == trajectory.env_id and trajectory.agent_id not in agents:
            agents.add(trajectory.agent_id)
            return i
    slots.append((trajectory.env_id, {trajectory.agent_id}))
    return len(slots) - 1


def _filled(header: LaneHeader, placed: Sequence[_Placed], T: int, mask_width: int | None = None) -> Rollout:
    for p in placed:
        _require_same_layout(header, placed[0].trajectory, p.trajectory)
    L = header.num_lanes
    columns: dict[str, Any] = {
        "obs": _neutral(header.observation_space, (T, L)),
        "action": _neutral(header.action_space, (T, L)),
        "reward": np.zeros((T, L), np.float32),
        "policy_version": np.zeros((T, L), np.int64),
    }
    if mask_width is not None:
        columns["action_mask"] = np.ones((T, L, mask_width), bool)
    columns |= _optional_columns(placed, (T, L))
    flags = {name: np.zeros((T, L), bool) for name in ("terminated", "truncated", "valid", "failed")}
    first = {name: np.zeros(L, np.int64) for name in ("first_episode", "first_step")}
    last = {"obs": _neutral(header.observation_space, (L,))}
    if any(p.trajectory.final_mask is not None for p in placed):
        last["action_mask"] = np.ones((L, columns["action_mask"].shape[-1]), bool)
    final: dict[tuple[int, int], Trajectory] = {}
    begun: set[int] = set()
    for p in placed:
        _write_lane(p, columns, flags, last, final)
        if p.lane not in begun:
            begun.add(p.lane)
            first["first_episode"][p.lane] = p.trajectory.episode
            first["first_step"][p.lane] = p.first_step
    successors = _successors(flags["terminated"] | flags["truncated"], last, final)
    return Rollout(header=header, successors=successors, **columns, **flags, **first)


def _write_lane(
    placed: _Placed,
    columns: dict[str, Any],
    flags: dict[str, Array],
    last: dict[str, Any],
    final: dict[tuple[int, int], Trajectory],
) -> None:
    trajectory, lane, end = placed.trajectory, placed.lane, placed.end - 1
    steps = (placed.rows, lane)
    for name, column in columns.items():
        write(column, steps, getattr(trajectory, name))
    flags["valid"][steps] = True
    if not (trajectory.terminated or trajectory.truncated):
        write(columns["obs"], (slice(end + 1, None), lane), trajectory.final_obs)
        _write_final(last, lane, trajectory)
        return
    for name in ("terminated", "truncated", "failed"):
        flags[name][end, lane] = getattr(trajectory, name)
    if trajectory.failed:
        _write_final(columns, (end, lane), trajectory)
    final[end, lane] = trajectory
    empty = map_tree(lambda leaf: leaf[0], _neutral(trajectory.observation_space, (1,)))
    write(columns["obs"], (slice(end + 1, None), lane), empty)
    write(last["obs"], lane, empty)
    if "action_mask" in last:
        last["action_mask"][lane] = True


def _write_final(columns: dict[str, Any], where: int | tuple[int, int], trajectory: Trajectory) -> None:
    """What a trajectory saw last and, where masks are kept, was allowed to do then: everything, if it does not tell."""
    write(columns["obs"], where, trajectory.final_obs)
    if "action_mask" in columns:
        columns["action_mask"][where] = True if trajectory.final_mask is None else trajectory.final_mask


def _successors(ended: Array, last: dict[str, Any], final: Mapping[tuple[int, int], Trajectory]) -> Successors:
    step, lane = np.nonzero(rows_with_successor(ended))
    columns = index(last, lane)
    for k, where in enumerate(zip(step.tolist(), lane.tolist(), strict=True)):
        if where in final:
            _write_final(columns, k, final[where])
    return Successors(step, lane, **columns)


def _optional_columns(placed: Sequence[_Placed], leading: tuple[int, int]) -> dict[str, Any]:
    """Columns that the trajectories have; nothing is masked where nobody acts."""
    if not placed:
        return {}
    example = placed[0].trajectory
    found = {name: getattr(example, name) for name in OPTIONAL if getattr(example, name) is not None}

    def like(leaf: Array) -> Array:
        return np.zeros((*leading, *leaf.shape[1:]), leaf.dtype)

    columns = {name: map_tree(like, column) for name, column in found.items()}
    if "action_mask" in columns:
        columns["action_mask"][:] = True
    return columns


def _require_same_layout(header: LaneHeader, first: Trajectory, other: Trajectory) -> None:
    pairs = ((header.observation_space, other.observation_space), (header.action_space, other.action_space))
    if other.group != header.group or any(a is not b and a != b for a, b in pairs):
        raise ConfigError(
            f"trajectories of groups {header.group!r} and {other.group!r} with their spaces cannot be stacked; "
            "stack one group at a time, or use stack_jointly"
        )
    for name in OPTIONAL:
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise ConfigError(f"some trajectories have {name} and others do not; record it for all or for none")


def _neutral(space: Space, leading: tuple[int, ...]) -> Any:
    """A tree of zeros, or of the first option where a leaf is a choice."""

    def fill(leaf: Space) -> Any:
        rows = allocate(leaf, leading)
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            rows[...] = leaf.start
        return rows

    return unflatten(space, (fill(leaf) for _, leaf in space_leaves(space)))
