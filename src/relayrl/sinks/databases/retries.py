"""Waiting longer and longer between attempts, up to a deadline. Clock, sleep and chance are arguments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from relayrl.sinks.sink_settings import DatabaseSettings


class BackOff:
    """The waits between attempts of one piece of work; the deadline counts from when this was made.

    Each wait is between half and all of `first_delay_s * 2**n`, at most `max_delay_s`: many writers that lost the same server
    do not come back at the same moment.
    """

    def __init__(
        self,
        settings: DatabaseSettings,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_delay_s = settings.max_delay_s
        self._next_delay_s = settings.first_delay_s
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._deadline = clock() + settings.retry_deadline_s
        self.num_waits = 0

    @property
    def remaining_s(self) -> float:
        """Time until the deadline, never negative."""
        return max(0.0, self._deadline - self._clock())

    def wait(self) -> bool:
        """Sleep before another attempt; False when the deadline has come."""
        if self.remaining_s == 0.0:
            return False
        delay_s = min(self._next_delay_s, self._max_delay_s) * (0.5 + 0.5 * self._chance())
        self._sleep(min(delay_s, self.remaining_s))
        self._next_delay_s *= 2
        self.num_waits += 1
        return True
