"""The endpoints beside bare pyzmq on the same bytes: ingest, round trips, and healthy clients while others attack.

Ingest: a process sends messages of one payload. 16 MiB may wait for their acknowledgement, or as many messages as an actor lets
wait, if that is more. The server decodes, counts and
checks each and acknowledges all that came together, as a training server does. The floor is a bare PUSH/PULL of the same
bytes, which answers and checks nothing. Both receivers take frames without copying them, and rates are those of the receiver,
from its first message to its last.
"""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import time
import uuid
from collections.abc import Callable

import zmq

from relayrl.bench.rows import Row, interleaved
from relayrl.bench.servers.bench_processes import (
    NUM_CALLS,
    TIMEOUT_S,
    bare_context,
    child_process,
    child_result,
    echoing,
    paced_call_times,
)
from relayrl.runtime.remote.server_link import LinkSettings
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.limits import ClientLimits
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import Request, ServerEndpoint

_WINDOW_BYTES, _WINDOW_MESSAGES = 16 << 20, LinkSettings().window
_UNLIMITED = ClientLimits(messages_per_s=1e9, bytes_per_s=1e12)


def transport_rows() -> list[Row]:
    """Ingest at two sizes, a round trip, and the p99 of a healthy client beside attackers."""
    return [
        _ingest_row("32 KB", 32 << 10, num_messages=8_000, target=0.70),
        _ingest_row("1 MB", 1 << 20, num_messages=500, target=0.80),
        _round_trip_row(),
        _attack_row(),
    ]


# ---- ingest


def _ingest_row(name: str, size: int, num_messages: int, target: float) -> Row:
    def ours() -> float:
        return _ingest_seconds(size, num_messages)

    def floor() -> float:
        return bare_seconds(size, num_messages)

    seconds, floor_seconds = interleaved(ours, floor, repetitions=5)
    num_mb = size * num_messages / 1e6
    return Row(
        name=f"endpoint ingest, {name} messages",
        figure=num_mb / seconds,
        unit="MB/s",
        against="bare pyzmq PUSH/PULL",
        against_figure=num_mb / floor_seconds,
        ratio=floor_seconds / seconds,
        target=target,
    )


def _ingest_seconds(size: int, num_messages: int) -> float:
    endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=_UNLIMITED)
    with contextlib.closing(endpoint), child_process(_send_messages, endpoint.address, size, num_messages):
        num_left, start_s = num_messages, 0.0
        while num_left:
            requests = endpoint.poll(TIMEOUT_S)
            start_s = start_s or time.perf_counter()
            num_left -= len(requests)
            _acknowledge(endpoint, requests)
            del requests  # or they would stay until the next have come
        return time.perf_counter() - start_s


def _acknowledge(endpoint: ServerEndpoint, requests: list[Request]) -> None:
    for request in requests[:-1]:
        endpoint.release(request)
    newest = requests[-1]
    endpoint.reply(newest, Message(Kind.ACK, {"durable_through": newest.message.header["sequence"]}))


def _send_messages(address: str, size: int, num_messages: int) -> None:
    endpoint = ClientEndpoint(address, client_id=uuid.uuid4())
    payload, window, acked = bytes(size), max(_WINDOW_MESSAGES, _WINDOW_BYTES // size), -1
    header = {"client_id": str(endpoint.client_id), "sequence": 0, "behavior": "agent"}
    with contextlib.closing(endpoint):
        for sequence in range(num_messages):
            header["sequence"] = sequence
            endpoint.send(Message(Kind.TRAJECTORY, header, (payload,)))
            while sequence - acked >= window or acked == -1 or sequence == num_messages - 1 > acked:
                reply = endpoint.receive(TIMEOUT_S)
                if reply is None:
                    raise TimeoutError("the server acknowledges nothing")
                acked = reply.header["durable_through"]


def bare_seconds(size: int, num_messages: int) -> float:
    with bare_context() as context:
        pull = context.socket(zmq.PULL)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        with child_process(_push_messages, f"tcp://127.0.0.1:{port}", size, num_messages):
            pull.recv(copy=False)
            start_s = time.perf_counter()
            for _ in range(num_messages - 1):
                pull.recv(copy=False)
            return time.perf_counter() - start_s


def _push_messages(address: str, size: int, num_messages: int) -> None:
    with bare_context() as context:
        push = context.socket(zmq.PUSH)
        push.connect(address)
        payload = bytes(size)
        for _ in range(num_messages):
            push.send(payload, copy=False)
        push.close(linger=int(TIMEOUT_S * 1000))
        context.term()


# ---- round trips


def _round_trip_row() -> Row:
    def ours() -> float:
        endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=_UNLIMITED)
        with contextlib.closing(endpoint), echoing(endpoint), child_result(_call_times, endpoint.address) as times:
            return statistics.median(times())

    seconds, floor_seconds = interleaved(ours, _bare_round_trip, repetitions=5)
    return Row(
        name="endpoint round trip, p50",
        figure=seconds * 1e6,
        unit="µs",
        against="bare pyzmq echo",
        against_figure=floor_seconds * 1e6,
        ratio=floor_seconds / seconds,
        target=1 / 3,
    )


def _bare_round_trip() -> float:
    with bare_context() as context:
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with child_result(_bare_call_times, f"tcp://127.0.0.1:{port}") as times:
            for _ in range(NUM_CALLS):
                router.send_multipart(router.recv_multipart())
            return statistics.median(times())


def _bare_call_times(address: str) -> list[float]:
    with bare_context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        times = []
        for _ in range(NUM_CALLS):
            start_s = time.perf_counter()
            dealer.send(bytes(256))
            dealer.recv()
            times.append(time.perf_counter() - start_s)
        return times


def _call_times(address: str, num_calls: int = NUM_CALLS) -> list[float]:
    endpoint = ClientEndpoint(address, client_id=uuid.uuid4())
    times = []
    with contextlib.closing(endpoint):
        for _ in range(num_calls):
            start_s = time.perf_counter()
            endpoint.call(Message(Kind.ACT, {"model": "agent"}, (bytes(256),)), TIMEOUT_S)
            times.append(time.perf_counter() - start_s)
    return times


# ---- attackers


def _attack_row() -> Row:
    """p99 of a client's calls while others send garbage, half handshakes, huge lengths and as much as they can."""

    def p99(attackers: Callable[[str, str], None] | None) -> float:
        endpoint = ServerEndpoint(
            "tcp://127.0.0.1:0", limits=ClientLimits(messages_per_s=1_000.0, handshake_timeout_s=1.0)
        )
        address = endpoint.address
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(endpoint))
            stack.enter_context(echoing(endpoint))
            if attackers is not None:
                attacking = stack.enter_context(child_process(attackers, address, endpoint.announce_address))
                stack.callback(attacking.terminate)
            times = stack.enter_context(child_result(paced_call_times, address))
            return statistics.quantiles(times(), n=100)[98]

    seconds, alone_seconds = interleaved(lambda: p99(_attack), lambda: p99(None), repetitions=3)
    return Row(
        name="healthy client's p99 while others attack",
        figure=seconds * 1e3,
        unit="ms",
        against="the same client alone",
        against_figure=alone_seconds * 1e3,
        ratio=alone_seconds / seconds,
        target=0.0,
    )


def _attack(address: str, announce_address: str) -> None:
    """Flood, lie and hold connections open until somebody ends this process."""
    rng = random.Random(0)
    held: list[socket.socket] = []
    with bare_context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(address)
        while True:
            for _ in range(20):  # well-formed and malformed messages, beyond the rate
                with contextlib.suppress(zmq.Again):
                    dealer.send_multipart([rng.randbytes(rng.choice((0, 5, 16))), rng.randbytes(20)], zmq.NOBLOCK)
            with contextlib.suppress(OSError):
                held.append(_raw_peer(rng.choice((address, announce_address)), rng))
            if len(held) > 50:
                held.pop(0).close()
            time.sleep(0.002)


def _raw_peer(address: str, rng: random.Random) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=1.0)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16 + 32)
    ready = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"[:27]
    tails = (
        b"",
        greeting[:20],
        greeting,
        greeting + ready + b"\x02" + (10 << 30).to_bytes(8, "big"),
        rng.randbytes(200),
    )
    peer.sendall(rng.choice(tails))
    return peer
