"""Curves of finished seeds as a picture: every seed a line, a colour for each algorithm, random play dotted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from learning_records import SeedRecord

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def draw_curves(records: Sequence[SeedRecord], env: str, path: Path) -> None:
    """Write the evaluations on the way of all seeds of an environment."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seeds = [record for record in records if record.env == env]
    if not seeds:
        return
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    algorithms = list(dict.fromkeys(record.algo for record in seeds))
    for record in seeds:
        steps, returns = zip(*record.curve, strict=True)
        label = record.algo if record.seed == min(one.seed for one in seeds if one.row == record.row) else None
        axes.plot(steps, returns, color=f"C{algorithms.index(record.algo)}", label=label)
    axes.axhline(seeds[0].random_return, color="grey", linestyle=":", label="random")
    axes.set(title=f"{env}, every seed", xlabel="environment steps", ylabel="evaluated return, mean over agents")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
