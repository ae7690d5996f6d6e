"""SQLite and PostgreSQL: versions of tables, retries, two writers of the same trajectory, servers that die or hang."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg
import pytest
from postgres_server import PostgresServer
from recorded_steps import plain_trajectory

from relayrl.config.passwords import without_password
from relayrl.errors import ConfigError, SinkError, SinkWriteError
from relayrl.sinks.contract import SourceCount, open_sink, open_source
from relayrl.sinks.databases.postgres_connection import connect
from relayrl.sinks.databases.retries import BackOff
from relayrl.sinks.sink_settings import DatabaseSettings, SinkSettings
from relayrl.testing.sink_contract import difference
from waiting import DEADLINE_S, wait_until

Place = Callable[[str], str]
VERSIONS = {"sqlite": 6, "postgresql": 5}
DATABASES = list(VERSIONS)


def _settings(**database: float) -> SinkSettings:
    return SinkSettings(database=DatabaseSettings(**database))


def _sql(url: str, *statements: str) -> list[tuple[object, ...]]:
    """What the last statement gives."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)) as database:
        for statement in statements:
            rows = database.execute(statement).fetchall()
        return rows


@pytest.mark.parametrize("kind", DATABASES)
def test_tables_of_an_older_version_are_migrated_and_keep_their_rows(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url) as sink:
        sink.write([plain_trajectory(0, 0)])
    views = [f"DROP VIEW {name}" for name in ("returns_by_policy_version", "episodes", "experience")]
    columns = [f"ALTER TABLE trajectories DROP COLUMN {name}" for name in ("end_step", "last_step", "step_data")]
    _sql(url, *views, *columns, "DROP TABLE abandoned", "UPDATE relayrl_schema SET version = 1")
    if kind == "sqlite":
        _sql(url, "ALTER TABLE trajectories DROP COLUMN crc32")
    with open_sink(url) as sink:
        sink.write([plain_trajectory(0, 1)])
    assert _sql(url, "SELECT version FROM relayrl_schema") == [(VERSIONS[kind],)]
    assert _sql(url, "SELECT num_episodes, mean_return FROM returns_by_policy_version") == [(2, 20.0)]
    assert _sql(url, "SELECT count(*) FROM experience WHERE terminated") == [(2,)]


@pytest.mark.parametrize("kind", DATABASES)
def test_tables_of_a_newer_version_are_left_alone(kind: str, place: Place) -> None:
    url = place(kind)
    open_sink(url).close()
    _sql(url, "UPDATE relayrl_schema SET version = 9")
    known = f"has tables of version 9, this RelayRL knows version {VERSIONS[kind]}; update RelayRL"
    for open_it in (open_sink, open_source):
        with pytest.raises(ConfigError, match=known):
            open_it(url)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_place_without_tables_is_no_source(kind: str, place: Place) -> None:
    url = place(kind)
    with pytest.raises(ConfigError, match="holds nothing"):
        open_source(url)


@pytest.mark.parametrize("kind", DATABASES)
def test_steps_say_the_same_as_trajectories(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url) as sink:
        sink.write([plain_trajectory(0, number) for number in range(30)])
        sink.write([plain_trajectory(0, number) for number in range(30)])
    rows = _sql(url, "SELECT step, reward, policy_version, logp, value FROM steps ORDER BY trajectory, step")
    recorded = [plain_trajectory(0, number) for number in range(30)]
    columns = np.array(rows, np.float32).T
    assert columns.shape == (5, 600)
    assert columns[0].tolist() == 30 * list(range(20))
    for column, name in zip(columns[1:], ("reward", "policy_version", "logp", "value"), strict=True):
        assert column.tolist() == np.concatenate([getattr(each, name) for each in recorded]).tolist()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database at all, but long enough to look at" * 100)
    with pytest.raises(SinkError, match="cannot open"):
        open_sink(f"sqlite:{tmp_path / 'file'}")
    with pytest.raises(ConfigError, match="is no database of RelayRL"):
        open_source(f"sqlite:{tmp_path / 'file'}")


