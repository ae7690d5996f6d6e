"""Counters of a server's endpoint; `docs/protocol.md` lists them."""

from __future__ import annotations

from relayrl.observability.metrics import Counter, MetricRegistry
from relayrl.transport.client_accounts import ClientAccounts

REFUSALS = ("too_large", "rate", "memory", "connections", "malformed", "version")
"""Codes of ERROR replies of the endpoint itself."""


class EndpointMetrics:
    """What an endpoint counts, in `metrics`."""

    def __init__(self, metrics: MetricRegistry, accounts: ClientAccounts) -> None:
        def counter(name: str, description: str) -> Counter:
            return metrics.counter(f"transport/{name}_total", description)

        self.messages = counter("messages", "messages received")
        self.bytes = counter("bytes", "bytes received")
        self.unread = counter("unread_replies", "replies dropped because their client reads too slowly")
        self.undeliverable = counter("undeliverable_replies", "replies dropped because their client left")
        self.refused = {code: counter(f"refused_{code}", f"messages refused with code {code}") for code in REFUSALS}
        self.refused_keys = counter("refused_keys", "connections refused because their key is not authorised")
        self.revoked = counter("revoked_connections", "connections cut because their key was revoked")
        self.refused_connections = counter("refused_connections", "connections cut because there were too many")
        self.endless = counter("endless_messages", "connections cut because they sent a message without end")
        metrics.gauge("transport/clients", "connected clients").follow(lambda: len(accounts))
        metrics.gauge("transport/held_bytes", "bytes received and not replied to").follow(lambda: accounts.held_bytes)
