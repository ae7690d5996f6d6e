"""What follows for the rows of a `[T, L]` block from where its lanes ended: numbers, successors, failures.

Pure functions of arrays; builders, splitting and the codec all take their rules from here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array

_CHUNK_ELEMENTS = 1 << 17


def number_rows(
    ended: Array, first_episode: Array, first_step: Array, empty: Callable[..., Array] = np.empty
) -> tuple[Array, Array]:
    """`(episode, step)`, each [T, L] int64, from where lanes ended [T, L] and the numbers [L] of the first row.

    A run is what lies between two ends of a lane. Runs are filled lane by lane, where each is contiguous, and then
    transposed: several times faster than accumulating down the rows. `empty(shape, dtype)` gives the results' memory.
    """
    T, L = ended.shape
    episodes, steps = empty((T, L), np.int64), empty((T, L), np.int64)
    if T == 0:
        return episodes, steps
    starts_run = np.ones((L, T), dtype=bool)
    starts_run[:, 1:] = ended[:-1].T
    starts = np.flatnonzero(starts_run)
    lengths = np.diff(starts, append=L * T)
    lane, row = np.divmod(starts, T)
    first_run = np.flatnonzero(row == 0)
    episode = np.arange(len(starts)) - first_run[lane] + first_episode[lane]
    zeroth_row = np.where(row == 0, -first_step[lane], row)
    if max(int(first_step.max()), int(episode.max()), T) < 2**31:  # half the memory to move
        episode, zeroth_row = episode.astype(np.int32), zeroth_row.astype(np.int32)
    episodes[...] = np.repeat(episode, lengths).reshape(L, T).T
    steps[...] = np.repeat(zeroth_row, lengths).reshape(L, T).T
    np.subtract(np.arange(T)[:, None], steps, out=steps)
    return episodes, steps


def rows_are_numbered(ended: Array, episode: Array, step: Array) -> bool:
    """Whether [T, L] numbers are those that `number_rows` gives from their first row on.

    Chunk by chunk, so that intermediate results stay in the processor's cache.
    """
    T, L = ended.shape
    if (step[:1] < 0).any() or (episode[:1] < 0).any():
        return False
    ends, episodes, steps = ended.reshape(-1), episode.reshape(-1), step.reshape(-1)
    for begin in range(0, (T - 1) * L, _CHUNK_ELEMENTS):
        here = slice(begin, min(begin + _CHUNK_ELEMENTS, (T - 1) * L))
        after = slice(here.start + L, here.stop + L)
        if not np.array_equal(episodes[after] != episodes[here], ends[here]):
            return False
        if not np.array_equal(steps[after] - steps[here] != 1, ends[here]):
            return False
        rows = begin + np.flatnonzero(ends[here])
        if (episodes[rows + L] - episodes[rows] != 1).any() or steps[rows + L].any():
            return False
    return True


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


def present(rows: Array, valid: Array) -> Array:
    """Rows `[M, N, …]` with zeros for agents that are absent: to everybody's critic, whatever their columns hold."""
    is_whole = np.count_nonzero(valid) == valid.size  # half the cost of valid.all()
    return rows if is_whole else np.where(valid[..., None], rows, np.float32(0.0))
