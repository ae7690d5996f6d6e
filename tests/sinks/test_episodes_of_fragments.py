"""Episodes that are longer than a rollout are stored in pieces; statistics join them first."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli_in_process import relayrl

Place = Callable[[str], str]


def _record(url: str, run: Path) -> None:
    flags = {"num_envs": 2, "time_horizon": 8, "hidden_sizes": [4], "tensorboard": "false", "evaluation.episodes": 0}
    sets = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
    command = ("train", "native:CartPole", "--steps", "640", "--run-dir", str(run), "--record", url, "--quiet")
    done = relayrl(*command, *sets, "--set", "train_pi_iters=1", "--set", "train_vf_iters=1")
    assert done.returncode == 0, done.stderr


def _played(url: str) -> tuple[list[float], int]:
    """Returns of the episodes that began and ended in the record, from its single steps, and the number of trajectories."""
    replay = relayrl("data", "replay", url, "--json").stdout
    episodes: dict[tuple[str, int], list[dict]] = {}
    lines = [json.loads(line) for line in replay.splitlines()]
    for line in lines:
        episodes.setdefault((line["env_id"], line["episode"]), []).append(line)
    return [sum(one["return"] for one in parts) for parts in episodes.values() if any(p["ended"] for p in parts)], len(
        lines
    )


@pytest.mark.parametrize("kind", ["arrow", "sqlite"])
def test_inspect_joins_fragments(kind: str, place: Place, tmp_path: Path) -> None:
    url = place(kind)
    _record(url, tmp_path / "run")
    returns, num_trajectories = _played(url)
    assert max(returns) > 8
    assert num_trajectories > len(returns)
    agent = json.loads(relayrl("data", "inspect", url, "--json").stdout.splitlines()[-1])["groups"]["agent"]
    assert agent["num_whole_episodes"] == len(returns)
    assert (agent["min_return"], agent["max_return"]) == (min(returns), max(returns))
    assert agent["mean_return"] == pytest.approx(np.mean(returns))
    assert agent["longest_episode"] == max(returns)  # a reward of 1 a step


def test_sql_views_join_fragments(place: Place, tmp_path: Path) -> None:
    url = place("sqlite")
    _record(url, tmp_path / "run")
    returns, num_trajectories = _played(url)
    with sqlite3.connect(url.removeprefix("sqlite:")) as connection:
        whole = connection.execute("SELECT episode_return, num_steps FROM episodes WHERE is_whole").fetchall()
        (pieces,) = connection.execute("SELECT sum(num_trajectories) FROM episodes").fetchone()
        by_version = connection.execute(
            "SELECT sum(num_episodes), max(max_return), sum(num_episodes * mean_return) FROM returns_by_policy_version"
        ).fetchone()
    assert sorted(total for total, _ in whole) == sorted(returns)
    assert all(total == length for total, length in whole)
    assert pieces == num_trajectories
    assert by_version == (len(returns), max(returns), pytest.approx(sum(returns)))
