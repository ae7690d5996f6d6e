"""`Rollout` as an Arrow record batch of `T * L` rows, time-major, and back.

A batch shares memory with contiguous columns of the rollout. Copied are booleans, the columns that name and number the rows,
the state (once for each agent), and columns that are not contiguous. Writing raises `ConfigError` for columns that do not fit
their spaces and for rows that break a rule of `columns`. Reading believes nothing: what breaks a rule is a `DecodeError`.
Arrays share the batch's memory (booleans aside) and are read-only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relayrl.data.arrow.arrow_reading import from_arrow, names_from_arrow, successors_from_arrow
from relayrl.data.arrow.arrow_writing import names_to_arrow, successors_to_arrow, to_arrow
from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.arrow.schema import (
    ENV_EPISODE,
    ENV_STEP,
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
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import failed_rows_are_void, number_rows, rows_are_numbered, rows_with_successor
from relayrl.data.trajectory_block import pooled_empty
from relayrl.data.trees import Array, Space, map_tree, tree_leaves, unflatten
from relayrl.errors import ConfigError, DecodeError

_MAX_CACHED_IDS = 16_384


def rollout_to_batch(rollout: Rollout) -> pa.RecordBatch:
    """`T * L` rows, time-major."""
    header = rollout.header
    T, L = leading = (rollout.num_steps, rollout.num_lanes)
    if T == 0 or L == 0 or header.num_lanes != L:
        raise ConfigError(f"a rollout of {T} steps and {L} lanes under a header of {header.num_lanes} cannot be stored")
    layout = layout_book().layout(Kind.ROLLOUT, rollout)
    columns = _write_steps(layout, rollout, leading)
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
    if rollout.env_episode is not None and rollout.env_step is not None:
        for leaf, clock in ((ENV_EPISODE, rollout.env_episode), (ENV_STEP, rollout.env_step)):
            columns[leaf.name] = to_arrow(leaf, np.repeat(clock, len(header.agent_ids), axis=1), leading)

    envs, agents = pooled_empty(leading, np.int32), pooled_empty(leading, np.int32)
    envs[...], agents[...] = np.divmod(np.arange(L, dtype=np.int32), len(header.agent_ids))
    columns["env_id"] = names_to_arrow(ID, envs.reshape(-1), _uuid_names(header.env_ids))
    columns["agent_id"] = names_to_arrow(ID, agents.reshape(-1), header.agent_ids)
    columns["group"] = names_to_arrow(GROUP, np.zeros(T * L, dtype=np.int8), [header.group])

    rows = np.flatnonzero(rows_with_successor(ended))
    if not np.array_equal(rollout.successors.step * L + rollout.successors.lane, rows):
        raise ConfigError("a rollout's successors must be the rows where a lane ended and the whole last row, in order")
    columns["successor"] = _write_successors(layout, rollout, rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.schema.names], schema=layout.schema)


def _write_steps(layout: Layout, rollout: Rollout, leading: tuple[int, int]) -> dict[str, pa.Array]:
    pairs: list[tuple[Leaf, Any]] = [(REWARD, rollout.reward), (POLICY_VERSION, rollout.policy_version)]
    pairs += zip(layout.observation, tree_leaves(layout.observation_space, rollout.obs, "obs"), strict=True)
    pairs += zip(layout.action, tree_leaves(layout.action_space, rollout.action, "action"), strict=True)
    if layout.action_mask is not None:
        pairs.append((layout.action_mask, rollout.action_mask))
    if layout.has_logp:
        pairs.append((LOGP, rollout.logp))
    if layout.has_value:
        pairs.append((VALUE, rollout.value))
    if layout.memory_space is not None and rollout.memory is not None:
        pairs += zip(layout.memory, tree_leaves(layout.memory_space, rollout.memory, "memory"), strict=True)
    if layout.state_space is not None and rollout.state is not None:
        # Every lane has the state of its environment.
        num_agents = len(rollout.header.agent_ids)
        states = (np.repeat(leaf, num_agents, 1) for leaf in tree_leaves(layout.state_space, rollout.state, "state"))
        pairs += zip(layout.state, states, strict=True)
    return {leaf.name: to_arrow(leaf, array, leading) for leaf, array in pairs}


def _write_successors(layout: Layout, rollout: Rollout, rows: Array) -> pa.Array:
    """What followed `rows`, which count through the batch."""
    followed = rollout.successors
    found = list(tree_leaves(layout.observation_space, followed.obs, "successor"))
    if (layout.state_space is None) != (followed.state is None):
        raise ConfigError("states must be given for the steps and for what followed them, or for neither")
    if layout.state_space is not None and followed.state is not None:
        found += tree_leaves(layout.state_space, followed.state, "successor")
    if followed.action_mask is not None:
        found.append(followed.action_mask)
    records = [to_arrow(leaf, array, (len(rows),)) for leaf, array in zip(layout.successor, found, strict=True)]
    return successors_to_arrow(layout.schema.field("successor").type, rows, rollout.reward.size, records)


@lru_cache(maxsize=8)
def _uuid_names(ids: tuple[UUID, ...]) -> tuple[str, ...]:
    """A header with thousands of environments comes again with every block, hence the cache."""
    return tuple(map(str, ids))


def rollout_from_batch(batch: pa.RecordBatch, layout: Layout) -> Rollout:
    """The rollout of a batch that `rollout_to_batch` made and that has passed Arrow's own `validate()`."""
    env_index, envs = names_from_arrow(batch.column("env_id"), "env_id")
    agent_index, agents = names_from_arrow(batch.column("agent_id"), "agent_id")
    B, N, L = len(envs), len(agents), len(envs) * len(agents)
    if L == 0 or batch.num_rows == 0 or batch.num_rows % L:
        raise DecodeError(
            f"{batch.num_rows} rows are no whole number of steps of {L} lanes ({B} environments × {N} agents)"
        )
    T = batch.num_rows // L
    if not (env_index.reshape(T, B, N) == np.arange(B, dtype=np.int32)[:, None]).all():
        raise DecodeError("column 'env_id' does not run through the environments in every step")
    if not (agent_index.reshape(T * B, N) == np.arange(N, dtype=np.int32)).all():
        raise DecodeError("column 'agent_id' does not run through the agents in every environment")
    agent_ids = tuple(agents.to_pylist())
    if len(set(agent_ids)) != N:
        raise DecodeError("column 'agent_id' names an agent twice")
    _require_group(batch, layout)
    env_ids = (_uuids if B > _MAX_CACHED_IDS else _cached_uuids)(tuple(envs.to_numpy(zero_copy_only=False).tolist()))

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
        steps["state"] = map_tree(lambda leaf: _of_envs(leaf, N), steps["state"])
    return Rollout(
        header=LaneHeader(layout.group, env_ids, agent_ids, layout.observation_space, layout.action_space),
        first_episode=episode[0],
        first_step=step[0],
        successors=Successors(successor_step, successor_lane, obs, state, mask),
        **_read_clock(batch, layout, leading, N),
        **flags,
        **steps,
    )


