"""`relayrl plot`: curves of a metric; runs whose settings differ in the seed alone become one curve with an interval.

Solid: the metric over training. Dashed: evaluations during the run, where returns are drawn and there were any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relayrl.config.settings_text import flattened
from relayrl.data.trees import Array
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.errors import ConfigError
from relayrl.training.statistics.statistics_writers import STEP_COLUMN, read_progress

Curve = tuple[Array, Array]
TRAINING, EVALUATION = "episode/return_mean", "evaluation/return_mean"
_OF_NO_CONSEQUENCE = frozenset({"seed", "threads", "record", "statistics"})
"""Settings that runs of one curve may differ in: what they do not change is the learning."""


class XAxis(Enum):
    """What curves are drawn over."""

    STEPS = "steps"
    SECONDS = "seconds"

    @property
    def column(self) -> str:
        """Of `progress.csv`."""
        return STEP_COLUMN if self is XAxis.STEPS else "time/seconds"

    @property
    def label(self) -> str:
        return "environment steps" if self is XAxis.STEPS else "seconds of training"


class Split(Enum):
    """Whose returns are drawn, instead of one return for all."""

    GROUP = "group"
    AGENT = "agent"

    def of(self, columns: Iterable[str], metric: str) -> dict[str, str]:
        """The columns of a metric by the name of the group or agent."""
        found = {}
        for column in columns:
            name, separator, own = column.removeprefix("agents/").partition("/")
            if separator and own == metric and column.startswith("agents/") == (self is Split.AGENT):
                found[column] = name
        return found


class _Run(NamedTuple):
    """One run: its settings without those of no consequence, flat, and its curves by column."""

    path: Path
    seed: int
    settings: Mapping[str, Any]
    curves: Mapping[str, Curve]
    names: Mapping[str, str]  # of columns that are a group's or an agent's


def run(
    paths: list[Path], output: Path, metric: str = TRAINING, x: XAxis = XAxis.STEPS, by: Split | None = None
) -> Path:
    """Draw a metric of the runs; gives the picture's path."""
    if output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    runs = [_read(RunDirectory(path), metric, x, by) for path in {path.resolve(): path for path in paths}.values()]
    curves: dict[tuple[str, str], list[Curve]] = {}
    for label, members in _by_settings(runs).items():
        for member in members:
            for column, curve in member.curves.items():
                name = ": ".join([label, *filter(None, [member.names.get(column)])])
                curves.setdefault((name, column), []).append(curve)
    _draw(curves, output, metric, x)
    return output


def _read(directory: RunDirectory, metric: str, x: XAxis, by: Split | None) -> _Run:
    settings = directory.settings()
    if not directory.progress.exists():
        raise ConfigError(f"{directory.path} has no progress.csv yet; let the run write its first summary")
    table = {name: np.array(column, dtype=float) for name, column in read_progress(directory.progress).items()}
    curves = {}
    metrics = (TRAINING, EVALUATION) if metric == TRAINING else (metric,)
    names = {} if by is None else {column: name for one in metrics for column, name in by.of(table, one).items()}
    for column in metrics if by is None else names:
        values = table.get(column, np.zeros(0))
        known = np.flatnonzero(np.isfinite(values))
        if len(known):
            curves[column] = (table[x.column][known], values[known])
    if by is not None and not curves:
        raise ConfigError(f"{directory.progress} has no {metric} by {by.value}; leave out --by")
    if by is None and metric not in curves:
        raise ConfigError(f"{directory.progress} {_why_not(metric, table)}")
    dumped = settings.model_dump(mode="json", exclude=set(_OF_NO_CONSEQUENCE))
    return _Run(directory.path, settings.seed, flattened(dumped), curves, names)


def _why_not(metric: str, table: Mapping[str, Array]) -> str:
    if metric == TRAINING:
        return "has no finished episode yet; train longer"
    if metric in table:
        return f"has no finite value of {metric} yet; train longer"
    near = get_close_matches(metric, table, n=3, cutoff=0.4) or sorted(table)
    more = "" if len(near) == len(table) else f" and {len(table) - len(near)} more: relayrl watch --metrics lists them"
    return f"has no metric {metric!r}; it has {', '.join(near)}{more}"


def _by_settings(runs: list[_Run]) -> dict[str, list[_Run]]:
    """Runs with equal settings together, under a label that names what differs from the others."""
    groups: list[list[_Run]] = []
    for one in runs:
        own = next((group for group in groups if group[0].settings == one.settings), None)
        if own is None:
            groups.append([one])
            continue
        twin = next((other for other in own if other.seed == one.seed), None)
        if twin is not None:
            raise ConfigError(
                f"{twin.path} and {one.path} are the same run: equal settings and seed {one.seed}; give one of them"
            )
        own.append(one)
    names = [f"{group[0].settings['algo']} on {group[0].settings['env']}" for group in groups]
    labels = {}
    for name, group in zip(names, groups, strict=True):
        rivals = [other[0].settings for other, theirs in zip(groups, names, strict=True) if theirs == name]
        differ = [key for key in group[0].settings if len({str(rival.get(key)) for rival in rivals}) > 1]
        labels[", ".join([name, *(f"{key}={group[0].settings[key]}" for key in differ)])] = group
    return labels


def aggregate(seeds: list[Curve]) -> tuple[Array, Array, Array]:
    """Steps, mean and half the 95% interval of runs, over the steps that all of them cover."""
    first, last = max(steps[0] for steps, _ in seeds), min(steps[-1] for steps, _ in seeds)
    grid = np.unique(np.concatenate([steps for steps, _ in seeds]))
    inside = grid[(grid >= first) & (grid <= last)]
    grid = inside if len(inside) else grid
    values = np.stack([np.interp(grid, steps, returns) for steps, returns in seeds])
    spread = values.std(0, ddof=1) if len(seeds) > 1 else np.zeros(len(grid))
    # Normal approximation of the mean's interval: 1.96 standard errors.
    return grid, values.mean(0), 1.96 * spread / np.sqrt(len(seeds))


def _draw(curves: dict[tuple[str, str], list[Curve]], output: Path, metric: str, x: XAxis) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colors: dict[str, Any] = {}
    for (name, column), seeds in curves.items():
        grid, mean, half = aggregate(seeds)
        label = name if len(seeds) == 1 else f"{name}, mean and 95% interval of {len(seeds)} seeds"
        is_evaluation = metric == TRAINING and column.endswith(EVALUATION)
        label += ", evaluation" if is_evaluation else ""
        style = "--" if is_evaluation else "-"
        marker = "o" if len(grid) == 1 else None
        (line,) = axes.plot(grid, mean, style, label=label, color=colors.get(name), marker=marker)
        colors[name] = line.get_color()
        if len(seeds) > 1:
            axes.fill_between(grid, mean - half, mean + half, alpha=0.25, color=line.get_color(), linewidth=0)
    axes.set(xlabel=x.label, ylabel="return of episodes" if metric == TRAINING else metric)
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)
