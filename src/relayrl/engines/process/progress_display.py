"""What a person sees while a run goes on: a live table on a terminal, a bar in a notebook, now and then a line elsewhere,
nothing when quiet.

All of it goes to standard error, so that standard output holds results only. It gets numbers and gives nothing back.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from relayrl.engines.runs.run_record import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

SECONDS_BETWEEN_LINES = 5.0
REFRESHES_PER_S = 4
MIN_BAR_WIDTH = 10
_LINES_AROUND = 3
"""Lines that are no statistics: bar, steps, and the one that the cursor is left on."""
TABLE = {
    "evaluation/return_mean": "evaluation return",
    "evaluation/best_return": "best evaluation",
    "episode/length_mean": "episode length",
    "policy/entropy": "entropy",
    "policy/kl": "KL",
    "policy/loss": "policy loss",
    "value/loss": "value loss",
    "value/explained_variance": "explained variance",
    "policy/lag_versions": "policy lag",
    "time/collect_steps_per_s": "collecting, steps/s",
    "time/learn_steps_per_s": "learning, steps/s",
    "system/peak_memory_mib": "memory, MiB",
}
"""Rows of the live table, where the run has them; metrics of several groups are shown as the first group's."""


class Display(Protocol):
    """Takes progress."""

    def update(self, progress: Progress) -> None: ...


class Silence:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        del progress


class Lines:
    """A line every few seconds, and one at the end."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, -math.inf

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES or progress.num_env_steps >= progress.max_steps:
            self._last = now
            print(f"{self._title}  {describe(progress)}", file=sys.stderr, flush=True)


class LiveTable:
    """A bar and the newest statistics, redrawn in place."""

    def __init__(self, title: str, live: Live) -> None:
        self._title, self._live, self._last = title, live, -math.inf

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= 1 / REFRESHES_PER_S or progress.num_env_steps >= progress.max_steps:
            self._last = now
            size = self._live.console.size
            self._live.update(table_of(self._title, progress, size.width, size.height), refresh=True)


class NotebookBar:
    """One output cell with a bar and a line, replaced in place; needs nothing but IPython itself."""

    def __init__(self, title: str) -> None:
        ipython_display: Any = importlib.import_module("IPython.display")
        self._title, self._last = title, -math.inf
        self._handle = ipython_display.display({"text/plain": title}, raw=True, display_id=True)

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= 1 / REFRESHES_PER_S or progress.num_env_steps >= progress.max_steps:
            self._last = now
            line = f"{self._title}  {describe(progress)}"
            bar = (
                f'<progress value="{progress.num_env_steps}" max="{progress.max_steps}" style="width: 20em"></progress>'
            )
            self._handle.update({"text/plain": line, "text/html": f"{bar} {html.escape(line)}"}, raw=True)


def table_of(title: str, progress: Progress, width: int, height: int) -> RenderableType:
    """The live table of one moment, as wide as the terminal and never higher: what scrolled away cannot be redrawn."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1))
    bar_width = max(MIN_BAR_WIDTH, width - len(title) - 1)
    bar.add_row(title, ProgressBar(total=progress.max_steps, completed=progress.num_env_steps, width=bar_width))
    line = Text(describe(progress), no_wrap=True, overflow="ellipsis")
    numbers, num_rows = statistics_table(progress.row, width, height - _LINES_AROUND)
    return Group(bar, line, numbers) if num_rows else Group(bar, line)


def statistics_table(row: Mapping[str, float], width: int, height: int) -> tuple[RenderableType, int]:
    """The statistics that people watch, as many beside each other as there is room for, and the lines that they take."""
    from rich.table import Table
    from rich.text import Text

    numbers = Table.grid(padding=(0, 2))
    found = [(label, _number(row, name)) for name, label in TABLE.items()]
    shown = [(label, number) for label, number in found if number is not None]
    pair_width = sum(max(map(len, texts)) + 2 for texts in zip(*shown, strict=True))
    pairs_per_row = max(1, (width + 2) // max(1, pair_width))
    rows = [shown[start : start + pairs_per_row] for start in range(0, len(shown), pairs_per_row)]
    for pairs in rows[: max(0, height)]:
        numbers.add_row(*(Text(text, style="dim", no_wrap=True) for pair in pairs for text in pair))
    return numbers, numbers.row_count


def _number(row: Mapping[str, float], name: str) -> str | None:
    found = next((value for key, value in row.items() if key == name or key.endswith(f"/{name}")), None)
    if found is None or math.isnan(found):
        return None
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.3g}"


def describe(progress: Progress) -> str:
    """Steps, rate, return and time left on one line."""
    rate = progress.num_env_steps / max(progress.seconds, 1e-9)
    num_left = progress.max_steps - progress.num_env_steps
    left = f"{duration_text(num_left / rate)} left" if rate else "waiting for the first steps"
    share = 100.0 * progress.num_env_steps / progress.max_steps
    steps = f"{progress.num_env_steps:,}/{progress.max_steps:,} steps ({share:.0f}%)"
    return f"{steps}  {rate:,.0f} steps/s  {_return_text(progress.mean_return)}  {left}"


def duration_text(seconds: float) -> str:
    """A time as people say it: the largest unit and the one below."""
    whole = round(seconds)
    for unit_s, unit, below_s, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // below_s} {below}"
    return f"{whole} s"


def _return_text(value: float) -> str:
    return "return –" if math.isnan(value) else f"return {value:.1f}"


@contextlib.contextmanager
def progress_display(env: str, algo: str, *, enabled: bool, console: Console | None = None) -> Iterator[Display]:
    """The display that fits where standard error goes."""
    title = f"{algo} on {env}"
    if not enabled:
        yield Silence()
        return
    if console is None and _in_notebook():
        yield NotebookBar(title)
        return
    if console is None and not sys.stderr.isatty():
        yield Lines(title)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=console or Console(stderr=True), auto_refresh=False) as live:
        yield LiveTable(title, live)


def _in_notebook() -> bool:
    """Whether this is a Jupyter kernel; without loading IPython where nobody did."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