def _read(batch: pa.RecordBatch, leaf: Leaf, leading: tuple[int, ...]) -> Array:
    return from_arrow(leaf, batch.column(leaf.name), leading)


def _read_clock(batch: pa.RecordBatch, layout: Layout, leading: tuple[int, ...], num_agents: int) -> dict[str, Array]:
    """The environments' own count of episodes and steps, where it is there."""
    if not layout.knows_steps:
        return {}
    found = {
        leaf.name: _of_envs(_read(batch, leaf, leading), num_agents, leaf.name) for leaf in (ENV_EPISODE, ENV_STEP)
    }
    ahead, anew = np.diff(found["env_episode"], axis=0), np.diff(found["env_step"], axis=0)
    goes_on = (ahead == 0) & (anew == 1)
    if not (goes_on | ((ahead == 1) & (found["env_step"][1:] == 0))).all() or min(map(np.min, found.values())) < 0:
        raise DecodeError("columns 'env_episode' and 'env_step' do not count an environment's episodes and steps")
    return found


def _read_steps(batch: pa.RecordBatch, layout: Layout, leading: tuple[int, ...]) -> dict[str, Any]:
    """Columns by field name."""

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


def _of_envs(lanes: Array, num_agents: int, name: str = "state") -> Array:
    """[T, B, …] of `[T, L, …]`: what is the environment's is the same for all of its agents, bit for bit."""
    T, L, *shape = lanes.shape
    joint = lanes.reshape(T, L // num_agents, num_agents, *shape)
    one_each = np.ascontiguousarray(joint[:, :, 0])
    if np.repeat(one_each, num_agents, axis=1).tobytes() != lanes.tobytes():
        raise DecodeError(f"column {name!r} differs between agents of the same environment and step")
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


_cached_uuids = lru_cache(maxsize=8)(_uuids)  # the same environments come again with every block
