"""The gRPC server that a Unity simulator connects to: its requests come in and answers go back, one at a time.

The simulator is the client: it sends what its agents see and blocks until it is answered. A link serves one simulator. Waiting
for a request ends at a deadline, when the simulator's process has ended, or when it has hung up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from relayrl.envs.unity.unity_messages import METHOD, OK_STATUS, QUIT_STATUS, SERVICE, message, read_message
from relayrl.errors import ConfigError, EnvError, MissingExtraError

MAX_MESSAGE_BYTES = 256 << 20
_POLL_S = 0.2
_STOP_S = 5.0
_TAKEN = "cannot listen on {}:{}: it is in use, or not an address of this machine"


class SimulatorGoneError(EnvError):
    """The simulator ended, hung up or did not answer in time."""


class SimulatorLink:
    """A server on one port, for one simulator."""

    def __init__(self, host: str, port: int) -> None:
        grpc = _import_grpc()
        _require_free(host, port)
        self.port = port
        self._requests: queue.Queue[bytes] = queue.Queue(maxsize=1)
        self._answers: queue.Queue[bytes] = queue.Queue(maxsize=1)
        self._turn = threading.Lock()  # held while the simulator waits for an answer
        self._closing = threading.Event()
        self._hung_up = threading.Event()
        self._refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        size = MAX_MESSAGE_BYTES
        options = [
            ("grpc.so_reuseport", 0),  # two runs on one port would each get some of the simulators
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
        ]
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="unity")
        self._server = grpc.server(self._threads, options=options)
        method = grpc.unary_unary_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        try:
            if not self._server.add_insecure_port(f"{host}:{port}"):
                raise RuntimeError("it is in use")
        except RuntimeError as error:
            raise PortTakenError(_TAKEN.format(host, port)) from error
        self._server.start()

    @property
    def is_waited_on(self) -> bool:
        """Whether the simulator waits for an answer."""
        return self._turn.locked()

    def receive(self, timeout_s: float, find_end: Callable[[], str | None]) -> Any:
        """The next message of the simulator; `SimulatorGoneError` where none comes. `find_end` says why there can be none."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(queue.Empty):
                return read_message(self._requests.get(timeout=min(_POLL_S, max(deadline_s - time.monotonic(), 0.0))))
            reason = find_end()
            if reason is not None:
                raise SimulatorGoneError(reason)
            if self._hung_up.is_set():
                raise SimulatorGoneError("it closed the connection")
            if time.monotonic() >= deadline_s:
                raise SimulatorGoneError(f"no message from it within {timeout_s:g} s")

    def answer(self, unity_input: Any) -> None:
        """Answer the message that was received last."""
        header = message("HeaderProto", status=OK_STATUS)
        self._put(message("UnityMessageProto", header=header, unity_input=unity_input).SerializeToString())

    def close(self) -> None:
        """Tell the simulator to quit, where it waits, and stop the server; may be called again."""
        if self._closing.is_set():
            return
        if self._turn.locked():
            header = message("HeaderProto", status=QUIT_STATUS)
            with contextlib.suppress(EnvError):
                self._put(message("UnityMessageProto", header=header).SerializeToString())
            with contextlib.suppress(queue.Empty):
                self._requests.get_nowait()
        stopped = self._server.stop(0.5)
        self._closing.set()
        stopped.wait(_STOP_S)
        self._threads.shutdown(wait=False)

    def _put(self, answer: bytes) -> None:
        try:
            self._answers.put(answer, timeout=_STOP_S)
        except queue.Full as error:
            raise SimulatorGoneError("it did not take the last answer") from error

    def _exchange(self, request: bytes, context: Any) -> bytes:
        """One call of the simulator, in a thread of the server's pool."""
        if not self._turn.acquire(blocking=False):
            context.abort(self._refused, "another simulator is being served on this port")
        try:
            self._requests.put(request, timeout=_STOP_S)
            while not self._closing.is_set() and context.is_active():
                with contextlib.suppress(queue.Empty):
                    answer = self._answers.get(timeout=_POLL_S)
                    if context.is_active():
                        return answer
        except queue.Full:
            pass
        finally:
            self._turn.release()
        self._hung_up.set()
        return b""


class PortTakenError(ConfigError):
    """Another program, or another environment, listens on the port."""


def _require_free(host: str, port: int) -> None:
    """Raise `PortTakenError` where nobody can listen on the port: gRPC would raise too, and write lines to stderr before."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return  # one of several addresses of a name, such as ::1 where there is no IPv6; gRPC takes the others
        raise PortTakenError(_TAKEN.format(host, port)) from error


def _import_grpc() -> Any:
    # gRPC's handlers of fork() start threads in the child, also where it is about to become another program: one child in a
    # hundred aborts or hangs before it does (Ray's servers, for one). Nothing here uses gRPC in a forked child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError("a Unity simulator", "unity") from error
    return grpc
