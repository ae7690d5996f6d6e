"""The contract of sinks and sources as code that can be run on any of them, RelayRL's or yours.

In a test of yours:

    def test_my_sink_keeps_the_contract(tmp_path):
        check_sink(lambda: MySink(tmp_path), lambda: MySource(tmp_path)).raise_if_failed()

Both functions are called many times and always open the same place, which may hold trajectories already. The rules are in
`relayrl.sinks.contract`; each check states one fact, which is its function's docstring. The suite knows nothing of pytest.
Not its job: what survives kill -9, which takes a process of its own.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.errors import ConfigError, RelayRLError, SinkClosedError, SinkError
from relayrl.sinks.contract import TrajectorySink, TrajectorySource
from relayrl.testing.contract_report import CheckResult, ContractReport, Outcome
from relayrl.testing.trajectory_examples import difference, example_trajectories

__all__ = ["CHECKS", "SinkContractReport", "check_sink", "difference", "example_trajectories"]

_RAISED = (RelayRLError, ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class SinkContractReport(ContractReport):
    """All checks of one kind of sink, in the order in which they ran."""

    __slots__ = ()

    def raise_if_failed(self) -> None:
        """Raise `SinkError` with all failures in its message."""
        if self.failures:
            raise SinkError("outside the contract of sinks:\n" + "\n".join(map(str, self.failures)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the sink under test writes and its source reads."""

    make_sink: Callable[[], TrajectorySink]
    make_source: Callable[[], TrajectorySource]

    def read(self, ids: Sequence[UUID]) -> list[Trajectory]:
        """Those trajectories, in the order in which they come."""
        wanted = set(ids)
        with self.make_source() as source:
            return [trajectory for trajectory in source if trajectory.trajectory_id in wanted]

    def missing(self, written: Sequence[Trajectory]) -> str | None:
        """What is wrong if these are not there once each and bit for bit."""
        found = self.read([trajectory.trajectory_id for trajectory in written])
        if len(found) != len(written):
            return f"of {len(written)} trajectories written, {len(found)} came back"
        by_id = {trajectory.trajectory_id: trajectory for trajectory in found}
        for trajectory in written:
            if trajectory.trajectory_id not in by_id:
                return f"trajectory {trajectory.trajectory_id} did not come back"
            if unlike := difference(trajectory, by_id[trajectory.trajectory_id]):
                return unlike
        return None


def keeps_every_bit(place: Place) -> str | None:
    """Every field of every kind of trajectory comes back bit for bit."""
    written = list(example_trajectories(seed=1))
    with place.make_sink() as sink:
        sink.write(written)
    return place.missing(written)


def flushed_is_there(place: Place) -> str | None:
    """After flush() a source gives what was written, while the sink is still open."""
    written = list(example_trajectories(seed=2))[:3]
    with place.make_sink() as sink:
        for trajectory in written:
            sink.write([trajectory])
            sink.flush()
            if unlike := place.missing([trajectory]):
                return unlike
    return place.missing(written)


def close_flushes(place: Place) -> str | None:
    """close() makes durable what was only written, and may be called twice."""
    written = list(example_trajectories(seed=3))[:2]
    sink = place.make_sink()
    sink.write(written)
    sink.close()
    sink.close()
    return place.missing(written)


def stores_once(place: Place) -> str | None:
    """A trajectory that is written again, in the same call, later or by another sink, is stored once."""
    written = list(example_trajectories(seed=4))[:2]
    with place.make_sink() as sink, place.make_sink() as other:
        sink.write([*written, *written])
        sink.flush()
        sink.write(written)
        sink.flush()
        other.write(written)
    with place.make_sink() as sink:
        sink.write(written)
    return place.missing(written)


def keeps_the_order(place: Place) -> str | None:
    """Trajectories of one group come back in the order in which one sink wrote them."""
    written = [next(example_trajectories(seed)) for seed in range(100, 120)]
    with place.make_sink() as sink:
        for i, trajectory in enumerate(written):
            sink.write([trajectory])
            if i % 7 == 0:
                sink.flush()
    ids = [trajectory.trajectory_id for trajectory in written]
    found = [trajectory.trajectory_id for trajectory in place.read(ids)]
    return None if found == ids else "they came back in another order"


