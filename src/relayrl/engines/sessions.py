"""Beginning, resuming and watching a run: what the command line and the Python interface have in common.

Heavy imports happen inside functions: a wrong setting is reported before torch is loaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.config.plugin_registry import explaining_registrations
from relayrl.engines.process.interrupts import Interrupt
from relayrl.engines.torch_preload import preload_torch
from relayrl.errors import ConfigError, UntrustedError
from relayrl.garbage import collection_paused, living_set_aside

if TYPE_CHECKING:
    from relayrl.engines.callbacks.callback import Callback
    from relayrl.engines.local.local_engine import LocalEngine, MakePace
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.engines.runs.run_record import Progress, RunResult
    from relayrl.engines.settings.run_settings import Assignment, RunSettings
    from relayrl.envs.environment_contract import VectorEnvironment

_log = logging.getLogger("relayrl.engines.sessions")


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
    trust: bool = False
    overwrite: bool = False
    overlay: Mapping[str, Any] = field(default_factory=dict)
    """What goes over `config`, in its own words."""


@dataclass(frozen=True, slots=True)
class Session:
    """A run that may begin: its settings, its run directory, and what to print before."""

    settings: RunSettings
    directory: RunDirectory
    resume: bool
    init_from: Path | None
    notes: list[str]

    def discard(self) -> None:
        """Remove the run directory of a new run that did not reach its first update; a resumed one stays as it was."""
        if not self.resume:
            self.directory.discard()


@collection_paused()
def open_session(request: TrainRequest, *, create: bool = True) -> Session:
    """Settle the settings and, unless `create` is False, create the directory; its lock is held until `run_session` ends."""
    if create:
        preload_torch()
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.engines.settings.run_settings import build_run_settings

    if request.resume:
        return _resumed(request, create=create)
    notes: list[str] = []
    trial = _Trial(request, notes, must_run=create)
    settings = build_run_settings(
        request.env,
        request.config,
        request.flags,
        request.assignments,
        notes,
        trial.generic_preset,
        overlay=request.overlay,
    )
    _check_learning_starts(settings, notes)
    if request.init_from is not None and not request.init_from.exists():
        raise ConfigError(f"--init-from {request.init_from}: nothing there; name a run directory or a .ckpt file")
    if not create:
        return Session(settings, RunDirectory(request.run_dir or Path()), False, request.init_from, notes)
    trial.require_runs(settings)
    settings = _with_measured_threads(_with_device(settings, notes), notes)
    directory = RunDirectory.make_default(settings) if request.run_dir is None else RunDirectory(request.run_dir)
    if not request.overwrite:
        directory.require_no_run()
    with _locked_on_return(directory):
        if request.overwrite:
            directory.clear()
        directory.create(settings)
    return Session(settings, directory, resume=False, init_from=request.init_from, notes=notes)


@dataclass(slots=True)
class _Trial:
    """One environment, made once before there is a run directory, in a worker where the run has any: a misspelt name
    leaves nothing behind, and what the environment shows decides about generic settings."""

    request: TrainRequest
    notes: list[str]
    must_run: bool
    _env: VectorEnvironment | None = None

    def generic_preset(self, settings: RunSettings) -> dict[str, Any]:
        """What suits the kind of problem that an environment without a preset is."""
        from relayrl.engines.settings.generic_presets import preset_for

        try:
            env = self.require_runs(settings)
        except UntrustedError as error:
            if self.must_run:
                raise
            self.notes.append(f"shown without generic settings: {error}")
            return {}
        values, kinds = preset_for(settings, env)
        if values:
            names = " + ".join(kind.value for kind in kinds)
            self.notes.append(f"no preset for {settings.env} with {settings.algo}: generic settings for {names}")
        else:
            self.notes.append(f"no preset for {settings.env} with {settings.algo}: defaults are used")
        return values

    def require_runs(self, settings: RunSettings) -> VectorEnvironment:
        """The environment, closed again; whatever keeps it from being made is raised."""
        if self._env is None:
            if self.request.config is not None:
                require_trusted_request(self.request, settings, self.request.config)
            from relayrl.engines.settings.generic_presets import one_env

            self._env = one_env(settings)
            self._env.close()
        return self._env


def _check_learning_starts(settings: RunSettings, notes: list[str]) -> None:
    """A run that ends before its first gradient step is rarely meant."""
    starts, steps = getattr(settings.params, "learning_starts", 0), settings.trainer.max_steps
    if settings.learn_from is None and starts >= steps:
        notes.append(
            f"warning: learning starts after {starts:,} steps and the run ends after {steps:,}, so nothing is learned; "
            "lower params.learning_starts or raise --steps"
        )


def _resumed(request: TrainRequest, *, create: bool) -> Session:
    from relayrl.engines.runs.resume_rules import check_changes
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.engines.settings.run_settings import build_run_settings

    if request.run_dir is None:
        raise ConfigError("--resume needs --run-dir, the folder of the run to continue")
    if request.init_from is not None:
        raise ConfigError("--resume continues a run from its own checkpoint; leave out --init-from")
    directory = RunDirectory(request.run_dir)
    base = request.config or directory.require()
    with _locked_on_return(directory) if create else contextlib.nullcontext():
        before = directory.settings()
        after = build_run_settings(
            request.env, base, request.flags, request.assignments, is_whole=True, overlay=request.overlay
        )
        trials: list[str] = []
        if create:
            require_trusted_request(request, after, base)
            after = _with_measured_threads(_with_device(after, trials), trials)
        notes = trials + check_changes(before, after)
    return Session(after, directory, resume=True, init_from=None, notes=notes)


def require_trusted_request(request: TrainRequest, settings: RunSettings, file: Path) -> None:
    """Raise `UntrustedError` where `file` names code to run that the request does not."""
    from relayrl.engines.given_parts import require_parts_trusted, strings_in
    from relayrl.engines.runs.trust import require_trusted, require_trusted_cluster, require_trusted_wrappers
    from relayrl.engines.settings.run_settings import assigned, given_pair
    from relayrl.envs.environment_settings import EnvSettings

    named = (request.env, request.flags.get("env"), *assigned(request.assignments, "env"))
    how = "name it, as in relayrl train {}, or add --trust"
    require_trusted(settings.env, file, named=named, trust=request.trust, how=how)
    given = request.flags.keys() | {key for key, _ in map(given_pair, request.assignments)}
    require_trusted_cluster(settings, file, named=given, trust=request.trust)
    written = {*strings_in(request.flags), *strings_in([given_pair(each) for each in request.assignments])}
    require_parts_trusted(settings, file, named=written, trust=request.trust)
    keys = ("environment.wrappers", "wrappers")
    lists = [request.flags.get(keys[0]), *(each for key in keys for each in assigned(request.assignments, key))]
    wrappers = [EnvSettings(wrappers=each).wrapper_names for each in lists if each]
    require_trusted_wrappers(
        settings.environment.wrapper_names,
        file,
        named=[name for names in wrappers for name in names],
        trust=request.trust,
        how="name it, as in --wrap {}, or add --trust",
    )


@contextlib.contextmanager
def _locked_on_return(directory: RunDirectory) -> Iterator[None]:
    """Lock a run directory before anything is read or written there; only where that fails, it is released."""
    directory.lock()
    try:
        yield
    except BaseException:
        directory.release()
        raise


def _with_device(settings: RunSettings, notes: list[str]) -> RunSettings:
    """The settings with a device that this machine has, measured where that was left open."""
    if settings.device == "cpu":
        return settings
    from relayrl.engines.device_trial import with_fastest_device
    from relayrl.models.compute_device import compute_device

    chosen = with_fastest_device(settings, notes)
    compute_device(chosen.device)
    return chosen


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


def run_session(
    session: Session,
    on_progress: Callable[[Progress], None],
    interrupt: Interrupt,
    on_note: Callable[[str], None] | None = None,
    make_pace: MakePace | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train to the end, or until interrupted; `run.log` holds what happened, `on_note` what a person should know before.
    With `make_pace`, other processes collect."""
    try:
        with logging_to(session.directory.log):
            engine = _engine(session, interrupt, make_pace, callbacks)
            for note in (*session.notes, *engine.notes):
                _log.info("%s", note)
                if on_note is not None:
                    on_note(note)
            with living_set_aside():
                return engine.run(on_progress, interrupt.is_requested, on_note)
    finally:
        session.directory.release()


