"""Actions from an inference server in another process, beside a target and beside a bare ZeroMQ echo of the same frames.

The server runs the MLP of the runtime's benchmark. Eight clients, one process, ask in lock-step with 64 observations each. The
round trip is one client's with one observation; the echo is a ROUTER in a process of its own that sends back what it gets.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import zmq

from relayrl.bench.rows import Row, interleaved
from relayrl.bench.runtime_rows import NUM_OBSERVATIONS, export_model
from relayrl.runtime.remote.act_messages import ActRequest, RemoteChoice
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message, encode

NUM_CLIENTS, NUM_ROWS, NUM_ROUNDS, NUM_CALLS = 8, 64, 400, 2000
TIMEOUT_S = 30.0
ECHO = """
import zmq
router = zmq.Context().socket(zmq.ROUTER)
router.bind("tcp://127.0.0.1:0")
print(router.get_string(zmq.LAST_ENDPOINT).rstrip("\\0"), flush=True)
while True:
    router.send_multipart(router.recv_multipart())
"""


def inference_rows() -> list[Row]:
    """Throughput of eight clients, and the round trip of one."""
    with tempfile.TemporaryDirectory() as folder:
        model = export_model(Path(folder) / "model.onnx")
        command = [sys.executable, "-m", "relayrl", "serve", "inference", str(model), "--bind", "tcp://127.0.0.1:0"]
        server = subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True)
        echo = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            assert echo.stdout is not None
            address = server.stderr.readline().split()[-1]
            return [_throughput(address), _round_trip(address, echo.stdout.readline().strip())]
        finally:
            for process in (server, echo):
                process.kill()
                process.communicate()


def _asked(num_rows: int) -> Message:
    obs = np.random.default_rng(0).normal(size=(num_rows, NUM_OBSERVATIONS)).astype(np.float32)
    return ActRequest("agent", None, "", num_rows, RemoteChoice.SAMPLE, TIMEOUT_S, {"obs": obs}).as_message()


def _throughput(address: str) -> Row:
    clients = [ClientEndpoint(address, client_id=uuid4()) for _ in range(NUM_CLIENTS)]
    message = _asked(NUM_ROWS)

    def play(num_rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(num_rounds):
            for client in clients:
                client.send(message)
            for client in clients:
                reply = client.receive(TIMEOUT_S)
                assert reply is not None
                assert reply.kind is Kind.ACTION
        return num_rounds * NUM_CLIENTS * NUM_ROWS / (time.perf_counter() - start)

    play(NUM_ROUNDS // 10)
    rate = statistics.median(play(NUM_ROUNDS) for _ in range(5))
    for client in clients:
        client.send(Message(Kind.BYE, {}))
        client.close(drain_s=1.0)
    name = f"{NUM_CLIENTS} clients of an inference server, {NUM_ROWS} observations each"
    return Row(name, rate, "actions/s", "target", 60_000.0, rate / 60_000.0, 1.0)


def _round_trip(address: str, echo_address: str) -> Row:
    message = _asked(1)
    frames = encode(message)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(echo_address)
    client = ClientEndpoint(address, client_id=uuid4())

    def bare() -> None:
        dealer.send_multipart(frames)
        dealer.recv_multipart()

    ours_s, echo_s = interleaved(
        lambda: _median_s(lambda: client.call(message, TIMEOUT_S)), lambda: _median_s(bare), repetitions=5
    )
    client.close()
    context.destroy(linger=0)
    name = "round trip to an inference server, median"
    return Row(name, ours_s * 1e6, "µs", "bare ZeroMQ echo", echo_s * 1e6, echo_s / ours_s, 1 / 3)


def _median_s(work: Callable[[], object]) -> float:
    took = []
    for _ in range(NUM_CALLS):
        start = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - start)
    return statistics.median(took) * 1e-9
