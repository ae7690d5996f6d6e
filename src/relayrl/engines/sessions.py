"""Beginning, resuming and watching a run: what the command line and the Python interface have in common.

Heavy imports happen inside functions, beside the loading of torch's libraries (`torch_preload`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.engines.garbage import collection_paused, living_set_aside
from relayrl.engines.interrupts import Interrupt
from relayrl.engines.torch_preload import preload_torch
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.engines.local import LocalEngine
    from relayrl.engines.run_directory import RunDirectory
    from relayrl.engines.run_record import Progress, RunResult
    from relayrl.engines.run_settings import Assignment, RunSettings


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What the user asked for; `flags` are dotted paths of settings, `assignments` are `key=value` or pairs of them."""

    env: str | None = None
    run_dir: Path | None = None
    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    assignments: Sequence[Assignment] = ()
    resume: bool = False
    init_from: Path | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A run that may begin: its settings and folder, and what the user should be told before."""

    settings: RunSettings
    directory: RunDirectory
    resume: bool
    init_from: Path | None
    notes: list[str]

    def discard(self) -> None:
        """Leave no folder of a new run that did not come to its first update; one that was resumed stays as it was."""
        if not self.resume:
            self.directory.discard()


@collection_paused()
def open_session(request: TrainRequest, *, create: bool = True) -> Session:
    """Settle the settings and, unless `create` is False, make the folder."""
    if create:
        preload_torch()
    from relayrl.engines.run_directory import RunDirectory
    from relayrl.engines.run_settings import build_run_settings

    if request.resume:
        return _resumed(request, create=create)
    notes: list[str] = []
    settings = build_run_settings(request.env, request.config, request.flags, request.assignments, notes)
    directory = RunDirectory(request.run_dir or RunDirectory.default_path(settings))
    if request.init_from is not None and not request.init_from.exists():
        raise ConfigError(f"--init-from {request.init_from}: nothing there; name a run directory or a .ckpt file")
    if create:
        _check_environment_exists(settings)
        settings = _with_measured_threads(settings, notes)
        directory.create(settings)
    return Session(settings, directory, resume=False, init_from=request.init_from, notes=notes)


def _resumed(request: TrainRequest, *, create: bool) -> Session:
    from relayrl.engines.resume_rules import check_changes
    from relayrl.engines.run_directory import RunDirectory
    from relayrl.engines.run_settings import build_run_settings

    if request.run_dir is None:
        raise ConfigError("--resume needs --run-dir, the folder of the run to continue")
    if request.init_from is not None:
        raise ConfigError("--resume continues a run from its own checkpoint; leave out --init-from")
    directory = RunDirectory(request.run_dir)
    before = directory.settings()
    base = request.config or directory.require()
    after = build_run_settings(request.env, base, request.flags, request.assignments)
    trials: list[str] = []
    if create:
        after = _with_measured_threads(after, trials)
    notes = trials + check_changes(before, after)
    if create and notes:
        directory.write_settings(after)
    return Session(after, directory, resume=True, init_from=None, notes=notes)


def _with_measured_threads(settings: RunSettings, notes: list[str]) -> RunSettings:
    """The settings with a number of threads, where it was left to measurement."""
    if settings.threads:
        return settings
    from relayrl.engines.thread_trial import fewest_fast_threads, measured_rates

    rates = measured_rates(settings)
    threads = fewest_fast_threads(rates)
    measured = ", ".join(f"{rate:,.0f} steps/s with {count}" for count, rate in rates.items())
    notes.append(f"threads={threads}: {measured}")
    return settings.model_copy(update={"threads": threads})


def _check_environment_exists(settings: RunSettings) -> None:
    """Before a folder is made: a misspelt environment must leave nothing behind. With workers, a worker tries it."""
    from relayrl.engines.plugins import environment_name
    from relayrl.envs.registry import make_vector

    environment = settings.environment
    one_world = environment.model_copy(update={"num_envs": 1, "workers": min(environment.workers, 1)})
    make_vector(environment_name(settings.env), one_world, own_number=True).close()


def run_session(session: Session, on_progress: Callable[[Progress], None], interrupt: Interrupt) -> RunResult:
    """Train to the end, or until interrupted; `run.log` tells what happened."""
    with logging_to(session.directory.log):
        engine = _engine(session, interrupt)
        with living_set_aside():
            return engine.run(on_progress, interrupt.is_requested)


@collection_paused()
def _engine(session: Session, interrupt: Interrupt) -> LocalEngine:
    """The engine, ready to begin or to continue; where that cannot be, a new run leaves no folder behind."""
    from relayrl.engines.local import LocalEngine

    try:
        engine = LocalEngine(session.settings, session.directory)
        if session.resume:
            engine.resume()
        if session.init_from is not None:
            engine.init_from(session.init_from)
        if engine.settings != session.settings:
            session.directory.write_settings(engine.settings)
        interrupt.begin()
    except ConfigError:
        session.discard()
        raise
    return engine


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """RelayRL's log in a file, warnings on standard error as well."""
    logger = logging.getLogger("relayrl")
    file = _QuietFileHandler(path, delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.setFormatter(logging.Formatter("relayrl: %(message)s"))
    level = logger.level
    handlers: list[logging.Handler] = [file, shown]
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _QuietFileHandler(logging.FileHandler):
    """A log that cannot be written (a full disk) is no reason to fail, or to fill the screen: what matters is raised."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        del record
