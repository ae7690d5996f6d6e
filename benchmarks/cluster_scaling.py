"""How a run scales with its collectors: a model of measured costs, measured points beside it, and its predictions.

    python benchmarks/cluster_scaling.py                                1, 2, 4, 8 and 14 collectors, then predictions to 1,000
    python benchmarks/cluster_scaling.py --collectors 1 2 --updates 10
    python benchmarks/cluster_scaling.py --simulate --step-ms 5 --learn-us 2 --bytes 100 --snapshot-kb 500       no measuring

The environment SLEEPS for a millisecond in every step: fourteen collectors then fit two cores, which fourteen that compute
would not. What is measured is the engine, not the speed-up of computing environments. `--busy` makes it compute instead, for
machines with a core for each collector. Each collector has one environment.

The model of one synchronous update, of C collectors with T rows of E environments each:

    seconds = max over collectors (T rows) + call_s + C × part_s + learn_call_s + C × E × T × learn_s + network_s
    T rows  = drawn from what one collector takes alone, at least C × T × cpu_s / cores where collectors share cores

T rows and `cpu_s` of one are a collector's own, measured in this process without Ray. `call_s` and `part_s` (what each further
collector costs the learner) are those of bare Ray actors that answer with a rollout of the same size. `learn_s` is a straight
line through the learner's times with the fewest and the most collectors. Collecting of whole runs is not calibrated: all of it
is predicted, and printed beside what was measured. Times are the lower decile over updates, and the model takes all cores to be
free: on a machine that others use at the same time, points with several collectors fall behind it.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import logging
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import relayrl

ROWS = 64
"""T: one call collects for at least 64 ms."""
FAR = (16, 32, 64, 128, 256, 512, 1000)


class Sleeping(gymnasium.Env):
    """An environment of a millisecond a step, which it sleeps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (16,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    STEP_S = 1e-3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._take_time()
        self._num_steps += 1
        return self._observation(), float(action == 0), self._num_steps == 50, False, {}

    def _take_time(self) -> None:
        time.sleep(self.STEP_S)

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 16).astype(np.float32)


class Busy(Sleeping):
    """An environment of a millisecond a step, which it computes."""

    def _take_time(self) -> None:
        ends = time.perf_counter() + self.STEP_S
        while time.perf_counter() < ends:
            pass


@dataclass(frozen=True)
class Costs:
    """What the model knows; seconds and bytes."""

    rows_s: tuple[float, ...]
    """Samples of what T rows take in one collector."""
    cpu_s: float
    """Of one row, on the collector's core."""
    call_s: float
    part_s: float
    learn_s: float
    step_bytes: float
    snapshot_bytes: float
    learn_call_s: float = 0.0
    """Of an update, however many steps it has."""
    num_envs: int = 1
    """Of each collector."""
    cores: int | None = None
    """That collectors share; None: each has one of its own."""
    link_bytes_s: float = 1.25e9
    """Of the learner's network; 10 Gbit/s."""
    collectors_per_node: int = 32


