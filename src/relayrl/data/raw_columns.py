"""A trajectory as plain columns of bytes, for clients that have no Arrow; `docs/protocol.md` describes it.

    header    {"columns": ["obs", "action", "reward", "final_obs", "logp"], "trajectory": {"env_id": …, "num_steps": 20, …}}
    frames    one for each column: little-endian, C order, without gaps

Types and shapes are those of the group's spaces, which must be single arrays; rewards and log-probabilities are float32. Bytes
of strangers are safe: whatever is wrong with them is a `DecodeError`.

Not its job: spaces of several arrays, masks, states and memories, which only the Arrow codec carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.data.arrow.layout_book import layout_book
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.data.trees import Array, Space
from relayrl.errors import DecodeError

_REQUIRED, _OPTIONAL = ("obs", "action", "reward", "final_obs"), ("logp", "value")
_MAX_STEPS = 1 << 24


def decode_columns(
    header: Mapping[str, Any],
    frames: Sequence[bytes | bytearray | memoryview],
    group: str,
    observation_space: Space,
    action_space: Space,
) -> TrajectoryBlock:
    """The trajectory of a message whose header says what its frames are."""
    names, meta = header.get("columns"), header.get("trajectory")
    if not isinstance(names, list) or not isinstance(meta, dict) or len(names) != len(frames):
        raise DecodeError("raw columns need a list 'columns' with a name for each frame, and an object 'trajectory'")
    if missing := [name for name in _REQUIRED if names.count(name) != 1]:
        raise DecodeError(f"column {missing[0]!r} is missing, or there twice")
    if unknown := [name for name in names if name not in (*_REQUIRED, *_OPTIONAL)]:
        raise DecodeError(f"there is no raw column {unknown[0]!r:.50}; there are {', '.join((*_REQUIRED, *_OPTIONAL))}")
    num_steps = _number(meta, "num_steps", 1, _MAX_STEPS)
    seen, done = (_layout(space) for space in (observation_space, action_space))
    scalar = (np.dtype(np.float32), ())
    layouts = {"obs": seen, "final_obs": seen, "action": done, "reward": scalar, "logp": scalar, "value": scalar}
    columns: dict[str, Any] = {
        name: _column(name, frame, *layouts[name], None if name == "final_obs" else num_steps)
        for name, frame in zip(names, frames, strict=True)
    }
    try:
        env_id, agent_id = UUID(meta.get("env_id")), str(meta["agent_id"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DecodeError("a trajectory needs an env_id, which is a UUID, and an agent_id") from error
    episode, first_step = _number(meta, "episode", 0, 2**62), _number(meta, "first_step", 0, 2**62)
    version = _number(meta, "policy_version", 0, 2**62)
    trajectory = Trajectory(
        trajectory_id=trajectory_id(env_id, agent_id, episode, first_step),
        env_id=env_id,
        agent_id=agent_id,
        group=group,
        observation_space=observation_space,
        action_space=action_space,
        episode=episode,
        first_step=first_step,
        policy_version=np.full(num_steps, version, np.int64),
        terminated=meta.get("terminated") is True,
        truncated=meta.get("truncated") is True,
        failed=False,
        **columns,
    )
    (block,) = layout_book().blocks([trajectory])
    return block


def _layout(space: Space) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise DecodeError(f"raw columns cannot carry a {type(space).__name__} space; send an Arrow stream")
    return np.dtype(space.dtype), tuple(space.shape or ())


def _column(
    name: str,
    frame: bytes | bytearray | memoryview,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    num_steps: int | None,
) -> Array:
    shape = shape if num_steps is None else (num_steps, *shape)
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(frame) != expected:
        raise DecodeError(f"column {name!r} has {len(frame)} bytes; {dtype.name} of shape {list(shape)} has {expected}")
    values = np.frombuffer(frame, dtype.newbyteorder("<")).astype(dtype)
    return values.reshape(shape)


def _number(meta: Mapping[str, Any], name: str, low: int, high: int) -> int:
    number = meta.get(name)
    if type(number) is not int or not low <= number <= high:
        raise DecodeError(f"a trajectory's {name} must be a whole number from {low} to {high}")
    return number
