"""Which version of a policy which actor acts with: a pure function of the actor's id, the same on every client and server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from relayrl.errors import ProtocolError

_MAX_VERSION = 1 << 62


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a group's actors act with: the stable version, and for a share of them a canary."""

    number: int
    """Counts changes; a larger one replaces a smaller one."""
    stable: int
    canary: int | None = None
    share: float = 0.0
    """Of actors that act with the canary, 0 to 1."""

    def version_for(self, group: str, actor_id: str) -> int:
        """The version of an actor: the same every time, and another share of actors for every canary."""
        if self.canary is None or position(group, self.canary, actor_id) >= self.share:
            return self.stable
        return self.canary

    def as_header(self) -> dict[str, Any]:
        """For a message."""
        return {"number": self.number, "stable": self.stable, "canary": self.canary, "share": self.share}

    @classmethod
    def from_header(cls, header: Any) -> Deployment:
        """The reverse of `as_header`; `ProtocolError` for anything else."""
        try:
            number, stable, canary, share = (header[key] for key in ("number", "stable", "canary", "share"))
        except (TypeError, KeyError) as error:
            raise ProtocolError("malformed", f"no deployment: {error}") from error
        versions = (number, stable) if canary is None else (number, stable, canary)
        if not all(type(version) is int and 0 <= version < _MAX_VERSION for version in versions):
            raise ProtocolError("malformed", f"a deployment of versions {versions!r:.80}")
        if type(share) not in (int, float) or not 0.0 <= share <= 1.0:
            raise ProtocolError("malformed", f"a deployment with share {share!r:.40}")
        return cls(number, stable, canary, float(share))


def position(group: str, canary: int, actor_id: str) -> float:
    """Where an actor stands between 0 and 1 when a canary's share is taken: the first 8 bytes, big-endian, of the SHA-256 of
    `GROUP/CANARY/ACTOR` in UTF-8, divided by 2**64."""
    digest = hashlib.sha256(f"{group}/{canary}/{actor_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
