"""The Ray engine beside the local one with worker processes, and how long new weights take to reach all collectors.

    python benchmarks/cluster.py                      both rows
    python benchmarks/cluster.py --steps 40000 --repeats 3 --env mpe2:simple_spread_v3
    python benchmarks/cluster.py --only broadcast --collectors 16 --megabytes 1

`throughput`: the same run (PPO, the same environments and seeds, and therefore the same parameters) with `--workers` processes,
by turns; the best of each side's repeats, and the median of the ratios of neighbouring runs. `broadcast`: from `ray.put` of a
policy to the answer of every collector that has read it; collectors are bare actors here, since what they compute is not what
is measured. One JSON object per row; ratios say more than times on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import relayrl


def throughput(env: str, steps: int, workers: int, num_envs: int, repeats: int, algo: str) -> dict[str, Any]:
    """Environment steps/s of both engines, the start of processes left out."""
    rates: dict[str, list[float]] = {"local": [], "ray": []}
    hashes = set()
    for _ in range(repeats):
        for engine, own in rates.items():
            settings = {"engine": engine, "workers": workers, "evaluation.episodes": 0, "tensorboard": False}
            with tempfile.TemporaryDirectory() as folder:
                result = relayrl.train(
                    env,
                    algo=algo,
                    steps=steps,
                    num_envs=num_envs,
                    run_dir=Path(folder) / "run",
                    settings=settings,
                    progress=False,
                ).result
            own.append(result.env_steps_per_s)
            hashes.add(result.parameter_hash)
    ratios = [ray / local for local, ray in zip(rates["local"], rates["ray"], strict=True)]
    return {
        "row": "throughput",
        "env": env,
        "algo": algo,
        "workers": workers,
        "num_envs": num_envs,
        "local_env_steps_per_s": round(max(rates["local"]), 1),
        "ray_env_steps_per_s": round(max(rates["ray"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "same_parameters": len(hashes) == 1,
    }


class Reader:
    """Stands for a collector: reads every number that it is given."""

    def read(self, weights: dict[str, np.ndarray]) -> float:
        """The sum, so that no page is left unread."""
        return float(sum(float(array.sum()) for array in weights.values()))


def broadcast(num_collectors: int, megabytes: float, repeats: int) -> dict[str, Any]:
    """Milliseconds until all collectors have read new weights."""
    import ray

    ray.init(address="local", num_cpus=num_collectors, include_dashboard=False, logging_level=logging.ERROR)
    try:
        readers = [ray.remote(Reader).options(num_cpus=0.1).remote() for _ in range(num_collectors)]
        weights = {f"layer{i}": np.ones(int(megabytes * 1e6) // 16, np.float32) for i in range(4)}
        times = []
        for _ in range(repeats + 3):
            began = time.perf_counter()
            reference = ray.put(weights)
            ray.get([reader.read.remote(reference) for reader in readers])
            times.append(1e3 * (time.perf_counter() - began))
    finally:
        ray.shutdown()
    warm = times[3:]
    return {
        "row": "broadcast",
        "collectors": num_collectors,
        "megabytes": megabytes,
        "median_ms": round(statistics.median(warm), 2),
        "best_ms": round(min(warm), 2),
    }


def main() -> None:
    """Print a JSON object for each row."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["throughput", "broadcast"])
    parser.add_argument("--env", default="mpe2:simple_spread_v3")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--collectors", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=1.0)
    given = parser.parse_args()
    if given.only != "broadcast":
        print(json.dumps(throughput(given.env, given.steps, given.workers, given.num_envs, given.repeats, given.algo)))
    if given.only != "throughput":
        print(json.dumps(broadcast(given.collectors, given.megabytes, repeats=20)))


if __name__ == "__main__":
    main()
