"""What the steps of a policy look like: checks requests by it, and stores steps by row number, for lanes of their own pace.

All small fields of a step (a vector observation, action, reward, log-probability, value, version, mask) lie side by side in
one record, usually one cache line, so that a request of many actors is one indexed write; a field larger than
`MAX_FIELD_BYTES`, such as an image, is an array of its own. Records of a request are put together in a scratch row per actor
and then copied to where each actor's row is.

Not its job: which rows belong to whom (`step_pages`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.arrow.space_json import space_to_json
from relayrl.data.steps.step_columns import step_columns, zero_columns
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, map_tree, space_leaves, unflatten, write
from relayrl.errors import ActionMaskError, ConfigError

MAX_FIELD_BYTES = 512
WORD_BYTES = 8
_MAX_REWARD = float(np.finfo(np.float32).max)


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
    memory_space: Space | None = None
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
        flags = f"{self.mask_width}/{self.has_logp}/{self.has_value}/{self.memory_space}"
        return self.group, space_to_json(self.observation_space), space_to_json(self.action_space), flags

    @property
    def memory_width(self) -> int:
        """Numbers that an actor remembers."""
        return 0 if self.memory_space is None else math.prod(self.memory_space.shape or ())

    @property
    def columns(self) -> dict[str, Any]:
        """What is written of a step."""
        return step_columns(
            self.observation_space,
            self.action_space,
            mask_width=self.mask_width,
            with_logp=self.has_logp,
            with_value=self.has_value,
            memory_space=self.memory_space,
        )

    def observations(self, obs: Any, num_rows: int) -> Tree:
        """`obs` as arrays of the space's dtypes with `num_rows` rows: one observation per actor."""
        if len(self._leaves) == 1 and not self._leaves[0][0]:
            path, dtype, shape = self._leaves[0]
            if type(obs) is np.ndarray and obs.dtype is dtype and obs.shape == (num_rows, *shape):
                return obs
            return self._array(obs, num_rows, path, dtype, shape)
        flat = given_leaves("obs", self.observation_space, obs)
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
        array = given_array("mask", mask, bool)
        if array.shape != (num_rows, self.mask_width):
            raise ConfigError(
                f"mask has shape {array.shape}, expected {(num_rows, self.mask_width)}: one row per actor"
            )
        return array

    @staticmethod
    def _array(leaf: Any, num_rows: int, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        where = f"obs.{path}" if path else "obs"
        array = converted(where, leaf, dtype)
        if array.shape != (num_rows, *shape):
            raise ConfigError(
                f"{where} has shape {array.shape}, expected {(num_rows, *shape)}: one observation per actor"
            )
        return array


def converted(name: str, leaf: Any, dtype: np.dtype[Any]) -> Array:
    """`leaf` as an array of `dtype`; `ConfigError` where numbers of another kind would be lost."""
    if type(leaf) is np.ndarray and leaf.dtype == dtype:
        return leaf
    try:
        array = np.asarray(leaf)
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ConfigError(f"{name} has dtype {array.dtype}, expected {dtype}")
        return array.astype(dtype)
    except ValueError as error:
        raise ConfigError(f"{name} is not an array: {error}") from error


def given_leaves(name: str, space: Space, tree: Any) -> Iterable[Any]:
    """The leaves of `tree` in the order of `space`, whatever order its dicts have."""
    for path, _ in space_leaves(space):
        leaf = tree
        for part in path.split("."):
            try:
                leaf = leaf[int(part)] if isinstance(leaf, tuple | list) else leaf[part]
            except (KeyError, IndexError, TypeError) as error:
                raise ConfigError(f"{name} has no {path!r}; it must be a tree of {space}") from error
        yield leaf


def checked_reward(reward: Any) -> float:
    if type(reward) is float and -_MAX_REWARD <= reward <= _MAX_REWARD:  # False for NaN
        return reward
    return float(checked_rewards(reward, 1)[0])


def checked_rewards(reward: Any, num_rows: int) -> Array:
    array = given_array("reward", reward, np.float32)
    if array.shape == ():
        array = np.full(num_rows, array, np.float32)
    if array.shape != (num_rows,):
        raise ConfigError(f"reward has shape {array.shape}, expected a number or {(num_rows,)}: one per actor")
    if not (
        math.isfinite(np.dot(array, array)) or np.isfinite(array).all()
    ):  # the product costs a quarter, but may overflow
        raise ConfigError("a reward is NaN, or infinite as float32")
    return array


def given_array(name: str, value: Any, dtype: type) -> Array:
    """`value` as an array, or `ConfigError`."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name} is {value!r:.60}, which is no array of {dtype.__name__}: {error}") from error


def checked_flags(name: str, value: Any, num_rows: int) -> Array:
    array = given_array(name, value, bool)
    if array.shape not in ((), (num_rows,)):
        raise ConfigError(f"{name} has shape {array.shape}, expected a flag or {(num_rows,)}: one per actor")
    return np.broadcast_to(array, num_rows)


Step: TypeAlias = "tuple[Tree, Tree, Array | float | None, Array | float | None, int, Array | None, Tree | None]"
"""What is written of one lane, or of several [L, …]: obs, action, logp, value, policy_version, action_mask, memory."""

UNKNOWN = math.nan
"""The log-probability or value of a step whose actor gave none, though its policy has them."""


class StepRows:
    """`num_rows` rows of `step_columns`. Row 0 may be written to by whoever has no row."""

    def __init__(self, columns: dict[str, Any], num_rows: int) -> None:
        numbers = count()
        self._names = map_tree(lambda _: f"leaf{next(numbers)}", columns)
        kinds = dict(zip((name for _, name in leaves(self._names)), (kind for _, kind in leaves(columns)), strict=True))
        small = {name: kind for name, kind in kinds.items() if kind.itemsize <= MAX_FIELD_BYTES}
        self._large_kinds = {name: kind for name, kind in kinds.items() if name not in small}
        self._record = _padded(small)
        self._has_logp, self._has_value = "logp" in columns, "value" in columns
        self._is_plain = all(isinstance(columns[name], np.dtype) for name in ("obs", "action"))
        self.has_masks = False
        self._store = self._allocate(num_rows)
        self._scratch: _Store | None = None
        self._scratch_version = -1

    def __len__(self) -> int:
        return len(self._store.records)

    def write(self, rows: Array, step: Step) -> None:
        """Steps without a reward yet, in `rows` [L], which differ."""
        L, scratch, store = len(rows), self._scratch, self._store
        if scratch is None or len(scratch.records) < L:
            scratch, self._scratch_version = self._allocate(2 * L), -1
            self._scratch = scratch
        if step[4] != self._scratch_version:
            scratch.columns["policy_version"][:] = self._scratch_version = step[4]
        self._fill(scratch.columns, slice(L), step)
        store.records[rows] = scratch.records[:L]
        for name, column in store.large.items():
            column[rows] = scratch.large[name][:L]

    def write_one(self, row: int, step: Step) -> None:
        """The same for one row, without an axis before it."""
        columns = self._store.columns
        columns["reward"][row] = 0.0
        columns["policy_version"][row] = step[4]
        self._fill(columns, row, step)

    def _fill(self, columns: dict[str, Any], where: int | slice, step: Step) -> None:
        """All of it but the reward, which is zero, and the version."""
        obs, action, logp, value, _, mask, memory = step
        if self._is_plain:
            columns["obs"][where], columns["action"][where] = obs, action
        else:
            write(columns["obs"], where, obs)
            write(columns["action"], where, action)
        if self._has_logp:
            columns["logp"][where] = UNKNOWN if logp is None else logp
        if self._has_value:
            columns["value"][where] = UNKNOWN if value is None else value
        if memory is not None:
            write(columns["memory"], where, memory)
        if mask is not None:
            self.has_masks = True
            columns["action_mask"][where] = mask
        elif self.has_masks:
            columns["action_mask"][where] = True

    def set_rewards(self, rows: Array, reward: Array) -> None:
        """The rewards of steps that had none; rows that occur twice keep one of theirs."""
        self._store.columns["reward"][rows] = reward

    def add_reward(self, row: int, reward: float) -> None:
        self._store.columns["reward"][row] += reward

    def observation(self, row: int) -> Tree:
        """The observation of one row, as a copy."""
        tree: Tree = map_tree(lambda column: np.array(column[row]), self._store.columns["obs"])
        return tree

    def mask(self, row: int) -> Array | None:
        """The action mask of one row, as a copy; None where there are none."""
        return np.array(self._store.columns["action_mask"][row]) if self.has_masks else None

    def gather(self, parts: Sequence[slice]) -> dict[str, Any]:
        """The columns of a trajectory whose rows lie in `parts`, by the names of its fields; fresh arrays."""

        def taken(column: Array) -> Array:
            return column[parts[0]].copy() if len(parts) == 1 else np.concatenate([column[part] for part in parts])

        columns: dict[str, Any] = map_tree(taken, self._store.columns)
        if not self.has_masks:
            columns.pop("action_mask", None)
        return columns

    def grow(self) -> None:
        """Twice as many rows; those there are keep their contents."""
        old, num_rows = self._store, len(self)
        self._store = self._allocate(2 * num_rows)
        self._store.records[:num_rows] = old.records
        for name, column in self._store.large.items():
            column[:num_rows] = old.large[name]

    def _allocate(self, num_rows: int) -> _Store:
        records = np.zeros(num_rows, self._record).view(f"V{self._record.itemsize}")  # opaque: copied as a whole, fast
        large: dict[str, Array] = zero_columns(self._large_kinds, (num_rows,))
        fields = records.view(self._record)
        columns = map_tree(lambda name: large[name] if name in large else fields[name], self._names)
        if "action_mask" in columns:
            columns["action_mask"][:] = True
        return _Store(records, large, columns)


class _Store(NamedTuple):
    """Rows in memory, and their columns as trees of views."""

    records: Array
    large: dict[str, Array]
    columns: dict[str, Any]


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
