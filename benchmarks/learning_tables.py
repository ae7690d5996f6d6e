"""Tables of finished seeds: the learning part of RESULTS.md, and the results on the pages of the algorithms."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path

from learning_records import SeedRecord
from learning_rows import ROWS, LearningRow, Target

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PAGES = {
    ROOT / "docs" / "algorithms" / "ppo.md": ("ppo",),
    ROOT / "docs" / "algorithms" / "reinforce.md": ("reinforce",),
    ROOT / "docs" / "algorithms" / "impala-appo.md": ("impala", "appo"),
    ROOT / "docs" / "algorithms" / "ddpg-td3.md": ("ddpg", "td3"),
    ROOT / "docs" / "algorithms" / "sac.md": ("sac",),
    ROOT / "docs" / "algorithms" / "multi-agent.md": ("mappo", "maddpg", "matd3"),
}
BEGIN, END = "<!-- learning: written by benchmarks/learning.py -->", "<!-- end of learning -->"


def sections(records: Sequence[SeedRecord]) -> dict[Path, str]:
    """What stands between the marks, by file."""
    return {RESULTS: results_section(records)} | {page: page_section(records, algos) for page, algos in PAGES.items()}


def write_sections(records: Sequence[SeedRecord]) -> None:
    """Replace what stands between the marks."""
    for path, section in sections(records).items():
        before, _, rest = path.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        path.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}")


def results_section(records: Sequence[SeedRecord]) -> str:
    """Every row, and the curves of those that are wanted for them."""
    lines = [
        "Mean return of greedy episodes in fresh environments (over agents, where there are several), for each seed in order.",
        "`random`: the same of uniformly random actions. A target is met when the mean over seeds reaches it. Minutes are",
        "of one run on two cores that it shared, with another seed at least.",
        "",
        "| environment | algorithm | steps | return of each seed | mean ± std | target | met | random | minutes | command |",
        "|---|---|--:|---|--:|--:|---|--:|--:|---|",
    ]
    for row in ROWS:
        seeds = [record for record in records if record.row == row.name]
        lines += [_line(_cells(row, target, seeds)) for target in row.targets]
    return "\n".join([*lines, *_curves(records)])


def page_section(records: Sequence[SeedRecord], algos: Collection[str]) -> str:
    """The rows of some algorithms, in fewer columns."""
    lines = ["| command | steps | return of each seed | mean ± std | target |", "|---|--:|---|--:|--:|"]
    for row in ROWS:
        seeds = [record for record in records if record.row == row.name]
        if row.algo in algos and seeds:
            for target in row.targets:
                _, _, steps, each, mean, threshold, *_, command = _cells(row, target, seeds)
                lines.append(_line([command, steps, each, mean, threshold]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: LearningRow, target: Target, seeds: Sequence[SeedRecord]) -> list[str]:
    env = row.env if row.playground is None else f"{row.env}, played in {row.played_in}"
    threshold, command = "" if target.threshold is None else f"{target.threshold:,g}", f"`{row.command}`"
    if not seeds:
        return [env, row.algo, f"{target.num_steps:,}", "not run", "", threshold, "", "", "", command]
    points = [record.at(target, target is row.targets[-1]) for record in seeds]
    returns = [mean_return for _, mean_return in points]
    mean = statistics.mean(returns)
    spread = f" ± {statistics.stdev(returns):,.1f}" if len(returns) > 1 else ""
    minutes = statistics.median(record.seconds for record in seeds) / 60
    return [
        env,
        row.algo,
        f"{points[0][0]:,}",
        ", ".join(f"{value:,.1f}" for value in returns),
        f"{mean:,.1f}{spread}",
        threshold,
        _verdict(row, target, mean, len(seeds)),
        f"{statistics.mean(record.random_return for record in seeds):,.1f}",
        f"{minutes:.1f}",
        command,
    ]


def _verdict(row: LearningRow, target: Target, mean: float, num_seeds: int) -> str:
    if target.threshold is None:
        return ""
    verdict = "yes" if mean >= target.threshold else "**no**"
    return verdict if num_seeds == row.num_seeds else f"{verdict} ({num_seeds} of {row.num_seeds} seeds)"


def _curves(records: Sequence[SeedRecord]) -> list[str]:
    lines: list[str] = []
    for env in dict.fromkeys(row.env for row in ROWS if row.targets[-1].threshold is None):
        seeds = [record for record in records if record.env == env]
        if not seeds:
            continue
        steps = [number for number, _ in max((one.curve for one in seeds), key=len)]
        lines += [
            "",
            f"Evaluations on the way, in {env}, at thousands of steps (random: {seeds[0].random_return:.1f}):",
            "",
        ]
        lines += [_line(["algorithm, seed", *(f"{number / 1000:,.0f}" for number in steps)])]
        lines += ["|---" + "|--:" * len(steps) + "|"]
        for one in seeds:
            cells = [f"{value:.1f}" for _, value in one.curve]
            lines += [_line([f"{one.algo}, {one.seed}", *cells, *[""] * (len(steps) - len(cells))])]
    return lines
