"""Finished seeds of learning rows, one JSON line each, and the tables that RESULTS.md shows of them.

A line holds the preset it was trained with. Lines whose preset is no longer the shipped one are not shown: their row is
to be run again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_rows import ROWS, LearningRow, Target
from relayrl.engines.run_settings import preset

RECORDS = Path(__file__).with_name("learning_records.jsonl")
RESULTS = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- learning: written by benchmarks/learning.py -->", "<!-- end of learning -->"

Point = tuple[int, float]
"""Environment steps, and the mean return of an evaluation after them."""


@dataclass(frozen=True)
class SeedRecord:
    """One finished seed."""

    row: str
    seed: int
    num_env_steps: int
    played_in: str
    episodes: int
    mean_return: float
    std_return: float
    random_return: float
    seconds: float
    curve: tuple[Point, ...]
    preset: dict[str, Any]

    @property
    def is_current(self) -> bool:
        """Whether it was trained with the preset that is shipped now."""
        env, _, algo = self.row.rpartition("/")
        return self.preset == preset(env, algo)

    def at(self, target: Target, is_last: bool) -> Point:
        """Steps and mean return at a target: the end, or the last evaluation on the way not after it."""
        if is_last:
            return self.num_env_steps, self.mean_return
        return [point for point in self.curve if point[0] <= target.num_steps][-1]


def read_records(path: Path = RECORDS) -> list[SeedRecord]:
    """All lines, in order of rows and seeds; of a seed that was run twice, the newest."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    newest = {(line["row"], line["seed"]): line for line in lines}
    order = {row.name: number for number, row in enumerate(ROWS)}
    found = [SeedRecord(**{**line, "curve": tuple(map(tuple, line["curve"]))}) for line in newest.values()]
    return sorted((one for one in found if one.row in order), key=lambda one: (order[one.row], one.seed))


def append_record(record: SeedRecord, path: Path = RECORDS) -> None:
    """Add a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def learning_section(records: Sequence[SeedRecord]) -> str:
    """The part of RESULTS.md between the marks."""
    shown = [record for record in records if record.is_current]
    lines = [
        "Mean return of greedy episodes in fresh worlds (over agents, where there are several), for each seed in order.",
        "`random`: the same of uniformly random actions. A target is met when the mean over seeds reaches it. Minutes are",
        "of one run on one thread of a machine that was busy with other work.",
        "",
        "| environment | algorithm | steps | return of each seed | mean ± std | target | met | random | minutes | command |",
        "|---|---|--:|---|--:|--:|---|--:|--:|---|",
    ]
    for row in ROWS:
        seeds = [record for record in shown if record.row == row.name]
        lines += [_line(row, target, seeds) for target in row.targets]
    lines += _curves(shown)
    return "\n".join(lines)


def _line(row: LearningRow, target: Target, seeds: Sequence[SeedRecord]) -> str:
    threshold = "" if target.threshold is None else f"{target.threshold:,g}"
    if not seeds:
        cells = [row.env, row.algo, f"{target.num_steps:,}", "not run", "", threshold, "", "", ""]
        return "| " + " | ".join([*cells, f"`{row.command}`"]) + " |"
    points = [record.at(target, target is row.targets[-1]) for record in seeds]
    returns = [mean_return for _, mean_return in points]
    mean = statistics.mean(returns)
    spread = f" ± {statistics.stdev(returns):,.1f}" if len(returns) > 1 else ""
    met = "" if target.threshold is None else "yes" if mean >= target.threshold else "**no**"
    if target.threshold is not None and len(seeds) < row.num_seeds:
        met += f" ({len(seeds)} of {row.num_seeds} seeds)"
    env = row.env if row.playground is None else f"{row.env}, played in {row.played_in}"
    cells = [env, row.algo, f"{points[0][0]:,}", ", ".join(f"{value:,.1f}" for value in returns)]
    cells += [
        f"{mean:,.1f}{spread}",
        threshold,
        met,
        f"{statistics.mean(record.random_return for record in seeds):,.1f}",
    ]
    minutes = statistics.median(record.seconds for record in seeds) / 60
    return "| " + " | ".join([*cells, f"{minutes:.1f}", f"`{row.command}`"]) + " |"


def _curves(records: Iterable[SeedRecord]) -> list[str]:
    """Tables of rows that are wanted for their curve."""
    lines: list[str] = []
    for env in dict.fromkeys(row.env for row in ROWS if row.targets[-1].threshold is None):
        seeds = [record for record in records if record.row.startswith(f"{env}/")]
        if not seeds:
            continue
        steps = [number for number, _ in seeds[0].curve]
        lines += ["", f"Evaluations on the way, {env}, thousands of steps (random: {seeds[0].random_return:.1f}):", ""]
        lines += ["| algorithm, seed | " + " | ".join(f"{number / 1000:,.0f}" for number in steps) + " |"]
        lines += ["|---" + "|--:" * len(steps) + "|"]
        for record in seeds:
            values = " | ".join(f"{value:.1f}" for _, value in record.curve)
            lines.append(f"| {record.row.rpartition('/')[2]}, {record.seed} | {values} |")
    return lines


def write_results(records: Sequence[SeedRecord], path: Path = RESULTS) -> None:
    """Replace the learning part of RESULTS.md."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{learning_section(records)}\n{END}{after}")
