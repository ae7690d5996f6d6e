"""Where statistics go: `progress.csv`, TensorBoard, Weights & Biases.

A writer takes flat rows of numbers in the order of `num_env_steps` and must not influence learning. When a run resumes, rows
beyond the checkpoint are taken back with `rewind`, so that each step has one row in the end. Not a writer's job: averaging
(`statistics`), and what a person watches (`engines.progress_display`).
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from relayrl.errors import DecodeError, MissingExtraError
from relayrl.training.files.atomic_files import disk_error, write_whole
from relayrl.training.statistics.event_records import event_record

STEP_COLUMN = "num_env_steps"
_MAX_DIGITS = 18


class StatisticsWriter(ABC):
    """Takes rows of statistics."""

    @abstractmethod
    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        """Take one row; called in order of `num_env_steps`."""

    def rewind(self, num_env_steps: int) -> None:  # noqa: B027 - not every writer can take rows back
        """Forget rows beyond `num_env_steps`: the run goes on from there. Called before the first `write`."""

    def sync(self) -> None:  # noqa: B027 - not every writer holds something
        """Make what was written durable; called before a checkpoint is saved."""

    def close(self) -> None:  # noqa: B027 - not every writer holds something
        """Flush and release; called once."""


class ProgressCsv(StatisticsWriter):
    """`progress.csv`: a row per summary; a column that appears late is added to the header and left empty above."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = list(read_progress(path)) if path.exists() else []

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        row = {STEP_COLUMN: num_env_steps, **row}
        new = [name for name in row if name not in self._columns]
        if new:
            rows = _rows(self._path)
            self._columns += new
            self._replace([*rows, row])
            return
        # One call for the whole line: a kill leaves the line or nothing of it, but for a full disk.
        line = _csv_text(self._columns, [row], with_header=False).encode()
        try:
            with self._path.open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if file.write(line) != len(line):
                    file.truncate(size)
                    file.write(line)
        except OSError as error:
            raise disk_error(self._path, error) from error

    def rewind(self, num_env_steps: int) -> None:
        if self._path.exists():
            self._replace([row for row in _rows(self._path) if int(row[STEP_COLUMN]) <= num_env_steps])

    def sync(self) -> None:
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def _replace(self, rows: list[dict[str, Any]]) -> None:
        write_whole(self._path, _csv_text(self._columns, rows, with_header=True).encode())


def _csv_text(columns: list[str], rows: list[dict[str, Any]], *, with_header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if with_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows; a last line without its end was being written when the run was killed."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
        for number, row in enumerate(rows, start=2):
            if None in row:
                raise ValueError(f"line {number} has more cells than the first line has names")
            if not (row.get(STEP_COLUMN) or "").isdecimal() or len(row[STEP_COLUMN]) > _MAX_DIGITS:
                raise ValueError(f"line {number} has no number of steps in the column {STEP_COLUMN}")
    except (ValueError, csv.Error) as error:
        raise DecodeError(f"{path} is damaged: {error}; mend it, or move it away") from error
    return rows


def read_progress(path: Path) -> dict[str, list[float]]:
    """`progress.csv` as columns of equal length; NaN where a row has no value."""
    rows = _rows(path)
    columns = list(rows[0]) if rows else next(csv.reader(path.read_text().splitlines()), [])
    try:
        table = {name: [float(row[name]) if row[name] else float("nan") for row in rows] for name in columns}
    except ValueError as error:
        raise DecodeError(f"{path} is damaged: {error}; mend it, or move it away") from error
    return {name: [int(x) for x in column] if name == STEP_COLUMN else column for name, column in table.items()}


class TensorBoardEvents(StatisticsWriter):
    """TensorBoard event files in the run directory, written at once: no thread that could fail behind our back.

    `tensorboard`'s messages are imported at the first row, after the first update: 0.02 s. `settings` are shown as text and,
    by their dotted names, as hyper-parameters.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        self._directory, self._settings = directory, settings or {}
        self._file: IO[bytes] | None = None
        self._path = directory
        self._first_step: int | None = None

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=number) for name, number in row.items()]
        try:
            file = self._open() if self._file is None else self._file
            _add(file, step=num_env_steps, summary=Summary(value=values))
            file.flush()
        except OSError as error:
            raise disk_error(self._path, error) from error

    def rewind(self, num_env_steps: int) -> None:
        self._first_step = num_env_steps + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[bytes]:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        name = f"events.out.tfevents.{time.time_ns() // 1_000:016d}.{socket.gethostname()}.{os.getpid()}"
        self._path = self._directory / name
        self._file = file = self._path.open("wb")
        _add(file, file_version="brain.Event:2")
        if self._first_step is not None:  # TensorBoard hides what earlier files have of this step and later ones
            _add(file, step=self._first_step, session_log=SessionLog(status=SessionLog.START))
        if self._settings:
            from relayrl.training.statistics.tensorboard_settings import settings_summary

            _add(file, step=0, summary=settings_summary(self._settings))
        return file


def _add(file: IO[bytes], **fields: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    file.write(event_record(Event(wall_time=time.time(), **fields).SerializeToString()))


class WeightsAndBiases(StatisticsWriter):
    """A run in a Weights & Biases project; needs the `wandb` package."""

    def __init__(self, project: str, directory: Path, config: dict[str, Any]) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingExtraError("statistics.wandb_project", "wandb") from error
        self._run = wandb.init(
            project=project, name=directory.name, id=directory.name, resume="allow", dir=str(directory), config=config
        )

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        self._run.log(row, step=num_env_steps)

    def close(self) -> None:
        self._run.finish()
