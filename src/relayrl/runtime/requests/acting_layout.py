"""What a policy's requests and steps look like: spaces, mask, and which columns its policy fills. Checks requests by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.arrow.space_json import space_to_json
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, space_leaves, unflatten
from relayrl.errors import ActionMaskError, ConfigError


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
