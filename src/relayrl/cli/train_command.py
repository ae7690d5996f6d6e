"""`relayrl train`: settings, run directory, engine, progress bar, and what to try next."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from relayrl.cli.progress import progress_display
from relayrl.engines.run_directory import RunDirectory
from relayrl.engines.run_settings import RunSettings, build_run_settings
from relayrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What the user asked for."""

    env: str | None
    run_dir: Path | None
    config: Path | None
    flags: Mapping[str, Any]
    assignments: list[str]
    resume: bool


def run(request: TrainRequest, *, print_config: bool, as_json: bool, quiet: bool) -> int:
    """Train; gives the exit code."""
    settings, directory = _open(request, create=not print_config)
    if print_config:
        typer.echo(settings.to_yaml(), nl=False)
        return 0
    _log_to(directory.log)

    from relayrl.engines.local import LocalEngine, Progress

    engine = LocalEngine(settings, directory)
    if request.resume:
        engine.resume()
    interrupt = _Interrupt()
    try:
        with interrupt, progress_display(settings.env, settings.algo, enabled=not quiet) as display:

            def watch(progress: Progress) -> None:
                display.update(progress)
                interrupt.raise_if_requested()

            result = engine.run(watch)
    except KeyboardInterrupt:
        engine.save()
        print(f"interrupted; continue with: relayrl train --resume --run-dir {directory.path}", file=sys.stderr)
        return 130
    if not quiet:
        _advise(result.mean_return, result.std_return, len(result.returns), result.run_dir)
    if as_json:
        typer.echo(result.to_json())
    return 0


def _open(request: TrainRequest, *, create: bool) -> tuple[RunSettings, RunDirectory]:
    if request.resume:
        if request.run_dir is None:
            raise ConfigError("--resume needs --run-dir, the folder of the run to continue")
        directory = RunDirectory(request.run_dir)
        settings = build_run_settings(request.env, directory.require(), request.flags, request.assignments)
        return settings, directory
    settings = build_run_settings(request.env, request.config, request.flags, request.assignments)
    directory = RunDirectory(request.run_dir or RunDirectory.default_path(settings))
    if create:
        _check_environment_exists(settings)
        directory.create(settings)
    return settings, directory


def _check_environment_exists(settings: RunSettings) -> None:
    """Before a folder is made: a misspelt environment must leave nothing behind."""
    from relayrl.envs.registry import make_vector

    make_vector(settings.env, settings.environment.model_copy(update={"num_envs": 1, "workers": 0})).close()


def _log_to(path: Path) -> None:
    logger = logging.getLogger("relayrl")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Interrupt:
    """Ctrl-C or SIGTERM once: stop after the present update, so that what is saved is whole. Twice: stop at once."""

    def __init__(self) -> None:
        self._is_requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_requested:
            raise SystemExit(130)
        self._is_requested = True

    def raise_if_requested(self) -> None:
        """To be called between two updates."""
        if self._is_requested:
            raise KeyboardInterrupt


def _advise(mean_return: float, std_return: float, episodes: int, run_dir: str) -> None:
    if episodes:
        typer.echo(f"evaluated over {episodes} episodes: return {mean_return:.1f} ± {std_return:.1f}")
    typer.echo(f"run directory: {run_dir}")
    typer.echo("next:")
    typer.echo(f"  relayrl evaluate {run_dir}")
    typer.echo(f"  relayrl plot {run_dir}")
    typer.echo(f"  tensorboard --logdir {run_dir}")
