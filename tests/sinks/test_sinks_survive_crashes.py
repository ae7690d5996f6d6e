"""kill -9 of a recording process, or of the database server, loses nothing that was flushed and doubles nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from postgres_server import PostgresServer
from recorded_steps import plain_trajectory

from relayrl.data.columns import Trajectory
from relayrl.sinks.contract import open_sink, open_source
from relayrl.testing.sink_contract import difference

NUM_FLUSHES = 8


@contextmanager
def _recording(url: str, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("recorder.py")), url, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _flushed(process: subprocess.Popen[str], num_flushes: int) -> list[UUID]:
    """Ids of the next flushes that the process reports."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(num_flushes)]
    return [UUID(text) for line in lines for text in line.split()]


def _rest(process: subprocess.Popen[str]) -> list[UUID]:
    """Ids of whole lines that were still in the pipe when the process died."""
    assert process.stdout is not None
    return [UUID(text) for line in process.stdout if line.endswith("\n") for text in line.split()]


def _check(url: str, seed: int, durable: list[UUID], max_unreported: int) -> list[Trajectory]:
    """All durable trajectories are there once and whole; at most one flush more."""
    with open_source(url) as source:
        found = [trajectory for trajectory in source if trajectory.env_id == UUID(int=seed)]
        assert source.count().num_steps >= 20 * len(found)
    assert len(durable) <= len(found) <= len(durable) + max_unreported
    assert [trajectory.episode for trajectory in found] == list(range(len(found)))
    assert {trajectory.trajectory_id for trajectory in found} >= set(durable)
    assert [difference(each, plain_trajectory(seed, each.episode)) for each in found] == [None] * len(found)
    return found


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "sqlite", "postgresql"])
def test_a_killed_recorder_loses_nothing_that_it_flushed(kind: str, place: Callable[[str], str]) -> None:
    url = place(kind)
    with _recording(url, seed=1) as process:
        durable = _flushed(process, NUM_FLUSHES)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        durable += _rest(process)
    found = _check(url, 1, durable, max_unreported=5)
    with open_sink(url) as sink:  # a successor repeats the last of it, and goes on
        sink.write([plain_trajectory(1, number) for number in range(len(found) - 3, len(found) + 4)])
    with open_source(url) as source:
        assert [trajectory.episode for trajectory in source] == list(range(len(found) + 4))


def test_processes_write_into_one_directory_and_one_may_die(place: Callable[[str], str]) -> None:
    url = place("arrow")
    with _recording(url, seed=1) as one, _recording(url, seed=2) as other:
        durable = _flushed(one, 3)
        os.kill(one.pid, signal.SIGKILL)
        one.wait()
        durable += _rest(one)
        alive = _flushed(other, NUM_FLUSHES)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        alive += _rest(other)
    _check(url, 1, durable, max_unreported=5)
    _check(url, 2, alive, max_unreported=5)


def test_a_killed_server_comes_back_with_nothing_lost_or_doubled(postgres: PostgresServer) -> None:
    url = postgres.new_place()
    with _recording(url, seed=3) as process:
        durable = _flushed(process, 4)
        for _ in range(2):
            postgres.kill()
            postgres.restart()
            durable += _flushed(process, 4)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        durable += _rest(process)
    assert len(durable) >= 60
    _check(url, 3, durable, max_unreported=5)
