"""The values that a space of choices allows (`Discrete`, `MultiDiscrete`, `MultiBinary`); those of a `Box` may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space


def value_bounds(space: Space) -> tuple[Array, Array] | None:
    """Least and greatest value of a choice, as Python's integers: those of its dtype may not reach; None for a `Box`."""
    if isinstance(space, spaces.Discrete):
        return _integers(int(space.start)), _integers(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = _integers(space.start)
        return low, low + _integers(space.nvec) - 1
    return (_integers(0), _integers(1)) if isinstance(space, spaces.MultiBinary) else None


def _integers(numbers: Any) -> Array:
    """As Python's, of any size."""
    return np.array(numbers).astype(object)
