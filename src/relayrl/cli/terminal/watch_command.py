"""`relayrl watch`: tables and curves of runs in the terminal, read from their run directories."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from relayrl.cli.terminal.curve_plot import COLOURS, plot
from relayrl.cli.terminal.watched_runs import EVALUATION, RETURN, WatchedRun, find_runs, look_at, short_names
from relayrl.engines.process.progress_display import duration_text, statistics_table
from relayrl.errors import UnknownNameError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LINES_OF_TABLE = 4
_MIN_CURVE_LINES, _MAX_CURVE_LINES = 6, 24
_WIDTH_ELSEWHERE = 120


def run(paths: list[Path], metric: str, *, once: bool, interval_s: float, as_json: bool, lists_metrics: bool) -> None:
    """Show the runs, once or until Ctrl-C."""
    from rich.console import Console

    runs = [look_at(path) for path in find_runs(paths)]
    known = sorted({name for one in runs for name in one.columns})
    if lists_metrics:
        for name in known:
            typer.echo(name)
        return
    if known and metric not in known and metric != RETURN:
        raise UnknownNameError("metric", metric, known)
    if as_json:
        typer.echo(json.dumps([_described(one, metric) for one in runs]))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)
    if once or not sys.stdout.isatty():
        console.print(frame(runs, metric, console.width, max(console.height, len(runs) + 30)))
        return
    _watch(paths, metric, console, interval_s)


def _watch(paths: list[Path], metric: str, console: Console, interval_s: float) -> None:
    from rich.live import Live

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                runs = [look_at(path) for path in find_runs(paths)]  # others may begin meanwhile
                live.update(frame(runs, metric, console.width, console.height), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:
        console.print(frame(runs, metric, console.width, console.height - 2))


def frame(runs: Sequence[WatchedRun], metric: str, width: int, height: int) -> RenderableType:
    """One picture of the runs, at most so wide and high: the newest runs where not all have room, and their curves."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(1, height - _LINES_OF_TABLE - (_MIN_CURVE_LINES if height > 15 else 0))
    shown = list(runs[-room:])
    table = Table(box=None, padding=(0, 1), show_edge=False, expand=False)
    for name in ("run", "state", "steps", "", "steps/s", "return", "evaluation", "left"):
        table.add_column(name, justify="left" if name in ("run", "state") else "right", no_wrap=True)
    names = short_names([one.path for one in runs])[-room:]
    for number, (one, name) in enumerate(zip(shown, names, strict=True)):
        share = f"{100 * one.num_env_steps / one.max_steps:.0f}%" if one.max_steps else ""
        numbers = [_number(one.steps_per_s, 0), _number(one.newest(RETURN), 1), _number(one.newest(EVALUATION), 1)]
        left = "" if math.isnan(one.seconds_left) else duration_text(one.seconds_left)
        coloured = Text(name, style=COLOURS[number % len(COLOURS)])
        table.add_row(coloured, one.state.value, f"{one.num_env_steps:,}", share, *numbers, left)
    parts: list[RenderableType] = [table]
    num_lines = len(shown) + 1
    if len(shown) < len(runs):
        parts.append(Text(f"and {len(runs) - len(shown)} older runs; a higher terminal, or fewer RUNS, shows them"))
        num_lines += 1
    for one in shown:
        if one.complaint and num_lines < height - _MIN_CURVE_LINES:
            parts.append(Text(f"{one.path}: {one.complaint}", style="red", no_wrap=True, overflow="ellipsis"))
            num_lines += 1
    if len(shown) == 1 and shown[0].columns:
        newest = {name: shown[0].newest(name) for name in shown[0].columns}
        statistics, num_rows = statistics_table(newest, width, max(0, height - num_lines - _MIN_CURVE_LINES))
        parts.append(statistics)
        num_lines += num_rows
    lines = plot([one.curve(metric) for one in shown], width, min(_MAX_CURVE_LINES, height - num_lines - 2))
    if lines:
        parts += [Text(metric, style="bold"), *lines]
    return Group(*parts)


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def _described(one: WatchedRun, metric: str) -> dict[str, object]:
    numbers = {
        "steps_per_s": one.steps_per_s,
        "seconds_left": one.seconds_left,
        "return": one.newest(RETURN),
        "evaluation": one.newest(EVALUATION),
        metric: one.newest(metric),
    }
    return {
        "run_dir": str(one.path),
        "state": one.state.value,
        "title": one.title,
        "num_env_steps": one.num_env_steps,
        "max_steps": one.max_steps,
        "complaint": one.complaint,
        **{name: None if math.isnan(number) else number for name, number in numbers.items()},
    }
