"""Errors of the runtime that are nobody else's: what a program with its own simulator may have to handle.

RelayRLError
├── AgentStateError     a verb that needs a running agent was called before start() or after shutdown()
├── InferenceError      a policy could not act: its file, device or output is at fault; nothing was recorded
├── BufferFullError     a sink was too slow for longer than the push-back deadline; nothing was recorded, ask again
└── SinkFailedError     a sink could not write or flush now; routers catch it and try again
"""

from __future__ import annotations

from relayrl.errors import RelayRLError


class AgentStateError(RelayRLError):
    """The agent is not in the state that this call needs."""


class InferenceError(RelayRLError):
    """A policy could not act. The request left no trace and may be repeated."""


class BufferFullError(RelayRLError):
    """Sinks did not keep up and the deadline of the push-back passed. The request left no trace and may be repeated."""


class SinkFailedError(RelayRLError):
    """A sink could not write or flush now; the router keeps what it has and tries again."""