@collection_paused()
def _engine(
    session: Session, interrupt: Interrupt, make_pace: MakePace | None, callbacks: Sequence[Callback]
) -> LocalEngine:
    """The engine, ready to begin or to continue; where that cannot be, a new run leaves no directory behind."""
    from relayrl.engines.local.local_engine import LocalEngine

    try:
        with explaining_registrations(session.directory.path) if session.resume else contextlib.nullcontext():
            engine = LocalEngine(session.settings, session.directory, make_pace=make_pace, callbacks=callbacks)
        try:
            _begin(engine, session)
            if engine.settings != session.settings:
                session.directory.write_settings(engine.settings)
            interrupt.begin()
        except BaseException:
            engine.close()
            raise
    except ConfigError:
        session.discard()
        raise
    return engine


def _begin(engine: LocalEngine, session: Session) -> None:
    """Take over what the run begins with. The settings of a resumed run change only now that it can go on with them."""
    if session.resume:
        if not engine.resume():
            path = session.directory.path
            raise ConfigError(
                f"{path} has no checkpoint to resume from: its run ended before the first one; "
                "begin it again without --resume in another --run-dir, or delete this one"
            )
        if session.notes:
            session.directory.write_settings(session.settings)
    if session.init_from is not None:
        engine.init_from(session.init_from)


def print_note(note: str) -> None:
    """Show a note to whoever watches."""
    print(f"relayrl: {note}", file=sys.stderr)


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
    except ConfigError:
        raise
    except Exception as error:
        # For the file alone: whoever started the run gets the error itself.
        file.handle(logging.LogRecord(logger.name, logging.ERROR, __file__, 0, "%s", (error,), sys.exc_info()))
        raise
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _QuietFileHandler(logging.FileHandler):
    """A log that cannot be written (a full disk) is no reason to fail, or to fill the screen: what matters is raised. A link is
    not followed: a run directory from elsewhere must not write outside of itself."""

    def _open(self) -> Any:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        return os.fdopen(os.open(self.baseFilename, flags, 0o666), "a", encoding=self.encoding)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # of opening it; what comes after goes to `handleError`
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        del record
