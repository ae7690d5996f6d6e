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

from relayrl.errors import AgentStateError


class AgentState(Enum):
    """Where an agent is in its life."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class LifecycleManager:
    """The agent's state, and the number of calls under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = AgentState.CREATED
        self._inside: list[None] = []  # an entry for every call under way: lists grow and shrink without a lock
        self.transition = threading.RLock()
        """Held by whoever starts or stops the agent."""

    @property
    def state(self) -> AgentState:
        return self._state

    def enter(self) -> None:
        """Begin a call that needs a running agent; every `enter` is followed by `leave`."""
        self._inside.append(None)
        if self._state is not AgentState.RUNNING:  # looked at once we are inside: a shutdown waits for us, or we see it
            self.leave()
            self.require_running()

    def require_running(self) -> None:
        """Raise unless the agent runs."""
        if self._state is not AgentState.RUNNING:
            raise AgentStateError(f"the agent is {self._state.value}; call start() first")

    def leave(self) -> None:
        """The call has ended."""
        self._inside.pop()
        if self._state is AgentState.STOPPING:
            with self._changed:
                self._changed.notify_all()

    def become(self, state: AgentState) -> None:
        with self._changed:
            self._state = state

    def wait_until_idle(self, deadline_s: float) -> int:
        """Wait for the calls under way until `deadline_s` on the monotonic clock; gives how many are left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside, max(0.0, deadline_s - time.monotonic()))
            return len(self._inside)
