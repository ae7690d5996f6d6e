"""Keeping what a run collects: every rollout's trajectories go to a sink, in the order in which they were made.

Every step of a run is in its record once, also when the run was killed and resumed (`recorded_ahead`). A run only copies its
columns; a thread cuts them into trajectories and writes them. Nothing is dropped: a run that is faster than its sink waits for
it. When the sink fails, the next call here raises its error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from relayrl.data.columns import Rollout, copied_rollout, joined_rollouts
from relayrl.data.splitting import on_branch
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.engines.local.recorded_ahead import RecordedAhead
from relayrl.errors import QueueClosedError
from relayrl.sinks.contract import TrajectorySink
from relayrl.training.queued.queues import TrajectoryQueue

logger = logging.getLogger(__name__)
RECORDED_STEPS = 256
"""Steps of each environment that are written together: fragments of one step each would cost more than the steps."""
MAX_WAITING = 4
"""Portions of so many steps that may wait for the sink."""
DURABLE_ROWS = 8192
"""Rows after which the thread flushes a sink that appends, so that the run does not wait for much when it saves."""
_LOOK_S = 1.0

Portion = dict[str, list[Rollout]]


class Recorder:
    """Writes rollouts to a sink, which it owns; durable whenever the run saves, and at the end."""

    def __init__(self, sink: TrajectorySink) -> None:
        self._sink = sink
        self._is_closed = False
        self._blocks: Portion = {}
        self._branch = ""  # part of the ids, so that they are not those of abandoned steps
        self._ahead: RecordedAhead | None = None
        self._waiting: TrajectoryQueue[Portion] = TrajectoryQueue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write_what_comes, name="relayrl-recorder", daemon=True)
        self._thread.start()

    def state_dict(self) -> dict[str, Any]:
        """What decides the ids of the next trajectories."""
        return {"branch": self._branch}

    def go_on(self, state: Mapping[str, Any] | None, ahead: RecordedAhead) -> None:
        """Continue from `state_dict`, if there was one, before anything is recorded; `ahead` is recorded already."""
        self._branch = uuid4().hex if ahead.has_abandoned else (state or self.state_dict())["branch"]
        self._ahead = ahead

    def end(self) -> None:
        """The run is over: what was recorded beyond its end before it was resumed is abandoned."""
        self.flush()
        self._abandon_ahead()

    def record(self, rollouts: Mapping[str, Rollout]) -> None:
        """Keep one block of all groups."""
        for group, rollout in rollouts.items():
            self._blocks.setdefault(group, []).append(copied_rollout(rollout))
        if sum(block.num_steps for block in next(iter(self._blocks.values()))) >= RECORDED_STEPS:
            self._hand_over()

    def flush(self) -> None:
        """Return when everything is durable."""
        self._hand_over()
        self._waiting.drain()
        self._sink.flush()

    def close(self) -> None:
        """Flush and let go of the sink; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._hand_over()
            self._waiting.drain()
        finally:
            self._waiting.close()
            self._thread.join()
            self._sink.close()

    def _hand_over(self) -> None:
        portion, self._blocks = self._blocks, {}
        self._waiting.put(portion)

    def _write_what_comes(self) -> None:
        num_rows = 0
        try:
            while True:
                portion = self._waiting.get(_LOOK_S)
                if portion is None:
                    continue
                rollouts = [joined_rollouts(blocks) for blocks in portion.values()]
                self._write([rollout.trajectories() for rollout in rollouts])
                num_rows += sum(rollout.reward.size for rollout in rollouts)
                if num_rows >= DURABLE_ROWS and self._sink.appends:
                    self._sink.flush()
                    num_rows = 0
                self._waiting.done()
        except QueueClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run's thread raises it
            self._waiting.close(error)

    def _write(self, blocks: list[TrajectoryBlock]) -> None:
        if self._ahead:
            new = self._ahead.without_recorded([on_branch(block, self._branch) for block in blocks])
            if new is not None:
                for some in new:
                    self._sink.write(some)
                return
            self._abandon_ahead()
            self._branch = uuid4().hex
        for block in blocks:
            self._sink.write(on_branch(block, self._branch))

    def _abandon_ahead(self) -> None:
        if self._ahead:
            rest = self._ahead.take_rest()
            self._sink.abandon(rest)
            logger.warning("%d recorded trajectories were taken back and are marked as abandoned", len(rest))
