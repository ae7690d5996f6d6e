"""Records of version 1, written by a program of that time, are read: their rows count on from `first_step`, and nobody knows
the environment's steps."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_steps import plain_trajectory

from relayrl.data.arrow.codec import decode_trajectory
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.stacking import unaligned
from relayrl.sinks.contract import open_sink, open_source
from relayrl.sinks.databases.database_migrations import POSTGRES, VERSION_TABLE
from relayrl.testing.trajectory_examples import difference

HERE = Path(__file__).parent / "version_1"
OLD_DATA = ("reward", "policy_version", "obs", "action", "action_mask", "logp", "value", "memory", "final_obs")
Place = Callable[[str], str]


def expected() -> list[Trajectory]:
    found = []
    for episode, num_steps, agent in ((0, 5, "a"), (0, 3, "b"), (1, 4, "a"), (1, 4, "b")):
        one = plain_trajectory(7, episode, num_steps=num_steps)
        found.append(replace(one, agent_id=agent, trajectory_id=trajectory_id(one.env_id, agent, episode, 0)))
    last = {"episode": 2, "first_step": 6, "terminated": False, "truncated": True, "failed": True}
    found.append(replace(found[0], trajectory_id=trajectory_id(found[0].env_id, "a", 2, 6), **last))
    return found


def old_record(kind: str, place: Place, tmp_path: Path) -> str:
    """The URL of a copy."""
    if kind == "postgresql":
        return old_postgres(place(kind))
    name = "sqlite.db" if kind == "sqlite" else kind
    copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
    copy(HERE / name, tmp_path / name)
    return f"{kind}:{tmp_path / name}"


def old_postgres(url: str) -> str:
    """The tables of that version, with the rows of its SQLite file."""
    import psycopg

    header = ["trajectory_id", "env_id", "layout", "episode", "first_step", "num_steps", "terminated", "truncated"]
    header += ["failed", "min_policy_version", "max_policy_version", "episode_return", "agent_group", "agent_id"]
    columns = [*header, *(f"{name}_data" for name in OLD_DATA)]
    with closing(sqlite3.connect(HERE / "sqlite.db")) as database:
        layouts = database.execute("SELECT digest, description FROM layouts ORDER BY layout").fetchall()
        rows = database.execute(f"SELECT {', '.join(columns)} FROM trajectories ORDER BY trajectory").fetchall()
    flags = [columns.index(name) for name in ("terminated", "truncated", "failed")]
    with psycopg.connect(url) as connection:
        for statement in (VERSION_TABLE, *(each for migration in POSTGRES[:4] for each in migration)):
            connection.execute(statement)
        connection.execute("INSERT INTO relayrl_schema VALUES (4)")
        for layout in layouts:
            connection.execute("INSERT INTO layouts (digest, description) VALUES (%s, %s)", layout)
        for row in rows:
            values = [bool(value) if i in flags else value for i, value in enumerate(row)]
            names = ", ".join(columns)
            connection.execute(f"INSERT INTO trajectories ({names}) VALUES ({', '.join(['%s'] * len(row))})", values)
    return url


@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "sqlite", "postgresql"])
def test_a_record_of_version_1_is_read_added_to_and_converted(kind: str, place: Place, tmp_path: Path) -> None:
    url, before = old_record(kind, place, tmp_path), expected()
    with open_source(url) as source:
        found = list(source)
        assert source.count().num_steps == sum(map(len, before))
    assert not any(map(difference, found, before))
    assert [t.knows_steps for t in found] == [False] * len(before)
    assert found[-1].steps.tolist() == [6, 7, 8, 9, 10]
    assert [members[0].episode for members in unaligned(found)] == [0]

    new = replace(plain_trajectory(8, 0, num_steps=2), step=expected()[0].steps[:2] + 3, end_step=9)
    with open_sink(url) as sink:
        sink.write([new])
    with open_source(url) as source:
        assert not any(map(difference, list(source), [*before, new]))

    other = f"arrow:{tmp_path / 'other'}"
    with open_sink(other) as sink:
        sink.write(found)
    with open_source(other) as source:
        assert [t.knows_steps for t in source] == [False] * len(before)


def test_bytes_of_version_1_are_decoded() -> None:
    found = decode_trajectory((HERE / "trajectory.arrows").read_bytes())
    assert difference(found, expected()[0]) is None
    assert not found.knows_steps
