"""What action masks leave to choose from.

A mask `[…, A]` is True where an action is allowed; the components of a MultiDiscrete space stand side by side, and each of them
needs an action of its own.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space


def mask_parts(action_space: Space) -> tuple[int, ...]:
    """Entries that each choice has in a mask; none where actions cannot be masked."""
    if isinstance(action_space, spaces.Discrete):
        return (int(action_space.n),)
    if isinstance(action_space, spaces.MultiDiscrete):
        return tuple(action_space.nvec.ravel().tolist())
    return ()


def num_allowed(mask: Array, parts: tuple[int, ...]) -> Array:
    """[…, C] how many actions each of the `C` choices has left."""
    return np.add.reduceat(mask, _begins(parts), axis=-1, dtype=np.int64)


def allows_nothing(mask: Array, parts: tuple[int, ...]) -> Array:
    """[…] rows on which some choice has no action left."""
    if len(parts) == 1:
        return ~mask.any(-1)
    return ~np.logical_or.reduceat(mask, _begins(parts), axis=-1).all(-1)


def _begins(parts: tuple[int, ...]) -> Array:
    return np.cumsum((0, *parts[:-1]))
