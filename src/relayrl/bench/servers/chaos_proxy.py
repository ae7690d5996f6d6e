"""A bad network on loopback: a TCP proxy that drops, delays, duplicates, reorders, truncates, resets and half-opens.

    with ChaosProxy(server.address, ChaosSettings(drop=0.01, reset=0.001), seed=1) as proxy:
        client = ClientEndpoint(proxy.address, …)

TCP itself never drops or swaps bytes of a connection; what is lost, comes twice or overtakes in practice are messages. So the
proxy follows ZMTP's frames: whole messages are dropped, duplicated and reordered, in either direction, while a truncated
one ends its connection in the middle of a frame. A half-open connection stays open on both sides and carries nothing any more.
Handshakes and heartbeats pass. With CURVE messages and heartbeats are encrypted: both have faults, and what comes twice ends
the connection; a ZeroMQ client to which it comes does not connect again.

Faults are drawn from `seed` for each connection and direction; when connections are made is up to the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_READ_BYTES = 1 << 18
_REORDER_S = 0.05
"""A message that is to be overtaken goes on alone if none follows within this time."""


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """Probabilities of each fault, for one message in one direction."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    max_delay_s: float = 0.05
    truncate: float = 0.0
    reset: float = 0.0
    half_open: float = 0.0


class ChaosProxy:
    """Listens on a port of its own and connects each client to `target`. Its loop runs in a thread."""

    def __init__(self, target: str, settings: ChaosSettings | None = None, *, seed: int = 0) -> None:
        self.target, self.settings = target, settings or ChaosSettings()
        """Both may be set while the proxy runs, for example when a server comes back on another port."""
        self.faults: Counter[str] = Counter()
        """How often each fault was done, by its name in `ChaosSettings`."""
        self._seed, self._num_connections = seed, 0
        self._connections: set[_Connection] = set()
        self._is_up = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_READ_BYTES))
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> ChaosProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_open(self) -> int:
        return len(self._connections)

    def cut(self) -> None:
        """Reset all connections."""
        self._run(self._cut())

    def go_down(self) -> None:
        """Reset all connections, and every one that is made until `come_up`."""
        self._is_up = False
        self.cut()

    def come_up(self) -> None:
        self._is_up = True

    def close(self) -> None:
        """Reset all connections and stop listening."""
        if self._loop.is_closed():
            return
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60.0)

    async def _cut(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_connections += 1
        name = f"{self._seed}:{self._num_connections}"
        host, _, port = self.target.removeprefix("tcp://").rpartition(":")
        try:
            if not self._is_up:
                raise ConnectionRefusedError("the proxy is down")
            server_reader, server_writer = await asyncio.open_connection(host, int(port), limit=_READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, server_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                connection.pump(reader, server_writer, random.Random(f"{name}:up")),
                connection.pump(server_reader, writer, random.Random(f"{name}:down")),
            )
        finally:
            connection.reset()
            self._connections.discard(connection)


class _Connection:
    """The two directions of one connection."""

    def __init__(self, proxy: ChaosProxy, *writers: asyncio.StreamWriter) -> None:
        self._proxy, self._writers = proxy, writers
        self._is_half_open = False

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
        """Carry what comes from one side to the other until either is closed."""
        splitter, waiting = MessageSplitter(), b""
        with contextlib.suppress(OSError):
            while True:
                try:
                    chunk = await asyncio.wait_for(reader.read(_READ_BYTES), _REORDER_S if waiting else None)
                except TimeoutError:
                    writer.write(waiting)
                    waiting = b""
                    continue
                if not chunk:
                    break
                if self._is_half_open:
                    continue
                for unit, is_message in splitter.feed(chunk):
                    if is_message:
                        waiting = await self._carry(unit, waiting, writer, rng)
                    else:
                        writer.write(unit)
                await writer.drain()
            writer.write(waiting)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return
        self.reset()

    async def _carry(self, unit: bytes, waiting: bytes, writer: asyncio.StreamWriter, rng: random.Random) -> bytes:
        """Carry one message, with a fault or without; gives the message that is to be overtaken by the next."""
        settings = self._proxy.settings
        if self._drawn("half_open", settings.half_open, rng):
            self._is_half_open = True
            return b""
        if self._is_half_open or self._drawn("drop", settings.drop, rng):
            return waiting
        if self._drawn("reset", settings.reset, rng):
            raise ConnectionResetError
        if self._drawn("truncate", settings.truncate, rng):
            writer.write(unit[: len(unit) // 2])
            await writer.drain()
            raise ConnectionResetError
        if self._drawn("delay", settings.delay, rng):
            await asyncio.sleep(rng.uniform(0.0, settings.max_delay_s))
        if self._drawn("duplicate", settings.duplicate, rng):
            unit += unit
        if not waiting and self._drawn("reorder", settings.reorder, rng):
            return unit
        writer.write(unit + waiting)
        return b""

    def _drawn(self, fault: str, probability: float, rng: random.Random) -> bool:
        if probability and rng.random() < probability:
            self._proxy.faults[fault] += 1
            return True
        return False


class MessageSplitter:
    """Cuts a stream of ZMTP 3 into units: pieces of the greeting, commands, and messages with all their frames."""

    def __init__(self) -> None:
        self._greeting_left = _GREETING_BYTES
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """Units that are complete now, and whether each is a message."""
        units: list[tuple[bytes, bool]] = []
        if self._greeting_left:  # in pieces: each side sends the rest when it has seen the other's beginning
            units.append((chunk[: self._greeting_left], False))
            chunk = chunk[self._greeting_left :]
            self._greeting_left -= len(units[0][0])
        self._buffer += chunk
        while (frame := self._next_frame()) is not None:
            flags, end = frame
            self._scanned = end
            if not flags & _MORE:
                units.append((bytes(self._buffer[:end]), not flags & _COMMAND))
                del self._buffer[:end]
                self._scanned = 0
        return units

    def _next_frame(self) -> tuple[int, int] | None:
        """Flags and end of the first frame that was not looked at, if it is complete."""
        start = self._scanned
        head = 9 if len(self._buffer) > start and self._buffer[start] & _LONG else 2
        if len(self._buffer) < start + head:
            return None
        end = start + head + int.from_bytes(self._buffer[start + 1 : start + head], "big")
        return (self._buffer[start], end) if len(self._buffer) >= end else None
