"""`relayrl plot`: learning curves; runs that differ in their seed alone become one curve with an interval.

Solid: returns of training episodes. Dashed: evaluations during the run, where there were any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.errors import ConfigError
from relayrl.training.statistics.statistics_writers import STEP_COLUMN, read_progress

Curve = tuple[Array, Array]
TRAINING, EVALUATION = "episode/return_mean", "evaluation/return_mean"


def run(paths: list[Path], output: Path) -> Path:
    """Draw the runs' returns; gives the picture's path."""
    if output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    curves: dict[tuple[str, str], list[Curve]] = {}
    for path in paths:
        directory = RunDirectory(path)
        settings = directory.settings()
        for column, curve in _read(directory).items():
            curves.setdefault((f"{settings.algo} on {settings.env}", column), []).append(curve)
    _draw(curves, output)
    return output


def _read(directory: RunDirectory) -> dict[str, Curve]:
    """Curves by column; the training episodes' is always there."""
    if not directory.progress.exists():
        raise ConfigError(f"{directory.path} has no progress.csv yet; let the run write its first summary")
    table = {name: np.array(column, dtype=float) for name, column in read_progress(directory.progress).items()}
    found = {}
    for column in (TRAINING, EVALUATION):
        values = table.get(column, np.zeros(0))
        known = np.flatnonzero(np.isfinite(values))
        if len(known):
            found[column] = (table[STEP_COLUMN][known], values[known])
    if TRAINING not in found:
        raise ConfigError(f"{directory.progress} has no finished episode yet; train longer")
    return found


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


def _draw(curves: dict[tuple[str, str], list[Curve]], output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colors: dict[str, Any] = {}
    for (name, column), seeds in curves.items():
        grid, mean, half = aggregate(seeds)
        label = name if len(seeds) == 1 else f"{name}, mean and 95% interval of {len(seeds)} seeds"
        label += ", evaluation" if column == EVALUATION else ""
        style = "--" if column == EVALUATION else "-"
        marker = "o" if len(grid) == 1 else None
        (line,) = axes.plot(grid, mean, style, label=label, color=colors.get(name), marker=marker)
        colors[name] = line.get_color()
        if len(seeds) > 1:
            axes.fill_between(grid, mean - half, mean + half, alpha=0.25, color=line.get_color(), linewidth=0)
    axes.set(xlabel="environment steps", ylabel="return of episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)
