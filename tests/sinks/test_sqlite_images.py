"""Images are databases that SQLite itself finds nothing wrong with, whatever their length."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from relayrl.sinks.databases.sqlite_image import image_of, table_capacity


def opened(tables):
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(image_of(tables).data)
    return connection


@pytest.mark.parametrize("num_rows", [1, 2, 1_700, 1_701, 60_000])
def test_rows_come_back(num_rows):
    numbers = np.arange(num_rows) * 10**12 - 5
    reals = np.where(numbers % 3, numbers / 7, np.nan)
    texts = np.array([f"[{i}, 0.5]".ljust(12) for i in range(num_rows)], "S12")
    with closing(opened([[numbers, reals], [texts]])) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        expected = [(n, None if np.isnan(r) else r) for n, r in zip(numbers.tolist(), reals.tolist(), strict=True)]
        assert connection.execute("SELECT c0, c1 FROM t0 ORDER BY rowid").fetchall() == expected
        assert connection.execute("SELECT c0 FROM t1 ORDER BY rowid").fetchall() == [(t.decode(),) for t in texts]


def test_wide_rows_fill_few_to_a_page():
    columns = [np.full(1_001, b"x" * 15_000)]
    assert table_capacity(columns) == 4 * 6_553  # four to a leaf of 65,536 bytes, as many leaves as a root takes
    with closing(opened([columns])) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*), min(length(c0)) FROM t0").fetchone() == (1_001, 15_000)
