"""The queries of docs/sinks.md run as they stand there and give the right numbers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from recorded_steps import plain_trajectory

from relayrl.sinks.contract import open_sink

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
QUERIES = [
    (engine, sql)
    for engines, sql in re.findall(r"<!-- runs in: ([a-z ]+) -->\n```sql\n(.*?)```", PAGE, re.DOTALL)
    for engine in engines.split()
]
KINDS = {"sqlite": "sqlite", "postgresql": "postgresql", "duckdb": "parquet"}


@pytest.fixture
def run(place: Callable[[str], str]) -> Callable[[str, str], list[tuple[Any, ...]]]:
    """Runs a query over 25 episodes of 20 steps with reward 1, of the policies 0, 1 and 2; some were recorded twice."""

    def run_in(engine: str, sql: str) -> list[tuple[Any, ...]]:
        url = place(KINDS[engine])
        with open_sink(url) as sink:
            sink.write([plain_trajectory(0, number) for number in range(25)])
        with open_sink(url) as sink:
            sink.write([plain_trajectory(0, number) for number in range(5)])
        if engine == "postgresql":
            with psycopg.connect(url) as connection:
                return connection.execute(sql.encode()).fetchall()
        path = url.partition(":")[2]
        if engine == "sqlite":
            with closing(sqlite3.connect(path)) as database:
                return database.execute(sql).fetchall()
        return duckdb.sql(sql.replace("DIR", path)).fetchall()

    return run_in


def test_every_sql_block_says_where_it_runs() -> None:
    assert len(re.findall(r"```sql\n", PAGE)) == len(re.findall(r"<!-- runs in: ", PAGE)) == 7
    assert {engine for engine, _ in QUERIES} == set(KINDS)


@pytest.mark.parametrize(("engine", "sql"), QUERIES, ids=[f"{engine}-{i}" for i, (engine, _) in enumerate(QUERIES)])
def test_documented_queries_run(engine: str, sql: str, run: Callable[[str, str], list[tuple[Any, ...]]]) -> None:
    rows = run(engine, sql)
    assert rows
    if "mean_return" in sql:
        assert rows == [(0, 10, 20.0), (1, 10, 20.0), (2, 5, 20.0)]
    if "mean_reward" in sql:
        assert rows == [(step, 1.0, 5) for step in range(20)]
    if "num_steps\nFROM steps" in sql:
        assert sum(row[2] for row in rows) == 500