def appends(place: Place) -> str | None:
    """A sink that is opened where there is something already adds to it."""
    first, second = list(example_trajectories(seed=5))[:2], list(example_trajectories(seed=6))[:2]
    for written in (first, second):
        with place.make_sink() as sink:
            sink.write(written)
    return place.missing([*first, *second])


def sinks_share_a_place(place: Place) -> str | None:
    """Two sinks that are open at the same time write side by side."""
    mine, theirs = list(example_trajectories(seed=7)), list(example_trajectories(seed=8))
    with place.make_sink() as one, place.make_sink() as other:
        for a, b in zip(mine, theirs, strict=True):
            one.write([a])
            other.write([b])
            one.flush()
            other.flush()
    return place.missing([*mine, *theirs])


def threads_share_a_sink(place: Place) -> str | None:
    """Threads that write and flush at the same time lose nothing."""
    shares = [list(example_trajectories(seed)) for seed in range(10, 14)]
    errors: list[BaseException] = []

    def write(share: list[Trajectory]) -> None:
        try:
            for trajectory in share:
                sink.write([trajectory])
                sink.flush()
        except _RAISED as error:
            errors.append(error)

    with place.make_sink() as sink:
        threads = [threading.Thread(target=write, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return f"{errors[0]!r}" if errors else place.missing([trajectory for share in shares for trajectory in share])


def refuses_what_does_not_fit(place: Place) -> str | None:
    """A trajectory whose columns do not fit its spaces is a ConfigError in write(), and nothing of the call is taken."""
    good, other = list(example_trajectories(seed=9))[:2]
    wrong = dataclasses.replace(other, reward=other.reward.astype(np.float64))
    empty = dataclasses.replace(good, reward=good.reward[:0])
    with place.make_sink() as sink:
        for bad in (wrong, empty):
            try:
                sink.write([good, bad])
            except ConfigError:
                continue
            return "write() took a trajectory that does not fit its spaces"
    return None if not place.read([good.trajectory_id]) else "write() raised, but took a part of the call"


def is_closed_when_closed(place: Place) -> str | None:
    """write() and flush() after close() are a SinkClosedError, and so is reading from a closed source."""
    with place.make_sink() as sink:
        pass
    with place.make_source() as source:
        pass
    calls: list[Callable[[], object]] = [lambda: sink.write([]), sink.flush, lambda: list(source), source.count]
    for call in calls:
        try:
            call()
        except SinkClosedError:
            continue
        return "something could be done after close()"
    return None


def nothing_is_fine(place: Place) -> str | None:
    """write() of nothing and flush() of nothing do nothing."""
    with place.make_sink() as sink, place.make_source() as source:
        before = source.count()
        sink.flush()
        sink.write([])
        sink.flush()
    with place.make_source() as source:
        return None if source.count() == before else "the count has changed"


def counts_agree(place: Place) -> str | None:
    """count() and layouts() say what a pass over the source gives, and so does a second pass at the same time."""
    with place.make_source() as source:
        count, groups = source.count(), {layout.group for layout in source.layouts()}
        passes = [list(found) for found in zip(*zip(source, source, strict=True), strict=True)]
    for found in passes:
        if (len(found), sum(map(len, found))) != (count.num_trajectories, count.num_steps):
            return f"count() says {count}, a pass gives {len(found)} trajectories of {sum(map(len, found))} steps"
        if {trajectory.group for trajectory in found} != groups:
            return f"layouts() has the groups {groups}"
    return None


CHECKS = (
    keeps_every_bit,
    flushed_is_there,
    close_flushes,
    stores_once,
    keeps_the_order,
    appends,
    sinks_share_a_place,
    threads_share_a_sink,
    refuses_what_does_not_fit,
    is_closed_when_closed,
    nothing_is_fine,
    counts_agree,
)
"""All checks, in the order in which they run."""


def check_sink(
    make_sink: Callable[[], TrajectorySink], make_source: Callable[[], TrajectorySource]
) -> SinkContractReport:
    """Run all checks on the place that the two functions open."""
    place = Place(make_sink, make_source)
    results = []
    for check in CHECKS:
        fact = (check.__doc__ or check.__name__).strip()
        try:
            broken = check(place)
        except _RAISED as error:
            broken = f"{type(error).__name__}: {error}"
        outcome = Outcome.FAILED if broken else Outcome.PASSED
        results.append(CheckResult(check.__name__, outcome, broken or fact))
    return SinkContractReport(tuple(results))
