"""The picture of a sweep: the objective by trial, and by each setting that varies; of a population, by generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.sweeps.planning.parameter_ranges import RangeKind
from relayrl.sweeps.sweep_settings import SweepSettings

if TYPE_CHECKING:
    from relayrl.sweeps.results.sweep_table import TrialReport

_MAX_SETTINGS = 5
_COLUMNS = 3
_COLORS = {"done": "tab:blue", "pruned": "tab:orange"}


def draw(sweep: SweepSettings, trials: Sequence[TrialReport], output: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))[:_MAX_SETTINGS]
    num_panels = 1 + len(names)
    rows = -(-num_panels // _COLUMNS)
    columns = min(num_panels, _COLUMNS)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.4 * rows), layout="constrained", squeeze=False)
    panels = list(axes.flat)
    if sweep.is_population:
        _by_generation(panels[0], trials, sweep.objective.metric, None)
        for panel, name in zip(panels[1:], names, strict=False):
            _by_generation(panel, trials, name, name)
            if _is_log(sweep, name):
                panel.set_yscale("log")
    else:
        _by_trial(panels[0], sweep, trials)
        for panel, name in zip(panels[1:], names, strict=False):
            _by_setting(panel, sweep, trials, name)
    for panel in panels[num_panels:]:
        panel.set_visible(False)
    for panel in panels[:num_panels]:
        panel.grid(alpha=0.3)
    seeds = len(sweep.seeds)
    figure.suptitle(f"{sweep.algo} on {sweep.env}: {sweep.objective.metric}, mean of {seeds} seed{'s' * (seeds > 1)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)


def _known(trials: Sequence[TrialReport]) -> list[TrialReport]:
    return [trial for trial in trials if trial.value is not None]


def _by_trial(panel: Any, sweep: SweepSettings, trials: Sequence[TrialReport]) -> None:
    known, best, bests = _known(trials), None, []
    for trial in known:
        values = [value for value in trial.values.values() if value is not None]
        color = _COLORS.get(trial.state.value, "tab:gray")
        panel.plot([trial.trial] * len(values), values, ".", color=color, alpha=0.35)
        panel.plot(trial.trial, trial.value, "o", color=color)
        if trial.state.value == "done" and trial.value is not None:
            best = trial.value if best is None else max(best, trial.value, key=sweep.objective.key)
        bests.append(best)
    reached = [(trial.trial, value) for trial, value in zip(known, bests, strict=True) if value is not None]
    steps = [number for number, _ in reached]
    panel.step(steps, [value for _, value in reached], where="post", color="black", linewidth=1, label="best so far")
    for state, color in _COLORS.items():
        if any(trial.state.value == state for trial in known):
            panel.plot([], [], "o", color=color, label=state)
    panel.set(xlabel="trial", ylabel=sweep.objective.metric)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(fontsize="small")


def _by_setting(panel: Any, sweep: SweepSettings, trials: Sequence[TrialReport], name: str) -> None:
    known = [trial for trial in _known(trials) if name in trial.settings]
    values = [trial.settings[name] for trial in known]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = values if is_number else [str(value) for value in values]
    colors = [_COLORS.get(trial.state.value, "tab:gray") for trial in known]
    panel.scatter(places, [trial.value for trial in known], c=colors)
    if is_number and (_is_log(sweep, name) or _spans_decades(values)):
        panel.set_xscale("log")
    panel.set(xlabel=name)


def _by_generation(panel: Any, trials: Sequence[TrialReport], label: str, name: str | None) -> None:
    """Lines of members; a thin grey one where a member took over another's networks."""
    for trial in trials:
        points = []
        for number, stretch in enumerate(trial.stretches):
            values = [value for value in stretch.values.values() if value is not None]
            y = (sum(values) / len(values) if values else None) if name is None else stretch.settings.get(name)
            points.append((number, y))
        drawn = [(x, y) for x, y in points if isinstance(y, int | float)]
        (line,) = panel.plot([x for x, _ in drawn], [y for _, y in drawn], ".-", linewidth=0.8)
        for number, stretch in enumerate(trial.stretches):
            if number and stretch.parent not in (None, trial.trial):
                here = dict(drawn).get(number)
                if here is not None:
                    panel.plot(number, here, "o", color=line.get_color(), markerfacecolor="white")
    panel.set(xlabel="generation (○ copied from another member)", ylabel=label)
    panel.xaxis.get_major_locator().set_params(integer=True)


def _is_log(sweep: SweepSettings, name: str) -> bool:
    return sweep.search is not None and sweep.search.parsed()[name].kind is RangeKind.LOG


def _spans_decades(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 10
