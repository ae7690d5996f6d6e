"""What a setting may be in a search: drawn at random, perturbed, and checked at its ends.

params.pi_lr:         {log: [1.0e-4, 1.0e-2]}        log-uniform
params.gamma:         {float: [0.9, 0.999]}          uniform
params.train_pi_iters: {int: [1, 8]}                 whole numbers, both ends included
network.hidden_sizes: {choice: [[64], [64, 64]]}     one of a list
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from relayrl.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np


class RangeKind(Enum):
    """How values of a range lie."""

    FLOAT = "float"
    LOG = "log"
    INT = "int"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Range:
    """The values that one setting may have: both ends, or the choices."""

    kind: RangeKind
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, name: str, given: Any) -> Range:
        """`{kind: values}` of a file; `ConfigError` where it is none."""
        if not isinstance(given, dict) or len(given) != 1:
            raise ConfigError(f"range of {name}: write one of float, log, int, choice, as in {{log: [1.0e-4, 1.0e-2]}}")
        ((kind, values),) = given.items()
        kinds = {each.value: each for each in RangeKind}
        if kind not in kinds:
            raise UnknownNameError(f"range of {name}:", str(kind), kinds)
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"range of {name}: give a list of values (got {values!r:.100})")
        found = cls(kinds[kind], tuple(values))
        found._require_valid(name)
        return found

    def _require_valid(self, name: str) -> None:
        if self.kind is RangeKind.CHOICE:
            return
        number = int if self.kind is RangeKind.INT else (int, float)
        if len(self.values) != 2 or any(isinstance(v, bool) or not isinstance(v, number) for v in self.values):
            what = "whole numbers" if self.kind is RangeKind.INT else "numbers"
            raise ConfigError(
                f"range of {name}: {self.kind.value} takes two {what}, low and high (got {self.values!r:.100})"
            )
        low, high = self.values
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"range of {name}: low must be less than high, both finite (got {low} and {high})")
        if self.kind is RangeKind.LOG and low <= 0:
            raise ConfigError(f"range of {name}: a log range lies above 0 (got {low})")

    @property
    def ends(self) -> Sequence[Any]:
        """Values that show whether the setting exists and takes what the range gives."""
        return self.values

    def draw(self, rng: np.random.Generator) -> Any:
        """One value at random."""
        if self.kind is RangeKind.CHOICE:
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind is RangeKind.INT:
            return int(rng.integers(low, high + 1))
        if self.kind is RangeKind.LOG:
            return min(high, max(low, math.exp(rng.uniform(math.log(low), math.log(high)))))
        return float(rng.uniform(low, high))

    def perturb(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Any:
        """A value near `value`: times one of `factors` inside the range, or a neighbour among the choices."""
        which = int(rng.integers(len(factors)))
        if self.kind is RangeKind.CHOICE:
            step = 1 if factors[which] > 1 else -1
            return self.values[min(len(self.values) - 1, max(0, self.values.index(value) + step))]
        low, high = self.values
        moved = min(high, max(low, value * factors[which]))
        if self.kind is not RangeKind.INT:
            return float(moved)
        rounded = round(moved)
        if rounded == value:  # small numbers would never move
            rounded += 1 if factors[which] > 1 else -1
        return min(high, max(low, rounded))
