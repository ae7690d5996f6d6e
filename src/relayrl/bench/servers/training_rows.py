"""A training server beside what bounds it: durable ingest beside bare PUSH/PULL, a remote run beside a local one, and what many
clients cost.

Ingest: a process sends encoded trajectories, each with an id of its own; the server checks every row and journals them with an
fsync before it acknowledges. Nothing learns meanwhile, so nothing is decoded. The floor is a bare PUSH/PULL of as many bytes,
which keeps nothing; beside it stands what the disk allows: bytes in the groups of that run, appended to a file and synced, past
the page cache as the journal does it, and through it.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from relayrl.api import train
from relayrl.bench.rows import Row, interleaved
from relayrl.bench.servers.trajectory_producer import ACTION_SPACE, OBSERVATION_SPACE, numbered_trajectory
from relayrl.bench.servers.transport_rows import bare_seconds
from relayrl.data.arrow.schema import SCHEMA_VERSION
from relayrl.runtime.remote.server_link import LinkSettings
from relayrl.runtime.remote.spool_sink import frames_of
from relayrl.servers.training.ingest import Ingest, RunDescription
from relayrl.servers.training.journal import Entry, Journal
from relayrl.servers.training.model_publisher import PublishedModel
from relayrl.servers.training.remote_experience import Intake
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.servers.training.training_server import TrainingServer
from relayrl.sinks.buffered import checked_blocks
from relayrl.training.trainers.policy_groups import PolicyGroup
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.limits import ClientLimits
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint

_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_S = 120.0
_WINDOW_BYTES, _WINDOW_MESSAGES = 16 << 20, LinkSettings().window
_STEP_BYTES = 78
"""Of a CartPole step in a message, roughly."""
_UNLIMITED = ClientLimits(messages_per_s=1e9, bytes_per_s=1e12)


def training_rows() -> list[Row]:
    """Durable ingest at two sizes, CPU time by clients, the way of a new policy, and a remote run."""
    return [
        *_ingest_rows("32 KB", 32 << 10, num_messages=1_000),
        *_ingest_rows("1 MB", 1 << 20, num_messages=100),
        _cpu_row(),
        _model_row(),
        *_remote_run_rows(),
    ]


# ---- a server that receives and does not learn


class _OneModel:
    """Stands for the publisher: one policy of any bytes."""

    def __init__(self) -> None:
        self.version, self.content = 0, bytes(50_000)

    @property
    def versions(self) -> dict[str, int]:
        return {"agent": self.version}

    def current(self, group: str) -> PublishedModel:
        return PublishedModel(group, self.version, self.content, "")


class _Receiver:
    """An ingest with a durable journal in a directory of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="relayrl-bench-")
        path = Path(self._directory.name)
        self.metrics, self.models = TrainingMetrics(), _OneModel()
        self.endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=_UNLIMITED, metrics=self.metrics.registry)
        self.journal = _MeasuredJournal(f"arrow:{path / 'journal'}", path / "index")
        group = PolicyGroup("agent", OBSERVATION_SPACE, ACTION_SPACE, False, ("agent",))
        run = RunDescription(uuid4(), "bench", "ppo", {"agent": group}, None, True, 1 << 40, {}, 1 << 30)
        publisher: Any = self.models
        self.ingest = Ingest(self.endpoint, self.journal, run, publisher, _Forgetful(), self.metrics)
        self.ingest.start()

    def close(self) -> None:
        self.ingest.stop(_TIMEOUT_S)
        self.endpoint.close(drain_s=0.0)
        self.journal.close()
        self._directory.cleanup()


class _MeasuredJournal(Journal):
    """Keeps the sizes of its group commits."""

    def __init__(self, url: str, index: Path) -> None:
        super().__init__(url, index)
        self.group_bytes: list[int] = []

    def commit(self, entries: Sequence[Entry]) -> None:
        super().commit(entries)
        self.group_bytes.append(sum(block.num_bytes for entry in entries for block in entry.blocks))


class _Forgetful(Intake):
    """Takes everything and keeps nothing."""

    def __init__(self) -> None:
        super().__init__(1 << 60, 1 << 60)

    def put(self, group: Any) -> None:
        del group


