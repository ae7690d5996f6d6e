"""The peers in one picture: a panel of bars per work, ours in another colour."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from jobs import JOBS
from measurements import Measurement
from results_page import best_threads, number
from targets import OURS

OURS_COLOUR, PEER_COLOUR = "#c2410c", "#94a3b8"
PANELS = ("W1", "W2", "W2k", "W4a", "W4b", "W4c", "W5-td3", "W5-sac", "W5-ddpg")


def draw_peers(measurements: Sequence[Measurement], path: Path) -> None:
    """Write the picture; works without measurements have no panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    panels = {work: bars(work, measurements) for work in PANELS}
    panels = {work: rates for work, rates in panels.items() if rates}
    if not panels:
        return
    num_rows = -(-len(panels) // 3)
    figure, axes = pyplot.subplots(num_rows, 3, figsize=(15, 3.4 * num_rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (work, rates) in zip(axes.flat, panels.items(), strict=False):
        names, values = list(rates), list(rates.values())
        colours = [OURS_COLOUR if name.startswith(OURS) else PEER_COLOUR for name in names]
        drawn = axis.barh(names, values, color=colours)
        axis.bar_label(drawn, [number(value) for value in values], padding=3, fontsize=8)
        axis.set_title(f"{work}, environment steps per second", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_formatter(lambda rate, _: number(rate))
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def bars(work: str, measurements: Sequence[Measurement]) -> dict[str, float]:
    """Median rates by name, the fastest first."""
    rates = {}
    for job in JOBS:
        runs = [m for m in measurements if m.is_of(job) and m.figure("env_steps_per_s") is not None]
        if job.work != work or not runs:
            continue
        threads = best_threads(runs, "env_steps_per_s")
        name = " ".join(filter(None, [job.peer, job.variant]))
        rates[name] = statistics.median(r.figures["env_steps_per_s"] for r in runs if r.threads == threads)
    return dict(sorted(rates.items(), key=lambda item: -item[1]))
