"""What a person sees while a run goes on: a bar on a terminal, now and then a line elsewhere, nothing when quiet.

All of it goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from relayrl.engines.local import Progress

SECONDS_BETWEEN_LINES = 5.0


class Display(Protocol):
    """Takes progress."""

    def update(self, progress: Progress) -> None: ...


class _Silence:
    def update(self, progress: Progress) -> None:
        del progress


class _Lines:
    """A line every few seconds, and one at the end."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, -math.inf

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES or progress.num_env_steps >= progress.max_steps:
            self._last = now
            print(f"{self._title}  {describe(progress)}", file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def update(self, progress: Progress) -> None:
        rate = progress.num_env_steps / max(progress.seconds, 1e-9)
        self._bar.update(
            self._task,
            completed=progress.num_env_steps,
            total=progress.max_steps,
            rate=f"{rate:,.0f} steps/s",
            episode_return=_return_text(progress.mean_return),
        )


def describe(progress: Progress) -> str:
    """Steps, rate, return and time left on one line."""
    rate = progress.num_env_steps / max(progress.seconds, 1e-9)
    left = (progress.max_steps - progress.num_env_steps) / max(rate, 1e-9)
    share = 100.0 * progress.num_env_steps / progress.max_steps
    steps = f"{progress.num_env_steps:,}/{progress.max_steps:,} steps ({share:.0f}%)"
    return f"{steps}  {rate:,.0f} steps/s  {_return_text(progress.mean_return)}  {left:.0f} s left"


def _return_text(value: float) -> str:
    return "return –" if math.isnan(value) else f"return {value:.1f}"


@contextlib.contextmanager
def progress_display(env: str, algo: str, *, enabled: bool) -> Iterator[Display]:
    """The display that fits where standard error goes."""
    title = f"{algo} on {env}"
    if not enabled:
        yield _Silence()
        return
    if not sys.stderr.isatty():
        yield _Lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[episode_return]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        yield _Bar(bar, bar.add_task(title, total=1, rate="", episode_return=_return_text(math.nan)))
