"""What each client has used of its limits: messages, bytes, memory, connections.

A client is one connection; `owner` is its key, or its address without keys, and is what connections are counted of.

Not its job: connections themselves (`connection_watch`).
"""

from __future__ import annotations

from collections import Counter

from relayrl.errors import ProtocolError
from relayrl.transport.limits import ClientLimits, TokenBucket


class ClientAccount:
    """One client's account."""

    __slots__ = ("bytes", "has_delivered", "held_bytes", "is_counted", "messages", "owner", "user")

    def __init__(self, owner: str, user: str, limits: ClientLimits, now_s: float) -> None:
        self.owner, self.user = owner, user
        self.held_bytes = 0
        self.is_counted = True
        """Whether it is one of its owner's connections; what is one too many is not."""
        self.has_delivered = False
        """Whether a message came since the last look at its connection."""
        self.messages = TokenBucket(limits.messages_per_s, now_s)
        self.bytes = TokenBucket(limits.bytes_per_s, now_s)


class ClientAccounts:
    """All clients by routing id."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._accounts: dict[bytes, ClientAccount] = {}
        self._connections: Counter[str] = Counter()
        self.get = self._accounts.get

    def __len__(self) -> int:
        return len(self._accounts)

    def open(self, routing_id: bytes, owner: str, user: str, now_s: float) -> ClientAccount:
        """The account of a new client."""
        account = self._accounts[routing_id] = ClientAccount(owner, user, self.limits, now_s)
        self._count(account)
        return account

    def close(self, routing_id: bytes) -> None:
        """Forget a client that left. What the server still holds of it is counted until it is released."""
        account = self._accounts.pop(routing_id, None)
        if account is not None and account.is_counted:
            self._connections[account.owner] -= 1
            if not self._connections[account.owner]:
                del self._connections[account.owner]

    def charge(self, account: ClientAccount, size: int, now_s: float) -> None:
        """Count a message of `size` bytes; `ProtocolError` if it is more than the client may send now."""
        limits = self.limits
        if not account.is_counted and not self._count(account):
            raise ProtocolError(
                "connections", f"more than {limits.connections} connections of {account.owner}; close some"
            )
        if size > limits.message_bytes:
            raise ProtocolError("too_large", f"a message of {size} bytes; at most {limits.message_bytes} are allowed")
        if not account.messages.take(1.0, now_s):
            raise ProtocolError("rate", f"more than {limits.messages_per_s:g} messages a second; send fewer, or wait")
        if not account.bytes.take(size, now_s):
            raise ProtocolError("rate", f"more than {limits.bytes_per_s:g} bytes a second; send less, or wait")
        if account.held_bytes + size > limits.held_bytes:
            raise ProtocolError("memory", f"more than {limits.held_bytes} bytes wait for replies; wait for some")
        if self.held_bytes + size > limits.total_held_bytes:
            raise ProtocolError("memory", "the server holds as much as it may; wait, and send again")

    def _count(self, account: ClientAccount) -> bool:
        """Make it one of its owner's connections, if there may be one more."""
        account.is_counted = self._connections[account.owner] < self.limits.connections
        self._connections[account.owner] += account.is_counted
        return account.is_counted

    def hold(self, account: ClientAccount, size: int) -> None:
        """Count bytes that the server keeps; a negative size lets go of them."""
        account.held_bytes += size
        self.held_bytes += size