def network_s(costs: Costs, collectors: int) -> float:
    """Rollouts in, and a snapshot out to every node."""
    into = collectors * costs.num_envs * ROWS * costs.step_bytes
    out = -(-collectors // costs.collectors_per_node) * costs.snapshot_bytes
    return (into + out) / costs.link_bytes_s


def collecting_s(costs: Costs, collectors: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """What T rows take in each collector."""
    drawn = rng.choice(np.array(costs.rows_s), collectors)
    if costs.cores is None:
        return drawn
    return np.maximum(drawn, collectors * ROWS * costs.cpu_s / costs.cores)


def simulate(costs: Costs, collectors: int, updates: int = 200, seed: int = 0) -> float:
    """Environment steps/s of synchronous collection."""
    rng, seconds = np.random.default_rng(seed), 0.0
    steps = collectors * costs.num_envs * ROWS
    for _ in range(updates):
        seconds += float(collecting_s(costs, collectors, rng).max()) + costs.call_s
        seconds += collectors * costs.part_s + costs.learn_call_s + steps * costs.learn_s + network_s(costs, collectors)
    return updates * steps / seconds


def simulate_asynchronous(costs: Costs, collectors: int, updates: int = 200, seed: int = 0) -> float:
    """The same where each collector has two calls on their way and the learner takes what arrives."""
    rng, own_steps = np.random.default_rng(seed), costs.num_envs * ROWS
    service_s = costs.part_s + (costs.learn_call_s / collectors) + own_steps * costs.learn_s
    service_s += network_s(costs, collectors) / collectors
    rows_s = iter(np.concatenate([collecting_s(costs, collectors, rng) for _ in range(updates + 2)]).tolist())
    arrivals = [(costs.call_s + next(rows_s), i) for i in range(collectors)]
    heapq.heapify(arrivals)
    sent_at = [0.0] * collectors  # when the call that a collector begins next was sent
    now, num_taken = 0.0, 0
    while num_taken < updates * collectors:
        arrived, i = heapq.heappop(arrivals)
        now = max(now, arrived) + service_s
        num_taken += 1
        begins = max(arrived, sent_at[i])
        sent_at[i] = now + costs.call_s  # taken, so that another one is on its way
        heapq.heappush(arrivals, (begins + next(rows_s), i))
    return num_taken * own_steps / now


def run_settings(collectors: int) -> dict[str, Any]:
    return {
        "num_envs": collectors,
        "time_horizon": ROWS,
        "network.hidden_sizes": [64, 64],
        "num_minibatches": 4,
        "train_pi_iters": 4,
        "train_vf_iters": 4,
        "summary_freq": collectors * ROWS,
        "evaluation.episodes": 0,
        "tensorboard": False,
    }


def measure(env: str, collectors: int, updates: int) -> dict[str, float]:
    """Steps/s of the whole, seconds of collecting and of learning: lower deciles over updates, the first two left out."""
    settings = {**run_settings(collectors), "engine": "ray", "workers": collectors}
    with tempfile.TemporaryDirectory() as folder:
        relayrl.train(
            env,
            algo="ppo",
            steps=collectors * ROWS * (updates + 2),
            run_dir=Path(folder) / "run",
            settings=settings,
            progress=False,
        )
        with open(Path(folder) / "run" / "progress.csv", newline="") as file:
            rows = list(csv.DictReader(file))[2:]
    steps = collectors * ROWS
    total, collect, learn = (
        _low([steps / float(row[f"time/{name}steps_per_s"]) for row in rows]) for name in ("env_", "collect_", "learn_")
    )
    return {"env_steps_per_s": steps / total, "collect_s": collect, "learn_s": learn}


def _low(times: list[float]) -> float:
    return float(np.quantile(times, 0.1))


class Answerer:
    """Stands for a collector: answers with a rollout's columns."""

    def answer(self, columns: Any, weights: Any) -> Any:
        return columns


def measure_calls(columns: Any, weights: Any, repeats: int) -> tuple[float, float]:
    """Seconds of a call, and of each further collector in it."""
    import ray

    many = 8
    ray.init(address="local", num_cpus=many, include_dashboard=False, logging_level=logging.ERROR)
    try:
        actors = [ray.remote(Answerer).options(num_cpus=0.1).remote() for _ in range(many)]
        kept = ray.put(columns)
        times = {1: [], many: []}
        for _ in range(repeats + 3):
            for count, own in times.items():
                began = time.perf_counter()
                published = ray.put(weights)
                ray.get([actor.answer.remote(kept, published) for actor in actors[:count]])
                own.append(time.perf_counter() - began)
    finally:
        ray.shutdown()
    one, all_of_them = (_low(own[3:]) for own in times.values())
    part_s = max(0.0, (all_of_them - one) / (many - 1))
    return max(0.0, one - part_s), part_s


def measure_alone(env: str, calls: int) -> tuple[tuple[float, ...], float, Any, Any]:
    """One collector in this process: seconds of T rows, CPU seconds of a row, its columns, and the weights."""
    from relayrl.engines.cluster.joined_lanes import columns_of
    from relayrl.extend import make_run_parts

    parts = make_run_parts(env, algo="ppo", settings=run_settings(1))
    taken, used = [], []
    try:
        for _ in range(calls + 2):
            began, cpu = time.perf_counter(), time.process_time()
            rollouts = parts.collector.collect(0, ROWS)
            taken.append(time.perf_counter() - began)
            used.append(time.process_time() - cpu)
        weights = [tensor.numpy().copy() for own in parts.policies.values() for tensor in own.state_dict().values()]
        (columns,) = (columns_of(rollout) for rollout in rollouts.values())
        columns = {name: np.copy(column) for name, column in columns.items() if isinstance(column, np.ndarray)}
    finally:
        parts.close()
    return (_low(taken[2:]),), _low(used[2:]) / ROWS, columns, weights


def calibrated(env: str, points: dict[int, dict[str, float]], calls: int) -> Costs:
    """Costs from one collector alone, from bare actors, and of learning."""
    rows_s, cpu_s, columns, weights = measure_alone(env, calls)
    call_s, part_s = measure_calls(columns, weights, calls)
    fewest, most = min(points), max(points)
    learn_s = max(0.0, (points[most]["learn_s"] - points[fewest]["learn_s"]) / ((most - fewest) * ROWS))
    return Costs(
        rows_s,
        cpu_s,
        call_s,
        part_s,
        learn_s,
        step_bytes=sum(column.nbytes for column in columns.values()) / ROWS,
        snapshot_bytes=float(sum(array.nbytes for array in weights)),
        learn_call_s=max(0.0, points[fewest]["learn_s"] - fewest * ROWS * learn_s),
        cores=len(os.sched_getaffinity(0)),
        link_bytes_s=1e10,
    )


def predictions(costs: Costs) -> list[dict[str, Any]]:
    """Far beyond what was measured: a core for every collector, and 10 Gbit/s at the learner."""
    far = replace(costs, cores=None, link_bytes_s=1.25e9)
    base, base_async = simulate(far, 1), simulate_asynchronous(far, 1)
    return [
        {
            "predicted_collectors": collectors,
            "synchronous_steps_per_s": round(simulate(far, collectors)),
            "synchronous_speed_up": round(simulate(far, collectors) / base, 1),
            "asynchronous_steps_per_s": round(simulate_asynchronous(far, collectors, 50)),
            "asynchronous_speed_up": round(simulate_asynchronous(far, collectors, 50) / base_async, 1),
        }
        for collectors in (1, 14, *FAR)
    ]


def main() -> None:
    """Print a JSON object for each point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 4, 8, 14])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--busy", action="store_true", help="an environment that computes instead of sleeping")
    parser.add_argument("--simulate", action="store_true", help="predict from the costs below alone")
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--call-ms", type=float, default=2.0)
    parser.add_argument("--part-us", type=float, default=500.0)
    parser.add_argument("--learn-us", type=float, default=5.0)
    parser.add_argument("--bytes", type=float, default=120.0)
    parser.add_argument("--snapshot-kb", type=float, default=50.0)
    given = parser.parse_args()
    if given.simulate:
        rows_s = (ROWS * given.step_ms * 1e-3,)
        parts = given.call_ms * 1e-3, given.part_us * 1e-6, given.learn_us * 1e-6
        costs = Costs(rows_s, 0.0, *parts, given.bytes, given.snapshot_kb * 1e3)
    else:
        env = f"__main__:{Busy.__name__ if given.busy else Sleeping.__name__}"
        points = {collectors: measure(env, collectors, given.updates) for collectors in sorted({1, *given.collectors})}
        costs = calibrated(env, points, given.updates)
        for collectors, point in points.items():
            expected = simulate(costs, collectors)
            print(
                json.dumps(
                    {
                        "collectors": collectors,
                        "measured_steps_per_s": round(point["env_steps_per_s"]),
                        "simulated_steps_per_s": round(expected),
                        "error": round(expected / point["env_steps_per_s"] - 1.0, 3),
                        "speed_up": round(point["env_steps_per_s"] / points[1]["env_steps_per_s"], 2),
                        "collect_ms": round(1e3 * point["collect_s"], 2),
                        "learn_ms": round(1e3 * point["learn_s"], 2),
                    }
                ),
                flush=True,
            )
    shown = asdict(replace(costs, rows_s=(statistics.median(costs.rows_s),)))
    print(json.dumps({"costs": {name: _short(value) for name, value in shown.items()}}))
    for row in predictions(costs):
        print(json.dumps(row))


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_short(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
