"""What a run took back is marked, in every kind of sink: readers report it and leave it out unless they are asked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from recorded_steps import plain_trajectory
from typer.testing import CliRunner

from relayrl.cli.main import app
from relayrl.sinks.contract import SCHEMES, SourceCount, open_sink, open_source
from relayrl.sinks.fan_out import FanOutSink

Place = Callable[[str], str]
RECORDED = [plain_trajectory(0, number) for number in range(4)]
IDS = [trajectory.trajectory_id for trajectory in RECORDED]


@pytest.fixture
def marked(place: Place) -> Callable[[str], str]:
    """`marked("arrow")` holds four trajectories of 20 steps, of which the second and the fourth are abandoned."""

    def make(kind: str) -> str:
        url = place(kind)
        with open_sink(url) as sink:
            sink.write(RECORDED)
            sink.flush()
            sink.abandon([IDS[1]])
            sink.abandon([IDS[1], IDS[3]])
            sink.abandon([])
        return url

    return make


@pytest.mark.parametrize("kind", SCHEMES)
def test_abandoned_trajectories_are_reported_and_left_out(kind: str, marked: Place) -> None:
    with open_source(marked(kind)) as source:
        assert source.count() == SourceCount(2, 40)
        assert source.report.num_abandoned == 2
        assert [each.trajectory_id for each in source] == [IDS[0], IDS[2]]
        assert source.report.num_abandoned == 2
        assert source.abandoned() == {IDS[1], IDS[3]}


@pytest.mark.parametrize("kind", SCHEMES)
def test_abandoned_trajectories_come_where_they_are_asked_for(kind: str, marked: Place) -> None:
    with open_source(marked(kind), with_abandoned=True) as source:
        assert source.count() == SourceCount(4, 80)
        assert [each.trajectory_id for each in source] == IDS
        assert source.report.num_abandoned == 0


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_source_finds_what_some_envs_recorded_from_an_episode_on(kind: str, marked: Place) -> None:
    url = marked(kind)
    with open_sink(url) as sink:
        sink.write([plain_trajectory(1, number) for number in range(4)])
    with open_source(url) as source:
        assert [each.trajectory_id for each in source.of_envs({RECORDED[0].env_id}, 1)] == [IDS[2]]
        assert list(source.of_envs({RECORDED[0].env_id}, 4)) == []


def test_a_fan_out_marks_in_all_of_its_sinks(place: Place) -> None:
    urls = [place("arrow"), place("sqlite")]
    with FanOutSink([open_sink(url) for url in urls]) as sink:
        sink.write(RECORDED)
        sink.flush()
        sink.abandon(IDS[:3])
    for url in urls:
        with open_source(url) as source:
            assert [each.trajectory_id for each in source] == IDS[3:]


def test_the_data_command_reports_and_includes_them(marked: Place, place: Place) -> None:
    url, copy = marked("arrow"), place("sqlite")
    done = CliRunner().invoke(app, ["data", "inspect", url, "--json"])
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["num_steps"], document["num_abandoned"]) == (40, 2)
    assert "2 abandoned trajectories were left out" in done.stderr
    done = CliRunner().invoke(app, ["data", "inspect", url, "--json", "--abandoned"])
    assert json.loads(done.stdout.splitlines()[-1])["num_steps"] == 80
    assert CliRunner().invoke(app, ["data", "convert", url, copy]).exit_code == 0
    with open_source(copy, with_abandoned=True) as source:
        assert source.count() == SourceCount(2, 40)
