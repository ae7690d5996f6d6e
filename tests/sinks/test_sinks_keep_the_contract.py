"""The public contract suite over every sink, and that it finds sinks which break it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from relayrl.data.columns import Trajectory
from relayrl.errors import SinkError
from relayrl.sinks.contract import SCHEMES, TrajectorySink, open_sink, open_source
from relayrl.sinks.fan_out import FanOutSink
from relayrl.sinks.sink_settings import FileSettings, SinkSettings
from relayrl.testing.sink_contract import CHECKS, check_sink

Place = Callable[[str], str]
SMALL = SinkSettings(max_buffered_bytes=2_000, files=FileSettings(max_part_bytes=4_000, max_batch_rows=8))


@pytest.mark.parametrize("settings", [SinkSettings(), SMALL], ids=["default", "small"])
@pytest.mark.parametrize("kind", SCHEMES)
def test_every_sink_keeps_the_contract(kind: str, settings: SinkSettings, place: Place) -> None:
    url = place(kind)
    report = check_sink(lambda: open_sink(url, settings), lambda: open_source(url))
    report.raise_if_failed()
    assert len(report.checks) == len(CHECKS) == 12


@pytest.mark.parametrize("read", [0, 1])
def test_a_fan_out_keeps_the_contract_wherever_one_reads(read: int, place: Place) -> None:
    urls = [place("arrow"), place("sqlite")]
    report = check_sink(lambda: FanOutSink([open_sink(url) for url in urls]), lambda: open_source(urls[read]))
    report.raise_if_failed()


class _Wrapped(TrajectorySink):
    """A sink that goes wrong in one way."""

    def __init__(self, inner: TrajectorySink) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self.inner.write(trajectories)

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        self.inner.close()


class _Rounds(_Wrapped):
    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self.inner.write([_with_float16_rewards(trajectory) for trajectory in trajectories])


class _NeverFlushes(_Wrapped):
    def flush(self) -> None:
        """Says that it did."""


class _ForgetsTheFirst(_Wrapped):
    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self.inner.write(trajectories[1:])


class _Reverses(_Wrapped):
    held: tuple[Trajectory, ...] = ()

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        self.held = (*self.held, *trajectories)

    def flush(self) -> None:
        self.inner.write(self.held[::-1])
        self.held = ()
        self.inner.flush()

    def close(self) -> None:
        if self.held:
            self.flush()
        self.inner.close()


def _with_float16_rewards(trajectory: Trajectory) -> Trajectory:
    with np.errstate(all="ignore"):
        return dataclasses.replace(trajectory, reward=trajectory.reward.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        (_Rounds, "keeps_every_bit"),
        (_NeverFlushes, "flushed_is_there"),
        (_ForgetsTheFirst, "close_flushes"),
        (_Reverses, "keeps_the_order"),
    ],
)
def test_the_suite_finds_sinks_that_break_it(broken: type[_Wrapped], found_by: str, place: Place) -> None:
    url = place("memory")
    report = check_sink(lambda: broken(open_sink(url)), lambda: open_source(url))
    assert found_by in [check.name for check in report.failures]
    with pytest.raises(SinkError, match=found_by):
        report.raise_if_failed()
