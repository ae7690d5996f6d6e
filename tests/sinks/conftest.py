"""A real PostgreSQL server for the tests of this folder, and the strategies of the data tests."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test process, on a socket of its own; stopped at the end."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """`place("arrow")` is the URL of an empty place of that kind."""

    def make(kind: str) -> str:
        if kind == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            return server.new_place()
        return f"{kind}:{uuid.uuid4().hex if kind == 'memory' else tmp_path / uuid.uuid4().hex}"

    return make
