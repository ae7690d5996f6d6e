"""What one client may take of a server: settings, and the bucket that measures a rate.

Not its job: refusing (`server_endpoint`).
"""

from __future__ import annotations

from pydantic import Field

from relayrl.config.settings import Settings

_MIB = 1 << 20


class ClientLimits(Settings):
    """Bounds of a server's clients. A client is one connection, unless a field says otherwise."""

    message_bytes: int = Field(64 * _MIB, ge=1 << 10, description="Largest message, all frames together.")
    messages_per_s: float = Field(50_000.0, gt=0, description="Messages per second, sustained; twice that in a burst.")
    bytes_per_s: float = Field(2048.0 * _MIB, gt=0, description="Bytes per second, sustained; twice that in a burst.")
    held_bytes: int = Field(256 * _MIB, ge=1 << 10, description="Bytes received and not replied to yet.")
    total_held_bytes: int = Field(2048 * _MIB, ge=1 << 10, description="The same for all clients together.")
    connections: int = Field(1024, ge=1, description="Connections with one key; without keys, from one address.")
    total_connections: int = Field(4096, ge=1, description="Connections of all clients together.")
    handshake_timeout_s: float = Field(10.0, gt=0, description="A connection that is not set up by then is closed.")
    heartbeat_s: float = Field(5.0, gt=0, description="Seconds between heartbeats to a silent client.")
    heartbeat_timeout_s: float = Field(30.0, gt=0, description="A client that sends nothing for so long is closed.")


class TokenBucket:
    """Allows `per_s` units a second on average, and at most two seconds' worth at once."""

    __slots__ = ("_per_s", "_seen_s", "_tokens")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s, self._seen_s = per_s, now_s
        self._tokens = 2.0 * per_s

    def take(self, amount: float, now_s: float) -> bool:
        """Take `amount` if there is any credit left. The last message may exceed it, so that a large one can pass."""
        tokens = self._tokens + (now_s - self._seen_s) * self._per_s
        self._seen_s = now_s
        self._tokens = min(tokens, 2.0 * self._per_s)
        if self._tokens <= 0.0:
            return False
        self._tokens -= amount
        return True

    def wait_s(self) -> float:
        """Seconds until `take` succeeds again."""
        return max(0.0, -self._tokens / self._per_s)
