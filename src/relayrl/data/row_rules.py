"""What follows for the rows of a `[T, L]` block from where its lanes ended: numbers, successors, failures.

Pure functions of arrays; builders, splitting and the codec all take their rules from here.
"""

from __future__ import annotations

import numpy as np

from relayrl.data.trees import Array


def number_rows(ended: Array, first_episode: Array, first_step: Array) -> tuple[Array, Array]:
    """`(episode, step)`, each [T, L] int64, from where lanes ended [T, L] and the numbers [L] of the first row.

    A run is what lies between two ends of a lane. Runs are filled lane by lane, where each is contiguous, and then
    transposed: several times faster than accumulating down the rows.
    """
    T, L = ended.shape
    if T == 0:
        return np.empty((0, L), dtype=np.int64), np.empty((0, L), dtype=np.int64)
    starts_run = np.ones((L, T), dtype=bool)
    starts_run[:, 1:] = ended[:-1].T
    starts = np.flatnonzero(starts_run)
    lengths = np.diff(starts, append=L * T)
    lane, row = np.divmod(starts, T)
    first_run = np.flatnonzero(row == 0)
    episode = np.arange(len(starts)) - first_run[lane] + first_episode[lane]
    zeroth_row = np.where(row == 0, -first_step[lane], row)

    steps = np.empty((T, L), dtype=np.int64)
    rows = np.arange(T, dtype=np.int64)[:, None]
    np.subtract(rows, np.repeat(zeroth_row, lengths).reshape(L, T).T, out=steps)
    return np.ascontiguousarray(np.repeat(episode, lengths).reshape(L, T).T), steps


def rows_with_successor(ended: Array) -> Array:
    """[T, L] bool: rows whose following observation is no other row's `obs`: episode ends, and all of the last row."""
    has_successor = ended.copy()
    has_successor[-1:] = True
    return has_successor


def failed_rows_are_void(failed: Array, valid: Array, truncated: Array) -> bool:
    """Whether every failed row is truncated and not valid, as the data model asks."""
    if not failed.any():
        return True
    return bool(truncated[failed].all() and not valid[failed].any())
