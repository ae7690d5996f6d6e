"""Rows of which many share a part: what they share is stored once and looked up.

What a central critic sees is its environment, the same for all of the environment's agents, beside the number of the agent
whose value it is. Laid out for each of N agents, it would take N times the memory, and N times the arithmetic of a network's
first layer.
MLPs on the CPU take such rows as they are; other networks are given a few of them at a time, laid out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.trees import Array

PIECE_NUMBERS = 1 << 24
"""Numbers that are laid out at a time: 64 MiB."""
MIN_SAVED_NUMBERS = 32
"""Numbers of a row that need not be multiplied again, from which on it pays to look their products up."""


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Row m begins, or goes on, with line `line[m]` of a table."""

    table: Array  # [K, I] float32
    line: Array  # [M] int64

    def with_lines(self, rows: Array, lines: Array) -> SharedPart:
        """The same with `lines` [R, I] for `rows` [R], whose present lines ascend.

        A new line is put behind the one that it stands for: threads that share the rows out then still need few lines each.
        """
        old = self.line[rows]
        line = self.line + np.searchsorted(old, self.line)
        line[rows] = old + 1 + np.arange(len(rows))
        return SharedPart(np.insert(self.table, old + 1, lines, axis=0), line)


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """Row m has numbers of its own in the columns from `first[m]` on, in place of those that it would share."""

    first: Array  # [M] int64
    numbers: Array  # [M, A] float32

    @property
    def columns(self) -> Array:
        """[M, A] where each row has them."""
        return np.asarray(self.first[:, None] + np.arange(self.numbers.shape[1]))

    def some(self, rows: Array) -> OwnColumns:
        """Those of some rows."""
        return OwnColumns(self.first[rows], self.numbers[rows])

    def put_into(self, rows: Array, first: int = 0) -> Array:
        """A copy of `rows` that has them, where its columns are those from `first` on."""
        changed = np.array(rows, np.float32)
        np.put_along_axis(changed, self.columns - first, self.numbers, 1)
        return changed


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Rows [M, I] that lie in parts side by side."""

    parts: tuple[SharedPart, ...]

    def __len__(self) -> int:
        return len(self.parts[0].line)

    def __getitem__(self, where: Any) -> SharedRows:
        """Some of the rows."""
        return SharedRows(tuple(SharedPart(part.table, part.line[where]) for part in self.parts))

    @property
    def width(self) -> int:
        """I."""
        return sum(part.table.shape[1] for part in self.parts)

    def laid_out(self) -> Array:
        """[M, I] the rows themselves."""
        return np.concatenate([part.table[part.line] for part in self.parts], -1, dtype=np.float32)

    def pieces(self) -> Iterator[Array]:
        """The rows themselves, as many at a time as take little memory; nothing is one piece as well."""
        size = self._piece_rows
        for start in range(0, max(len(self), 1), size):
            yield self[start : start + size].laid_out()

    @property
    def _piece_rows(self) -> int:
        return max(PIECE_NUMBERS // self.width, 1)

    def pays_factored(self, num_rows: int) -> bool:
        """Whether a first layer had better multiply every line of the tables once than `num_rows` rows of their width."""
        saved = num_rows * self.width - sum(part.table.size for part in self.parts)
        return saved > num_rows * MIN_SAVED_NUMBERS

    def with_tables(self, change: Callable[[Array, slice], Array]) -> SharedRows:
        """The same with each table changed; `change` gets the table and the columns of the rows that it holds."""
        return SharedRows(tuple(SharedPart(change(part.table, where), part.line) for part, where in self._placed()))

    def with_own(self, own: OwnColumns) -> SharedRows:
        """The same with `own` in one part, which no two rows share then."""
        parts = [part for part, _ in self._placed()]
        for i, (part, where) in enumerate(self._placed()):
            if where.start <= own.first.min() < where.stop:
                parts[i] = SharedPart(own.put_into(part.table[part.line], where.start), np.arange(len(self)))
        return SharedRows(tuple(parts))

    def with_own_of(self, rows: Array, own: OwnColumns) -> SharedRows:
        """The same with `own` in one part of some `rows`, whose lines ascend; the others share what they did."""
        parts = list(self.parts)
        for i, (part, where) in enumerate(self._placed()):
            if where.start <= own.first.min() < where.stop:
                parts[i] = part.with_lines(rows, own.put_into(part.table[part.line[rows]], where.start))
        return SharedRows(tuple(parts))

    def _placed(self) -> Iterator[tuple[SharedPart, slice]]:
        """The parts, and which columns of the rows they are."""
        first = 0
        for part in self.parts:
            yield part, slice(first, first := first + part.table.shape[1])

    def moments(self) -> tuple[Array, Array]:
        """[I] mean and variance of the rows, in float64."""
        means, variances = [], []
        for part in self.parts:
            share, table = np.bincount(part.line, minlength=len(part.table)) / len(part.line), part.table
            if np.count_nonzero(share) < len(share):  # what no row shows must not even change how sums are rounded
                share, table = share[share > 0], table[share > 0]
            mean = share @ table
            means.append(mean)
            variances.append(share @ (table - mean) ** 2)
        return np.concatenate(means), np.concatenate(variances)

    @staticmethod
    def joined(several: Sequence[SharedRows]) -> SharedRows:
        """The rows of all, one after the other."""
        parts = []
        for same in zip(*(rows.parts for rows in several), strict=True):
            offsets = np.cumsum([0, *(len(part.table) for part in same[:-1])])
            lines = [part.line + offset for part, offset in zip(same, offsets, strict=True)]
            parts.append(SharedPart(np.concatenate([part.table for part in same]), np.concatenate(lines)))
        return SharedRows(tuple(parts))


def with_own(rows: Array | SharedRows, own: OwnColumns) -> Array | SharedRows:
    """Rows of either kind with numbers of each one's own."""
    return rows.with_own(own) if isinstance(rows, SharedRows) else own.put_into(rows)


def laid_out(rows: Array | SharedRows) -> Array:
    """[M, I] rows of either kind themselves."""
    return rows.laid_out() if isinstance(rows, SharedRows) else rows
