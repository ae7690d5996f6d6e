"""The buffer between actors and one router: bounded, by priority, in order for every actor.

Invariants:

- A trajectory that was put leaves only through `settle` (it is durable, or was given up with a report) or `close`:
  nothing is dropped.
- The most urgent trajectory is taken first, and among equals the oldest. Trajectories of one actor never overtake each
  other: an urgent one makes those of its actor that came before it as urgent.
- `has_room` is False while an actor has its number of trajectories here, or the buffer its bytes, taken ones included until
  they are settled. Whoever acts asks before it acts; `put` itself always succeeds on an open buffer.

Not its job: choosing the router of an actor (`router`), or writing to sinks (`router`).
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.trees import leaves
from relayrl.runtime.agents.client_config import RouterBufferSettings

_SCALAR_BYTES = 24  # of a step: reward, policy version, log-probability, value


class Priority(IntEnum):
    """Smaller is more urgent."""

    FLUSH = 0
    """Somebody waits for it: its actor was removed, or the agent shuts down."""
    EPISODE = 1
    """An episode's end."""
    FRAGMENT = 2
    """Cut because of its length."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A trajectory and the actor (by its lane's key) that it came from."""

    lane_key: UUID
    trajectory: Trajectory
    num_bytes: int


class TrajectoryBuffer:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(self, bounds: RouterBufferSettings) -> None:
        self._bounds = bounds
        self._changed = threading.Condition()
        self._waiting: dict[UUID, deque[Entry]] = {}
        self._order: list[tuple[int, int, UUID]] = []
        self._sequence = 0
        self._taken: dict[Entry, None] = {}
        self._held: Counter[UUID] = Counter()
        self._num_held = self._num_bytes = 0
        self._full_lanes: set[UUID] = set()
        self._is_closed = False
        self._is_hurried = False
        self.is_pressed = False
        """Whether anybody is without room; read without a lock on the way of every request."""

    def __len__(self) -> int:
        """Trajectories here, taken ones included until they are settled."""
        return self._num_held

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, lane_key: UUID, trajectory: Trajectory, priority: Priority) -> bool:
        """Add a trajectory; False, and nothing was added, if the buffer is closed."""
        entry = Entry(lane_key, trajectory, trajectory_bytes(trajectory))
        with self._changed:
            if self._is_closed:
                return False
            self._waiting.setdefault(lane_key, deque()).append(entry)
            heapq.heappush(self._order, (int(priority), self._sequence, lane_key))
            self._sequence += 1
            self._count(entry, 1)
            self._is_hurried |= priority is Priority.FLUSH
            self._changed.notify_all()
        return True

    def has_room(self, lane_key: UUID) -> bool:
        """Whether the actor may go on."""
        with self._changed:
            return self._has_room(lane_key)

    def wait_for_room(self, lane_key: UUID, timeout_s: float) -> bool:
        """Wait until the actor may go on; also ends, with True, when the buffer closes."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or self._has_room(lane_key), timeout_s)

    def take(self, max_entries: int, timeout_s: float) -> list[Entry]:
        """The most urgent entries; waits up to `timeout_s` for the first. They stay counted until they are settled."""
        with self._changed:
            self._changed.wait_for(lambda: self._order or self._is_closed or self._is_hurried, timeout_s)
            taken: list[Entry] = []
            while self._order and len(taken) < max_entries:
                _, _, lane_key = heapq.heappop(self._order)
                queue = self._waiting[lane_key]
                taken.append(queue.popleft())
                if not queue:
                    del self._waiting[lane_key]
            self._taken.update(dict.fromkeys(taken))
            return taken

    def settle(self, entries: Sequence[Entry]) -> None:
        """These entries are durable, or were given up with a report: their room is free."""
        with self._changed:
            for entry in entries:
                del self._taken[entry]
                self._count(entry, -1)
            self._changed.notify_all()

    def unsettled(self) -> list[Entry]:
        """Entries that were taken and not settled, in the order in which they were taken."""
        with self._changed:
            return list(self._taken)

    def hurry(self) -> None:
        """Make the router flush now rather than at its next interval."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def take_hurry(self) -> bool:
        """Whether somebody hurried since the last call."""
        with self._changed:
            hurried, self._is_hurried = self._is_hurried, False
            return hurried

    def wait_until_settled(self, lane_key: UUID | None, timeout_s: float) -> bool:
        """Wait until nothing of the actor (or nothing at all) is here; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._num_held if lane_key is None else self._held[lane_key]), timeout_s
            )

    def close(self) -> list[Entry]:
        """Take no more; gives what nobody has taken yet, oldest first for every actor."""
        with self._changed:
            self._is_closed = True
            left = [entry for queue in self._waiting.values() for entry in queue]
            self._waiting.clear()
            self._order.clear()
            for entry in left:
                self._count(entry, -1)
            self._changed.notify_all()
            return left

    def resize(self, bounds: RouterBufferSettings) -> None:
        """Other bounds from now on; nothing that is here is dropped when they are smaller."""
        with self._changed:
            self._bounds = bounds
            self._full_lanes = {key for key, held in self._held.items() if held >= bounds.max_trajectories_per_actor}
            self._press()
            self._changed.notify_all()

    def _has_room(self, lane_key: UUID) -> bool:
        return lane_key not in self._full_lanes and self._num_bytes < self._bounds.max_bytes

    def _count(self, entry: Entry, change: int) -> None:
        self._num_held += change
        self._num_bytes += change * entry.num_bytes
        held = self._held[entry.lane_key] + change
        if held:
            self._held[entry.lane_key] = held
        else:
            del self._held[entry.lane_key]
        if held >= self._bounds.max_trajectories_per_actor:
            self._full_lanes.add(entry.lane_key)
        else:
            self._full_lanes.discard(entry.lane_key)
        self._press()

    def _press(self) -> None:
        self.is_pressed = bool(self._full_lanes) or self._num_bytes >= self._bounds.max_bytes


def trajectory_bytes(trajectory: Trajectory) -> int:
    """Memory of a trajectory's columns."""
    columns = (
        *(trajectory.obs, trajectory.action, trajectory.action_mask, trajectory.memory, trajectory.state),
        *(trajectory.final_obs, trajectory.final_state, trajectory.final_mask),
    )
    trees = sum(int(leaf.nbytes) for column in columns if column is not None for _, leaf in leaves(column))
    return trees + _SCALAR_BYTES * len(trajectory)
