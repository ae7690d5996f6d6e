"""Every learning result: trains all seeds with the shipped presets, evaluates, and writes the table of RESULTS.md.

    python benchmarks/learning.py [--only CartPole-v1] [--processes 2]

Each seed is one `relayrl train ENV --algo NAME --steps N --seed S`; its return is the final policy's mean over 100 episodes
played greedily in fresh worlds. Every seed is listed; a row passes when the mean over seeds reaches its threshold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- learning: written by benchmarks/learning.py -->", "<!-- end of learning -->"
EPISODES = 100


@dataclass(frozen=True)
class LearningRow:
    """One environment and algorithm at a number of steps, and what its mean over seeds must reach."""

    env: str
    algo: str
    num_steps: int
    threshold: float
    num_seeds: int = 5

    @property
    def command(self) -> str:
        return f"relayrl train {self.env} --algo {self.algo} --steps {self.num_steps}"


ROWS = [
    LearningRow("CartPole-v1", "ppo", 50_000, 490.0),
    LearningRow("Pendulum-v1", "ppo", 200_000, -200.0),
    LearningRow("Acrobot-v1", "ppo", 200_000, -90.0),
]


def train(row: LearningRow, seed: int, folder: Path) -> dict[str, float]:
    """Train one seed in a process of its own; gives the run's JSON."""
    run_dir = folder / f"{row.env}-{row.algo}-{seed}"
    options = ["--seed", str(seed), "--run-dir", str(run_dir), "--set", f"evaluation.episodes={EPISODES}"]
    command = [sys.executable, "-m", "relayrl.cli.main", *row.command.split()[1:], *options, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{row.env} {row.algo} seed {seed}: {result['mean_return']:.1f} ± {result['std_return']:.1f}", flush=True)
    return result


def table_line(row: LearningRow, results: list[dict[str, float]]) -> str:
    """One line of the table."""
    returns = [result["mean_return"] for result in results]
    mean, spread = statistics.mean(returns), statistics.stdev(returns)
    verdict = "yes" if mean >= row.threshold else "**no**"
    each = ", ".join(f"{value:.1f}" for value in returns)
    rate = statistics.median(result["env_steps_per_s"] for result in results)
    cells = [row.env, row.algo, f"{results[0]['num_env_steps']:,}", each, f"{mean:.1f} ± {spread:.1f}"]
    return "| " + " | ".join([*cells, f"{row.threshold:g}", verdict, f"{rate:,.0f}", f"`{row.command}`"]) + " |"


def write_table(lines: list[str]) -> None:
    """Replace this script's part of RESULTS.md."""
    header = [
        BEGIN,
        f"Mean return of {EPISODES} greedy episodes in fresh worlds, per seed (0, 1, …); steps/s with two runs side by side.",
        "",
        "| environment | algorithm | steps | return of each seed | mean ± std | threshold | reached | steps/s | command |",
        "|---|---|--:|---|--:|--:|---|--:|---|",
    ]
    before, _, rest = RESULTS.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    RESULTS.write_text(before + "\n".join([*header, *lines, END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one environment; the table is then printed, not written")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.only in (None, row.env)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.processes) as pool:
        jobs = [[pool.submit(train, row, seed, Path(folder)) for seed in range(row.num_seeds)] for row in rows]
        lines = [table_line(row, [job.result() for job in seeds]) for row, seeds in zip(rows, jobs, strict=True)]
    print("\n".join(lines))
    if arguments.only is None:
        write_table(lines)


if __name__ == "__main__":
    main()
