"""`Trajectory` and `Rollout` as Arrow record batches.

A batch shares memory with contiguous columns of what it is made from. Copied are booleans, the columns that name and number
the rows, the state of a rollout (once for each agent), and columns that are not contiguous. To any Arrow program a batch is a
table; `codec` encodes it, `batch_reader` reads it back. Sinks write many trajectories at once instead (`sinks.row_batches`).
Raises `ConfigError` for columns that do not fit their spaces and for rows that break a rule of `columns`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow_arrays import (
    names_to_arrow,
    pooled_empty,
    space_of_tree,
    successors_to_arrow,
    to_arrow,
    tree_leaves,
)
from relayrl.data.columns import Rollout, Trajectory
from relayrl.data.row_rules import failed_rows_are_void, number_rows, rows_with_successor
from relayrl.data.schema import (
    EPISODE,
    FAILED,
    GROUP,
    ID,
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
)
from relayrl.data.trees import Array, Space, Tree, map_tree
from relayrl.errors import ConfigError


def rollout_to_batch(rollout: Rollout) -> pa.RecordBatch:
    """`T * L` rows, time-major."""
    header = rollout.header
    T, L = leading = (rollout.num_steps, rollout.num_lanes)
    if T == 0 or L == 0 or header.num_lanes != L:
        raise ConfigError(f"a rollout of {T} steps and {L} lanes under a header of {header.num_lanes} cannot be stored")
    layout = _layout(Kind.ROLLOUT, header.group, header.observation_space, header.action_space, rollout, leading)
    columns = _write_steps(layout, rollout, leading, _state_of_lanes(rollout))
    for leaf in (TERMINATED, TRUNCATED, FAILED, VALID):
        columns[leaf.name] = to_arrow(leaf, getattr(rollout, leaf.name), leading)
    if not failed_rows_are_void(rollout.failed, rollout.valid, rollout.truncated):
        raise ConfigError("a row that failed must be truncated and not valid")
    for name in ("first_episode", "first_step"):
        numbers = getattr(rollout, name)
        if numbers.shape != (L,) or numbers.dtype != np.int64 or (numbers < 0).any():
            raise ConfigError(f"{name!r} must be {L} int64 numbers from 0 on, one for each lane")
    ended = rollout.ended
    episode, step = number_rows(ended, rollout.first_episode, rollout.first_step, pooled_empty)
    columns |= {"episode": to_arrow(EPISODE, episode, leading), "step": to_arrow(STEP, step, leading)}

    worlds, agents = pooled_empty(leading, np.int32), pooled_empty(leading, np.int32)
    worlds[...], agents[...] = np.divmod(np.arange(L, dtype=np.int32), len(header.agent_ids))
    columns["env_id"] = names_to_arrow(ID, worlds.reshape(-1), _uuid_names(header.env_ids))
    columns["agent_id"] = names_to_arrow(ID, agents.reshape(-1), header.agent_ids)
    columns["group"] = names_to_arrow(GROUP, np.zeros(T * L, dtype=np.int8), [header.group])

    rows = np.flatnonzero(rows_with_successor(ended))
    if not np.array_equal(rollout.successors.step * L + rollout.successors.lane, rows):
        raise ConfigError("a rollout's successors must be the rows where a lane ended and the whole last row, in order")
    followed = rollout.successors
    return _batch(layout, columns, rows, T * L, followed.obs, followed.state, followed.action_mask)


def trajectory_to_batch(trajectory: Trajectory) -> pa.RecordBatch:
    """A row per step, in order."""
    T, *_ = leading = (len(trajectory),)
    if T == 0:
        raise ConfigError("a trajectory without steps cannot be stored")
    if trajectory.episode < 0 or trajectory.first_step < 0:
        raise ConfigError("a trajectory's episode and first step are numbers from 0 on")
    if trajectory.failed and not trajectory.truncated:
        raise ConfigError("a failed trajectory must be truncated")
    spaces = (trajectory.observation_space, trajectory.action_space)
    layout = _layout(Kind.TRAJECTORY, trajectory.group, *spaces, trajectory, leading)
    columns = _write_steps(layout, trajectory, leading, trajectory.state)
    for leaf in (TERMINATED, TRUNCATED, FAILED):
        flag = np.zeros(T, dtype=bool)
        flag[-1] = getattr(trajectory, leaf.name)
        columns[leaf.name] = to_arrow(leaf, flag, leading)
    columns["valid"] = to_arrow(VALID, np.ones(T, dtype=bool), leading)
    columns["episode"] = to_arrow(EPISODE, np.full(T, trajectory.episode, dtype=np.int64), leading)
    columns["step"] = to_arrow(STEP, trajectory.first_step + np.arange(T, dtype=np.int64), leading)
    names = {"trajectory_id": str(trajectory.trajectory_id), "env_id": str(trajectory.env_id)}
    for column, name in (names | {"agent_id": trajectory.agent_id}).items():
        columns[column] = names_to_arrow(ID, np.zeros(T, dtype=np.int32), [name])
    columns["group"] = names_to_arrow(GROUP, np.zeros(T, dtype=np.int8), [trajectory.group])
    final_obs = map_tree(lambda leaf: np.asarray(leaf)[None], trajectory.final_obs)
    state = trajectory.final_state
    final_state = None if state is None else map_tree(lambda leaf: np.asarray(leaf)[None], state)
    final_mask = None if trajectory.final_mask is None else np.asarray(trajectory.final_mask)[None]
    return _batch(layout, columns, np.array([T - 1]), T, final_obs, final_state, final_mask)


def _state_of_lanes(rollout: Rollout) -> Tree | None:
    """[T, L, …]: every lane has the state of its world."""
    num_agents = len(rollout.header.agent_ids)
    if rollout.state is None:
        return None
    return map_tree(lambda leaf: np.repeat(leaf, num_agents, axis=1), rollout.state)  # type: ignore[no-any-return]


def _layout(
    kind: Kind, group: str, observation: Space, action: Space, steps: Rollout | Trajectory, leading: tuple[int, ...]
) -> Layout:
    mask_width = None if steps.action_mask is None else steps.action_mask.shape[-1]
    spaces = (_Identity(observation), _Identity(action))
    final_mask = steps.successors.action_mask if isinstance(steps, Rollout) else steps.final_mask
    if final_mask is not None and mask_width is None:
        raise ConfigError("an action mask is given for what followed the steps, but none for the steps")
    given = (mask_width, steps.logp is not None, steps.value is not None, final_mask is not None)
    layout = _cached_layout(kind, group, *spaces, *given)
    if steps.memory is not None:
        layout = replace(layout, memory_space=space_of_tree(steps.memory, len(leading)))
    if steps.state is not None:
        layout = replace(layout, state_space=space_of_tree(steps.state, len(leading)))
    return layout


class _Identity:
    """A space as the key of a cache: spaces cannot be hashed, but those of one environment are the same objects."""

    __slots__ = ("space",)

    def __init__(self, space: Space) -> None:
        self.space = space

    def __hash__(self) -> int:
        return id(self.space)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.space is other.space


@lru_cache(maxsize=64)
def _cached_layout(
    kind: Kind,
    group: str,
    observation: _Identity,
    action: _Identity,
    mask_width: int | None,
    logp: bool,
    value: bool,
    masks_successor: bool,
) -> Layout:
    spaces = observation.space, action.space
    return Layout(kind, group, *spaces, mask_width, logp, value, masks_successor=masks_successor)


def _write_steps(
    layout: Layout, steps: Rollout | Trajectory, leading: tuple[int, ...], state: Tree | None
) -> dict[str, pa.Array]:
    """The columns that rollouts and trajectories hold alike."""
    pairs: list[tuple[Leaf, Any]] = [(REWARD, steps.reward), (POLICY_VERSION, steps.policy_version)]
    pairs += zip(layout.observation, tree_leaves(layout.observation_space, steps.obs, "obs"), strict=True)
    pairs += zip(layout.action, tree_leaves(layout.action_space, steps.action, "action"), strict=True)
    if layout.action_mask is not None:
        pairs.append((layout.action_mask, steps.action_mask))
    if layout.has_logp:
        pairs.append((LOGP, steps.logp))
    if layout.has_value:
        pairs.append((VALUE, steps.value))
    if layout.memory_space is not None and steps.memory is not None:
        pairs += zip(layout.memory, tree_leaves(layout.memory_space, steps.memory, "memory"), strict=True)
    if layout.state_space is not None and state is not None:
        pairs += zip(layout.state, tree_leaves(layout.state_space, state, "state"), strict=True)
    return {leaf.name: to_arrow(leaf, array, leading) for leaf, array in pairs}


def _batch(
    layout: Layout,
    columns: dict[str, pa.Array],
    rows: Array,
    num_rows: int,
    obs: Tree,
    state: Tree | None,
    mask: Array | None,
) -> pa.RecordBatch:
    schema = layout.schema
    followed = list(tree_leaves(layout.observation_space, obs, "successor"))
    if (layout.state_space is None) != (state is None):
        raise ConfigError("states must be given for the steps and for what followed them, or for neither")
    if layout.state_space is not None and state is not None:
        followed += tree_leaves(layout.state_space, state, "successor")
    if mask is not None:
        followed.append(mask)
    records = zip(layout.successor, followed, strict=True)
    columns["successor"] = successors_to_arrow(
        schema.field("successor").type, rows, num_rows, [to_arrow(leaf, array, (len(rows),)) for leaf, array in records]
    )
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


@lru_cache(maxsize=8)
def _uuid_names(ids: tuple[UUID, ...]) -> tuple[str, ...]:
    """A header with thousands of worlds comes again with every block, hence the cache."""
    return tuple(map(str, ids))
