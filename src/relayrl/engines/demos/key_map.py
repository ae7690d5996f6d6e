"""Which key does what in an action space.

    Discrete        KEY=ACTION                  left=0,right=2
    MultiDiscrete   KEY=COMPONENT:CHOICE        up=0:1,down=0:2,space=1:1
    MultiBinary     KEY=INDEX                   a=0,b=1
    Box             KEY=DIMENSION:VALUE         left=0:-2,right=0:+2; several keys of a dimension add up

`idle=ACTION` is what is done while no key is pressed: of Discrete the first action unless it is given. Others have nothing
pressed: the first choices, zeros, or the middle of bounds without zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space
from relayrl.errors import ConfigError

IDLE = "idle"
_SIDES = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"))
"""Keys of the first dimensions of a Box, towards its lower and its upper bound."""
_THREE = 3


@dataclass(frozen=True, slots=True)
class KeyMap:
    """What each key adds to an action."""

    space: Space
    meanings: Mapping[str, tuple[int, float]]
    """Component (0 where there is one), and its choice or value."""
    idle: int

    @classmethod
    def of(cls, space: Space, text: str | None = None) -> KeyMap:
        """The map that `--keys` describes; without it the usual one of the space."""
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
            raise ConfigError(f"keys play in Discrete, MultiDiscrete, MultiBinary and Box action spaces, not {space}")
        pairs = _usual(space) if text is None else [_parsed(space, part) for part in text.split(",") if part.strip()]
        meanings = {key: meaning for key, *meaning in pairs if key != IDLE}
        idle = next((int(value) for key, _, value in pairs if key == IDLE), _usual_idle(space))
        found = cls(space, {key: (int(part), float(value)) for key, (part, value) in meanings.items()}, idle)
        for key, meaning in [*found.meanings.items(), (IDLE, (0, float(idle)))]:
            found._require_exists(key, *meaning)
        return found

    def _require_exists(self, key: str, part: int, value: float) -> None:
        space = self.space
        if isinstance(space, spaces.Discrete):
            is_known = 0 <= value - space.start < space.n
        elif key == IDLE:
            is_known = value == 0
        elif isinstance(space, spaces.MultiDiscrete):
            flat, start = space.nvec.reshape(-1), np.asarray(space.start).reshape(-1)
            is_known = 0 <= part < len(flat) and 0 <= value - start[part] < flat[part]
        else:
            is_known = 0 <= part < int(np.prod(space.shape or ())) and bool(np.isfinite(value))
        if not is_known:
            raise ConfigError(f"--keys {key}={part}:{value:g}: there is no such action in {space}")

    def action(self, pressed: Collection[str]) -> Array:
        """The action while these keys are pressed, of the last one where a choice has several."""
        known = [self.meanings[key] for key in self.meanings if key in pressed]
        space = self.space
        if isinstance(space, spaces.Discrete):
            return np.asarray(int(known[-1][1]) if known else self.idle, space.dtype)
        if isinstance(space, spaces.MultiDiscrete):
            action = np.array(space.start, space.dtype).reshape(-1)
            for part, value in known:
                action[part] = int(value)
            return action.reshape(space.nvec.shape)
        assert space.shape is not None
        numbers = np.zeros(int(np.prod(space.shape)), np.float64)
        for part, value in known:
            numbers[part] += value
        if isinstance(space, spaces.MultiBinary):
            return (numbers > 0).astype(space.dtype).reshape(space.shape)
        assert isinstance(space, spaces.Box)
        return _inside(space, numbers.reshape(space.shape))

    def describe(self) -> list[str]:
        """A line for each key."""
        is_plain = isinstance(self.space, spaces.Discrete)
        return [
            f"{key}: {int(value)}" if is_plain else f"{key}: {part}:{value:g}"
            for key, (part, value) in self.meanings.items()
        ]


def _inside(space: spaces.Box, numbers: Array) -> Array:
    """The numbers in the bounds; the middle of a dimension of which 0 is no part, where no key is pressed."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    middle = np.where(bounded, (np.where(bounded, low, 0.0) + np.where(bounded, high, 0.0)) / 2.0, 0.0)
    out = (numbers == 0.0) & ((low > 0.0) | (high < 0.0))
    return np.clip(np.where(out, middle, numbers), low, high).astype(space.dtype)


def _parsed(space: Space, part: str) -> tuple[str, int, float]:
    key, separator, meaning = (word.strip() for word in part.partition("="))
    first, colon, second = meaning.partition(":")
    takes_two = isinstance(space, spaces.MultiDiscrete | spaces.Box) and key != IDLE
    try:
        if not (key and separator) or bool(colon) != takes_two:
            raise ValueError
        if takes_two:
            return key, int(first), float(second)
        return (key, int(first), 1.0) if isinstance(space, spaces.MultiBinary) else (key, 0, float(int(first)))
    except ValueError:
        form = "KEY=COMPONENT:VALUE" if takes_two else "KEY=NUMBER"
        raise ConfigError(
            f"--keys: {part.strip()!r} is not {form}, as in left=0:-1,right=0:1 or left=0,right=1"
        ) from None


def _usual(space: Any) -> list[tuple[str, int, float]]:
    if isinstance(space, spaces.Discrete):
        digits = [(str(i), 0, float(space.start + i)) for i in range(min(int(space.n), 10))]
        if space.n not in (2, _THREE):
            return digits
        return [("left", 0, float(space.start)), ("right", 0, float(space.start + space.n - 1)), *digits]
    if isinstance(space, spaces.MultiDiscrete):
        flat, start = space.nvec.reshape(-1), np.asarray(space.start).reshape(-1)
        named = zip(_SIDES, range(len(flat)), strict=False)
        return [(key, i, float(start[i] + c)) for keys, i in named for c, key in enumerate(keys, 1) if c < flat[i]]
    if isinstance(space, spaces.MultiBinary):
        return [(str(i), i, 1.0) for i in range(min(int(np.prod(space.shape)), 10))]
    low, high = (np.where(np.isfinite(b), b, s).reshape(-1) for b, s in ((space.low, -1.0), (space.high, 1.0)))
    pairs = zip(_SIDES, low.tolist(), high.tolist(), strict=False)
    return [(key, i, v) for i, (keys, a, b) in enumerate(pairs) for key, v in zip(keys, (a, b), strict=True)]


def _usual_idle(space: Space) -> int:
    """Of three actions the middle one, as in MountainCar and Acrobot; else the first."""
    if not isinstance(space, spaces.Discrete):
        return 0
    return int(space.start) + (1 if space.n == _THREE else 0)
