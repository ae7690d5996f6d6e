"""Every error that RelayRL raises on purpose.

    RelayRLError
    ├── ConfigError               a setting, flag or file is wrong; the message says what to write instead (exit code 2)
    │   ├── UnknownNameError      a name that does not exist, with the nearest one that does
    │   ├── UntrustedError        a file names code to run that the user did not name
    │   ├── ServerRefusedError    a server refused this client: other spaces, another protocol, or a key it does not know
    │   └── MissingExtraError     an optional dependency is not installed, with the pip line
    ├── DecodeError               bytes that are not a RelayRL message of this version
    │   └── ModelRefusedError         a model that came from elsewhere may not be loaded
    ├── EnvError                  an environment did something outside its contract
    │   ├── EnvironmentFailedError    it raised, hung past its deadline or its process died
    │   ├── PartialResetError         it can only reset all environments at once
    │   ├── ObservationError          it produced NaN or an observation outside its space
    │   └── ActionMaskError           an agent that must act is allowed no action
    ├── ExportError               a policy could not be written, or differs from its exported file
    ├── SinkError                 a sink or source could not do its work
    │   ├── SinkClosedError           it was used after it was closed
    │   ├── SpoolFullError            an actor's spool has no room until its server acknowledges; nothing was taken, try again
    │   └── SinkWriteError            trajectories could not be made durable; the sink still holds them
    ├── DiskError                 a file of a run cannot be written
    ├── QueueClosedError          a trajectory queue was closed by whoever stopped
    ├── QueueTimeoutError         the other side of a queue did not move before the deadline
    ├── AgentStateError           a verb that needs a running agent came before start() or after shutdown()
    ├── InferenceError            a policy could not act: its file, device or output is at fault; nothing was recorded
    ├── BufferFullError           a sink was too slow for longer than the push-back deadline; nothing was recorded, ask again
    ├── LearningError             a trainer failed, and learns no more; its own error is the cause
    ├── SinkFailedError           a sink could not write or flush now; routers catch it and try again
    ├── ProtocolError             a message of another process is malformed, too large or of another version
    ├── ServerUnreachableError    a server did not answer before the deadline; ask again, it may come back
    ├── CheckpointError           a checkpoint is missing, damaged or of another run
    └── TrainingDivergedError     a loss or a parameter became NaN or infinite

Nothing else is raised across a package boundary; whatever is caught is re-raised as one of these with its cause. What ends a
run because somebody asked for it, by a signal, is no error and none of these: `StoppedBySignal`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from uuid import UUID


class StoppedBySignal(BaseException):
    """Mixin of what a signal handler of RelayRL raises: it passes through environments and is not their failure."""


class RelayRLError(Exception):
    """Base of all errors that RelayRL raises on purpose. They can be pickled, whatever their constructors ask for."""

    def __reduce__(self) -> tuple[object, ...]:
        return _with_message, (type(self), self.args, self.__dict__)


def _with_message(kind: type[RelayRLError], args: tuple[object, ...], own: dict[str, object]) -> RelayRLError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(own)
    return error


class ConfigError(RelayRLError):
    """A setting is wrong. The message is one line that says what to do."""


class UnknownNameError(ConfigError):
    """A name that does not exist; the message offers the nearest names that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name[:200], names, n=3, cutoff=0.5)
        more = f" and {len(names) - 24} more" if len(names) > 24 else ""
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names[:24])}{more}"
        super().__init__(f"unknown {kind} {name!r:.200}; {hint}")
        self.kind, self.name, self.nearest = kind, name, tuple(near)


class UntrustedError(ConfigError):
    """A file names code to run that the user did not name."""


class ServerRefusedError(ConfigError):
    """A server refused this client. `code` is the reason in one word, as the protocol names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class MissingExtraError(ConfigError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency; install it with: pip install 'relayrl[{extra}]'")


class DecodeError(RelayRLError):
    """Bytes that cannot be decoded; the message says what is wrong with them."""


class ModelRefusedError(DecodeError):
    """A model that came from elsewhere is damaged, does not fit, or holds what policies may not have. It was not loaded."""


class EnvError(RelayRLError):
    """An environment did something outside its contract."""


class EnvironmentFailedError(EnvError):
    """An environment raised, hung past its deadline, or its worker process died."""

    def __init__(self, reason: str, *, env_id: UUID, seed: int | None, step: int, remote_traceback: str = "") -> None:
        tail = f"\n--- traceback of the environment ---\n{remote_traceback}" if remote_traceback else ""
        super().__init__(f"environment {env_id} (seed {seed}) failed at step {step}: {reason}{tail}")
        self.reason = reason
        self.env_id = env_id
        self.seed = seed
        self.step = step
        self.remote_traceback = remote_traceback


class PartialResetError(EnvError):
    """A vector environment that can only reset all environments at once was asked to reset some."""


class ObservationError(EnvError):
    """An observation holds NaN or infinity, or lies outside its space."""


class ActionMaskError(EnvError):
    """An agent that must act is allowed no action. `who` names it, with its environment and step where they are known."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{who}: the action mask allows no action; allow at least one, for each component of a MultiDiscrete action, "
            "or end the agent's episode"
        )


class ExportError(RelayRLError):
    """A policy could not be exported, or its exported file gives other numbers."""


class SinkError(RelayRLError):
    """A sink or source could not do its work."""


class SinkClosedError(SinkError):
    """A sink or source was used after it was closed."""


class SpoolFullError(SinkError):
    """A spool has no room until the server acknowledges; nothing was taken, and the same call may be repeated."""


class SinkWriteError(SinkError):
    """Trajectories could not be made durable; the sink still holds `num_trajectories` of them unless it was closed."""

    def __init__(self, reason: str, num_trajectories: int) -> None:
        super().__init__(f"{num_trajectories} trajectories are not durable yet: {reason}")
        self.num_trajectories = num_trajectories


class DiskError(RelayRLError):
    """A file of the run cannot be written; the message names it and says that what was there is intact."""


class QueueClosedError(RelayRLError):
    """A trajectory queue was closed by whoever stopped."""


class QueueTimeoutError(RelayRLError):
    """The other side of a queue did not move before the deadline."""


class AgentStateError(RelayRLError):
    """The agent is not in the state that this call needs."""


class InferenceError(RelayRLError):
    """A policy could not act. The request left no trace and may be repeated."""


class BufferFullError(RelayRLError):
    """Sinks did not keep up and the deadline of the push-back passed. The request left no trace and may be repeated."""


class LearningError(RelayRLError):
    """A trainer failed and learns no more; `__cause__` is what it raised."""


class SinkFailedError(RelayRLError):
    """A sink could not write or flush now; the router keeps what it has and tries again."""


class ProtocolError(RelayRLError):
    """A message of another process is not what the protocol allows. `code` is what an ERROR reply says of it."""

    def __init__(self, code: str, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.number = number
        """The request's number, where it could be read."""


class ServerUnreachableError(RelayRLError):
    """A server did not answer, or took nothing, before the deadline."""


class CheckpointError(RelayRLError):
    """A checkpoint is missing, damaged, or belongs to another run."""


class TrainingDivergedError(RelayRLError):
    """A loss or a parameter became NaN or infinite; the last good state is kept."""
