"""One worker in a process of its own: started with the task, watched, and its one line of results read back."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from measuring import RESULT_PREFIX
from work import Task

TIMEOUT_S = 180.0
POLL_S = 0.02
PATHS = re.compile(r"(?:/[\w.+-]+)+/")
"""Folders in messages: they say nothing to whoever reads the table on another machine."""


class WorkerError(Exception):
    """A worker failed; the message is the last line that it wrote."""


def run_worker(python: Path | None, script: Path, task: Task) -> dict[str, Any]:
    """The figures of one run, with the memory of the process and how many cores others kept busy meanwhile."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as folder:
        start, busy, own = time.perf_counter(), _busy_seconds(), _children_seconds()
        process = subprocess.Popen(
            [str(python or sys.executable), str(script), task.to_json()],
            cwd=folder,
            env=_environment(script, task),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        usage = _wait(process)
        seconds = time.perf_counter() - start
        foreign = (_busy_seconds() - busy - (_children_seconds() - own)) / seconds
        figures = _result(process.returncode, output)
    return {
        **figures,
        "process_seconds": seconds,
        "process_peak_mib": usage.ru_maxrss / 1024,
        "foreign_cores": max(0.0, foreign),
    }


def _environment(script: Path, task: Task) -> dict[str, str]:
    paths = [str(script.parent.parent), str(script.parent), os.environ.get("PYTHONPATH", "")]
    values = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONWARNINGS": "ignore",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if task.threads:
        values |= {"OMP_NUM_THREADS": str(task.threads), "MKL_NUM_THREADS": str(task.threads)}
    return {**os.environ, **values}


def _wait(process: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Until the worker ends, or its time is over: then its whole session is killed."""
    deadline = time.perf_counter() + TIMEOUT_S
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.perf_counter() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(POLL_S)


def _result(exit_code: int, output: IO[str]) -> dict[str, Any]:
    output.seek(0)
    lines = [line for line in output.read().splitlines() if line.strip()]
    for line in lines:
        if line.startswith(RESULT_PREFIX):
            figures: dict[str, Any] = json.loads(line.removeprefix(RESULT_PREFIX))
            return figures
    if exit_code == -signal.SIGKILL:
        raise WorkerError(f"killed, after {TIMEOUT_S:.0f} s or for want of memory")
    raise WorkerError(PATHS.sub("", lines[-1])[:300] if lines else f"exit code {exit_code} and no output")


def _busy_seconds() -> float:
    """CPU seconds that the whole machine has been busy (Linux)."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _waiting, *interrupts = (int(v) for v in stat.readline().split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
