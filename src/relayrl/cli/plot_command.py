"""`relayrl plot`: learning curves; runs that differ in their seed alone become one curve with an interval."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from relayrl.data.trees import Array
from relayrl.engines.run_directory import RunDirectory
from relayrl.errors import ConfigError

Curve = tuple[Array, Array]


def run(paths: list[Path], output: Path) -> Path:
    """Draw the runs' training returns; gives the picture's path."""
    if output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    curves: dict[str, list[Curve]] = {}
    for path in paths:
        settings = RunDirectory(path).settings()
        curves.setdefault(f"{settings.algo} on {settings.env}", []).append(_read(RunDirectory(path)))
    _draw(curves, output)
    return output


def _read(directory: RunDirectory) -> Curve:
    if not directory.progress.exists():
        raise ConfigError(f"{directory.path} has no progress.csv yet; let the run write its first summary")
    with directory.progress.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("episode/return_mean")]
    if not rows:
        raise ConfigError(f"{directory.progress} has no finished episode yet; train longer")
    steps = np.array([float(row["num_env_steps"]) for row in rows])
    return steps, np.array([float(row["episode/return_mean"]) for row in rows])


def _draw(curves: dict[str, list[Curve]], output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, seeds in curves.items():
        grid = np.unique(np.concatenate([steps for steps, _ in seeds]))
        values = np.stack([np.interp(grid, steps, returns) for steps, returns in seeds])
        mean = values.mean(0)
        label = name if len(seeds) == 1 else f"{name}, mean and 95% interval of {len(seeds)} seeds"
        (line,) = axes.plot(grid, mean, label=label)
        if len(seeds) > 1:
            # Normal approximation of the mean's interval: 1.96 standard errors.
            half = 1.96 * values.std(0, ddof=1) / np.sqrt(len(seeds))
            axes.fill_between(grid, mean - half, mean + half, alpha=0.25, color=line.get_color(), linewidth=0)
    axes.set(xlabel="environment steps", ylabel="return of training episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)
