"""Keeping what a run collects: every rollout's trajectories go to a sink, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Mapping

from relayrl.data.columns import Rollout
from relayrl.data.joining import copied, joined
from relayrl.sinks.contract import TrajectorySink, open_sink

RECORDED_STEPS = 256
"""Steps of each world that are written together: fragments of one step each would cost more than the steps."""


class Recorder:
    """Writes rollouts to a sink; durable whenever the run saves, and at the end."""

    def __init__(self, url: str) -> None:
        self._sink: TrajectorySink = open_sink(url)
        self._blocks: dict[str, list[Rollout]] = {}

    def record(self, rollouts: Mapping[str, Rollout]) -> None:
        """Keep one block of all groups."""
        for group, rollout in rollouts.items():
            self._blocks.setdefault(group, []).append(copied(rollout))
        if sum(block.num_steps for block in next(iter(self._blocks.values()))) >= RECORDED_STEPS:
            self._write()

    def _write(self) -> None:
        for blocks in self._blocks.values():
            self._sink.write(list(joined(blocks).trajectories()))
        self._blocks = {}

    def flush(self) -> None:
        """Return when everything is durable."""
        self._write()
        self._sink.flush()

    def close(self) -> None:
        """Flush and let go of the sink."""
        self._write()
        self._sink.close()
