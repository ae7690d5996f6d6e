"""`relayrl data`: summaries, pictures, conversion and replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_steps import plain_trajectory
from typer.testing import CliRunner

from relayrl.cli.data_command import data_app
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_sink, open_source
from relayrl.testing.sink_contract import difference, example_trajectories

Place = Callable[[str], str]


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(data_app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def recorded(place: Place) -> str:
    """Thirty episodes of twenty steps with reward 1, and one of another group."""
    url = place("arrow")
    with open_sink(url) as sink:
        sink.write([plain_trajectory(0, number) for number in range(30)])
        sink.write([plain_trajectory(0, 7, num_steps=3, group="other")])
    return url


def test_inspect_sums_up(recorded: str, tmp_path: Path) -> None:
    picture = tmp_path / "returns.png"
    document = json.loads(_run("inspect", recorded, "--json", "-o", str(picture)).splitlines()[-1])
    assert (document["num_steps"], document["num_trajectories"]) == (603, 31)
    agent = document["groups"]["agent"]
    assert agent["num_whole_episodes"] == 30
    assert agent["policy_versions"] == [0, 2]
    assert (agent["mean_return"], agent["std_return"]) == (20.0, 0.0)
    assert document["groups"]["other"]["max_return"] == 3.0
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_inspect_reads_well(recorded: str) -> None:
    text = _run("inspect", recorded)
    assert "31 trajectories, 603 steps" in text
    assert "returns of 30 whole episodes: mean 20.00 ± 0.00, from 20.00 to 20.00" in text
    assert "Discrete(2)" in text


def test_inspect_takes_trajectories_without_a_finite_return(place: Place) -> None:
    url, written = place("sqlite"), list(example_trajectories(seed=3))
    with open_sink(url) as sink:
        sink.write(written)
    document = json.loads(_run("inspect", url, "--json").splitlines()[-1])
    assert document["num_trajectories"] == len(written)


def test_inspect_refuses_a_picture_of_no_kind(recorded: str) -> None:
    with pytest.raises(ConfigError, match=r"must end in .png or .svg"):
        _run("inspect", recorded, "-o", "returns")


@pytest.mark.parametrize("kind", ["parquet", "csv", "sqlite", "postgresql"])
def test_convert_there_and_back_loses_nothing(kind: str, place: Place) -> None:
    here, there, back = place("arrow"), place(kind), place("arrow")
    written = list(example_trajectories(seed=2))
    with open_sink(here) as sink:
        sink.write(written)
    assert json.loads(_run("convert", here, there, "--json").splitlines()[-1])["num_trajectories"] == len(written)
    _run("convert", there, back)
    _run("convert", there, back)
    with open_source(back) as source:
        found = {trajectory.trajectory_id: trajectory for trajectory in source}
    assert [difference(each, found[each.trajectory_id]) for each in written] == [None] * len(written)


def test_convert_needs_two_places(recorded: str) -> None:
    with pytest.raises(ConfigError, match="give two URLs"):
        _run("convert", recorded, recorded)


def test_replay_goes_through_trajectories_in_order(recorded: str) -> None:
    lines = _run("replay", recorded, "--group", "agent", "--limit", "12").splitlines()
    assert len(lines) == 12
    assert "agent/agent episode 11 steps 0 to 19, return 20.00, version 1, terminated" in lines[11]
    last = json.loads(_run("replay", recorded, "--group", "other", "--json").splitlines()[-1])
    assert (last["num_steps"], last["return"], last["ended"]) == (3, 3.0, ["terminated"])
