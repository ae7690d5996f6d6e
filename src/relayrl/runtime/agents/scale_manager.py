"""How many routers there are. At least one; changes exclude each other and lose nothing.

Not its job: moving actors and trajectories, which the dispatcher does when a router is added or retired.
"""

from __future__ import annotations

import logging
import threading

from relayrl.errors import ConfigError
from relayrl.runtime.routing.router import RouterDispatcher

_log = logging.getLogger("relayrl.runtime.agents.scale_manager")
RETIRE_TIMEOUT_S = 30.0


class ScaleManager:
    """Scales the routers of one dispatcher."""

    def __init__(self, dispatcher: RouterDispatcher) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.Lock()

    def scale_by(self, change: int) -> int:
        """`change` routers more, or fewer where it is negative; gives how many there are."""
        if change == 0:
            raise ConfigError(
                "scale_throughput(0) changes nothing; give the number of routers to add or, negative, to remove"
            )
        with self._lock:
            return self._scale_to(self._dispatcher.num_routers + change)

    def scale_to(self, num_routers: int) -> int:
        """That many routers."""
        with self._lock:
            return self._scale_to(num_routers)

    def _scale_to(self, num_routers: int) -> int:
        present = self._dispatcher.num_routers
        if num_routers < 1:
            raise ConfigError(f"{present} routers cannot become {num_routers}; at least one must remain")
        for _ in range(num_routers - present):
            self._dispatcher.add_router()
        for _ in range(present - num_routers):
            self._dispatcher.retire_router(RETIRE_TIMEOUT_S)
        _log.info("routers scaled", extra={"before": present, "after": num_routers})
        return num_routers
