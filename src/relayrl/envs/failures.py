"""What can go wrong in an environment, how it is reported, and how often it may.

An environment loop only describes a failure; the vector environment that owns the environments decides: raise it, or void
the step, restart the environment and spend from the `RestartBudget`.
"""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from uuid import UUID

from relayrl.errors import EnvError, EnvironmentFailedError, ObservationError, StoppedBySignal

_MINUTE_S = 60.0
_OWN_CHECKS = Path(__file__).parent


class FailureKind(Enum):
    """How an environment failed."""

    RAISED = "raised"
    OBSERVATION = "observation"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """One environment's failure; `env` is its index among all environments of the run, `lost_with_it` those that it took
    along."""

    env: int
    kind: FailureKind
    reason: str
    traceback: str = ""
    lost_with_it: tuple[int, ...] = ()

    @classmethod
    def of_exception(cls, env: int, error: BaseException, doing: str) -> EnvFailure:
        """The failure of an environment whose own code raised `error`; an interrupt that only passed through it is raised
        again."""
        if not _is_own(error):
            raise error
        reason = f"{doing} raised {type(error).__name__}: {_text_of(error)}"
        trace = "" if _is_a_check_of_ours(error) else "".join(traceback.format_exception(error))
        return cls(env, FailureKind.RAISED, reason, trace)

    def moved(self, offset: int) -> EnvFailure:
        """The same failure, from an index within a slice to one among all environments."""
        lost = tuple(env + offset for env in self.lost_with_it)
        return EnvFailure(self.env + offset, self.kind, self.reason, self.traceback, lost)

    def as_error(self, env_id: UUID, seed: int | None, step: int, note: str = "") -> EnvError:
        """The error to raise when the failure is not survived."""
        if self.kind is FailureKind.OBSERVATION:
            return ObservationError(f"environment {env_id} (seed {seed}) at step {step}: {self.reason}{note}")
        return EnvironmentFailedError(
            f"{self.reason}{note}", env_id=env_id, seed=seed, step=step, remote_traceback=self.traceback
        )


def _is_own(error: BaseException) -> bool:
    """Whether an environment is to blame for `error`: also for its `sys.exit()`, which would end the program without a word."""
    if isinstance(error, StoppedBySignal):
        return False
    if isinstance(error, KeyboardInterrupt):
        # With Python's own handler, a Ctrl-C is raised wherever the program is, and cannot be told from the environment's.
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return True


def _is_a_check_of_ours(error: BaseException) -> bool:
    """Whether a check of what the environment gave raised `error`: it names the fault, and where it was found helps nobody."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, EnvError) and bool(frames) and Path(frames[-1].filename).is_relative_to(_OWN_CHECKS)


def _text_of(error: BaseException) -> str:
    """What an error says of itself; its own code may raise as well."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - whatever it is, the first error is the one to report
        return f"(its __str__ raised {type(other).__name__})"


@contextlib.contextmanager
def failure_set_aside() -> Iterator[None]:
    """Around an environment's own code that may fail without consequence: another failure is the one to report."""
    try:
        yield
    except BaseException as error:
        if not _is_own(error):
            raise


class EnvFailureError(Exception):
    """An environment could not be built or closed; carries the failure from the loop to the vector environment, never to
    users."""

    def __init__(self, failure: EnvFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class RestartBudget:
    """At most so many restarts in any minute."""

    def __init__(self, max_per_minute: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.max_per_minute = max_per_minute
        self._clock_s = clock_s
        self._spent_at_s: deque[float] = deque()

    def spend(self) -> bool:
        """Take one restart; False when the last minute's are used up."""
        now_s = self._clock_s()
        while self._spent_at_s and now_s - self._spent_at_s[0] >= _MINUTE_S:
            self._spent_at_s.popleft()
        if len(self._spent_at_s) >= self.max_per_minute:
            return False
        self._spent_at_s.append(now_s)
        return True
