"""Servers in threads and processes, and clients of them, for the tests here."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import relayrl
from relayrl.bench.servers.trajectory_producer import numbered_trajectory, trajectory_name
from relayrl.data.arrow.schema import SCHEMA_VERSION
from relayrl.runtime.remote.spool_sink import frames_of
from relayrl.servers.training.training_server import TrainingServer, TrainingServerSettings
from relayrl.sinks.buffered import checked_blocks
from relayrl.transport.messages import Kind, Message
from waiting import DEADLINE_S, wait_until

QUIET = {"evaluation.episodes": 0, "statistics.tensorboard": False}


def cartpole_server(tmp_path, *, steps=2_000, settings=None, server=None, **options):
    """A training server of CartPole that was started in a thread and answers."""
    made = TrainingServer(
        "CartPole-v1",
        bind="tcp://127.0.0.1:0",
        run_dir=tmp_path / "run",
        steps=steps,
        settings={**QUIET, **(settings or {})},
        server=TrainingServerSettings(**{"drain_s": 5.0, **(server or {})}),
        **options,
    )
    made.start()
    wait_until(lambda: made.is_ready or not made._thread.is_alive())
    return made


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Program:
    """A real process of the command line, killed at the latest when the test ends."""

    def __init__(self, *arguments, module="relayrl"):
        self.lines = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def pid(self):
        return self._process.pid

    @property
    def is_running(self):
        return self._process.poll() is None

    def wait_for(self, pattern):
        """The first match of a line; fails when the process ends without one."""
        found = []

        def look():
            found[:] = [match for line in list(self.lines) if (match := re.search(pattern, line))]
            return found or not self.is_running

        wait_until(look)
        assert found, "\n".join(self.lines)
        return found[0]

    def wait(self):
        """The exit code."""
        code = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self._process.stdout.close()
        return code

    def send(self, number):
        self._process.send_signal(number)

    def kill(self):
        """SIGKILL; a second call does nothing."""
        if not self._process.stdout.closed:
            self._process.send_signal(signal.SIGKILL)
            self.wait()


def serve(run_dir, port, *arguments, steps=1_000_000_000):
    return Program(
        "serve", "training", "CartPole-v1", "--bind", f"tcp://127.0.0.1:{port}", "--run-dir", run_dir, "--steps", steps,
        "--resume", "--quiet", "--set", "evaluation.episodes=0", "--set", "statistics.tensorboard=false", *arguments,
    )  # fmt: skip


def stored_ids(url):
    """Ids in a journal, as a source gives them."""
    with relayrl.open_source(url) as source:
        return [trajectory.trajectory_id for trajectory in source]


def expected_ids(spool: Path, count):
    """What a producer's server must hold."""
    from uuid import UUID

    client_id = UUID((spool / "client_id").read_text().strip())
    return [trajectory_name(client_id, number) for number in range(count)]


def hello(client, **changes):
    """The answer to a HELLO."""
    return client.call(greeting(client, **changes), DEADLINE_S)


def greeting(client, **changes):
    header = {
        "protocol": 1,
        "client_id": str(client.client_id),
        "role": "actor",
        "schema_version": SCHEMA_VERSION,
        "behaviors": None,
        "oldest_sequence": 0,
        **changes,
    }
    return Message(Kind.HELLO, header)


def frames(client, number, num_steps=5, **changes):
    """The payload of a message."""
    trajectory = replace(numbered_trajectory(client.client_id, number, num_steps), **changes)
    return tuple(frames_of(checked_blocks([trajectory])))


def send(client, number, payload=None):
    """The answer to a message."""
    header = {"client_id": str(client.client_id), "sequence": number}
    payload = frames(client, number) if payload is None else payload
    return client.call(Message(Kind.TRAJECTORY, header, payload), DEADLINE_S)
