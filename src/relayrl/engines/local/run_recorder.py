"""Keeping what a run collects: every rollout's trajectories go to a sink, in the order in which they were made.

Every step of a run is in its record once, with its reward and end, also when the run was killed and resumed (`recorded_ahead`).
The last action of a lane that waits is written when it is known what came of it (`data.open_rows`). Until then it is part of
checkpoints. When the recorder is closed it is written as it is; a run that is resumed takes it back, and writes it anew, where
more arrives for it.

A run only copies its columns; a thread cuts them into trajectories and writes them. Nothing is dropped: a run that is faster
than its sink waits for it. When the sink fails, the next call here raises its error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np

from relayrl.data.arrow.codec import decode_block, encode_block
from relayrl.data.columns import Rollout, copied_rollout, joined_rollouts
from relayrl.data.open_rows import RolloutSplitter
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
        self._splitters: dict[str, RolloutSplitter] = {}
        self._waiting: TrajectoryQueue[Portion] = TrajectoryQueue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write_what_comes, name="relayrl-recorder", daemon=True)
        self._thread.start()

    def state_dict(self) -> dict[str, Any]:
        """What decides the next trajectories and their ids; after `flush`."""
        open_rows = {group: splitter.open_rows for group, splitter in self._splitters.items()}
        held = {
            group: np.frombuffer(encode_block(rows), np.uint8) for group, rows in open_rows.items() if rows is not None
        }
        return {"branch": self._branch, "open_rows": held}

    def go_on(self, state: Mapping[str, Any] | None, ahead: RecordedAhead) -> None:
        """Continue from `state_dict`, if there was one, before anything is recorded; `ahead` is recorded already."""
        self._branch = uuid4().hex if ahead.has_abandoned else (state or self.state_dict())["branch"]
        self._ahead = ahead
        self._splitters = {group: RolloutSplitter(rows) for group, rows in saved_open_rows(state).items()}

    def end(self) -> None:
        """The run is over: what was recorded beyond its end before it was resumed is abandoned."""
        self.flush()
        self._write_open_rows()
        self._sink.flush()
        self._abandon_ahead()

    def record(self, rollouts: Mapping[str, Rollout]) -> None:
        """Keep one block of all groups."""
        for group, rollout in rollouts.items():
            self._blocks.setdefault(group, []).append(copied_rollout(rollout))
        if max(sum(block.num_steps for block in blocks) for blocks in self._blocks.values()) >= RECORDED_STEPS:
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
            if not self._ahead:  # else the record holds more of them than is known here
                self._write_open_rows()
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
                rollouts = {group: joined_rollouts(blocks) for group, blocks in portion.items()}
                self._write([self._split(group, rollout) for group, rollout in rollouts.items()])
                num_rows += sum(rollout.reward.size for rollout in rollouts.values())
                if num_rows >= DURABLE_ROWS and self._sink.appends:
                    self._sink.flush()
                    num_rows = 0
                self._waiting.done()
        except QueueClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run's thread raises it
            self._waiting.close(error)

    def _split(self, group: str, rollout: Rollout) -> TrajectoryBlock:
        return self._splitters.setdefault(group, RolloutSplitter()).split(rollout)

    def _write_open_rows(self) -> None:
        """Write what is held back as it is; the thread must have nothing to do."""
        taken = [splitter.take_open_rows() for splitter in self._splitters.values()]
        self._write([rows for rows in taken if rows is not None])

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


def saved_open_rows(state: Mapping[str, Any] | None) -> dict[str, TrajectoryBlock]:
    """What a saved recorder held back, by group; nothing in states of older versions."""
    held = {} if state is None else state.get("open_rows", {})
    return {group: decode_block(np.ascontiguousarray(data)) for group, data in held.items()}
