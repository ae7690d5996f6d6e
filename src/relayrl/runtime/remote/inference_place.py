"""Where the networks of an agent's policies are passed.

server            the server passes them; the client needs no model
client            here, with models that are fetched from the server and validated
client_fallback   the server, and here while it cannot
server_fallback   here, and the server while this process cannot
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class InferencePlace(Enum):
    """Where the networks of an agent's policies are passed."""

    SERVER = "server"
    CLIENT = "client"
    CLIENT_FALLBACK = "client_fallback"
    SERVER_FALLBACK = "server_fallback"


@dataclass(frozen=True, slots=True)
class InferenceServerSettings:
    """How an agent uses an inference server."""

    address: str
    place: InferencePlace = InferencePlace.SERVER
    group: str | None = None
    """Whose policy the actors act with; None: the only group that is served."""
    timeout_s: float = 5.0
    key: Path | str | None = None
    """This client's keys, where the server wants some."""
    server_key: Path | str | None = None
    """The server's public key, or its `.pub` file."""