def test_a_locked_file_is_waited_for_and_then_given_back_to_the_caller(place: Place) -> None:
    url = place("sqlite")
    with open_sink(url, _settings(connect_timeout_s=0.05, retry_deadline_s=0.2)) as sink:
        with closing(sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            sink.write([plain_trajectory(0, 0)])
            with pytest.raises(SinkWriteError, match="database is locked"):
                sink.flush()
            other.execute("ROLLBACK")
        sink.flush()
    with open_source(url) as source:
        assert source.count() == SourceCount(1, 20)


def test_of_two_writers_of_a_trajectory_one_starts_over_and_finds_it(postgres: PostgresServer) -> None:
    url = postgres.new_place()
    with open_sink(url) as sink, psycopg.connect(url) as other:
        sink.write([plain_trajectory(0, 0)])
        sink.flush()
        columns = (
            "env_id, layout, agent_group, agent_id, episode, first_step, num_steps, terminated, truncated, failed, "
        )
        columns += (
            "min_policy_version, max_policy_version, episode_return, reward_data, policy_version_data, obs_data, "
        )
        columns += "action_data, action_mask_data, logp_data, value_data, memory_data, final_obs_data"
        new_id = plain_trajectory(0, 1).trajectory_id
        other.execute(
            f"INSERT INTO trajectories (trajectory_id, {columns}) SELECT '{new_id}', {columns} FROM trajectories"
        )
        sink.write([plain_trajectory(0, 1), plain_trajectory(0, 2)])
        flush = threading.Thread(target=sink.flush)
        flush.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'relayrl' AND wait_event_type = 'Lock'"
        wait_until(lambda: _sql(url, waiting))
        other.commit()
        flush.join(DEADLINE_S)
    assert _sql(url, "SELECT count(*), count(DISTINCT trajectory_id) FROM trajectories") == [(3, 3)]


def test_a_server_that_stays_away_is_an_error_after_the_deadline_and_loses_nothing(postgres: PostgresServer) -> None:
    url = postgres.new_place()
    with open_sink(url, _settings(retry_deadline_s=0.3, max_delay_s=0.1)) as sink:
        sink.write([plain_trajectory(0, 0)])
        postgres.kill()
        try:
            with pytest.raises(SinkWriteError, match=r"after \d+ retries") as failure:
                sink.flush()
            assert failure.value.num_trajectories == 1
            with pytest.raises(SinkError, match="is the server running"):
                open_sink(url)
        finally:
            postgres.restart()
        sink.flush()
    with open_source(url) as source:
        assert [difference(each, plain_trajectory(0, 0)) for each in source] == [None]


def test_a_server_process_that_hangs_is_cut_off_and_another_one_asked(postgres: PostgresServer) -> None:
    url = postgres.new_place()
    with open_sink(url, _settings(statement_timeout_s=0.3, retry_deadline_s=60.0)) as sink:
        (pid,) = postgres.backend_pids()
        sink.write([plain_trajectory(0, 0)])
        os.kill(pid, signal.SIGSTOP)
        try:
            sink.flush()
        finally:
            os.kill(pid, signal.SIGCONT)
    with open_source(url) as source:
        assert source.count() == SourceCount(1, 20)


def test_commits_are_durable_even_where_the_server_says_otherwise(postgres: PostgresServer) -> None:
    with connect(f"{postgres.new_place()}%20-csynchronous_commit%3Doff", timeout_s=5.0) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_pauses_double_up_to_a_limit_and_end_at_the_deadline() -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    settings = DatabaseSettings(first_delay_s=1.0, max_delay_s=3.0, retry_deadline_s=10.0)
    back_off = BackOff(settings, clock=lambda: now[0], sleep=sleep, chance=lambda: 1.0)
    while back_off.wait():
        pass
    assert pauses == [1.0, 2.0, 3.0, 3.0, 1.0]
    assert back_off.num_waits == 5


@pytest.mark.parametrize("kind", DATABASES)
def test_a_database_from_before_there_were_marks_is_read_as_it_is(kind: str, place: Place) -> None:
    url = place(kind)
    with open_sink(url) as sink:
        sink.write([plain_trajectory(0, 0)])
    views = [f"DROP VIEW {name}" for name in ("returns_by_policy_version", "episodes", "experience")]
    _sql(url, *views, "DROP TABLE abandoned", "UPDATE relayrl_schema SET version = 2")
    with open_source(url) as source:
        assert [each.episode for each in source] == [0]
        assert source.count().num_steps == 20
        assert source.abandoned() == frozenset()
    assert _sql(url, "SELECT version FROM relayrl_schema") == [(2,)]


@pytest.mark.parametrize("kind", DATABASES)
def test_views_leave_out_what_was_abandoned(kind: str, place: Place) -> None:
    url = place(kind)
    recorded = [plain_trajectory(0, number) for number in range(3)]
    with open_sink(url) as sink:
        sink.write(recorded)
        sink.flush()
        sink.abandon([recorded[1].trajectory_id])
    assert _sql(url, "SELECT sum(num_episodes) FROM returns_by_policy_version") == [(2,)]
    assert _sql(url, "SELECT count(*) FROM experience") == [(40,)]
    assert _sql(url, "SELECT count(*) FROM steps") == [(60,)]
