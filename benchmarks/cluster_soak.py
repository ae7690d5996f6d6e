"""A run on a Ray cluster of several nodes of this machine, which come and go while it learns: how its object store fills.

    python benchmarks/cluster_soak.py                                30 minutes, asynchronous (impala)
    python benchmarks/cluster_soak.py --minutes 10 --synchronous     PPO, in turns
    python benchmarks/cluster_soak.py --minutes 1 --churn-s 10 --curve curve.csv
    python benchmarks/cluster_soak.py --steps-per-s 5000             a learner that waits, beside other work on the machine

A node is added every `--churn-s` seconds, and the oldest one is killed: the collector that it had is replaced elsewhere. The
object store of all nodes together is sampled every `--sample-s` seconds, beside the steps so far and the memory of the learner.
The last line is one JSON object: the store's mean in the first and last third of the time, its highest sample, what it could
hold, nodes added and removed, collectors replaced, the longest time without a step, and steps/s. Collectors and learner share
the machine's cores with Ray itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import relayrl

STORE_MB = 100
"""Ray's smallest object store is 75 MB; each node has one."""
MB = 1_000_000
STEPS_AFTER = 100_000


@dataclass
class Soak:
    """One run: what is asked for, and what was seen."""

    minutes: float = 30.0
    churn_s: float = 60.0
    sample_s: float = 2.0
    synchronous: bool = False
    steps_per_s: float | None = None
    """The learner waits between updates where it would be faster; None: as fast as it goes."""
    num_losses: int | None = None
    """End when so many collectors were replaced and have been followed by `STEPS_AFTER` steps; None: after `minutes`."""
    samples: list[tuple[float, float, int, float]] = field(default_factory=list)
    """Seconds, MB of the object store, environment steps, MB of this process."""
    num_added: int = 0
    num_removed: int = 0
    num_replaced: int = 0
    num_steps: int = 0


class _Replaced(logging.Handler):
    """Counts collectors that were replaced."""

    def __init__(self, asked: Soak) -> None:
        super().__init__()
        self._asked = asked

    def emit(self, record: logging.LogRecord) -> None:
        self._asked.num_replaced += "is replaced" in record.getMessage()


def store_mb(ray: Any) -> float:
    """What the object stores of all nodes hold."""
    free = ray.available_resources().get("object_store_memory", 0.0)
    return float(ray.cluster_resources().get("object_store_memory", 0.0) - free) / MB


