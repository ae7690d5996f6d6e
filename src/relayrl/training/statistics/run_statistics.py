"""Numbers of a run between two rows: metrics of updates and episodes, averaged, then given to every writer as one flat row.

Names are `area/name_unit`; `docs/metrics.md` explains each. What is kept here travels in checkpoints, so that the rows of a
resumed run continue those before.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from relayrl.envs.environment_contract import Combination, Recorded
from relayrl.training.statistics.statistics_writers import StatisticsWriter

RECENT_EPISODES = 100
"""Episodes over which `episode/return` is averaged, as is customary."""


@dataclass(slots=True)
class _Record:
    """Numbers of one name since the last row."""

    combination: int
    total: float = 0.0
    count: int = 0
    smallest: float = math.inf
    largest: float = -math.inf

    def add(self, number: float) -> None:
        self.total, self.count = self.total + number, self.count + 1
        self.smallest, self.largest = min(self.smallest, number), max(self.largest, number)

    def metrics(self, name: str) -> dict[str, float]:
        """The sum where it is wanted, else the mean: of the last number alone, where that is wanted."""
        row = {name: self.total if self.combination == Combination.SUM else self.total / self.count}
        spread = {f"{name}_min": self.smallest, f"{name}_max": self.largest}
        return row | spread if self.combination == Combination.HISTOGRAM else row


class Statistics:
    """Collects numbers between summaries and hands their means to the writers; numbers may be added from any thread."""

    def __init__(self, writers: Sequence[StatisticsWriter]) -> None:
        self._lock = threading.Lock()
        self._writers = list(writers)
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._group_returns: dict[str, deque[float]] = {}
        self._agent_returns: dict[str, deque[float]] = {}
        self._recorded: dict[str, _Record] = {}
        self._latest: dict[str, float] = {}
        self.num_episodes = 0
        self.num_rows = 0

    @property
    def mean_return(self) -> float:
        """Mean return of the latest training episodes; NaN before the first one ends."""
        return _mean(self._returns)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Numbers to be averaged until the next summary."""
        with self._lock:
            self._latest.update(metrics)
            for name, number in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + number
                self._counts[name] = self._counts.get(name, 0) + 1

    def add_episodes(
        self, returns: list[float], lengths: list[int], group_returns: Mapping[str, list[float]] | None = None
    ) -> None:
        """Training episodes that ended; each group's own returns count where there are several."""
        with self._lock:
            self._returns.extend(returns)
            self._lengths.extend(lengths)
            self.num_episodes += len(returns)
            if group_returns is not None and len(group_returns) > 1:
                for group, own in group_returns.items():
                    self._group_returns.setdefault(group, deque(maxlen=RECENT_EPISODES)).extend(own)

    def add_recorded(self, recorded: Sequence[Recorded]) -> None:
        """Numbers of simulators, combined as each asks until the next summary."""
        with self._lock:
            for name, number, combination in recorded:
                own = self._recorded.get(name)
                if own is None or combination is Combination.MOST_RECENT:
                    own = self._recorded[name] = _Record(combination)
                own.add(number)

    def summarize(self, num_env_steps: int, extra: Mapping[str, float]) -> dict[str, float]:
        """Write a row of all means since the last one."""
        row = dict(extra)
        with self._lock:
            row |= self._of_episodes()
            row.update({name: total / self._counts[name] for name, total in self._sums.items()})
            for name, record in self._recorded.items():
                row |= record.metrics(f"environment/{name}")
            self._recorded.clear()
            self._sums.clear()
            self._counts.clear()
        row |= {f"agents/{agent}/episode/return_mean": _mean(own) for agent, own in self._agent_returns.items() if own}
        for writer in self._writers:
            writer.write(num_env_steps, row)
        self.num_rows += 1
        with self._lock:
            self._latest.update(row)
        return row

    def _of_episodes(self) -> dict[str, float]:
        row = {}
        if self._returns:
            row["episode/return_mean"] = self.mean_return
            row["episode/return_min"], row["episode/return_max"] = min(self._returns), max(self._returns)
            row["episode/length_mean"] = _mean(self._lengths)
        row |= {f"{group}/episode/return_mean": _mean(own) for group, own in self._group_returns.items() if own}
        return row | {"episode/count": float(self.num_episodes)}

    def latest(self) -> dict[str, float]:
        """The newest number of every name: of updates as they were added, of episodes over the latest ones."""
        with self._lock:
            return self._latest | self._of_episodes()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Let `latest` have numbers that the next row is given as they are."""
        with self._lock:
            self._latest.update(metrics)

    def add_agent_returns(self, returns: Mapping[str, list[float]]) -> None:
        """Each agent's own returns of training episodes that ended; called from the thread that writes the rows."""
        for agent, own in returns.items():
            self._agent_returns.setdefault(agent, deque(maxlen=RECENT_EPISODES)).extend(own)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next rows are made of."""
        return {
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "recorded": {
                name: [int(record.combination), *astuple(record)[1:]] for name, record in self._recorded.items()
            },
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "group_returns": {group: list(own) for group, own in self._group_returns.items()},
            "agent_returns": {agent: list(own) for agent, own in self._agent_returns.items()},
            "num_episodes": self.num_episodes,
            "num_rows": self.num_rows,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._recorded = {name: _Record(*numbers) for name, numbers in state.get("recorded", {}).items()}
        self._returns = deque(state["returns"], maxlen=RECENT_EPISODES)
        self._lengths = deque(state["lengths"], maxlen=RECENT_EPISODES)
        for group, own in state["group_returns"].items():
            self._group_returns[group] = deque(own, maxlen=RECENT_EPISODES)
        for agent, own in state.get("agent_returns", {}).items():
            self._agent_returns[agent] = deque(own, maxlen=RECENT_EPISODES)
        self.num_episodes = state["num_episodes"]
        self.num_rows = state.get("num_rows", 1)  # older versions did not count them

    def rewind(self, num_env_steps: int) -> None:
        """Take back rows beyond a step, which the run will write again."""
        for writer in self._writers:
            writer.rewind(num_env_steps)

    def sync(self) -> None:
        """Make the rows durable: a checkpoint must not be newer than they are."""
        for writer in self._writers:
            writer.sync()

    def close(self) -> None:
        """Close every writer."""
        for writer in self._writers:
            writer.close()


def _mean(numbers: deque[float] | deque[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan
