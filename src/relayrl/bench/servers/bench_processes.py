"""What benchmarks of servers are made of: processes that end with their block, a server that echoes, a client's times."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import zmq

from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint

TIMEOUT_S = 60.0
NUM_CALLS = 2_000
_SPAWN = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def bare_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


@contextlib.contextmanager
def child_process(target: Callable[..., None], *args: object) -> Iterator[BaseProcess]:
    process = _SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    try:
        yield process
        if process.is_alive():
            process.join(TIMEOUT_S)
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def child_result(target: Callable[[str], list[float]], address: str) -> Iterator[Callable[[], list[float]]]:
    """What a function gives in another process."""
    receiver, sender = _SPAWN.Pipe(duplex=False)
    with receiver, child_process(_send_result, sender, target, address):

        def wait() -> list[float]:
            if not receiver.poll(TIMEOUT_S):
                raise TimeoutError(f"{target.__name__} gave nothing within {TIMEOUT_S} s")
            times: list[float] = receiver.recv()
            return times

        yield wait


def _send_result(sender: Any, target: Callable[[str], list[float]], address: str) -> None:
    sender.send(target(address))


@contextlib.contextmanager
def echoing(endpoint: ServerEndpoint) -> Iterator[None]:
    """Answer each request with its payload, in a thread."""
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            for request in endpoint.poll(0.05):
                endpoint.reply(request, Message(Kind.ACTION, {"version": 1}, request.message.payload))

    thread = threading.Thread(target=serve, name="echo")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def paced_call_times(address: str) -> list[float]:
    """Calls at the pace of an environment, within the limits of a client."""
    endpoint = ClientEndpoint(address, client_id=uuid.uuid4())
    times = []
    with contextlib.closing(endpoint):
        for _ in range(NUM_CALLS):
            start_s = time.perf_counter()
            endpoint.call(Message(Kind.ACT, {"model": "agent"}, (bytes(256),)), TIMEOUT_S)
            times.append(time.perf_counter() - start_s)
            time.sleep(0.002)
    return times