def soak(asked: Soak) -> dict[str, Any]:
    """Run it; gives the summary. The samples are in `asked`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_MB * MB, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [_new_node(cluster) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    replaced, log = _Replaced(asked), logging.getLogger("relayrl.engines.cluster")
    log.addHandler(replaced)
    began, is_over = time.monotonic(), threading.Event()
    sampler = threading.Thread(target=_sample, args=(ray, asked, began, is_over), daemon=True)
    try:
        sampler.start()
        with ThreadPoolExecutor(1) as beside:  # Ray adds nodes in the main thread alone
            run = beside.submit(_train, asked, _Watch(asked, began))
            _churn(asked, cluster, nodes, run)
            result = run.result()
    finally:
        is_over.set()
        sampler.join(60.0)
        log.removeHandler(replaced)
        ray.shutdown()
        cluster.shutdown()
    return {
        **summary(asked),
        "env_steps_per_s": round(result.env_steps_per_s, 1),
    }


def _new_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_MB * MB)


class _Watch(relayrl.Callback):
    """Counts steps, and ends the run when its time is over."""

    def __init__(self, asked: Soak, began: float) -> None:
        self._asked, self._end = asked, began + 60.0 * asked.minutes
        self._last_step: int | None = None
        self._first: tuple[float, int] | None = None  # when the pace began, and at which step

    def on_update(self, run: Any) -> None:
        asked = self._asked
        asked.num_steps = run.num_env_steps
        if asked.num_losses is not None and asked.num_replaced >= asked.num_losses and self._last_step is None:
            self._last_step = run.num_env_steps + STEPS_AFTER
        is_enough = self._last_step is not None and run.num_env_steps >= self._last_step
        if is_enough or time.monotonic() > self._end:
            run.stop()
        if asked.steps_per_s is not None:
            first_s, first_step = self._first = self._first or (time.monotonic(), run.num_env_steps)
            due_s = first_s + (run.num_env_steps - first_step) / asked.steps_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _churn(asked: Soak, cluster: Any, nodes: list[Any], run: Future[Any]) -> None:
    """Add a node and kill the oldest, again and again, until the run is over."""
    while not wait([run], timeout=asked.churn_s).done:
        if not asked.num_steps or asked.num_removed == asked.num_losses:
            continue  # it has not begun, or has lost what it should
        nodes.append(_new_node(cluster))
        asked.num_added += 1
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        asked.num_removed += 1


def _sample(ray: Any, asked: Soak, began: float, is_over: threading.Event) -> None:
    process = psutil.Process()
    while not is_over.wait(asked.sample_s):
        own = process.memory_info().rss / MB
        asked.samples.append((time.monotonic() - began, store_mb(ray), asked.num_steps, own))


def _train(asked: Soak, watch: _Watch) -> Any:
    settings = {
        "engine": "ray",
        "workers": 2,
        "num_envs": 64,  # rollouts of some 100 kB go through the object store, smaller ones beside it
        "time_horizon": 256,
        "cluster.asynchronous": not asked.synchronous,
        "cluster.max_replacements_per_minute": 60,
        "start_timeout_s": 600,  # the machine may be busy with other things
        "evaluation.episodes": 0,
        "tensorboard": False,
        "checkpoint_interval": 1_000_000,
    }
    with tempfile.TemporaryDirectory() as folder:
        return relayrl.train(
            "CartPole-v1",
            algo="ppo" if asked.synchronous else "impala",
            steps=1_000_000_000,
            run_dir=Path(folder) / "run",
            settings=settings,
            callbacks=[watch],
            progress=False,
        ).result


def summary(asked: Soak) -> dict[str, Any]:
    """What the samples say."""
    store, own = [each[1] for each in asked.samples], [each[3] for each in asked.samples]
    third = max(1, len(store) // 3)
    return {
        "minutes": asked.minutes,
        "mode": "synchronous" if asked.synchronous else "asynchronous",
        "samples": len(store),
        "store_mb_first_third": round(statistics.mean(store[:third]), 2),
        "store_mb_last_third": round(statistics.mean(store[-third:]), 2),
        "store_mb_highest": round(max(store), 2),
        "store_mb_capacity": 3 * STORE_MB,
        "learner_mb_first_third": round(statistics.mean(own[:third]), 1),
        "learner_mb_last_third": round(statistics.mean(own[-third:]), 1),
        "longest_s_without_steps": round(_longest_pause(asked), 1),
        "num_env_steps": asked.num_steps,
        "nodes_added": asked.num_added,
        "nodes_removed": asked.num_removed,
        "collectors_replaced": asked.num_replaced,
    }


def _longest_pause(asked: Soak) -> float:
    """Seconds between samples of which all show the same number of steps, after the first step."""
    longest, since = 0.0, None
    steps_before = 0
    for seconds, _, steps, _ in asked.samples:
        if steps != steps_before or not steps:
            since, steps_before = seconds, steps
        elif since is not None:
            longest = max(longest, seconds - since)
    return longest


def main() -> None:
    """Print the curve's thinned samples and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--churn-s", type=float, default=60.0)
    parser.add_argument("--sample-s", type=float, default=2.0)
    parser.add_argument("--steps-per-s", type=float, help="the learner's pace at most")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--curve", type=Path, help="a CSV file for all samples")
    given = parser.parse_args()
    asked = Soak(given.minutes, given.churn_s, given.sample_s, given.synchronous, given.steps_per_s)
    found = soak(asked)
    for seconds, store, steps, own in asked.samples[:: max(1, len(asked.samples) // 20)]:
        print(f"{seconds:7.0f} s  store {store:7.2f} MB  {steps:>12,} steps  learner {own:6.0f} MB")
    if given.curve is not None:
        with given.curve.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["seconds", "store_mb", "num_env_steps", "learner_mb"])
            rows.writerows(asked.samples)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
