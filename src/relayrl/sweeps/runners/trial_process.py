"""One trial in a process of its own: `python -m relayrl.sweeps.runners.trial_process`, the order on standard input.

The run begins, or goes on from its newest checkpoint, and pauses at the order's rung: it is interrupted there as if by
Ctrl-C, after the evaluation that is due. Its outcome is written as a file; so is an error, which would only repeat itself.
A trial that leaves no outcome was cut off. Not its job: how often it is started again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.config.passwords import without_password
from relayrl.engines.process.interrupts import EXIT_CODE, Interrupt, LeaveAtOnce, StartInterrupted
from relayrl.errors import ConfigError, RelayRLError
from relayrl.sweeps.trial_jobs import TrialOrder, TrialOutcome, parted

if TYPE_CHECKING:
    from relayrl.engines.runs.run_record import Progress, RunResult
    from relayrl.engines.sessions import Session

_log = logging.getLogger("relayrl.sweeps.runners.trial_process")
LEAVE_AFTER_S = 60.0
"""A trial whose sweep has ended saves its state in this time, or leaves without."""
_COPIED = ("config.yaml", "progress.csv")


class RungInterrupt(Interrupt):
    """Asks the run to stop when it has taken so many environment steps; and where a signal asks."""

    def __init__(self, until: int | None) -> None:
        super().__init__()
        self._until = math.inf if until is None else until
        self.num_env_steps = 0

    def watch(self, progress: Progress) -> None:
        """Take note of where the run stands."""
        self.num_env_steps = progress.num_env_steps

    @property
    def has_reached_rung(self) -> bool:
        return self.num_env_steps >= self._until

    def is_requested(self) -> bool:
        return self.has_reached_rung or super().is_requested()


def run_trial(order: TrialOrder) -> bool:
    """Run a trial and write its outcome; False where a signal came first."""
    began = time.monotonic()
    try:
        outcome = _trained(order, began)
    except (StartInterrupted, KeyboardInterrupt):
        return False
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the trial's outcome, and the sweep goes on
        traceback.print_exc()
        what = str(error) if isinstance(error, RelayRLError) else f"{type(error).__name__}: {error}"
        line = (without_password(what).splitlines() or [type(error).__name__])[0]
        outcome = TrialOutcome(error=line[:500], seconds=time.monotonic() - began)
    outcome.write(Path(order.outcome))
    return True


def _trained(order: TrialOrder, began: float) -> TrialOutcome:
    from relayrl.engines.sessions import run_session

    interrupt = RungInterrupt(order.until)
    with interrupt:
        session = _session(order)
        result: RunResult | None = None
        try:
            result = run_session(session, interrupt.watch, interrupt, _log.info)
        except KeyboardInterrupt:
            if not interrupt.has_reached_rung:
                raise
    if result is not None:
        value = _of_result(order, result)
        return TrialOutcome(value, result.num_env_steps, time.monotonic() - began, result.parameter_hash)
    from relayrl.training.files.checkpoints import CheckpointStore
    from relayrl.training.files.weights import weights_hash

    loaded = CheckpointStore(session.directory.checkpoints, keep=1).load_newest()
    if loaded is None:
        raise ConfigError(f"{order.run_dir} has no checkpoint although its run has paused; was it removed?")
    value = _newest(order, order.column)
    return TrialOutcome(value, loaded[0], time.monotonic() - began, weights_hash(loaded[1]["trainer"]))


def _session(order: TrialOrder) -> Session:
    """The run from its newest checkpoint, from its parent's, or from its start."""
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.engines.sessions import TrainRequest, open_session
    from relayrl.training.files.checkpoints import CheckpointStore

    run_dir = Path(order.run_dir)
    directory = RunDirectory(run_dir)
    if order.parent is not None and not directory.checkpoints.exists():
        _copy_parent(Path(order.parent), run_dir)
    env, flags, assignments = parted(order.settings)
    can_resume = directory.config.exists() and bool(CheckpointStore(directory.checkpoints, keep=1).paths())
    request = TrainRequest(
        env=env,
        run_dir=run_dir,
        config=Path(order.config),
        flags=flags,
        assignments=assignments,
        overwrite=True,
        trust=order.trust,
    )
    if not can_resume:
        return open_session(request)
    return open_session(replace(request, config=None, overwrite=False, resume=True))


def _copy_parent(parent: Path, run_dir: Path) -> None:
    """Begin with the newest checkpoint of another run. `checkpoints` appears last, as a whole: a kill leaves nothing half."""
    from relayrl.training.files.checkpoints import CheckpointStore

    saved = CheckpointStore(parent / "checkpoints", keep=1).paths()
    if not saved:
        raise ConfigError(
            f"{parent} has no checkpoint to copy; members of a population need one directory for all of them"
        )
    made = run_dir / "copied"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in _COPIED:
        if (parent / name).exists():
            shutil.copyfile(parent / name, run_dir / name)
    shutil.copyfile(saved[-1], made / saved[-1].name)
    os.replace(made, run_dir / "checkpoints")


def _of_result(order: TrialOrder, result: RunResult) -> float:
    if "/" in order.metric:
        return _newest(order, order.metric)
    value: float = getattr(result, order.metric)
    if not math.isfinite(value):
        raise ConfigError(f"the run ended without {order.metric}; {_ADVICE.get(order.metric, 'train longer')}")
    return value


_ADVICE = {
    "mean_return": "set evaluation.episodes, or train until an episode ends",
    "best_return": "set evaluation.interval",
}


def _newest(order: TrialOrder, column: str) -> float:
    """The last number of a column of progress.csv."""
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.training.statistics.statistics_writers import read_progress

    progress = RunDirectory(Path(order.run_dir)).progress
    columns: Mapping[str, Any] = read_progress(progress) if progress.exists() else {}
    known = [number for number in columns.get(column, ()) if math.isfinite(number)]
    if not known:
        raise ConfigError(
            f"{progress} has no number in the column {column}; choose another objective.metric, or train longer"
        )
    return float(known[-1])


def _leave_with_sweep(pipe_fd: int) -> None:
    """End with the sweep: its end of the pipe is closed when it is gone, however it ended."""
    with contextlib.suppress(OSError):
        while os.read(pipe_fd, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE_AFTER_S)
    os.kill(os.getpid(), signal.SIGTERM)  # twice: at once
    time.sleep(LEAVE_AFTER_S)
    os._exit(EXIT_CODE)


def main() -> int:
    """The process of a trial; gives its exit code."""
    from relayrl.engines.torch_preload import preload_torch

    line = sys.stdin.readline()
    if not line:
        return EXIT_CODE
    order = TrialOrder.from_json(line)
    threading.Thread(
        target=_leave_with_sweep, args=(sys.stdin.fileno(),), name="relayrl-sweep-watch", daemon=True
    ).start()
    preload_torch()
    try:
        return 0 if run_trial(order) else EXIT_CODE
    except LeaveAtOnce:
        sys.stderr.flush()
        os._exit(EXIT_CODE)


if __name__ == "__main__":
    sys.exit(main())
