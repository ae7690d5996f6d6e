"""Trajectories through a bad network with kills of either side: each must be stored exactly once.

    python benchmarks/servers_chaos.py --count 10000 --kills 50 --producers 4

A training server of CartPole and several producers are real processes; a proxy between them drops, delays, duplicates, reorders
and truncates messages, resets and half-opens connections. Every few moments one process, drawn at random, is killed with
SIGKILL and started again. At the end the journal is compared with what must be in it. Prints one JSON object; exit code 1 where
anything is missing, doubled or foreign.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import relayrl
from relayrl.bench.servers.chaos_proxy import ChaosProxy, ChaosSettings
from relayrl.bench.servers.trajectory_producer import trajectory_name

FAULTS = ChaosSettings(
    drop=0.01, duplicate=0.01, reorder=0.01, delay=0.05, truncate=0.001, reset=0.001, half_open=0.0005
)


class Processes:
    """The server and its producers, each of which can be killed and started again."""

    def __init__(self, directory: Path, count: int, num_producers: int) -> None:
        self.directory, self.count = directory, count
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.spools = [directory / f"spool-{i}" for i in range(num_producers)]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.num_kills: Counter[str] = Counter()

    @property
    def index(self) -> Path:
        return self.directory / "run" / "journal.index"

    def start_server(self) -> None:
        options = [
            *("serve", "training", "CartPole-v1", "--bind", f"tcp://127.0.0.1:{self.port}", "--resume", "--quiet"),
            *("--run-dir", str(self.directory / "run"), "--steps", "1000000000"),
            *("--set", "evaluation.episodes=0", "--set", "statistics.tensorboard=false"),
        ]
        self._start("server", [sys.executable, "-m", "relayrl", *options])

    def start_producer(self, i: int, address: str) -> None:
        each = self.count // len(self.spools)
        module = "relayrl.bench.servers.trajectory_producer"
        self._start(f"producer {i}", [sys.executable, "-m", module, address, str(self.spools[i]), str(each)])

    def _start(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()
        self.num_kills[name.split()[0]] += 1

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def is_done(self, name: str) -> bool:
        """Whether a producer has ended because its server holds everything."""
        return self.running[name].poll() == 0


def run(directory: Path, count: int, num_kills: int, num_producers: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    started_s = time.monotonic()
    processes = Processes(directory, count, num_producers)
    producers = [f"producer {i}" for i in range(num_producers)]
    with ChaosProxy(f"tcp://127.0.0.1:{processes.port}", FAULTS, seed=seed) as proxy:
        try:
            processes.start_server()
            for i in range(num_producers):
                processes.start_producer(i, proxy.address)
            for _ in range(num_kills):
                _wait_for_progress(processes, producers, rng)
                alive = [name for name in producers if not processes.is_done(name)]
                victim = "server" if not alive or rng.random() < 0.5 else rng.choice(alive)
                processes.kill(victim)
                if victim == "server":
                    processes.start_server()
                else:
                    processes.start_producer(producers.index(victim), proxy.address)
            while not all(processes.is_done(name) for name in producers):
                _require_alive(processes)
                time.sleep(0.05)
            server = processes.running["server"]
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        finally:
            processes.end()
        faults = dict(proxy.faults)
    return _compared(processes, {"seconds": round(time.monotonic() - started_s, 1), "faults": faults})


def _wait_for_progress(processes: Processes, producers: list[str], rng: random.Random) -> None:
    """Until the journal has grown a little, so that kills are spread over the whole way."""
    before = processes.index.stat().st_size if processes.index.exists() else -1
    wanted = max(1, before) + rng.randrange(40 * processes.count // 200)
    while not (processes.index.exists() and processes.index.stat().st_size >= wanted):
        if all(processes.is_done(name) for name in producers):
            return
        _require_alive(processes)
        time.sleep(0.01)


def _require_alive(processes: Processes) -> None:
    for name, process in processes.running.items():
        if process.poll() not in (None, 0):
            log = (processes.directory / f"{name}.log").read_text()[-2000:]
            raise SystemExit(f"{name} ended by itself with {process.poll()}:\n{log}")


def _compared(processes: Processes, numbers: dict[str, object]) -> dict[str, object]:
    each = processes.count // len(processes.spools)
    clients = [UUID((spool / "client_id").read_text().strip()) for spool in processes.spools]
    expected = {trajectory_name(client, number) for client in clients for number in range(each)}
    with relayrl.open_source(f"arrow:{processes.directory / 'run' / 'journal'}") as source:
        found = Counter(trajectory.trajectory_id for trajectory in source)
        num_copies = source.report.num_duplicates
    return {
        "expected": len(expected),
        "stored": len(found),
        "missing": len(expected - set(found)),
        "foreign": len(set(found) - expected),
        "given_twice_by_the_source": sum(number > 1 for number in found.values()),
        "copies_on_disk_that_sources_leave_out": num_copies,
        "kills": dict(processes.num_kills),
        **numbers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory(prefix="relayrl-chaos-") as directory:
        result = run(Path(directory), given.count, given.kills, given.producers, given.seed)
    print(json.dumps(result))
    if result["missing"] or result["foreign"] or result["given_twice_by_the_source"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
