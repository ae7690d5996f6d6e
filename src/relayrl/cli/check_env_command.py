"""`relayrl check-env`: the public contract suite on any environment, line by line, and whether it can be trained on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

import typer

from relayrl.cli.terminal import invocation
from relayrl.config.settings import parse_settings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings

if TYPE_CHECKING:
    from relayrl.testing.contract_report import CheckResult, ContractReport

_LABELS = {"passed": "ok", "failed": "FAIL", "skipped": "skip", "not run": "not run"}


def run(
    env: str, num_envs: int, given: dict[str, Any], words: list[str], *, num_steps: int, timeout_s: float, as_json: bool
) -> int:
    """Check and print; 0 when nothing fails, else 1. `given` are values of `EnvSettings`, `words` those of the command line
    that gave them."""
    from relayrl.testing.env_contract import check_environment

    def make(count: int) -> VectorEnvironment:
        return make_vector(env, parse_settings(EnvSettings, {**given, "num_envs": count}), own_number=True)

    printed = _Printed(env, words, timeout_s, as_json)
    with _Watcher(printed.conclude_ended) as watcher, printed.ended_in_time():
        printed.on_result, printed.on_end = watcher.note, watcher.dismiss
        first = make(num_envs)
        number = first.num_envs
        first.close()
        if number != num_envs:
            typer.echo(f"{env} is a vector environment of {number} environments: checked with these")
        report = check_environment(make, num_envs=number, num_steps=num_steps, on_result=printed.add)
    return printed.conclude(report)


class _Printed:
    """Prints each result at once and, when the time is up, ends the process: an environment that hangs cannot be asked to."""

    def __init__(self, env: str, words: list[str], timeout_s: float, as_json: bool) -> None:
        self._env, self._words, self._timeout_s, self._as_json = env, words, timeout_s, as_json
        self._results: list[CheckResult] = []
        self._lock = threading.Lock()
        self.on_result: Callable[[], None] = lambda: None
        """Called after every result."""
        self.on_end: Callable[[], None] = lambda: None
        """Called before the process is ended because the time is up."""

    def add(self, result: CheckResult) -> None:
        """Print a check that has ended."""
        with self._lock:
            self._add(result)

    def _add(self, result: CheckResult) -> None:
        self._results.append(result)
        label, optional = _LABELS[result.outcome.value], " (optional)" if result.is_optional else ""
        why = "" if label == "ok" else f": {(result.explanation.splitlines() or [''])[0]}"
        typer.echo(f"{label:<7} {result.name}{optional if label != 'ok' else ''}{why}")
        sys.stdout.flush()
        self.on_result()

    @contextlib.contextmanager
    def ended_in_time(self) -> Iterator[None]:
        """Give the block `timeout_s`."""
        timer = threading.Timer(self._timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expire(self) -> None:
        from relayrl.testing.env_contract import CHECKS, ContractReport

        with self._lock:  # the block ends with the process: nothing else is printed
            for check in CHECKS[len(self._results) :]:
                self._add(check.not_run(f"the time was up after {self._timeout_s:g} s (--timeout-s)"))
            code = self.conclude(ContractReport(tuple(self._results)))
            sys.stdout.flush()
            self.on_end()
            os._exit(code or 1)

    def conclude_ended(self, num_results: int) -> None:
        """Print the verdict where this process ended after so many results, without one of its own."""
        from relayrl.testing.env_contract import CHECKS

        ended = CHECKS[min(num_results, len(CHECKS) - 1)].name
        typer.echo(
            f"{'FAIL':<7} {ended}: the process ended in this check: by the environment, unless somebody killed it"
        )
        command = invocation.command("relayrl", "train", self._env, *self._words)
        typer.echo(f"cannot be trained on: {ended}; mend this, then: {command}")
        if self._as_json:
            typer.echo(
                json.dumps(
                    {"env": self._env, "can_train": False, "command": command, "checks": len(CHECKS), "failed": [ended]}
                )
            )

    def conclude(self, report: ContractReport) -> int:
        """Print the counts and the verdict; gives the exit code."""
        outcomes = [check.outcome.value for check in report.checks]
        counts = {label: outcomes.count(outcome) for outcome, label in _LABELS.items()}
        blocking = [check.name for check in report.failures if not check.is_optional]
        shown = ", ".join(f"{count} {label}" for label, count in counts.items() if count)
        typer.echo(f"{self._env}: {len(report.checks)} checks: {shown}")
        command = invocation.command("relayrl", "train", self._env, *self._words)
        if report.can_train:
            failed = f"; {counts['FAIL']} optional checks fail" if report.failures else ""
            typer.echo(f"can be trained on{failed}: {command}")
        elif blocking:
            typer.echo(f"cannot be trained on: {', '.join(blocking)}; mend these, then: {command}")
        else:
            typer.echo("not known whether it can be trained on: checks that decide about it were not run")
        if self._as_json:
            results = [
                {
                    "name": check.name,
                    "outcome": check.outcome.value,
                    "optional": check.is_optional,
                    "explanation": check.explanation,
                }
                for check in report.checks
            ]
            verdict = {
                "env": self._env,
                "can_train": report.can_train if report.can_train or blocking else None,
                "command": command,
                "checks": len(report.checks),
                "failed": [check.name for check in report.failures],
                "results": results,
            }
            typer.echo(json.dumps(verdict))
        return 1 if report.failures or counts["not run"] else 0


class _Watcher:
    """A process of its own that prints the verdict where this one cannot: an environment may call `os._exit`, or crash in C."""

    def __init__(self, say: Callable[[int], None]) -> None:
        """`say` gets how often `note` was called before the end."""
        self._say, self._process, self._writer = say, 0, -1

    def __enter__(self) -> Self:
        if hasattr(os, "fork"):  # not on Windows
            sys.stdout.flush()
            reader, self._writer = os.pipe()
            self._process = os.fork()
            if self._process == 0:
                os.close(self._writer)
                self._watch(reader)
            os.close(reader)
        return self

    def note(self) -> None:
        """A check has ended."""
        if self._process:
            os.write(self._writer, _CHECKED)

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """All has been said; a second call does nothing."""
        if self._process:
            os.write(self._writer, _ENDED)
            os.close(self._writer)
            os.waitpid(self._process, 0)
            self._process = 0

    def _watch(self, reader: int) -> NoReturn:
        """Read until all has been said, or until nobody can write any more: then the other process has ended.

        Not only until the latter: processes that an environment has forked may write as well, and live on."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        told = b""
        try:
            while _ENDED not in told and (piece := os.read(reader, 4096)):
                told += piece
            if _ENDED not in told:
                self._say(told.count(_CHECKED))
                sys.stdout.flush()
        finally:
            os._exit(0)


_CHECKED, _ENDED = b"c", b"e"
