"""Asking an agent for actions, beside bare onnxruntime on the same file: one actor, many in one request, many threads.

The floor of one actor is the bare call alone. The floor of a batch is the bare call and one write per column to where each
actor's steps lie, which is what a program would do that drew no actions, ended no episodes and had no sinks. Rows with a fixed
figure beside them are targets of ours, not measurements of another program.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.bench.rows import Row, interleaved
from relayrl.runtime.agent import RelayRLAgent
from relayrl.runtime.agent_builder import AgentBuilder

NUM_OBSERVATIONS, NUM_ACTIONS, NUM_ACTORS, NUM_THREADS = 8, 4, 64, 8
CLIENT = """
import sys, time
start = time.process_time()
from relayrl.runtime.agent_builder import AgentBuilder
seconds = time.process_time() - start
import numpy as np
with AgentBuilder().actor_count(64).default_model(sys.argv[1]).build() as agent:
    ids = agent.get_actor_ids()
    for _ in range(1000):
        agent.request_action(ids, np.zeros((64, 8), np.float32))
assert "torch" not in sys.modules
line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(seconds, int(line.split()[1]) / 1024)
"""


def runtime_rows() -> list[Row]:
    """Latency, throughput, and what a client's process costs."""
    with tempfile.TemporaryDirectory() as folder:
        model = _export(Path(folder) / "model.onnx")
        agent = AgentBuilder().actor_count(NUM_ACTORS).default_model(model).seed(0).build()
        with agent:
            rows = [_one_actor(agent, model), *_one_batch(agent, model), _threads(agent, 1), _threads(agent, 8)]
        return [*rows, *_client_process(model)]


def _one_actor(agent: RelayRLAgent, model: Path) -> Row:
    ids, obs = agent.get_actor_ids()[:1], np.zeros((1, NUM_OBSERVATIONS), np.float32)
    session, agent_call = _session(model), agent.request_action
    agent_call(ids, obs)
    ours_s, floor_s = interleaved(
        lambda: _median_s(lambda: agent_call(ids, obs, None, 1.0)),
        lambda: _median_s(lambda: session.run(None, {"obs": obs})),
        repetitions=9,
    )
    return Row(
        name="request_action for one actor, median",
        figure=ours_s * 1e6,
        unit="µs",
        against="bare onnxruntime",
        against_figure=floor_s * 1e6,
        ratio=floor_s / ours_s,
        target=0.4,
    )


def _one_batch(agent: RelayRLAgent, model: Path) -> list[Row]:
    ids, obs = agent.get_actor_ids(), np.zeros((NUM_ACTORS, NUM_OBSERVATIONS), np.float32)
    reward, agent_call = np.ones(NUM_ACTORS, np.float32), agent.request_action
    agent.request_action(ids, obs)
    floor_call = _bare_batch(_session(model), obs, reward)
    ours_s, floor_s = interleaved(
        lambda: _median_s(lambda: agent_call(ids, obs, None, reward), calls=500),
        lambda: _median_s(floor_call, calls=500),
        repetitions=9,
    )
    ours, floor = NUM_ACTORS / ours_s, NUM_ACTORS / floor_s
    name = f"{NUM_ACTORS} actors in one request"
    return [
        Row(name, ours, "actions/s", "bare batched call and column writes", floor, ours / floor, 0.5),
        Row(f"{name}, in all", ours, "actions/s", "target", 400_000.0, ours / 400_000.0, 1.0),
    ]


def _threads(agent: RelayRLAgent, actors: int) -> Row:
    ours = statistics.median(_actions_per_s(agent, actors) for _ in range(5))
    name = f"{NUM_THREADS} threads, requests of {actors} actor{'s' if actors > 1 else ''}"
    return Row(name, ours, "actions/s", "target", 60_000.0, ours / 60_000.0, 1.0)


def _client_process(model: Path) -> list[Row]:
    runs = [
        subprocess.run([sys.executable, "-c", CLIENT, str(model)], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    measured = [tuple(map(float, run.stdout.split())) for run in runs]
    seconds, resident = (min(column) for column in zip(*measured, strict=True))
    return [
        Row("import of a client, processor time", seconds, "s", "target", 0.4, 0.4 / seconds, 1.0),
        Row("resident size of a client", resident, "MB", "target", 150.0, 150.0 / resident, 1.0),
    ]


def _actions_per_s(agent: RelayRLAgent, actors: int, seconds: float = 1.0) -> float:
    ids, obs = agent.get_actor_ids(), np.zeros((actors, NUM_OBSERVATIONS), np.float32)
    stop, counts = threading.Event(), [0] * NUM_THREADS

    def play(i: int) -> None:
        own, count = ids[actors * i : actors * (i + 1)], 0
        while not stop.is_set():
            agent.request_action(own, obs, None, 1.0)
            count += actors
        counts[i] = count

    agent.request_action(ids, np.zeros((NUM_ACTORS, NUM_OBSERVATIONS), np.float32))
    threads = [threading.Thread(target=play, args=(i,)) for i in range(NUM_THREADS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(30)
    return sum(counts) / (time.perf_counter() - start)


def _median_s(work: Callable[[], object], calls: int = 1000) -> float:
    for _ in range(calls // 10):
        work()
    took = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - start)
    return statistics.median(took) * 1e-9


def _bare_batch(session: Any, obs: np.ndarray[Any, Any], reward: np.ndarray[Any, Any]) -> Callable[[], None]:
    """The call, and a row of every column that the runtime records."""
    steps = 64
    kinds = {"action": np.int64, "reward": np.float32, "logp": np.float32, "value": np.float32, "version": np.int64}
    columns: dict[str, Any] = {name: np.zeros(steps * NUM_ACTORS, kind) for name, kind in kinds.items()}
    columns["obs"] = np.zeros((steps * NUM_ACTORS, NUM_OBSERVATIONS), np.float32)
    first_rows, step = np.arange(NUM_ACTORS) * steps, 0

    def call() -> None:
        nonlocal step
        distribution, action, value = session.run(None, {"obs": obs})
        rows = first_rows + step
        columns["obs"][rows] = obs
        columns["action"][rows] = action
        columns["reward"][rows] = reward
        columns["logp"][rows] = distribution[:, 0]
        columns["value"][rows] = value
        columns["version"][rows] = 1
        step = (step + 1) % steps

    return call


def _session(model: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _export(path: Path) -> Path:
    import torch

    from relayrl.models.actor_critic import ActorCritic
    from relayrl.models.export import export_policy
    from relayrl.models.exported import ExportFormat, PolicyMetadata
    from relayrl.models.settings import NetworkSettings

    obs, action = spaces.Box(-10, 10, (NUM_OBSERVATIONS,), np.float32), spaces.Discrete(NUM_ACTIONS)
    policy = ActorCritic(obs, action, NetworkSettings(hidden_sizes=(64, 64)), torch.Generator().manual_seed(0))
    return export_policy(
        policy, PolicyMetadata("bench", "ppo", "agent", 1, False, obs, action), path, ExportFormat.ONNX
    )
