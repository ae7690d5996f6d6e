"""Asking an agent for actions, beside bare onnxruntime on the same file: one actor, many in one request, many threads.

The floor of one actor is the bare call alone. The floor of a batch is the bare call and one plain write per column, which is
what a program would do that drew no actions, kept no episodes and had no sinks. Rows with a fixed figure beside them are
targets of ours, not measurements of another program; the floor of many threads is bare calls under one lock.
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
from relayrl.runtime.agents.agent import RelayRLAgent
from relayrl.runtime.agents.agent_builder import AgentBuilder

NUM_OBSERVATIONS, NUM_ACTIONS, NUM_ACTORS, NUM_THREADS = 8, 4, 64, 8
CLIENT = """
import sys, time
start = time.perf_counter()
from relayrl.runtime.agents.agent_builder import AgentBuilder
seconds = time.perf_counter() - start
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
        model = export_model(Path(folder) / "model.onnx")
        agent = AgentBuilder().actor_count(NUM_ACTORS).default_model(model).seed(0).build()
        with agent:
            rows = [_one_actor(agent, model), *_one_batch(agent, model), *_threads(agent, model)]
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


def _threads(agent: RelayRLAgent, model: Path) -> list[Row]:
    ids, obs = agent.get_actor_ids(), np.zeros((1, NUM_OBSERVATIONS), np.float32)
    agent.request_action(ids, np.zeros((NUM_ACTORS, NUM_OBSERVATIONS), np.float32))
    session, lock = _session(model), threading.Lock()

    def ask(i: int) -> None:
        agent.request_action(ids[i : i + 1], obs, None, 1.0)

    def bare_call(_: int) -> None:
        with lock:
            session.run(None, {"obs": obs})

    ours, floor = interleaved(lambda: _calls_per_s(ask), lambda: _calls_per_s(bare_call), repetitions=5)
    name = f"{NUM_THREADS} threads of one actor each"
    return [
        Row(name, ours, "actions/s", "target", 60_000.0, ours / 60_000.0, 1.0),
        Row(f"{name}, beside a floor", ours, "actions/s", "bare calls under a lock", floor, ours / floor, 0.5),
    ]


def _client_process(model: Path) -> list[Row]:
    runs = [
        subprocess.run([sys.executable, "-c", CLIENT, str(model)], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    measured = [tuple(map(float, run.stdout.split())) for run in runs]
    seconds, resident = (statistics.median(column) for column in zip(*measured, strict=True))
    return [
        Row("import of a client", seconds, "s", "target", 0.4, 0.4 / seconds, 1.0),
        Row("resident size of a client", resident, "MB", "target", 150.0, 150.0 / resident, 1.0),
    ]


def _calls_per_s(work: Callable[[int], None], seconds: float = 1.0) -> float:
    """Calls of all threads together; each gets its number."""
    stop, counts = threading.Event(), [0] * NUM_THREADS

    def play(i: int) -> None:
        count = 0
        while not stop.is_set():
            work(i)
            count += 1
        counts[i] = count

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
    rows = 64
    columns = {
        "obs": np.zeros((rows, *obs.shape), np.float32),
        "action": np.zeros((rows, NUM_ACTORS), np.int64),
        "reward": np.zeros((rows, NUM_ACTORS), np.float32),
        "logp": np.zeros((rows, NUM_ACTORS), np.float32),
        "value": np.zeros((rows, NUM_ACTORS), np.float32),
        "policy_version": np.zeros((rows, NUM_ACTORS), np.int64),
    }
    row = 0

    def call() -> None:
        nonlocal row
        distribution, action, value = session.run(None, {"obs": obs})
        columns["obs"][row] = obs
        columns["action"][row] = action
        columns["reward"][row] = reward
        columns["logp"][row] = distribution[:, 0]
        columns["value"][row] = value
        columns["policy_version"][row] = 1
        row = (row + 1) % rows

    return call


def _session(model: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def export_model(path: Path) -> Path:
    """The policy of these rows and of those of inference servers: two layers of 64."""
    import torch

    from relayrl.models.exports.export import export_policy
    from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
    from relayrl.models.network_settings import NetworkSettings
    from relayrl.models.policy import ActorCritic

    obs, action = spaces.Box(-10, 10, (NUM_OBSERVATIONS,), np.float32), spaces.Discrete(NUM_ACTIONS)
    policy = ActorCritic(obs, action, NetworkSettings(hidden_sizes=(64, 64)), torch.Generator().manual_seed(0))
    return export_policy(
        policy, PolicyMetadata("bench", "ppo", "agent", 1, False, obs, action), path, ExportFormat.ONNX
    )