def _payload(client_id: UUID, number: int, num_bytes: int) -> tuple[memoryview, ...]:
    trajectory = numbered_trajectory(client_id, number, max(1, num_bytes // _STEP_BYTES))
    return tuple(frames_of(checked_blocks([trajectory])))


def _greeted(address: str) -> ClientEndpoint:
    endpoint = ClientEndpoint(address, client_id=uuid4())
    header = {"protocol": 1, "client_id": str(endpoint.client_id), "role": "actor", "schema_version": SCHEMA_VERSION}
    endpoint.call(Message(Kind.HELLO, header), _TIMEOUT_S)
    return endpoint


def _send(endpoint: ClientEndpoint, messages: list[tuple[memoryview, ...]]) -> None:
    """Send all, with a bound of bytes that are not acknowledged."""
    size = sum(map(len, messages[0]))
    window, acked = max(_WINDOW_MESSAGES, _WINDOW_BYTES // size), -1
    for sequence, payload in enumerate(messages):
        header = {"client_id": str(endpoint.client_id), "sequence": sequence}
        endpoint.send(Message(Kind.TRAJECTORY, header, payload))
        while sequence - acked >= window or sequence == len(messages) - 1 > acked:
            reply = endpoint.receive(_TIMEOUT_S)
            if reply is None:
                raise TimeoutError("the server acknowledges nothing")
            acked = max(acked, int(reply.header.get("durable_through", acked)))


def _ingest_client(address: str, num_bytes: int, num_messages: int, seconds: Any) -> None:
    endpoint = _greeted(address)
    with contextlib.closing(endpoint):
        messages = [_payload(endpoint.client_id, number, num_bytes) for number in range(num_messages)]
        started_s = time.perf_counter()
        _send(endpoint, messages)
        seconds.put((time.perf_counter() - started_s, sum(map(len, messages[0]))))


def _ingest_rows(name: str, num_bytes: int, num_messages: int) -> list[Row]:
    sizes: list[int] = []
    groups: list[int] = []
    past_cache: list[float] = []
    through_cache: list[float] = []

    def ours() -> float:
        with contextlib.closing(_Receiver()) as receiver, _results() as results:
            client = _process(_ingest_client, receiver.endpoint.address, num_bytes, num_messages, results)
            with client:
                seconds, size = results.get(timeout=_TIMEOUT_S)
            groups[:] = receiver.journal.group_bytes
        sizes.append(size)
        return float(seconds)

    def floor() -> float:
        past_cache.append(_disk_seconds(groups, getattr(os, "O_DIRECT", 0)) / sum(groups))
        through_cache.append(_disk_seconds(groups, 0) / sum(groups))
        return bare_seconds(num_bytes, num_messages)

    seconds, floor_seconds = interleaved(ours, floor, repetitions=3)
    mb_per_s = sizes[-1] * num_messages / 1e6 / seconds
    floors = (
        ("bare pyzmq PUSH/PULL", num_bytes * num_messages / 1e6 / floor_seconds, 0.5),
        ("the same groups written past the page cache and synced", 1e-6 / statistics.median(past_cache), 0.0),
        ("the same groups appended and synced", 1e-6 / statistics.median(through_cache), 0.0),
    )
    row = f"durable ingest, {name} trajectories"
    return [Row(row, mb_per_s, "MB/s", against, other, mb_per_s / other, target) for against, other, target in floors]


def _disk_seconds(groups: Sequence[int], flag: int) -> float:
    """Append whole blocks of each group to a file, opened with `flag` where the file system takes that, and sync it."""
    sizes = [-(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE for num_bytes in groups]
    data = memoryview(mmap.mmap(-1, max(sizes)))
    with tempfile.NamedTemporaryFile(prefix="relayrl-bench-") as file:
        try:
            descriptor = os.open(file.name, os.O_WRONLY | flag)
        except OSError:
            descriptor = os.open(file.name, os.O_WRONLY)
        started_s = time.perf_counter()
        for size in sizes:
            left = data[:size]
            while len(left):
                left = left[os.write(descriptor, left) :]
            os.fdatasync(descriptor)
        seconds = time.perf_counter() - started_s
        os.close(descriptor)
        return seconds


# ---- many clients


def _many_clients(address: str, num_clients: int, num_messages: int, results: Any, may_begin: Any) -> None:
    endpoints = [_greeted(address) for _ in range(num_clients)]
    payloads = [[_payload(each.client_id, k, 2_000) for k in range(num_messages)] for each in endpoints]
    results.put("ready")
    may_begin.wait(_TIMEOUT_S)  # or one process would be done before the other has begun
    for number in range(num_messages):
        for endpoint, own in zip(endpoints, payloads, strict=True):
            endpoint.send(
                Message(Kind.TRAJECTORY, {"client_id": str(endpoint.client_id), "sequence": number}, own[number])
            )
        for endpoint in endpoints:
            if endpoint.receive(_TIMEOUT_S) is None:
                raise TimeoutError("the server acknowledges nothing")
    results.put("done")
    for endpoint in endpoints:
        endpoint.close()


def _cpu_seconds(num_clients: int) -> float:
    """CPU seconds of this process per trajectory, with so many clients of two processes."""
    num_messages, may_begin = 2_000 // num_clients, _SPAWN.Event()
    with contextlib.closing(_Receiver()) as receiver, _results() as results, contextlib.ExitStack() as stack:
        for _ in range(2):
            arguments = (receiver.endpoint.address, num_clients // 2, num_messages, results, may_begin)
            stack.enter_context(_process(_many_clients, *arguments))
        for _ in range(2):
            assert results.get(timeout=_TIMEOUT_S) == "ready"
        started_s = time.process_time()
        may_begin.set()
        for _ in range(2):
            assert results.get(timeout=_TIMEOUT_S) == "done"
        return (time.process_time() - started_s) / (num_clients * num_messages)


def _cpu_row() -> Row:
    many, few = interleaved(lambda: _cpu_seconds(200), lambda: _cpu_seconds(10), repetitions=3)
    return Row(
        name="server's CPU time per trajectory, 200 clients",
        figure=many * 1e6,
        unit="µs",
        against="10 clients",
        against_figure=few * 1e6,
        ratio=few / many,
        target=0.8,
    )


def _followers(address: str, announce: str, num_clients: int, results: Any) -> None:
    endpoints = [_greeted(address) for _ in range(num_clients)]
    for endpoint in endpoints:
        endpoint.subscribe(announce, "model")
    results.put("ready")
    waiting, asked = set(range(num_clients)), set[int]()
    end_s = time.monotonic() + _TIMEOUT_S
    while waiting and time.monotonic() < end_s:
        for i in list(waiting):
            if i not in asked and endpoints[i].announcements():
                endpoints[i].send(Message(Kind.MODEL_GET, {"group": "agent", "have": 0}))
                asked.add(i)
            if i in asked and endpoints[i].receive(0.0) is not None:
                waiting.discard(i)
    results.put(time.time())
    for endpoint in endpoints:
        endpoint.close()


def _model_row() -> Row:
    with contextlib.closing(_Receiver()) as receiver, _results() as results, contextlib.ExitStack() as stack:
        endpoint = receiver.endpoint
        for _ in range(2):
            stack.enter_context(_process(_followers, endpoint.address, endpoint.announce_address, 100, results))
        for _ in range(2):
            assert results.get(timeout=_TIMEOUT_S) == "ready"
        time.sleep(0.5)  # subscriptions are on their way
        receiver.models.version = 1
        announced_s = time.time()
        endpoint.announce("model", {"group": "agent", "version": 1})
        seconds = max(results.get(timeout=_TIMEOUT_S) for _ in range(2)) - announced_s
    return Row("a new policy reaches 200 actors", seconds * 1e3, "ms", "200 ms", 200.0, 0.2 / seconds, 1.0)


# ---- a whole run


def _remote_run_rows() -> list[Row]:
    """The same runs twice: from the first update on, as the local run has loaded all it needs as well, and as a whole."""
    starts: list[float] = []
    remote, local = interleaved(lambda: _remote_seconds(starts), _local_seconds, repetitions=3)
    whole = remote + statistics.median(starts)
    name = "remote CartPole with 4 actor processes"
    return [
        Row(each, seconds, "s", "local run of as many steps", local, local / seconds, target)
        for each, seconds, target in ((name, remote, 1 / 1.5), (f"{name}, until they are loaded too", whole, 0.0))
    ]


_QUIET = {"evaluation.episodes": 0, "statistics.tensorboard": False}


def _local_seconds() -> float:
    with tempfile.TemporaryDirectory(prefix="relayrl-bench-") as directory:
        run = train("CartPole-v1", run_dir=Path(directory) / "run", settings=_QUIET, progress=False)
        return run.result.seconds


def _remote_seconds(starts: list[float]) -> float:
    """For the run's steps, at the pace from the first update on; what came before is added to `starts`."""
    with tempfile.TemporaryDirectory(prefix="relayrl-bench-") as directory:
        base = Path(directory)
        with TrainingServer("CartPole-v1", bind="tcp://127.0.0.1:0", run_dir=base / "run", settings=_QUIET) as server:
            command = [sys.executable, "-m", "relayrl", "actor", "CartPole-v1", "--server", server.address, "--quiet"]
            command += ["--spool-dir", str(base / "spool"), "--num-envs", "8"]
            actors = [subprocess.Popen(command) for _ in range(4)]
            try:
                time.sleep(3.0)  # actors load while nobody answers
                started_s = time.perf_counter()
                server.start()
                end_s = started_s + _TIMEOUT_S
                while not server.metrics.updates.value and time.perf_counter() < end_s:
                    time.sleep(0.002)
                starts.append(time.perf_counter() - started_s)
                result = server.wait(_TIMEOUT_S)
                if result is None:
                    raise TimeoutError("the remote run takes too long")
                for actor in actors:
                    actor.wait(_TIMEOUT_S)
                num_updates = server.metrics.updates.value
                return (result.seconds - starts[-1]) * num_updates / (num_updates - 1)
            finally:
                for actor in actors:
                    actor.kill()


# ---- processes


@contextlib.contextmanager
def _process(target: Any, *arguments: Any) -> Iterator[None]:
    process = _SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
        process.join(_TIMEOUT_S)
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def _results() -> Iterator[Any]:
    results = _SPAWN.Queue()
    try:
        yield results
    finally:
        results.close()
        results.join_thread()
