"""`Trajectory` and `Rollout` from Arrow record batches, believing nothing.

Every rule of `schema` and `columns` that a batch can break is checked, and what breaks one is a `DecodeError`. Arrays share
the batch's memory (booleans aside) and are read-only. A batch may be a slice of a larger table, as long as its rows are one
trajectory or one rollout.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow_arrays import from_arrow, names_from_arrow, successors_from_arrow
from relayrl.data.columns import LaneHeader, Rollout, Successors, Trajectory
from relayrl.data.row_rules import failed_rows_are_void, rows_are_numbered, rows_with_successor
from relayrl.data.schema import (
    EPISODE,
    FAILED,
    LOGP,
    POLICY_VERSION,
    REWARD,
    STEP,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Kind,
    Layout,
    Leaf,
    layout_of,
)
from relayrl.data.trees import Array, Space, map_tree, unflatten
from relayrl.errors import DecodeError

_MAX_CACHED_IDS = 16_384


def rollout_from_batch(batch: pa.RecordBatch, layout: Layout | None = None) -> Rollout:
    """The rollout of a batch that `rollout_to_batch` made; `layout` may be given where it is known already."""
    layout = _checked_layout(batch, layout, Kind.ROLLOUT)
    env_index, worlds = names_from_arrow(batch.column("env_id"), "env_id")
    agent_index, agents = names_from_arrow(batch.column("agent_id"), "agent_id")
    B, N, L = len(worlds), len(agents), len(worlds) * len(agents)
    if L == 0 or batch.num_rows == 0 or batch.num_rows % L:
        raise DecodeError(f"{batch.num_rows} rows are no whole number of steps of {L} lanes ({B} worlds × {N} agents)")
    T = batch.num_rows // L
    if not (env_index.reshape(T, B, N) == np.arange(B, dtype=np.int32)[:, None]).all():
        raise DecodeError("column 'env_id' does not run through the worlds in every step")
    if not (agent_index.reshape(T * B, N) == np.arange(N, dtype=np.int32)).all():
        raise DecodeError("column 'agent_id' does not run through the agents in every world")
    agent_ids = tuple(agents.to_pylist())
    if len(set(agent_ids)) != N:
        raise DecodeError("column 'agent_id' names an agent twice")
    _require_group(batch, layout)
    env_ids = (_uuids if B > _MAX_CACHED_IDS else _cached_uuids)(tuple(worlds.to_numpy(zero_copy_only=False).tolist()))

    leading = (T, L)
    flags = {leaf.name: _read(batch, leaf, leading) for leaf in (TERMINATED, TRUNCATED, FAILED, VALID)}
    episode, step = _read(batch, EPISODE, leading), _read(batch, STEP, leading)
    ended = np.logical_or(flags["terminated"], flags["truncated"])
    if not rows_are_numbered(ended, episode, step):
        raise DecodeError("columns 'episode' and 'step' do not count on where lanes go on and anew where they ended")
    has_successor = rows_with_successor(ended)
    rows = np.flatnonzero(has_successor)
    successor_step, successor_lane = np.divmod(rows, L)
    if not failed_rows_are_void(flags["failed"], flags["valid"], flags["truncated"]):
        raise DecodeError("a row that failed must be truncated and not valid")
    obs, state, mask = _read_successors(batch, layout, has_successor)
    steps = _read_steps(batch, layout, leading)
    if steps["state"] is not None:
        steps["state"] = map_tree(lambda leaf: _of_worlds(leaf, N), steps["state"])
    return Rollout(
        header=LaneHeader(layout.group, env_ids, agent_ids, layout.observation_space, layout.action_space),
        first_episode=episode[0],
        first_step=step[0],
        successors=Successors(successor_step, successor_lane, obs, state, mask),
        **flags,
        **steps,
    )


def trajectory_from_batch(batch: pa.RecordBatch, layout: Layout | None = None) -> Trajectory:
    """The trajectory of a batch that `trajectory_to_batch` made; `layout` may be given where it is known already."""
    layout = _checked_layout(batch, layout, Kind.TRAJECTORY)
    T, *_ = leading = (batch.num_rows,)
    if T == 0:
        raise DecodeError("a trajectory without steps")
    _require_group(batch, layout)
    episode, step = _read(batch, EPISODE, leading), _read(batch, STEP, leading)
    if episode[0] < 0 or (episode != episode[0]).any() or step[0] < 0 or (step != step[0] + np.arange(T)).any():
        raise DecodeError("the rows of a trajectory are not the consecutive steps of one episode")
    if not _read(batch, VALID, leading).all():
        raise DecodeError("a trajectory has a row that is not valid")
    flags = {leaf.name: _read(batch, leaf, leading) for leaf in (TERMINATED, TRUNCATED, FAILED)}
    if any(flag[:-1].any() for flag in flags.values()) or (flags["failed"][-1] and not flags["truncated"][-1]):
        raise DecodeError("a trajectory ends before its last row, or failed without being truncated")
    final_obs, final_state, final_mask = _read_successors(batch, layout, np.arange(T) == T - 1)
    return Trajectory(
        trajectory_id=_uuids((_the_name(batch, "trajectory_id"),))[0],
        env_id=_uuids((_the_name(batch, "env_id"),))[0],
        agent_id=_the_name(batch, "agent_id"),
        group=layout.group,
        observation_space=layout.observation_space,
        action_space=layout.action_space,
        episode=int(episode[0]),
        first_step=int(step[0]),
        final_obs=map_tree(lambda leaf: leaf[0, ...], final_obs),
        final_state=None if final_state is None else map_tree(lambda leaf: leaf[0, ...], final_state),
        final_mask=None if final_mask is None else final_mask[0],
        terminated=bool(flags["terminated"][-1]),
        truncated=bool(flags["truncated"][-1]),
        failed=bool(flags["failed"][-1]),
        **_read_steps(batch, layout, leading),
    )


def _read(batch: pa.RecordBatch, leaf: Leaf, leading: tuple[int, ...]) -> Array:
    return from_arrow(leaf, batch.column(leaf.name), leading)


def _read_steps(batch: pa.RecordBatch, layout: Layout, leading: tuple[int, ...]) -> dict[str, Any]:
    """The columns that rollouts and trajectories hold alike, by field name."""

    def tree(space: Space, leaves: list[Leaf]) -> Any:
        return unflatten(space, (_read(batch, leaf, leading) for leaf in leaves))

    mask, memory, state = layout.action_mask, layout.memory_space, layout.state_space
    return {
        "obs": tree(layout.observation_space, layout.observation),
        "action": tree(layout.action_space, layout.action),
        "action_mask": None if mask is None else _read(batch, mask, leading),
        "reward": _read(batch, REWARD, leading),
        "policy_version": _read(batch, POLICY_VERSION, leading),
        "logp": _read(batch, LOGP, leading) if layout.has_logp else None,
        "value": _read(batch, VALUE, leading) if layout.has_value else None,
        "memory": None if memory is None else tree(memory, layout.memory),
        "state": None if state is None else tree(state, layout.state),
    }


def _of_worlds(lanes: Array, num_agents: int) -> Array:
    """[T, B, …] of `[T, L, …]`: a state is its world's, so all agents of a world have the same, bit for bit."""
    T, L, *shape = lanes.shape
    joint = lanes.reshape(T, L // num_agents, num_agents, *shape)
    one_each = np.ascontiguousarray(joint[:, :, 0])
    if np.repeat(one_each, num_agents, axis=1).tobytes() != lanes.tobytes():
        raise DecodeError("column 'state' differs between agents of the same world and step")
    one_each.flags.writeable = False
    return one_each


def _read_successors(batch: pa.RecordBatch, layout: Layout, expected: Array) -> tuple[Any, Any, Array | None]:
    """Observations and, where there are any, states and action masks that followed."""
    records = successors_from_arrow(batch.column("successor"), expected.reshape(-1))
    fields = zip(layout.successor, records, strict=True)
    followed = (from_arrow(leaf, record, (len(record),)) for leaf, record in fields)
    obs = unflatten(layout.observation_space, followed)
    state = None if layout.state_space is None else unflatten(layout.state_space, followed)
    return obs, state, next(followed, None)


def _checked_layout(batch: pa.RecordBatch, layout: Layout | None, kind: Kind) -> Layout:
    """First of all, Arrow's own check that buffers are as long as rows and types say."""
    try:
        batch.validate()
    except pa.ArrowException as error:
        raise DecodeError(f"a column is damaged: {error}") from error
    layout = layout or layout_of(batch.schema)
    if layout.kind is not kind:
        raise DecodeError(f"this is a {layout.kind.value}, not a {kind.value}")
    return layout


def _require_group(batch: pa.RecordBatch, layout: Layout) -> None:
    if _the_name(batch, "group") != layout.group:
        raise DecodeError("column 'group' differs from the schema's metadata")


def _the_name(batch: pa.RecordBatch, column: str) -> str:
    """The one name that stands on all rows."""
    indices, names = names_from_arrow(batch.column(column), column)
    if (indices != indices[0]).any():
        raise DecodeError(f"column {column!r} holds more than one name")
    return str(names[int(indices[0])].as_py())


def _uuids(names: tuple[str, ...]) -> tuple[UUID, ...]:
    try:
        ids = tuple(map(UUID, names))
    except ValueError as error:
        raise DecodeError(f"an id is no UUID: {error}") from error
    if tuple(map(str, ids)) != names or len(set(ids)) != len(ids):
        raise DecodeError("an id is not written as UUIDs are, or occurs twice")
    return ids


_cached_uuids = lru_cache(maxsize=8)(_uuids)  # the same worlds come again with every block
