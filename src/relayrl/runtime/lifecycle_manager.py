"""Whether the agent runs, and who is still at work when it stops.

    CREATED ──start──▶ RUNNING ──shutdown──▶ STOPPING ──▶ STOPPED ──start──▶ RUNNING …

Invariants: `enter` succeeds only while RUNNING; STOPPING becomes STOPPED only when everybody who entered has left, or the
deadline has passed; one start or shutdown at a time.

Not its job: what starting and stopping consist of (`client_coordinator`).
"""

from __future__ import annotations

import threading
import time
from enum import Enum

from relayrl.runtime.runtime_errors import AgentStateError


class AgentState(Enum):
    """Where an agent is in its life."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class LifecycleManager:
    """The agent's state, and the number of calls under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # taken directly on the way of every request: a condition's own doors are slower
        self._changed = threading.Condition(self._lock)
        self._state = AgentState.CREATED
        self._num_inside = 0
        self.transition = threading.RLock()
        """Held by whoever starts or stops the agent."""

    @property
    def state(self) -> AgentState:
        return self._state

    def enter(self) -> None:
        """Begin a call that needs a running agent; every `enter` is followed by `leave`."""
        with self._lock:
            self.require_running()
            self._num_inside += 1

    def require_running(self) -> None:
        """Raise unless the agent runs."""
        if self._state is not AgentState.RUNNING:
            raise AgentStateError(f"the agent is {self._state.value}; call start() first")

    def leave(self) -> None:
        """The call has ended."""
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside and self._state is AgentState.STOPPING:
                self._changed.notify_all()

    def become(self, state: AgentState) -> None:
        with self._changed:
            self._state = state

    def wait_until_idle(self, deadline_s: float) -> int:
        """Wait for the calls under way until `deadline_s` on the monotonic clock; gives how many are left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_inside, max(0.0, deadline_s - time.monotonic()))
            return self._num_inside
