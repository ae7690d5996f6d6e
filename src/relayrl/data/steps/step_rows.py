"""What the steps of a policy look like: checks requests by it, and stores steps by row number.

All small fields of a step (a vector observation, action, reward, log-probability, value, version, mask) lie side by side in
one record, usually one cache line, so that a request of many actors is one indexed write; a field larger than
`MAX_FIELD_BYTES`, such as an image, is an array of its own. Records of a request are put together in a scratch row per actor
and then copied to where each actor's row is.

Not its job: which rows belong to whom (`step_pages`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.arrow.space_json import space_to_json
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ActionMaskError, ConfigError

MAX_FIELD_BYTES = 512
WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class ActingLayout:
    """Policies with equal layouts can replace each other, and their actors share columns."""

    group: str
    observation_space: Space
    action_space: Space
    mask_width: int | None
    needs_mask: bool
    has_logp: bool
    has_value: bool
    memory_width: int = 0
    _leaves: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] = field(init=False, repr=False, compare=False)
    _mask_parts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        described = [
            (path, leaf_dtype(leaf), tuple(leaf.shape or ())) for path, leaf in space_leaves(self.observation_space)
        ]
        object.__setattr__(self, "_leaves", tuple(described))
        object.__setattr__(self, "_mask_parts", mask_parts(self.action_space))

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for layouts whose steps look alike; whether a mask is needed is the policy's own affair."""
        flags = f"{self.mask_width}/{self.has_logp}/{self.has_value}/{self.memory_width}"
        return self.group, space_to_json(self.observation_space), space_to_json(self.action_space), flags

    def observations(self, obs: Any, num_rows: int) -> Tree:
        """`obs` as arrays of the space's dtypes with `num_rows` rows: one observation per actor."""
        if len(self._leaves) == 1 and not self._leaves[0][0]:
            path, dtype, shape = self._leaves[0]
            if type(obs) is np.ndarray and obs.dtype is dtype and obs.shape == (num_rows, *shape):
                return obs
            return self._array(obs, num_rows, path, dtype, shape)
        flat = _flat(self.observation_space, obs)
        arrays = [self._array(leaf, num_rows, *described) for leaf, described in zip(flat, self._leaves, strict=True)]
        tree: Tree = unflatten(self.observation_space, iter(arrays))
        return tree

    def mask(self, mask: Any, num_rows: int, who: Callable[[int], str]) -> Array | None:
        """`mask` as bool `[num_rows, A]`; every row allows something, `ActionMaskError` says `who` has one that does not."""
        if mask is None:
            if self.needs_mask:
                raise ConfigError("this policy was trained with action masks; give request_action() a mask")
            return None
        array = self.mask_array(mask, num_rows)
        stuck = allows_nothing(array, self._mask_parts)
        if np.count_nonzero(stuck):
            raise ActionMaskError(who(int(np.argmax(stuck))))
        return array

    def mask_array(self, mask: Any, num_rows: int) -> Array:
        """`mask` as bool `[num_rows, A]`, whatever it allows."""
        if self.mask_width is None:
            raise ConfigError(f"actions of {self.action_space} cannot be masked; leave the mask out")
        array = np.asarray(mask, bool)
        if array.shape != (num_rows, self.mask_width):
            raise ConfigError(
                f"mask has shape {array.shape}, expected {(num_rows, self.mask_width)}: one row per actor"
            )
        return array

    @staticmethod
    def _array(leaf: Any, num_rows: int, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        array = leaf if type(leaf) is np.ndarray and leaf.dtype == dtype else _converted(leaf, path, dtype)
        if array.shape != (num_rows, *shape):
            where = f"obs.{path}" if path else "obs"
            raise ConfigError(
                f"{where} has shape {array.shape}, expected {(num_rows, *shape)}: one observation per actor"
            )
        return array


def _converted(leaf: Any, path: str, dtype: np.dtype[Any]) -> Array:
    try:
        array = np.asarray(leaf)
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ConfigError(f"obs{'.' + path if path else ''} has dtype {array.dtype}, expected {dtype}")
        return array.astype(dtype)
    except ValueError as error:
        raise ConfigError(f"obs{'.' + path if path else ''} is not an array: {error}") from error


def _flat(space: Space, obs: Any) -> Iterable[Any]:
    """The leaves of `obs` in the order of `space`, whatever order its dicts have."""
    for path, _ in space_leaves(space):
        leaf = obs
        for part in path.split("."):
            try:
                leaf = leaf[int(part)] if isinstance(leaf, tuple | list) else leaf[part]
            except (KeyError, IndexError, TypeError) as error:
                raise ConfigError(f"obs has no {path!r}; it must be a tree of {space}") from error
        yield leaf


def checked_reward(reward: Any) -> float:
    if type(reward) is float and math.isfinite(reward):
        return reward
    value = float(reward) if isinstance(reward, float | int) else float(checked_rewards(reward, 1)[0])
    if not math.isfinite(value):
        raise ConfigError(f"reward is {value}; it must be a finite number")
    return value


def checked_rewards(reward: Any, num_rows: int) -> Array:
    array = np.asarray(reward, np.float32)
    if array.shape == ():
        array = np.full(num_rows, array, np.float32)
    if array.shape != (num_rows,):
        raise ConfigError(f"reward has shape {array.shape}, expected a number or {(num_rows,)}: one per actor")
    if not (
        math.isfinite(np.dot(array, array)) or np.isfinite(array).all()
    ):  # the product costs a quarter, but may overflow
        raise ConfigError("a reward is NaN or infinite")
    return array


def checked_flags(name: str, value: Any, num_rows: int) -> Array:
    array = np.asarray(value, bool)
    if array.shape not in ((), (num_rows,)):
        raise ConfigError(f"{name} has shape {array.shape}, expected a flag or {(num_rows,)}: one per actor")
    return np.broadcast_to(array, num_rows)


UNKNOWN = math.nan
"""The log-probability or value of a step whose actor gave none, though its policy has them."""


class StepRows:
    """`num_rows` rows of one layout. Row 0 may be written to by whoever has no row."""

    def __init__(self, layout: ActingLayout, num_rows: int) -> None:
        self._layout, self._has_logp, self._has_value = layout, layout.has_logp, layout.has_value
        self._obs_names = tuple(f"obs.{path}" for path, _ in space_leaves(layout.observation_space))
        fields = _fields(layout)
        small = {name: kind for name, kind in fields.items() if kind.itemsize <= MAX_FIELD_BYTES}
        self._large = {name: kind for name, kind in fields.items() if name not in small}
        self._record = _padded(small)
        self.has_masks = False
        self._columns = self._allocate(num_rows)
        self._scratch = self._allocate(1)
        self._scratch_version = -1

    def __len__(self) -> int:
        return len(self._columns["reward"])

    def write(
        self,
        rows: Array,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        memory: Array | None = None,
    ) -> None:
        """Steps without a reward yet, in `rows` [L], which differ."""
        L = len(rows)
        if len(self._scratch["reward"]) < L:
            self._scratch, self._scratch_version = self._allocate(2 * L), -1
        scratch = self._scratch
        if len(self._obs_names) == 1:
            scratch[self._obs_names[0]][:L] = obs
        else:
            for name, (_, leaf) in zip(self._obs_names, leaves(obs), strict=True):
                scratch[name][:L] = leaf
        scratch["action"][:L] = action
        if self._has_logp:
            scratch["logp"][:L] = UNKNOWN if logp is None else logp
        if self._has_value:
            scratch["value"][:L] = UNKNOWN if value is None else value
        if memory is not None:
            scratch["memory"][:L] = memory
        if policy_version != self._scratch_version:
            scratch["policy_version"][:] = self._scratch_version = policy_version
        if mask is not None:
            self.has_masks = True
            scratch["action_mask"][:L] = mask
        self._columns["records"][rows] = scratch["records"][:L]
        for name in self._large:
            self._columns[name][rows] = scratch[name][:L]
        if mask is not None:
            scratch["action_mask"][:L] = True

    def write_one(
        self,
        row: int,
        obs: Tree,
        action: Array,
        logp: Array | None,
        value: Array | None,
        policy_version: int,
        mask: Array | None,
        memory: Array | None = None,
    ) -> None:
        """The same for one row and arrays [1, …]."""
        columns = self._columns
        if len(self._obs_names) == 1:
            columns[self._obs_names[0]][row] = obs[0]  # type: ignore[index]
        else:
            for name, (_, leaf) in zip(self._obs_names, leaves(obs), strict=True):
                columns[name][row] = leaf[0]
        columns["action"][row] = action[0]
        columns["reward"][row] = 0.0
        columns["policy_version"][row] = policy_version
        if self._has_logp:
            columns["logp"][row] = UNKNOWN if logp is None else logp[0]
        if self._has_value:
            columns["value"][row] = UNKNOWN if value is None else value[0]
        if memory is not None:
            columns["memory"][row] = memory[0]
        if mask is not None:
            self.has_masks = True
            columns["action_mask"][row] = mask[0]
        elif self.has_masks:
            columns["action_mask"][row] = True

    def set_rewards(self, rows: Array, reward: Array) -> None:
        """The rewards of steps that had none; rows that occur twice keep one of theirs."""
        self._columns["reward"][rows] = reward

    def add_reward(self, row: int, reward: float) -> None:
        self._columns["reward"][row] += reward

    def observation(self, row: int) -> Tree:
        """The observation of one row, as a copy."""
        tree: Tree = unflatten(
            self._layout.observation_space, iter([np.array(self._columns[name][row]) for name in self._obs_names])
        )
        return tree

    def mask(self, row: int) -> Array | None:
        """The action mask of one row, as a copy; None where there are none."""
        return np.array(self._columns["action_mask"][row]) if self.has_masks else None

    def gather(self, rows: Array) -> dict[str, Any]:
        """The columns of a trajectory, by the names of its fields; fresh arrays."""
        taken = _views(self._columns["records"][rows], self._record)
        result: dict[str, Any] = {
            name: np.ascontiguousarray(taken[name]) for name in self._record.names or () if not name.startswith("obs.")
        }
        large = {name: self._columns[name].take(rows, 0) for name in self._large}
        result |= {name: column for name, column in large.items() if not name.startswith("obs.")}
        flat = [large[name] if name in large else np.ascontiguousarray(taken[name]) for name in self._obs_names]
        result["obs"] = unflatten(self._layout.observation_space, iter(flat))
        if not self.has_masks:
            result.pop("action_mask", None)
        return result

    def grow(self) -> None:
        """Twice as many rows; those there are keep their contents."""
        old, num_rows = self._columns, len(self)
        self._columns = self._allocate(2 * num_rows)
        self._columns["records"][:num_rows] = old["records"]
        for name in self._large:
            self._columns[name][:num_rows] = old[name]

    def _allocate(self, num_rows: int) -> dict[str, Array]:
        records = np.zeros(num_rows, self._record).view(f"V{self._record.itemsize}")  # opaque: copied as a whole, fast
        columns = {"records": records, **_views(records, self._record)}
        columns |= {name: np.zeros((num_rows, *kind.shape), kind.base) for name, kind in self._large.items()}
        if "action_mask" in columns:
            columns["action_mask"][:] = True
        return columns


def _fields(layout: ActingLayout) -> dict[str, np.dtype[Any]]:
    """Name and type, shape included, of every field of a step."""
    fields: dict[str, np.dtype[Any]] = {
        f"obs.{path}": np.dtype((leaf_dtype(leaf), tuple(leaf.shape or ())))
        for path, leaf in space_leaves(layout.observation_space)
    }
    ((_, action),) = space_leaves(layout.action_space)
    fields["action"] = np.dtype((leaf_dtype(action), tuple(action.shape or ())))
    fields["policy_version"], fields["reward"] = np.dtype(np.int64), np.dtype(np.float32)
    if layout.has_logp:
        fields["logp"] = np.dtype(np.float32)
    if layout.has_value:
        fields["value"] = np.dtype(np.float32)
    if layout.memory_width:
        fields["memory"] = np.dtype((np.float32, (layout.memory_width,)))
    if layout.mask_width is not None:
        fields["action_mask"] = np.dtype((np.bool_, (layout.mask_width,)))
    return fields


def _padded(fields: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """An aligned record of the fields, the widest first, whose size is a multiple of a word."""
    order = sorted(fields, key=lambda name: -fields[name].base.itemsize)
    offsets, end = [], 0
    for name in order:
        offsets.append(end)
        end += fields[name].itemsize
    size = -(-end // WORD_BYTES) * WORD_BYTES
    description = {"names": order, "formats": [fields[name] for name in order], "offsets": offsets, "itemsize": size}
    return np.dtype(description)  # type: ignore[call-overload, no-any-return]


def _views(records: Array, record: np.dtype[Any]) -> dict[str, Array]:
    """The fields of opaque records, without a copy."""
    structured = records.view(record)
    return {name: structured[name] for name in record.names or ()}
