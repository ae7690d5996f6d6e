"""RelayRL on Ray beside RLlib with as many env runners: the same environments, rollouts, epochs, minibatches and network.

    python benchmarks/peers/cluster_rows.py                                two runners, W2 and W4a, three rounds by turns
    python benchmarks/peers/cluster_rows.py --works W2 --runners 4 --rounds 1
    python benchmarks/peers/cluster_rows.py --rllib-python .venv-rllib/bin/python      an environment that has RLlib already

Both sides collect in `--runners` processes of Ray and learn in the driver. RLlib tries its variants of CartPole; the faster one
of a round counts. The ratio of a work is the median over rounds, each of both sides minutes apart. The target is 3. One JSON
object for each run, and one for each work.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from environments import python_of
from work import Task
from worker_process import run_worker

WORKERS = Path(__file__).parent / "workers"
OURS = {"W2": "CartPole-v1", "W4a": "ippo"}
THEIRS = {"W2": ("sync", "vector"), "W4a": ("sync",)}
TARGET = 3.0


def measured(who: str, python: Path | None, script: str, task: Task) -> float:
    """Environment steps/s of one run, which is printed."""
    figures = run_worker(python, WORKERS / script, task)
    names = ("version", "env_steps_per_s", "timed_steps", "mean_return")
    row: dict[str, Any] = {"who": who, "work": task.work_name, "variant": task.variant, "runners": task.runners}
    print(json.dumps(row | {name: _rounded(figures[name]) for name in names}), flush=True)
    return float(figures["env_steps_per_s"])


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def ratio_of(work: str, runners: int, rounds: int, rllib: Path, *, quick: bool) -> dict[str, Any]:
    """RelayRL's steps/s over RLlib's, round by round."""
    ratios = []
    for seed in range(rounds):
        ours = measured("RelayRL", None, "relayrl_worker.py", Task(work, OURS[work], 0, seed, quick, runners))
        theirs = [
            measured("RLlib", rllib, "rllib_ppo.py", Task(work, variant, 1, seed, quick, runners))
            for variant in THEIRS[work]
        ]
        ratios.append(ours / max(theirs))
    return {
        "work": work,
        "runners": runners,
        "ratios": [round(ratio, 2) for ratio in ratios],
        "median": round(statistics.median(ratios), 2),
        "target": TARGET,
    }


def main() -> None:
    """Print a JSON object for each run and work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=list(OURS), default=list(OURS))
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rllib-python", type=Path)
    parser.add_argument("--quick", action="store_true", help="a fourth of the steps")
    given = parser.parse_args()
    rllib = given.rllib_python or python_of("rllib")
    for work in given.works:
        print(json.dumps(ratio_of(work, given.runners, given.rounds, rllib, quick=given.quick)), flush=True)


if __name__ == "__main__":
    main()
