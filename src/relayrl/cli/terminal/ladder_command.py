"""`relayrl ladder`: the snapshots of a run with self-play, by their ratings; as a table, as JSON or as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.self_play.ladder import Ladder, LadderRow, read_ladder
from relayrl.errors import ConfigError


def run(path: Path, output: Path | None, *, as_json: bool) -> list[str]:
    """The lines to print; with `output`, the ladder is drawn as well."""
    if output is not None and output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    ladder = read_ladder(RunDirectory(path))
    if output is not None:
        _draw(ladder, output)
    return [_json(ladder)] if as_json else _table(ladder)


def _json(ladder: Ladder) -> str:
    return json.dumps(
        {
            name: [asdict(row) for row in rows]
            for name, rows in (("learners", ladder.learners), ("snapshots", ladder.snapshots))
        }
    )


def _table(ladder: Ladder) -> list[str]:
    lines = [f"{'rating':>16}  {'games':>7}  {'score':>5}  policy"]
    rows = [(row, "learner") for row in ladder.learners]
    rows += [(row, f"snapshot of step {row.step:,}") for row in ladder.snapshots]
    for row, name in sorted(rows, key=lambda pair: -pair[0].elo):
        side = "" if len(ladder.learners) == 1 else f"{row.side}: "
        score = f"{row.score / row.games:.2f}" if row.games and name != "learner" else ""
        lines.append(f"{row.elo:8.0f} ± {row.elo_error:5.0f}  {row.games:7,}  {score:>5}  {side}{name}")
    return lines


def _draw(ladder: Ladder, output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for learner in ladder.learners:
        rows: list[LadderRow] = [row for row in ladder.snapshots if row.side == learner.side]
        steps, ratings, errors = ([getattr(row, name) for row in rows] for name in ("step", "elo", "elo_error"))
        bars = axes.errorbar(steps, ratings, errors, fmt="o-", capsize=3, label=f"snapshots of {learner.side}")
        axes.errorbar(
            [learner.step],
            [learner.elo],
            [learner.elo_error],
            fmt="*",
            markersize=12,
            capsize=3,
            color=bars.lines[0].get_color(),
            label=f"learner of {learner.side}",
        )
    axes.set(xlabel="environment steps", ylabel="Elo rating ± standard error")
    axes.grid(alpha=0.3)
    axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)
