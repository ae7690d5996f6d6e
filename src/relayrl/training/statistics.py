"""Statistics of a run: averaged between summaries, then given to every writer as one flat row.

Names are `area/name_unit`; `docs/metrics.md` explains each. Writers must not influence learning: they only get numbers.
"""

from __future__ import annotations

import csv
import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

RECENT_EPISODES = 100
"""Episodes over which `episode/return` is averaged, as is customary."""


class StatisticsWriter(ABC):
    """Takes rows of statistics."""

    @abstractmethod
    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        """Take one row; called in order of `num_env_steps`."""

    def close(self) -> None:  # noqa: B027 - not every writer holds something
        """Flush and release; called once."""


class ProgressCsv(StatisticsWriter):
    """`progress.csv`: a row per summary; a column that appears late is added to the header and left empty above."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        if path.exists():
            with path.open(newline="") as file:
                self._columns = next(csv.reader(file), [])

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        row = {"num_env_steps": num_env_steps, **row}
        new = [name for name in row if name not in self._columns]
        if new:
            self._add_columns(new)
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _add_columns(self, names: list[str]) -> None:
        rows = []
        if self._path.exists():
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        self._columns += names
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(temporary, self._path)


class TensorBoardEvents(StatisticsWriter):
    """TensorBoard event files in the run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: EventFileWriter | None = None

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._directory))
        values = [Summary.Value(tag=name, simple_value=number) for name, number in row.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=num_env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Statistics:
    """Collects numbers between summaries and hands their means to the writers."""

    def __init__(self, writers: list[StatisticsWriter]) -> None:
        self._writers = writers
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self.num_episodes = 0

    @property
    def mean_return(self) -> float:
        """Mean return of the latest training episodes; NaN before the first one ends."""
        return sum(self._returns) / len(self._returns) if self._returns else math.nan

    def add(self, metrics: dict[str, float]) -> None:
        """Numbers to be averaged until the next summary."""
        for name, number in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1

    def add_episodes(self, returns: list[float], lengths: list[int]) -> None:
        """Training episodes that ended."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)
        self.num_episodes += len(returns)

    def summarize(self, num_env_steps: int, extra: dict[str, float]) -> dict[str, float]:
        """Write a row of all means since the last one."""
        row = dict(extra)
        if self._returns:
            row["episode/return_mean"] = self.mean_return
            row["episode/return_min"], row["episode/return_max"] = min(self._returns), max(self._returns)
            row["episode/length_mean"] = sum(self._lengths) / len(self._lengths)
        row["episode/count"] = float(self.num_episodes)
        row.update({name: total / self._counts[name] for name, total in self._sums.items()})
        self._sums.clear()
        self._counts.clear()
        for writer in self._writers:
            writer.write(num_env_steps, row)
        return row

    def close(self) -> None:
        """Close every writer."""
        for writer in self._writers:
            writer.close()
