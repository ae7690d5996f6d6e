"""Whatever a trajectory holds comes back bit for bit from every sink, and from every sink through every other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from data_strategies import differences, examples, trajectories
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import PostgresServer

from relayrl.data.columns import Trajectory
from relayrl.sinks.contract import open_sink, open_source
from relayrl.testing.sink_contract import difference, example_trajectories

some_trajectories = st.lists(trajectories(), max_size=4, unique_by=lambda trajectory: trajectory.trajectory_id)


def _round_trip(url: str, written: list[Trajectory]) -> list[str]:
    with open_sink(url) as sink:
        sink.write(written[:2])
        sink.flush()
        sink.write(written)
    with open_source(url) as source:
        found = {trajectory.trajectory_id: trajectory for trajectory in source}
    assert found.keys() == {trajectory.trajectory_id for trajectory in written}
    return [unlike for each in written for unlike in differences(found[each.trajectory_id], each)]


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "sqlite"])
def test_any_trajectory_comes_back_bit_for_bit(kind: str) -> None:
    @examples(40)
    @given(some_trajectories)
    def check(written: list[Trajectory]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert _round_trip(f"{kind}:{Path(folder) / 'place'}", written) == []

    check()


def test_any_trajectory_comes_back_bit_for_bit_from_postgresql(postgres: PostgresServer) -> None:
    @examples(15)
    @given(some_trajectories)
    def check(written: list[Trajectory]) -> None:
        assert _round_trip(postgres.new_place(), written) == []

    check()


def test_a_chain_of_conversions_through_every_sink_loses_nothing(place: Callable[[str], str]) -> None:
    written = list(example_trajectories(seed=0))
    urls = [place(kind) for kind in ("memory", "csv", "postgresql", "parquet", "sqlite", "arrow")]
    with open_sink(urls[0]) as sink:
        sink.write(written)
    for here, there in pairwise(urls):
        with open_source(here) as source, open_sink(there) as sink:
            sink.write(list(source))
    with open_source(urls[-1]) as source:
        found = {trajectory.trajectory_id: trajectory for trajectory in source}
    assert [difference(each, found[each.trajectory_id]) for each in written] == [None] * len(written)
