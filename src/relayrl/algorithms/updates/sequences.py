"""Cutting a rollout into sequences that a recurrent network is unrolled over, and packing them for it. Pure functions.

A sequence is consecutive steps of one lane in one episode, at most `sequence_length` of them. Rows on which the lane did not
act are left out: its memory skipped them too. No sequence goes across an episode's end: nothing has to be reset inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.trees import Array


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequence `c` is the rows `first[c] … first[c] + length[c] − 1` of some columns."""

    first: Array
    length: Array

    def __len__(self) -> int:
        return len(self.first)

    def some(self, where: Any) -> Sequences:
        """Some of them, by slice or indices."""
        return Sequences(self.first[where], self.length[where])


@dataclass(frozen=True, slots=True)
class Packing:
    """`rows` [R] in packed order: first steps of all sequences, the longest sequence first, then second steps, …

    `batch_sizes` [S] are the numbers of sequences that have a step `s`; `order` [C] is the order of sequences.
    """

    rows: Array
    batch_sizes: Array
    order: Array


def cut(usable: Array, ended: Array, sequence_length: int) -> tuple[Array, Sequences]:
    """The usable rows of a `[T, L]` block, lane by lane as indices of `[T · L]`, and the sequences that they make up."""
    T, L = usable.shape
    lane, step = np.divmod(np.flatnonzero(usable.T), T)
    ends_before = np.zeros((T, L), np.int64)
    np.cumsum(ended[:-1], 0, out=ends_before[1:])
    episode = lane * (T + 1) + ends_before[step, lane]
    position = np.arange(len(lane))
    begins = np.ones(len(lane), bool)
    begins[1:] = episode[1:] != episode[:-1]
    since_begin = position - np.maximum.accumulate(np.where(begins, position, 0))
    first = np.flatnonzero(since_begin % sequence_length == 0)
    return step * L + lane, Sequences(first, np.diff(first, append=len(lane)))


def pack(sequences: Sequences) -> Packing:
    """The packed order of the sequences' rows."""
    order = np.argsort(-sequences.length, kind="stable")
    first, length = sequences.first[order], sequences.length[order]
    steps = np.arange(int(length[0]) if len(length) else 0)
    exists = steps[:, None] < length
    rows = (first + steps[:, None])[exists]
    return Packing(rows, exists.sum(1), order)
