"""Returns of runs that stay on a device, at the steps and settings of the learning rows in benchmarks/RESULTS.md.

    python benchmarks/gpu/learning.py                              three seeds of every row on the GPU
    python benchmarks/gpu/learning.py --device cpu                 the same on the CPU
    python benchmarks/gpu/learning.py --row mappo --seeds 0,1 --json returns.json
    python benchmarks/gpu/learning.py --tiny --device cpu:0        to see that it runs

The environments are the native ones, which are Gymnasium's and mpe2's; presets are those of the rows. A return is the mean of
greedy episodes in fresh environments. `beside` is the mean over seeds of the row's records, `at least` the row's own target; a
row without one has to reach what the records reached, less `SLACK` of their distance from random play.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import relayrl
from learning_records import SeedRecord, read_records
from learning_rows import ROWS, LearningRow
from relayrl.engines.settings.run_settings import build_run_settings, preset

NATIVE = {
    ("CartPole-v1", "ppo"): "native:CartPole",
    ("Pendulum-v1", "ppo"): "native:Pendulum",
    ("Pendulum-v1", "td3"): "native:Pendulum",
    ("Pendulum-v1", "sac"): "native:Pendulum",
    ("native:simple_spread", "mappo"): "native:simple_spread",
    ("native:simple_speaker_listener", "mappo"): "native:simple_speaker_listener",
}
EPISODES, NUM_SEEDS, TINY_STEPS = 100, 3, 512
SLACK = 0.05


@dataclass(frozen=True)
class Outcome:
    """The seeds of one row."""

    row: str
    device: str
    num_env_steps: int
    returns: tuple[float, ...]
    seconds: tuple[float, ...]
    beside: float
    at_least: float

    @property
    def mean_return(self) -> float:
        return statistics.mean(self.returns)

    @property
    def has_learned(self) -> bool:
        return self.mean_return >= self.at_least

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "mean_return": self.mean_return, "has_learned": self.has_learned}

    def line(self) -> str:
        returns = ", ".join(f"{each:.1f}" for each in self.returns)
        verdict = "yes" if self.has_learned else "NO"
        figures = f"{self.mean_return:.1f} | {self.beside:.1f} | {self.at_least:.1f} | {verdict}"
        return f"| {self.row} | {self.num_env_steps:,} | {returns} | {figures} | {statistics.mean(self.seconds):.1f} |"


HEADER = (
    "| row | steps | return of each seed | mean | beside | at least | reached | seconds a seed |\n"
    "|---|--:|---|--:|--:|--:|---|--:|"
)


def outcome_of(row: LearningRow, device: str, results: Sequence[Any]) -> Outcome:
    """What the seeds of a row, by their results, have reached."""
    records = [record for record in read_records() if record.row == row.name]
    beside = statistics.mean(record.mean_return for record in records)
    return Outcome(
        row.name,
        device,
        results[0].num_env_steps,
        tuple(result.mean_return for result in results),
        tuple(result.seconds for result in results),
        beside,
        at_least=threshold(row, beside, records),
    )


def threshold(row: LearningRow, beside: float, records: list[SeedRecord]) -> float:
    """What the mean over seeds has to reach."""
    own = row.targets[-1].threshold
    if own is not None:
        return own
    return beside - SLACK * (beside - statistics.mean(record.random_return for record in records))


def settings_of(row: LearningRow, device: str, is_tiny: bool) -> dict[str, Any]:
    """Those of the row, with dotted names. All of them: where its preset is silent, an environment without one would have its
    generic settings."""
    shipped = build_run_settings(row.env, None, {"algo": row.algo}, []).model_dump(mode="json")
    settings = {
        **dotted({name: shipped[name] for name in ("network", "params", "trainer")}),
        **dotted({"environment": preset(row.env, row.algo).get("environment", {})}),
        "trainer.max_steps": TINY_STEPS if is_tiny else row.num_steps,
        "evaluation.episodes": 2 if is_tiny else EPISODES,
        "evaluation.max_envs": EPISODES,
        "statistics.tensorboard": False,
    }
    return settings if device == "cpu" else {**settings, "device": device}


def run_seed(row: LearningRow, device: str, seed: int, is_tiny: bool) -> Any:
    """One run; gives its result."""
    env, settings = NATIVE[row.env, row.algo], settings_of(row, device, is_tiny)
    with tempfile.TemporaryDirectory() as folder:
        run = relayrl.train(
            env, algo=row.algo, seed=seed, run_dir=Path(folder) / "run", settings=settings, progress=False
        )
        return run.result


def trained(rows: Sequence[LearningRow], seeds: Sequence[int], arguments: argparse.Namespace) -> Iterator[list[Any]]:
    """The results of each row's seeds; with several jobs, in processes beside each other."""
    given = arguments.device, arguments.tiny
    if arguments.jobs == 1:
        for row in rows:
            yield [run_seed(row, given[0], seed, given[1]) for seed in seeds]
        return
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        futures = [[pool.submit(run_seed, row, given[0], seed, given[1]) for seed in seeds] for row in rows]
        for of_row in futures:
            yield [future.result() for future in of_row]


def dotted(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as dotted paths; options of environments too."""
    found = {}
    for name, value in values.items():
        found |= dotted(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--row", action="append", help="part of a row's name, such as Pendulum-v1/sac; repeatable")
    parser.add_argument("--seeds", help="numbers with commas; default: 0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time; small runs leave most of a GPU idle")
    parser.add_argument("--json", type=Path, help="where the outcomes go; default: the last line printed")
    parser.add_argument("--tiny", action="store_true", help=f"{TINY_STEPS} steps: to see that it runs")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else list(range(NUM_SEEDS))
    rows = [row for row in ROWS if (row.env, row.algo) in NATIVE]
    rows = [row for row in rows if arguments.row is None or any(part in row.name for part in arguments.row)]
    print(HEADER, flush=True)
    begin, outcomes = time.perf_counter(), []
    for row, results in zip(rows, trained(rows, seeds, arguments), strict=True):
        outcomes.append(outcome_of(row, arguments.device, results))
        print(outcomes[-1].line(), flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    text = json.dumps([outcome.as_dict() for outcome in outcomes])
    if arguments.json is None:
        print(text)
    else:
        arguments.json.write_text(text)
    return 0 if arguments.tiny or all(outcome.has_learned for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
